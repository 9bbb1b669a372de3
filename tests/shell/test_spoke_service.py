"""The spoke's shell between a real hub over real sockets and a block store."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hubspoke import wire
from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.memory_blocks import MemoryBlockStore
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import ObjectName, ReadState
from hubspoke.core.ranking import RuleRanker
from hubspoke.errors import HubBusy, NoSuchKey, Overloaded, VersionChanged
from hubspoke.frontends.hub_protocol import HubProtocolApp
from hubspoke.frontends.s3 import S3App
from hubspoke.frontends.s3.response import buffers
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import BlockStore, ReadResult
from hubspoke.spoke import filler, reads
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning

MIB = 1 << 20
NAME = ObjectName("data", "a/tokens.bin")
BODY = random.Random(0).randbytes(6 * MIB + 123)
TUNING = SpokeTuning(capacity=256 * MIB, spoke_id="s1", prefetch=False, read_deadline_s=10.0)


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


@dataclass
class Hub:
    service: HubService
    store: MemoryObjectStore
    url: str
    fetches: list[wire.FetchRequest]

    async def put(self, name: ObjectName, body: bytes) -> None:
        await self.service.put(name, {}, chunks(body))


class CountingApp(HubProtocolApp):
    """Keeps what was asked of the hub, and can hold its answers back."""

    def __init__(self, hub: HubService, fetches: list[wire.FetchRequest]) -> None:
        super().__init__(hub)
        self._asked = fetches
        self.hold = asyncio.Event()
        self.hold.set()
        self.refuse = 0  # so many fetches, as when too many are being answered

    async def _fetch(self, scope, receive, send):  # type: ignore[no-untyped-def]
        event = await receive()
        message = wire.decode(event["body"])
        assert isinstance(message, wire.FetchRequest)
        self._asked.append(message)
        if self.refuse:
            self.refuse -= 1
            raise Overloaded("too many fetches")
        events = [event]

        async def again():  # type: ignore[no-untyped-def]
            return events.pop() if events else await receive()

        await self.hold.wait()
        await super()._fetch(scope, again, send)


@asynccontextmanager
async def a_hub() -> AsyncIterator[tuple[Hub, CountingApp]]:
    store = MemoryObjectStore(["data"])
    service = HubService(
        store, MemoryNamespace(keep_log=True), BootClock(), HubTuning(stranger_term_s=0.0)
    )
    await service.start()
    fetches: list[wire.FetchRequest] = []
    app = CountingApp(service, fetches)
    sock = bind("127.0.0.1", 0, "--listen")
    server = HttpServer(S3App(service, service, inner={wire.PREFIX: app}), sock, "--listen")
    await server.start()
    try:
        yield Hub(service, store, f"http://{address(sock)}", fetches), app
    finally:
        app.hold.set()
        service.end_feeds()
        await server.stop()
        await service.close()


@asynccontextmanager
async def a_spoke(
    hub: Hub, blocks: BlockStore | None = None, tuning: SpokeTuning = TUNING
) -> AsyncIterator[SpokeService]:
    link = AiohttpHubLink(hub.url, tuning.spoke_id, tuning.pacing.lanes)
    spoke = SpokeService(
        link,
        MemoryNamespace(keep_log=False),
        blocks or MemoryBlockStore(),
        BootClock(),
        RuleRanker(),
        tuning,
    )
    await spoke.start()
    try:
        await until(lambda: not spoke.ready())
        yield spoke
    finally:
        await spoke.close()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a state of the product, which has no event for tests
            await asyncio.sleep(0.005)


async def body_of(result: ReadResult) -> bytes:
    return b"".join([piece async for piece in buffers(result.body)])


async def get(spoke: SpokeService, offset: int, length: int, name: ObjectName = NAME) -> bytes:
    resolved = await spoke.resolve(name)
    return await body_of(await spoke.read(resolved, offset, length, "c"))


async def test_a_miss_then_a_hit_with_exact_bytes() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            resolved = await spoke.resolve(NAME)
            first = await spoke.read(resolved, 5_000, 10_000, "c")
            # A slow disk is not waited for: the bytes may be told before they are written.
            obj = spoke.core.cache.current(NAME)
            assert obj is not None
            await until(lambda: spoke.core.missing(obj, 5_000, 10_000) == 0)
            again = await spoke.read(resolved, 5_000, 10_000, "c")
            assert (first.state, again.state) == (ReadState.MISS, ReadState.HIT)
            assert await body_of(first) == await body_of(again) == BODY[5_000:15_000]
            tail = await get(spoke, len(BODY) - 10, 10)
            assert tail == BODY[-10:]
    (one, two) = hub.fetches
    assert [(r.offset, r.length) for r in one.ranges] == [(4096, 12288)]
    assert [(r.offset, r.length) for r in two.ranges] == [(6 * MIB, 123)]


async def test_many_readers_of_one_range_cause_one_fetch() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            app.hold.clear()
            reads = [asyncio.create_task(get(spoke, 0, 100_000)) for _ in range(80)]
            await until(lambda: len(hub.fetches) > 0)
            app.hold.set()
            assert all(b == BODY[:100_000] for b in await asyncio.gather(*reads))
            asked = [r for f in hub.fetches for r in f.ranges]
            assert sum(r.length for r in asked) == 102_400
            assert spoke.ledger.requests[ReadState.MISS] == 1
            assert spoke.ledger.requests[ReadState.LATE] == 79


async def test_reads_that_come_together_are_asked_for_together() -> None:
    """Each by itself was a request of its own, up to four on every lane."""
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            app.hold.clear()
            places = [7 * 4096 * i for i in range(200)]
            readers = [asyncio.create_task(get(spoke, place, 4096)) for place in places]

            def asked() -> int:
                return sum(len(f.ranges) for f in hub.fetches)

            # The first leave before the last have asked: a lane is asked three times.
            await until(lambda: asked() >= TUNING.pacing.lanes)
            app.hold.set()
            found = await asyncio.gather(*readers)
            assert found == [BODY[place : place + 4096] for place in places]
            assert asked() == 200
            assert len(hub.fetches) <= 3 * TUNING.pacing.lanes


async def test_a_fetch_that_a_busy_hub_refuses_is_asked_again() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, tuning=replace(TUNING, fetch_attempts=1)) as spoke:
            app.refuse = 3
            assert await get(spoke, 0, 4096) == BODY[:4096]
            assert len(hub.fetches) == 4


async def test_a_hub_that_stays_busy_is_an_error_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filler, "BUSY_RETRY_S", 0.2)
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, tuning=replace(TUNING, fetch_attempts=1)) as spoke:
            app.refuse = 1000
            with pytest.raises(HubBusy, match="too many fetches"):
                await get(spoke, 0, 4096)
            assert len(hub.fetches) == 3
            app.refuse = 0
            assert await get(spoke, 0, 4096) == BODY[:4096]


async def test_a_cancelled_reader_leaves_the_flight_running() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            app.hold.clear()
            first = asyncio.create_task(get(spoke, 0, 4096))
            second = asyncio.create_task(get(spoke, 0, 4096))
            await until(lambda: len(hub.fetches) > 0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            app.hold.set()
            assert await second == BODY[:4096]
            assert len(hub.fetches) == 1


async def test_a_long_read_streams_and_is_exact() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            assert await get(spoke, 17, len(BODY) - 17) == BODY[17:]
            assert spoke.ledger.requests_total == 1
            assert spoke.ledger.unique_bytes == len(BODY)


async def test_the_first_bytes_of_a_long_read_are_asked_for_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prediction, which follows the access at once, does not send the rest with them."""
    monkeypatch.setattr(reads, "HEAD_START_S", 0.3)
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            app.hold.clear()
            reading = asyncio.create_task(get(spoke, 0, len(BODY)))
            await asyncio.sleep(0.15)
            assert [sum(r.length for r in f.ranges) for f in hub.fetches] == [reads.FIRST_BYTES]
            await asyncio.sleep(0.3)
            assert len(hub.fetches) > 1, "the rest is not sent"
            app.hold.set()
            assert await reading == BODY


