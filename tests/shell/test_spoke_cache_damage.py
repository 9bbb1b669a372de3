"""Whatever happens to the files of a cache, readers get the object's bytes."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hubspoke.adapters.block_store import CacheFolder, FileBlockStore
from hubspoke.adapters.memory_blocks import FaultyBlockStore
from hubspoke.core.ids import PAGE_BYTES, ObjectName, page_span
from tests.shell.test_spoke_service import BODY, MIB, NAME, TUNING, a_hub, a_spoke, get, until

OTHER = ObjectName("data", "a/other.bin")
OTHER_BODY = BODY[::-1]
FAST = replace(TUNING, scrub_bytes_per_second=1e9, upkeep_interval_s=0.02)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "data").iterdir())


def flip_a_byte(folder: Path) -> None:
    with files(folder)[0].open("r+b") as f:
        f.seek(MIB + 5)
        byte = f.read(1)
        f.seek(MIB + 5)
        f.write(bytes([byte[0] ^ 1]))


def truncate(folder: Path) -> None:
    os.truncate(files(folder)[0], 2 * MIB + 77)


def empty(folder: Path) -> None:
    os.truncate(files(folder)[1], 0)


def exchange(folder: Path) -> None:
    a, b = files(folder)
    a.rename(folder / "x")
    b.rename(a)
    (folder / "x").rename(b)


def delete_the_index(folder: Path) -> None:
    (folder / "index").unlink()


def delete_the_data(folder: Path) -> None:
    for file in files(folder):
        file.unlink()


def delete_one_data_file(folder: Path) -> None:
    files(folder)[0].unlink()


def exchange_the_index(folder: Path) -> None:
    data = (folder / "index").read_bytes()
    (folder / "index").write_bytes(data[:24] + data[24:][::-1])


def flip_index_bytes(folder: Path) -> None:
    data = bytearray((folder / "index").read_bytes())
    for at in range(30, len(data), 97):
        data[at] ^= 0x10
    (folder / "index").write_bytes(data)


def punch_a_hole(folder: Path) -> None:
    with files(folder)[0].open("r+b") as f:
        f.seek(MIB)
        f.write(bytes(MIB))


DAMAGE = [
    flip_a_byte,
    truncate,
    empty,
    exchange,
    delete_the_index,
    delete_the_data,
    delete_one_data_file,
    exchange_the_index,
    flip_index_bytes,
    punch_a_hole,
]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_cache_gives_right_bytes(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        await hub.put(OTHER, OTHER_BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            assert await get(spoke, 0, len(BODY)) == BODY
            assert await get(spoke, 0, len(BODY), OTHER) == OTHER_BODY
        damage(tmp_path)
        for _ in range(2):
            async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
                assert await get(spoke, MIB + 5, 9) == BODY[MIB + 5 : MIB + 14]
                assert await get(spoke, 0, len(BODY)) == BODY
                assert await get(spoke, 0, len(BODY), OTHER) == OTHER_BODY
                assert spoke.core.cache.used <= spoke.core.cache.capacity


async def test_the_scrub_finds_what_rotted_and_it_is_fetched_again(tmp_path: Path) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path]), FAST) as spoke:
            assert await get(spoke, 0, len(BODY)) == BODY
            flip_a_byte(tmp_path)
            await until(lambda: spoke.ledger.corrupt_frames == 1)
            (disk,), (number,) = spoke.disks.disks, spoke.core.cache.objects
            await until(lambda: len(disk.store.allocated({number: -1})) == 2)  # a hole between
            asked, obj = len(hub.fetches), spoke.core.cache.objects[number]
            lost = {p for run in obj.not_local(0, len(obj.pages)) for p in range(*run)}
            assert MIB // PAGE_BYTES in lost
            assert await get(spoke, 0, len(BODY)) == BODY
            again = [r for fetch in hub.fetches[asked:] for r in fetch.ranges]
            assert lost == {p for r in again for p in range(*page_span(r.offset, r.length))}
            scrubbed = spoke.upkeep.scrubbed_bytes
            await until(lambda: spoke.upkeep.scrubbed_bytes > scrubbed + 2 * len(BODY))
            assert spoke.ledger.corrupt_frames == 1


async def test_the_scrub_verifies_what_a_start_found(tmp_path: Path) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            await get(spoke, 0, len(BODY))
        async with a_spoke(hub, FileBlockStore([tmp_path]), FAST) as spoke:
            obj = spoke.core.cache.current(NAME)
            assert obj is not None
            await until(lambda: obj.unverified == 0)
            assert obj.frames is None
            assert spoke.core.cache.readable(obj, 0, len(obj.pages))


def taken(folder: Path) -> int:
    """Bytes of pages in the cache's files."""
    store = FileBlockStore([folder])
    found = store.load()
    runs = store.allocated({o.number: -1 for o in found})
    store.close()
    return sum(-(-(offset + n) // 4096) * 4096 - offset for _, offset, n in runs)


def recorded(folder: Path) -> int:
    """The same as its index says."""
    store = FileBlockStore([folder])
    total = sum(-(-f.length // 4096) * 4096 for o in store.load() for f in o.frames)
    store.close()
    return total


async def test_a_frame_found_bad_on_first_touch_leaves_the_disk(tmp_path: Path) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            await get(spoke, 0, len(BODY))
        whole = taken(tmp_path)
        assert whole == recorded(tmp_path)
        flip_a_byte(tmp_path)
        no_scrub = replace(TUNING, scrub_bytes_per_second=1.0)
        async with a_spoke(hub, FileBlockStore([tmp_path]), no_scrub) as spoke:
            at = MIB + 4096
            assert await get(spoke, at, 4096) == BODY[at : at + 4096]
            assert spoke.ledger.corrupt_frames == 1
            kept = spoke.core.cache.used
            assert kept < whole
        assert taken(tmp_path) == recorded(tmp_path) == kept
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            assert await get(spoke, 0, len(BODY)) == BODY
            assert spoke.ledger.corrupt_frames == 0


async def test_what_the_disk_does_not_give_back_leaves_it_when_nobody_has_it(
    tmp_path: Path,
) -> None:
    fails: list[str] = []
    store = FaultyBlockStore(
        FileBlockStore([tmp_path]), lambda method: errno.EIO if method in fails else None
    )
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, store, FAST) as spoke:
            await get(spoke, 0, len(BODY))
            whole = spoke.core.cache.used
            fails += ["read", "read_now", "copy_now", "lend_now", "lend_file", "write"]
            assert await get(spoke, MIB, 65536) == BODY[MIB : MIB + 65536]
            assert spoke.core.cache.used < whole
            fails.clear()
            disk = spoke.disks.disks[0]
            await until(lambda: disk.health.writable)
            (number,) = spoke.core.cache.objects
            used = spoke.core.cache.used
            await until(lambda: not disk.store.allocated({number: used}))
        # A frame of which only a part was lost is not believed after a start.
        assert taken(tmp_path) == spoke.core.cache.used >= recorded(tmp_path)


async def test_what_a_killed_process_wrote_and_did_not_record_leaves_the_disk(
    tmp_path: Path,
) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            await get(spoke, 0, 2 * MIB)
        before = taken(tmp_path)
        with files(tmp_path)[0].open("r+b") as f:
            f.seek(4 * MIB - 8192)
            f.write(b"written, and killed before the index knew" * 1_000)
        assert taken(tmp_path) > before
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            (disk,) = spoke.disks.disks
            number = next(iter(spoke.core.cache.objects))
            await until(lambda: not disk.store.allocated({number: before}))
            assert await get(spoke, 0, len(BODY)) == BODY


async def test_the_scrub_keeps_to_its_rate(tmp_path: Path) -> None:
    slow = replace(FAST, scrub_bytes_per_second=1 << 20)
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path]), slow) as spoke:
            await get(spoke, 0, len(BODY))
            began = spoke.clock.now()
            await until(lambda: spoke.upkeep.scrubbed_bytes >= 3 << 18)
            assert spoke.clock.now() - began >= 0.4


