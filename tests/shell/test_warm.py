"""Warm jobs between a real hub over sockets and a cache: brought, dropped, counted, cancelled."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hubspoke import wire
from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.memory_blocks import FaultyBlockStore, MemoryBlockStore
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import ObjectName, ReadState
from hubspoke.core.ranking import RuleRanker
from hubspoke.errors import InvalidRequest, NoSuchBucket, Overloaded
from hubspoke.frontends.hub_protocol import HubProtocolApp
from hubspoke.frontends.s3 import S3App
from hubspoke.frontends.s3.response import buffers
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import BlockStore, NamespaceStore
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning
from hubspoke.spoke.warm_tuning import WarmTuning

MIB = 1 << 20
WARM = WarmTuning(retry_s=1.0, retry_pause_s=0.02, look_again_s=0.2)
TUNING = SpokeTuning(capacity=256 * MIB, spoke_id="s1", prefetch=False, warm=WARM)


class HeldApp(HubProtocolApp):
    """Counts what is asked of the hub, and can hold its answers back."""

    def __init__(self, hub: HubService) -> None:
        super().__init__(hub)
        self.asked = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def _fetch(self, scope, receive, send):  # type: ignore[no-untyped-def]
        self.asked += 1
        await self.hold.wait()
        await super()._fetch(scope, receive, send)


@dataclass
class Hub:
    service: HubService
    app: HeldApp
    server: HttpServer
    url: str
    port: int

    async def put(self, path: str, size: int, seed: int = 0) -> bytes:
        body = random.Random(f"{path} {seed}").randbytes(size)

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        await self.service.put(name(path), {}, chunks())
        return body


def name(path: str) -> ObjectName:
    return ObjectName(*path.split("/", 1))


@asynccontextmanager
async def a_hub() -> AsyncIterator[Hub]:
    store = MemoryObjectStore(["data", "logs"])
    service = HubService(
        store, MemoryNamespace(keep_log=True), BootClock(), HubTuning(stranger_term_s=0.0)
    )
    await service.start()
    app = HeldApp(service)
    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(S3App(service, service, inner={wire.PREFIX: app}), sock, "--listen")
    await server.start()
    where = address(sock)
    try:
        yield Hub(service, app, server, f"http://{where}", int(where.rpartition(":")[2]))
    finally:
        app.hold.set()
        service.end_feeds()
        await server.stop()
        await service.close()


@asynccontextmanager
async def a_spoke(
    hub: Hub,
    tuning: SpokeTuning = TUNING,
    blocks: BlockStore | None = None,
    namespace: NamespaceStore | None = None,
) -> AsyncIterator[SpokeService]:
    link = AiohttpHubLink(hub.url, tuning.spoke_id, tuning.pacing.lanes)
    namespace = MemoryNamespace(keep_log=False) if namespace is None else namespace
    store = blocks or MemoryBlockStore()
    spoke = SpokeService(link, namespace, store, BootClock(), RuleRanker(), tuning)
    await spoke.start()
    try:
        await until(lambda: not spoke.ready())
        yield spoke
    finally:
        await spoke.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - states of the product, which have no event
            await asyncio.sleep(0.001)


async def ended(spoke: SpokeService, job_id: str, timeout_s: float = 20.0) -> dict[str, Any]:
    async with asyncio.timeout(timeout_s):
        while True:
            document = spoke.warm.job(job_id)
            assert document is not None
            if document["state"] not in ("matching", "running"):
                return document
            await asyncio.sleep(0.005)


async def run(spoke: SpokeService, action: Any, *paths: str, force: bool = False) -> dict[str, Any]:
    started = await spoke.warm.start(action, list(paths), force=force)
    return await ended(spoke, started["id"])


async def read(spoke: SpokeService, path: str, length: int) -> tuple[ReadState | None, bytes]:
    return await part(spoke, path, 0, length)


async def part(
    spoke: SpokeService, path: str, offset: int, length: int
) -> tuple[ReadState | None, bytes]:
    result = await spoke.read(await spoke.resolve(name(path)), offset, length, "c")
    return result.state, b"".join([piece async for piece in buffers(result.body)])


async def test_what_is_warm_is_a_hit() -> None:
    async with a_hub() as hub:
        bodies = {
            f"data/train/{i}": await hub.put(f"data/train/{i}", 70_000 + i) for i in range(30)
        }
        await hub.put("data/train/empty", 0)
        await hub.put("data/other", 5_000)
        async with a_spoke(hub) as spoke:
            document = await run(spoke, "warm", "data/train")
            assert document["state"] == "done"
            assert document["objects"] == document["cached_objects"] == 31
            assert document["bytes"] == document["cached_bytes"] == sum(map(len, bodies.values()))
            assert document["fetched_bytes"] == document["bytes"]
            asked = hub.app.asked
            for path, body in bodies.items():
                assert await read(spoke, path, len(body)) == (ReadState.HIT, body)
            assert hub.app.asked == asked
            assert (await read(spoke, "data/other", 5_000))[0] is ReadState.MISS
            # Warming is no prediction, and what it brought is not wasted.
            assert spoke.ledger.prefetch_issued_bytes == spoke.ledger.prefetch_used_bytes == 0


async def test_a_large_object_comes_in_pieces_and_only_what_is_missing() -> None:
    async with a_hub() as hub:
        body = await hub.put("data/big", 20 * MIB + 77)
        async with a_spoke(hub) as spoke:
            await part(spoke, "data/big", 3 * MIB, MIB)
            big = await spoke.resolve(name("data/big"))
            async with asyncio.timeout(10):
                while spoke.cached_bytes(big) < MIB:  # answered from memory before it is stored
                    await spoke.disks.written(10)
            document = await run(spoke, "warm", "data/big")
            assert document["state"] == "done", document
            assert document["fetched_bytes"] == len(body) - MIB
            payload = (await spoke.facts()).wan.payload_bytes
            assert payload == len(body)


async def test_check_tells_how_much_of_each_path_is_there() -> None:
    async with a_hub() as hub:
        for path in ("data/a/1", "data/a/2", "data/b/1", "logs/x"):
            await hub.put(path, 8192)
        async with a_spoke(hub) as spoke:
            await read(spoke, "data/a/1", 8192)
            await read(spoke, "data/b/1", 4096)
            document = await run(spoke, "check", "data/a", "data/b/*", "**", "data/nothing")
            assert document["state"] == "done"
            assert (document["objects"], document["cached_objects"]) == (4, 1)
            assert document["cached_bytes"] == 12288
            assert document["unmatched"] == ["data/nothing"]
            fractions = {p["path"]: p["cached_fraction"] for p in document["paths"]}
            assert fractions == {
                "data/a": 0.5, "data/b/*": 0.5, "**": 0.375, "data/nothing": None
            }  # fmt: skip
            assert hub.app.asked == 2, "a check asks nothing of the hub"


async def test_evict_frees_what_is_not_in_use() -> None:
    async with a_hub() as hub:
        body = await hub.put("data/a", 6 * MIB)
        await hub.put("data/b", MIB)
        async with a_spoke(hub) as spoke:
            await run(spoke, "warm", "data")
            obj = spoke.core.cache.current(name("data/a"))
            assert obj is not None
            spoke.core.cache.pin(obj, 0, 1)
            document = await run(spoke, "evict", "data/a")
            assert document["state"] == "done"
            assert (document["freed_bytes"], document["in_use_bytes"]) == (5 * MIB, MIB)
            assert spoke.core.cache.used == 2 * MIB
            spoke.core.cache.unpin(obj, 0, 1)
            document = await run(spoke, "evict", "data/a")
            assert (document["freed_bytes"], document["in_use_bytes"]) == (MIB, 0)
            assert await read(spoke, "data/a", MIB) == (ReadState.MISS, body[:MIB])


async def test_what_was_evicted_stays_away_after_a_restart(tmp_path: Path) -> None:
    async with a_hub() as hub:
        await hub.put("data/a", 3 * MIB)
        body = await hub.put("data/b", 3 * MIB)
        async with a_spoke(hub, blocks=FileBlockStore([tmp_path])) as spoke:
            await run(spoke, "warm", "data")
            await run(spoke, "evict", "data/a")
        async with a_spoke(hub, blocks=FileBlockStore([tmp_path])) as spoke:
            document = await run(spoke, "check", "data/a", "data/b")
            assert [p["cached_bytes"] for p in document["paths"]] == [0, 3 * MIB]
            assert (await run(spoke, "warm", "data"))["fetched_bytes"] == 3 * MIB
            assert (await read(spoke, "data/b", MIB))[1] == body[:MIB]


async def test_no_match_is_an_error_and_a_missing_path_is_told() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", 100)
        async with a_spoke(hub) as spoke:
            document = await run(spoke, "warm", "data/x", "nothing")
            assert document["state"] == "failed"
            assert document["failure"] == {
                "code": "no_match",
                "message": "no object matches 'data/x', 'nothing'",
            }
            document = await run(spoke, "warm", "data/a", "data/x")
            assert document["state"] == "done"
            assert (document["unmatched_count"], document["unmatched"]) == (1, ["data/x"])


async def test_more_than_the_cache_holds_is_refused_up_front() -> None:
    async with a_hub() as hub:
        for i in range(6):
            await hub.put(f"data/{i}", 4 * MIB)
        async with a_spoke(hub, replace(TUNING, capacity=16 * MIB)) as spoke:
            document = await run(spoke, "warm", "data")
            assert document["failure"]["code"] == "too_large"
            assert hub.app.asked == 0
            document = await run(spoke, "warm", "data", force=True)
            assert document["failure"]["code"] == "too_large"
            assert document["cached_objects"] == 3
            assert spoke.core.cache.used == 12 * MIB
            assert (await run(spoke, "warm", "data/5"))["state"] == "done", "one more fits"


async def test_unread_data_is_dropped_only_by_force_and_read_data_without() -> None:
    async with a_hub() as hub:
        for i in range(4):
            await hub.put(f"data/{i}", 6 * MIB)
        async with a_spoke(hub, replace(TUNING, capacity=16 * MIB)) as spoke:
            await run(spoke, "warm", "data/0", "data/1")
            document = await run(spoke, "warm", "data/2")
            assert document["failure"]["code"] == "no_room"
            assert "is still to be read; force drops it" in document["failure"]["message"]
            check = await run(spoke, "check", "data/0", "data/1")
            assert check["cached_fraction"] == 1.0
            for offset in range(0, 6 * MIB, MIB):
                await part(spoke, "data/0", offset, MIB)
            document = await run(spoke, "warm", "data/1", "data/2")
            assert document["state"] == "done", document
            document = await run(spoke, "warm", "data/3", force=True)
            assert document["state"] == "done", document


async def test_warming_again_keeps_what_it_means_although_it_was_read() -> None:
    async with a_hub() as hub:
        for i in range(4):
            await hub.put(f"data/{i}", 4 * MIB)
        async with a_spoke(hub, replace(TUNING, capacity=16 * MIB)) as spoke:
            await run(spoke, "warm", "data/0", "data/1", "data/2")
            for i in range(3):
                for offset in range(0, 4 * MIB, MIB):
                    await part(spoke, f"data/{i}", offset, MIB)
            document = await run(spoke, "warm", "data")
            assert document["state"] == "done"
            assert document["fetched_bytes"] == 4 * MIB, "nothing of it was fetched twice"


async def test_cancel_keeps_what_has_arrived_and_stops() -> None:
    async with a_hub() as hub:
        for i in range(40):
            await hub.put(f"data/{i:02}", 2 * MIB)
        tuning = replace(TUNING, warm=replace(WARM, window_bytes=4 * MIB))
        async with a_spoke(hub, tuning) as spoke:
            started = await spoke.warm.start("warm", ["data"])
            await until(lambda: spoke.core.cache.used >= 6 * MIB)
            document = await spoke.warm.cancel(started["id"])
            assert document is not None and document["state"] == "cancelled"
            await until(lambda: not spoke.core.scheduler._warming.total())
            asked, used = hub.app.asked, spoke.core.cache.used
            assert 6 * MIB <= used < 40 * MIB
            await asyncio.sleep(0.2)
            assert (hub.app.asked, spoke.core.cache.used) == (asked, used)
            assert spoke.warm._window.pieces == spoke.warm._window.bytes == 0
            again = await spoke.warm.cancel(started["id"])
            assert again is not None and again["state"] == "cancelled"
            assert (await run(spoke, "warm", "data"))["state"] == "done"


async def test_objects_that_change_while_warming_are_warm_in_their_new_version() -> None:
    async with a_hub() as hub:
        for i in range(20):
            await hub.put(f"data/{i:02}", MIB)
        async with a_spoke(hub) as spoke:
            hub.app.hold.clear()
            started = await spoke.warm.start("warm", ["data"])
            await until(lambda: hub.app.asked >= 2)
            changed = {f"data/{i:02}": await hub.put(f"data/{i:02}", MIB, seed=1) for i in (0, 7)}
            changed["data/20"] = await hub.put("data/20", MIB)
            await hub.service.delete(name("data/19"))
            hub.app.hold.set()
            document = await ended(spoke, started["id"])
            assert document["state"] == "done", document
            assert document["objects"] == document["cached_objects"] == 20
            for path, body in changed.items():
                assert await read(spoke, path, MIB) == (ReadState.HIT, body)


async def test_a_hub_that_stays_away_fails_the_job_within_its_budget() -> None:
    async with a_hub() as hub:
        for i in range(10):
            await hub.put(f"data/{i}", MIB)
        async with a_spoke(hub) as spoke:
            await run(spoke, "warm", "data/0")
            hub.service.end_feeds()
            await hub.server.stop()
            document = await run(spoke, "warm", "data")
            assert document["state"] == "failed"
            assert document["failure"]["code"] == "hub_unavailable"
            assert "nothing arrived for 1 s" in document["failure"]["message"]
            assert document["cached_objects"] == 1
            assert spoke.warm._window.pieces == spoke.warm._window.bytes == 0


async def test_a_cache_that_takes_no_data_fails_the_job_within_its_budget() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", 5 * MIB)
        full = FaultyBlockStore(
            MemoryBlockStore(), lambda method: errno.ENOSPC if method == "write" else None
        )
        async with a_spoke(hub, blocks=full) as spoke:
            document = await run(spoke, "warm", "data")
            assert document["failure"]["code"] == "cache_unavailable", document
            assert document["cached_bytes"] == 0
            await until(lambda: spoke.core.cache.used == 0)


async def test_jobs_are_bounded_and_old_ones_forgotten() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", MIB)
        tuning = replace(TUNING, warm=replace(WARM, jobs_max=2, finished_max=3))
        async with a_spoke(hub, tuning) as spoke:
            hub.app.hold.clear()
            ids = [(await spoke.warm.start("warm", ["data"]))["id"] for _ in range(2)]
            with pytest.raises(Overloaded, match="2 warm jobs are running"):
                await spoke.warm.start("check", ["data"])
            with pytest.raises(InvalidRequest, match=r"data/\[a"):
                await spoke.warm.start("check", ["data/[a"])
            hub.app.hold.set()
            for job_id in ids:
                await ended(spoke, job_id)
            for _ in range(6):
                await run(spoke, "check", "data")
            assert [job["id"] for job in spoke.warm.jobs()] == ["w8", "w7", "w6"]
            assert spoke.warm.job("w1") is None and await spoke.warm.cancel("w1") is None


async def test_one_thread_asks_for_one_piece_at_a_time() -> None:
    async with a_hub() as hub:
        for i in range(5):
            await hub.put(f"data/{i}", 10_000)
        async with a_spoke(hub) as spoke:
            started = await spoke.warm.start("warm", ["data"], threads=1)
            hub.app.hold.clear()
            await asyncio.sleep(0.1)
            assert spoke.warm._window.pieces <= 1 and hub.app.asked <= 1
            hub.app.hold.set()
            assert (await ended(spoke, started["id"]))["state"] == "done"


async def test_usage_counts_each_sub_prefix_and_goes_on_where_it_stopped() -> None:
    async with a_hub() as hub:
        for i in range(100):
            await hub.put(f"data/d{i % 5}/{i:03}", 4096)
        await hub.put("data/top", 10)
        await hub.put("logs/x", 10)
        async with a_spoke(hub) as spoke:
            await run(spoke, "warm", "data/d1")
            whole = await spoke.warm.usage("data", "", 100)
            assert [(e["name"], e["kind"], e["objects"]) for e in whole["entries"]] == [
                *((f"data/d{i}/", "prefix", 20) for i in range(5)),
                ("data/top", "object", 1),
            ]
            assert [e["cached_fraction"] for e in whole["entries"]] == [0, 1, 0, 0, 0, 0]
            assert not whole["truncated"] and whole["next"] is None
            buckets = await spoke.warm.usage("", "", 100)
            assert [(e["name"], e["objects"]) for e in buckets["entries"]] == [
                ("data/", 101),
                ("logs/", 1),
            ]
            part = await spoke.warm.usage("data/d", "", 2)
            assert [e["name"] for e in part["entries"]] == ["data/d0/", "data/d1/"]
            assert part["truncated"]
            rest = await spoke.warm.usage("data/d", part["next"], 100)
            assert [e["name"] for e in rest["entries"]] == [f"data/d{i}/" for i in (2, 3, 4)]
            middle = await spoke.warm.usage("data", "data/d3/050", 100)
            assert [(e["objects"], e["complete"]) for e in middle["entries"]] == [
                (10, False),
                (20, True),
                (1, True),
            ]
            with pytest.raises(NoSuchBucket):
                await spoke.warm.usage("nothing/", "", 10)
            with pytest.raises(InvalidRequest):
                await spoke.warm.usage("data/", "logs/x", 10)
