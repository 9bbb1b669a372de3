"""A spoke that does not read what it is told holds up nobody and costs the hub no memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from hubspoke import wire
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName
from tests.hub_bench import TUNING, HubBench, body, running_spoke, until

CHANGES = 6000
HEADERS = {"x-amz-meta-note": "n" * 2000}
TOLD_BYTES = CHANGES * 2000  # at least, if all of it were told


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubBench]:
    tuning = replace(TUNING, tail_entries_max=64, feed_batch=100)
    bench = HubBench(tmp_path / "hub", MemoryObjectStore(["bkt"]), tuning)
    await bench.start()
    yield bench
    await bench.stop()


async def change_much(hub: HubBench) -> None:
    async def some(start: int) -> None:
        for i in range(start, CHANGES, 50):
            await hub.hub.put(ObjectName("bkt", f"k{i % 500:03}"), dict(HEADERS), body(b"x"))

    await asyncio.gather(*(some(start) for start in range(50)))


async def test_a_feed_that_is_not_read_holds_up_nobody_and_is_told_to_begin_anew(
    hub: HubBench, tmp_path: Path
) -> None:
    epoch = hub.hub.facts().epoch
    url = f"{hub.url}{wire.PREFIX}feed?epoch={epoch}&after=0&spoke=deaf"
    async with (
        running_spoke(hub.url, tmp_path / "s") as spoke,
        aiohttp.ClientSession(read_bufsize=1 << 14, auto_decompress=False) as session,
        session.get(url) as deaf,
    ):
        await spoke.fresh()
        async with asyncio.timeout(60):
            await change_much(hub)
        await until(lambda: spoke.follower.sequence == CHANGES, "the other spoke is level")
        await spoke.fresh()
        assert hub.hub.facts().requests["snapshot"] == 1
        read = 0
        async with asyncio.timeout(30):
            while True:
                data = await deaf.content.readexactly(
                    wire.message_length(await deaf.content.readexactly(4))
                )
                read += len(data)
                message = wire.decode(data)
                if isinstance(message, wire.FeedResync):
                    break
        assert "the log has dropped sequence" in message.reason
        assert await deaf.content.read() == b""
        assert read < TOLD_BYTES / 2  # what lay in sockets; the rest was never made
