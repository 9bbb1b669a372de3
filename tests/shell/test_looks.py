"""Indexes of files are looked at by the spoke's shell: real bytes from a real hub, real Parquet."""

import asyncio
from dataclasses import replace

import pytest

from hubspoke.adapters.memory_blocks import MemoryBlockStore
from hubspoke.core.ids import ObjectName, ReadState
from hubspoke.core.layouts.probe import TAIL_BYTES
from hubspoke.spoke.service import SpokeService
from tests.core.layout_files import parquet
from tests.shell.test_spoke_service import TUNING, Hub, a_hub, a_spoke, body_of, until

GROUPS, COLUMNS, LENGTH = 20, 10, 32 << 10
FILES = [parquet(GROUPS, COLUMNS, LENGTH, seed) for seed in range(4)]
READ = (2, 7)
TAIL = 64 << 10
PREFETCHING = replace(TUNING, prefetch=True)


def name(i: int) -> ObjectName:
    return ObjectName("data", f"table/{i}.parquet")


async def put_all(hub: Hub) -> None:
    for i, content in enumerate(FILES):
        await hub.put(name(i), content)


async def read(spoke: SpokeService, i: int, offset: int, length: int) -> ReadState:
    resolved = await spoke.resolve(name(i))
    result = await spoke.read(resolved, offset, length, "client")
    assert await body_of(result) == FILES[i][offset : offset + length]
    assert result.state is not None
    return result.state


async def read_columns(spoke: SpokeService, i: int) -> list[ReadState]:
    """As pyarrow does: the end of the file, then the columns row group by row group."""
    states = [await read(spoke, i, len(FILES[i]) - TAIL, TAIL)]
    for group in range(GROUPS):
        await asyncio.sleep(0.005)  # a row group is worked on
        for c in READ:
            states.append(await read(spoke, i, 4 + (group * COLUMNS + c) * LENGTH, LENGTH))
    return states


async def test_columns_of_later_files_are_there_before_they_are_read() -> None:
    async with a_hub() as (hub, _):
        await put_all(hub)
        async with a_spoke(hub, tuning=PREFETCHING) as spoke:
            states = [await read_columns(spoke, i) for i in range(4)]
            misses = [sum(s is ReadState.MISS for s in found) for found in states]
            assert misses[0] <= 6, misses
            assert sum(misses[1:]) <= 3, misses
            shown = [s["layout"] for s in spoke.streams()]
            assert "parquet, 2 of 10 columns" in shown
            pages = 4 * (GROUPS * len(READ) * (LENGTH + 4096) + TAIL + 4096)
            assert sum(spoke.ledger.payload_bytes.values()) <= 1.05 * pages


async def test_index_that_the_disk_does_not_give_is_no_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryBlockStore()
    give, refused = store.read, 0

    def refuse(number: int, offset: int, length: int) -> bytes:
        nonlocal refused
        if length == TAIL_BYTES:
            refused += 1
            raise OSError(5, "no")
        return give(number, offset, length)

    async with a_hub() as (hub, _):
        await put_all(hub)
        async with a_spoke(hub, store, PREFETCHING) as spoke:
            monkeypatch.setattr(store, "read", refuse)
            await read_columns(spoke, 0)
            assert refused
            assert [s["layout"] for s in spoke.streams()] == [None] * len(spoke.streams())


async def test_spoke_that_closes_gives_up_looking() -> None:
    async with a_hub() as (hub, _):
        await put_all(hub)
        async with a_spoke(hub, tuning=PREFETCHING) as spoke:
            await read(spoke, 0, len(FILES[0]) - TAIL, TAIL)
            await read(spoke, 0, len(FILES[0]) - TAIL, TAIL)
        # Closed by now; a task left behind would be a warning, and so an error.


async def test_broken_footer_is_no_layout_and_no_error() -> None:
    broken = FILES[0][: -TAIL + 100] + bytes(TAIL - 108) + FILES[0][-8:]
    async with a_hub() as (hub, _):
        await hub.put(name(0), broken)
        async with a_spoke(hub, tuning=PREFETCHING) as spoke:
            resolved = await spoke.resolve(name(0))
            for _ in range(3):
                result = await spoke.read(resolved, len(broken) - TAIL, TAIL, "client")
                assert await body_of(result) == broken[-TAIL:]
            book = spoke.core.prediction.layouts.book
            obj = spoke.core.cache.current(name(0))
            assert obj is not None
            number = obj.number
            await until(lambda: not book.looks_at(number))
            assert book.get(number) is None
