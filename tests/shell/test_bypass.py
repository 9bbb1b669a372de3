"""What a cache disk does not take or does not give comes from the hub, through memory."""

import asyncio
import errno
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hubspoke.adapters import disk_health
from hubspoke.adapters.memory_blocks import FaultyBlockStore, MemoryBlockStore
from hubspoke.core.budget import BudgetConfig, FairBudget
from hubspoke.core.health import DiskState, HealthConfig
from hubspoke.core.ids import ReadState
from hubspoke.errors import Overloaded
from hubspoke.ports import FileSpan
from hubspoke.spoke import storing
from hubspoke.spoke.memory import Memory
from hubspoke.spoke.service import SpokeService
from tests.shell.test_spoke_service import (
    BODY,
    MIB,
    NAME,
    TUNING,
    a_hub,
    a_spoke,
    get,
    until,
)

QUICK = replace(TUNING, health=HealthConfig(pause_s=0.1, probe_interval_s=0.02))


class Disk:
    """Which calls of a block store fail or hang; `read_now` always has to go to the disk."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.hangs: set[str] = set()
        self.go_on = threading.Event()
        self.calls: list[str] = []

    def store(self) -> FaultyBlockStore:
        return FaultyBlockStore(MemoryBlockStore(), self._fails)

    def _fails(self, method: str) -> int | None:
        self.calls.append(method)
        if method in ("read_now", "copy_now", "lend_now", "lend_file_now"):
            return errno.EAGAIN
        if method in self.hangs:
            assert self.go_on.wait(30)
        return self.errors.get(method)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.go_on.set()


def state(spoke: SpokeService) -> DiskState:
    return spoke.disks.disks[0].health.state


async def test_a_disk_that_refuses_writes_costs_no_read(disk: Disk) -> None:
    disk.errors["write"] = errno.ENOSPC
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store()) as spoke:
            for offset in range(0, 5 * MIB, MIB // 2):
                assert await get(spoke, offset, 10_000) == BODY[offset : offset + 10_000]
            assert await get(spoke, 0, len(BODY)) == BODY
            assert state(spoke) is DiskState.SUSPECT
            assert spoke.core.cache.used == 0
            assert spoke.memory_bytes == 0
            assert spoke.ledger.misses_by_cause["bypassed"] > 0
            (folder,) = (await spoke.facts()).cache.folders
            assert (folder.state, folder.write_errors >= 3) == ("suspect", True)
            assert "28" in str(folder.last_error)


async def test_past_the_cache_too_many_readers_cause_one_fetch(disk: Disk) -> None:
    disk.errors["write"] = errno.EROFS
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store()) as spoke:
            for offset in range(3):
                await get(spoke, offset * MIB, 4096)
            await until(lambda: state(spoke) is DiskState.SUSPECT)
            asked = len(hub.fetches)
            app.hold.clear()
            reads = [asyncio.create_task(get(spoke, 4 * MIB, 100_000)) for _ in range(40)]
            await until(lambda: len(hub.fetches) > asked)
            app.hold.set()
            want = BODY[4 * MIB : 4 * MIB + 100_000]
            assert all(body == want for body in await asyncio.gather(*reads))
            ranges = [r for f in hub.fetches[asked:] for r in f.ranges]
            assert sum(r.length for r in ranges) == 102_400
            assert spoke.memory_bytes == 0


async def test_a_read_that_fails_is_a_miss_and_is_fetched_again(disk: Disk) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store()) as spoke:
            await get(spoke, 0, 100_000)
            disk.errors["read"] = errno.EIO
            result = await spoke.read(await spoke.resolve(NAME), 0, 100_000, "c")
            assert result.body == BODY[:100_000]
            assert result.state is ReadState.MISS
            assert spoke.ledger.misses_by_cause["bypassed"] == 1


async def test_a_read_that_hangs_is_answered_by_the_hub(disk: Disk) -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store(), QUICK) as spoke:
            await get(spoke, 0, 100_000)
            disk.hangs.add("read")
            # More readers than threads: nobody waits for a thread that hangs either.
            async with asyncio.timeout(5):
                reads = [asyncio.create_task(get(spoke, 0, 100_000)) for _ in range(20)]
                assert all(b == BODY[:100_000] for b in await asyncio.gather(*reads))
            await until(lambda: state(spoke) is not DiskState.HEALTHY)
            disk.go_on.set()
            disk.hangs.clear()
            await until(lambda: state(spoke) is DiskState.HEALTHY)
            assert await get(spoke, 0, 100_000) == BODY[:100_000]
            assert spoke.core.cache.readable(spoke.core.cache.objects[1], 0, 25)


async def test_a_write_that_hangs_holds_up_nobody(disk: Disk) -> None:
    disk.hangs.add("write")
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store(), QUICK) as spoke:
            async with asyncio.timeout(5):
                assert await get(spoke, 0, 2 * MIB) == BODY[: 2 * MIB]
                # While it is being written, it is in flight; its bytes are in memory.
                assert await get(spoke, 0, 4096) == BODY[:4096]
            disk.go_on.set()
            obj = spoke.core.cache.objects[1]
            await until(lambda: spoke.core.cache.readable(obj, 0, 1))
            assert await get(spoke, 0, 4096) == BODY[:4096]


async def test_without_room_in_the_cache_a_read_passes_it_by() -> None:
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, tuning=replace(TUNING, capacity=MIB)) as spoke:
            obj, _ = spoke.core.open(NAME, (await spoke.resolve(NAME)).entry)
            await get(spoke, 0, MIB)
            spoke.core.cache.pin(obj, 0, 256)
            assert await get(spoke, MIB, 3 * MIB) == BODY[MIB : 4 * MIB]
            assert spoke.core.cache.used <= MIB
            spoke.core.cache.unpin(obj, 0, 256)


async def test_a_slow_reader_past_the_cache_leaves_memory_to_others(disk: Disk) -> None:
    disk.errors["write"] = errno.ENOSPC
    tuning = replace(TUNING, memory=BudgetConfig(4 * MIB))
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store(), tuning) as spoke:
            for offset in range(3):
                await get(spoke, offset * MIB, 4096)
            resolved = await spoke.resolve(NAME)
            slow = await spoke.read(resolved, 0, len(BODY), "slow")
            assert not isinstance(slow.body, bytes | FileSpan)
            first = await anext(slow.body)  # and takes no more
            assert isinstance(first, bytes) and first == BODY[: len(first)]
            assert 0 < spoke.memory_bytes <= 3 * MIB
            async with asyncio.timeout(5):
                assert await get(spoke, MIB, MIB) == BODY[MIB : 2 * MIB]
            rest = [piece async for piece in slow.body]
            assert b"".join([first, *rest]) == BODY  # type: ignore[list-item]  # no spans here
            assert spoke.memory_bytes == 0


async def test_a_reader_that_goes_away_gives_its_memory_back(disk: Disk) -> None:
    disk.errors["write"] = errno.ENOSPC
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store()) as spoke:
            for offset in range(3):
                await get(spoke, offset * MIB, 4096)
            app.hold.clear()
            task = asyncio.create_task(get(spoke, 0, len(BODY)))
            await until(lambda: spoke.memory_bytes > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert spoke.memory_bytes == 0
            app.hold.set()
            assert await get(spoke, 0, 4096) == BODY[:4096]


async def test_without_a_hub_a_slow_disk_is_waited_for(disk: Disk) -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store()) as spoke:
            await get(spoke, 0, 100_000)
            app.hold.clear()
            disk.hangs.add("read")
            reading = asyncio.create_task(get(spoke, 0, 100_000))
            await until(lambda: len(hub.fetches) > 1)
            disk.go_on.set()
            async with asyncio.timeout(5):
                assert await reading == BODY[:100_000]
            app.hold.set()


async def test_nothing_is_fetched_in_advance_for_a_disk_that_takes_nothing(disk: Disk) -> None:
    disk.errors["write"] = errno.ENOSPC
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store(), replace(TUNING, prefetch=True)) as spoke:
            await get(spoke, 5 * MIB, 4096)
            for offset in range(0, 3 * 8192, 8192):
                await get(spoke, offset, 8192)
            await until(lambda: state(spoke) is DiskState.SUSPECT)
            issued = spoke.ledger.prefetch_issued_bytes
            for offset in range(MIB, 2 * MIB, 8192):
                assert await get(spoke, offset, 8192) == BODY[offset : offset + 8192]
            assert spoke.ledger.prefetch_issued_bytes == issued


async def test_memory_is_waited_for_in_turn_and_not_for_ever() -> None:
    memory = Memory(FairBudget(BudgetConfig(100)))
    await memory.take("a", 60, 1.0)
    waiting = asyncio.create_task(memory.take("b", 50, 5.0))
    with pytest.raises(Overloaded, match="70 bytes of memory for c"):
        await memory.take("c", 70, 0.01)
    assert not waiting.done()
    memory.give("a", 60)
    await waiting
    cancelled = asyncio.create_task(memory.take("d", 90, 5.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    memory.give("b", 50)
    assert memory.budget.used == 0


async def test_a_reader_keeps_what_has_come_until_all_has_come() -> None:
    """Its first block could be evicted before the last one is there, and would never be asked
    for again."""
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        tuning = replace(TUNING, capacity=2 * MIB, read_deadline_s=5.0)
        async with a_spoke(hub, tuning=tuning) as spoke:

            async def reads(first: int) -> None:
                for i in range(30):
                    offset = (first + i * 7) * MIB // 2 % (5 * MIB)
                    assert await get(spoke, offset, MIB) == BODY[offset : offset + MIB]

            async with asyncio.timeout(5):
                await asyncio.gather(*(reads(i) for i in range(4)))
            assert not spoke.core.cache.used > 2 * MIB


async def test_a_disk_that_is_behind_is_waited_for(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passed it by would be asked of the hub a second time."""
    monkeypatch.setattr(disk_health, "WRITES_PENDING_MAX", 4)
    monkeypatch.setattr(storing, "BEHIND_WAIT_S", 10.0)
    monkeypatch.setattr(storing, "HANGS_S", 10.0)
    disk.hangs.add("write")
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store()) as spoke:
            reading = asyncio.create_task(get(spoke, 0, len(BODY)))
            await until(lambda: spoke.disks.behind(1))
            disk.go_on.set()
            assert await reading == BODY
            asked = sum(r.length for f in hub.fetches for r in f.ranges)
            assert asked == len(BODY)


async def test_what_passed_a_disk_by_is_asked_for_again_all_at_once(disk: Disk) -> None:
    """A long read that found one missing piece after the other took a round trip for each."""
    disk.errors["write"] = errno.ENOSPC
    patient = replace(TUNING, health=HealthConfig(suspect_errors=1000))
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, disk.store(), patient) as spoke:
            result = await spoke.read(await spoke.resolve(NAME), 0, len(BODY), "c")
            assert not isinstance(result.body, bytes | FileSpan)
            pieces = [await anext(result.body)]
            await until(lambda: not any(lane.requests for lane in spoke.core.scheduler.lanes))
            asked = len(hub.fetches)
            disk.errors.clear()
            app.hold.clear()

            async def rest() -> None:
                pieces.extend([piece async for piece in result.body])  # type: ignore[union-attr]

            reading = asyncio.create_task(rest())
            await until(lambda: sum(r.length for f in hub.fetches[asked:] for r in f.ranges) > MIB)
            app.hold.set()
            await reading
            assert b"".join(pieces) == BODY  # type: ignore[arg-type]  # no spans here