async def test_a_disk_that_fills_up_makes_the_cache_smaller_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [1 << 40]
    monkeypatch.setattr(CacheFolder, "room", lambda self: room[0])
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path]), FAST) as spoke:
            await get(spoke, 0, len(BODY))
            before = spoke.core.cache.used
            room[0] = -2 * MIB
            await until(lambda: spoke.core.cache.used <= before - 2 * MIB)
            room[0] = 0
            assert await get(spoke, 0, len(BODY)) == BODY
            room[0] = 1 << 40
            await until(lambda: spoke.core.cache.limit == spoke.core.cache.capacity)


async def test_an_index_that_grew_is_compacted_and_still_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubspoke.adapters.block_store.SLOTS_SPARE", 64)
    small = replace(FAST, capacity=2 * MIB)
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path]), small) as spoke:
            for _ in range(8):
                assert await get(spoke, 0, len(BODY)) == BODY
                assert spoke.core.cache.used <= 2 * MIB
            index = tmp_path / "index"
            await until(lambda: index.stat().st_size < 24 * 200)
        async with a_spoke(hub, FileBlockStore([tmp_path]), small) as spoke:
            assert spoke.core.cache.used > 0
            assert await get(spoke, 0, len(BODY)) == BODY
            assert spoke.ledger.corrupt_frames == 0


def test_an_index_slot_cut_short_by_a_full_disk_shifts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileBlockStore([tmp_path])
    store.load()
    store.create(1, NAME, "v", 3 * MIB)  # type: ignore[arg-type] # any text is a version here
    store.write(1, 0, b"a" * 4096, 1)
    real = os.write
    with monkeypatch.context() as m:
        m.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
        with pytest.raises(OSError) as e:
            store.write(1, 4096, b"b" * 4096, 2)
        assert e.value.errno == errno.ENOSPC
    store.write(1, 8192, b"c" * 4096, 3)
    store.close()
    (o,) = FileBlockStore([tmp_path]).load()
    assert [(f.offset, f.digest) for f in o.frames] == [(0, 1), (8192, 3)]