async def test_a_large_object_streams_through_a_small_cache() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY * 4)
        tuning = replace(TUNING, capacity=8 * MIB, window_bytes=4 * MIB)
        async with a_spoke(hub, tuning=tuning) as spoke:
            assert await get(spoke, 0, 4 * len(BODY)) == BODY * 4
            assert spoke.core.cache.used <= 8 * MIB


async def test_an_overwrite_is_read_after_it_is_acknowledged() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            for round_ in range(20):
                body = bytes([round_]) * 8192
                await hub.put(NAME, body)
                assert await get(spoke, 0, 8192) == body


async def test_a_reader_of_a_replaced_version_is_told() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            resolved = await spoke.resolve(NAME)
            await hub.put(NAME, BODY[::-1])
            with pytest.raises(VersionChanged):
                await spoke.read(resolved, 0, 4096, "c")


async def test_a_long_read_whose_version_goes_between_two_pieces_is_told() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            await get(spoke, 0, len(BODY))
            result = await spoke.read(await spoke.resolve(NAME), 0, len(BODY), "c")
            assert isinstance(result.body, AsyncIterator)
            body = aiter(result.body)
            first = await anext(body)
            assert isinstance(first, bytes) and first == BODY[: len(first)]
            await hub.put(NAME, BODY[::-1])
            # Nothing holds the old version between two pieces: it is out of the cache by now.
            await until(lambda: spoke.core.cache.used == 0)
            with pytest.raises(VersionChanged):
                while True:
                    await anext(body)


async def test_deleted_objects_are_absent_and_free_their_cache() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            await get(spoke, 0, MIB)
            await hub.service.delete(NAME)
            with pytest.raises(NoSuchKey):
                await spoke.resolve(NAME)
            assert spoke.core.cache.used == 0


async def test_a_restart_is_warm_and_checks_what_it_finds(tmp_path: Path) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            await get(spoke, 0, 2 * MIB)
        asked = len(hub.fetches)
        (data,) = (tmp_path / "data").iterdir()
        with data.open("r+b") as f:
            f.seek(MIB + 5)
            f.write(b"\xff\x00\xff")
        async with a_spoke(hub, FileBlockStore([tmp_path])) as spoke:
            assert await get(spoke, 0, MIB) == BODY[:MIB]
            assert len(hub.fetches) == asked
            assert await get(spoke, MIB, MIB) == BODY[MIB : 2 * MIB]
            again = hub.fetches[asked:]
            assert 0 < sum(r.length for f in again for r in f.ranges) <= 256 << 10  # one frame
            assert spoke.ledger.corrupt_frames == 1


async def test_prefetch_brings_the_next_reads_before_they_come() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, tuning=replace(TUNING, prefetch=True)) as spoke:
            for offset in range(0, 64 * 8192, 8192):
                assert await get(spoke, offset, 8192) == BODY[offset : offset + 8192]
                await asyncio.sleep(0)
            ledger = spoke.ledger
            assert ledger.prefetch_issued_bytes > 0
            assert ledger.requests[ReadState.HIT] > 32
        classes = {f.traffic_class for f in hub.fetches}
        assert "prefetch" in classes


async def test_facts_add_up_and_reset() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            await get(spoke, 0, 2 * MIB)
            facts = await spoke.facts()
            assert facts.wan.payload_bytes == 2 * MIB
            assert sum(facts.wan.received_by_class.values()) == facts.wan.received_bytes
            assert facts.wan.received_bytes > 2 * MIB
            assert facts.full_copy_bytes == len(BODY)
            assert facts.metadata.lease == "valid"
            spoke.reset_stats()
            assert (await spoke.facts()).wan.payload_bytes == 0
            assert (await spoke.facts()).wan.received_bytes < 10_000
            await get(spoke, 0, MIB)
            assert spoke.ledger.unique_bytes == MIB
