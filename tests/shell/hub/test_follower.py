"""Spokes that follow a real hub over real connections."""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hubspoke import wire
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName
from hubspoke.core.namespace import PageSpan
from hubspoke.core.policy import PartitionPolicy
from hubspoke.errors import DeadlineExceeded, HubUnavailable
from tests.hub_bench import LEASE, TUNING, HubBench, SpokeBench, body, running_spoke, until
from tests.shell.hub.conftest import SpokeMaker

NAME = ObjectName("bkt", "k")


@dataclass(frozen=True)
class Rule:
    prefix: str
    bounded_s: float | None


def now(spoke: SpokeBench) -> float:
    return spoke.follower._clock.now()


async def read(spoke: SpokeBench, name: ObjectName = NAME) -> str | None:
    """What a door does: wait for revocations, ask for admission, look the name up."""
    for _ in range(20):
        await spoke.follower.settled(name, now(spoke) + 5)
        if spoke.follower.admit(name) is None:
            break
        await spoke.fresh()  # a busy machine was late with the renewal
    assert spoke.follower.admit(name) is None
    record = spoke.namespace.get(name)
    return record.entry.version if record is not None else None


async def test_a_new_spoke_loads_a_snapshot_and_serves_under_a_lease(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    for i in range(10):
        await hub.put(f"k{i}", b"x")
    await hub.hub.create_bucket("empty")
    spoke = await spoke_of(hub)
    await spoke.fresh()
    assert [r.name.key for r in spoke.namespace.scan("bkt", limit=99)] == [
        f"k{i}" for i in range(10)
    ]
    assert spoke.namespace.buckets() == ["bkt", "empty"]
    f = spoke.follower
    assert (f.ready(), f.staleness_s(), f.hub_region()) == ([], None, "eu")
    assert (f.sequence, f.hub_sequence, f.lag_seconds()) == (11, 11, 0.0)
    assert 0 < (f.rtt_s() or 0) < 1
    assert f.admit(NAME) is None
    assert hub.hub.facts().spokes == ["s1"]
    assert spoke.told == []


async def test_an_acknowledged_change_is_never_read_stale(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spokes = [await spoke_of(hub, f"s{i}") for i in range(3)]
    for spoke in spokes:
        await spoke.fresh()
    for i in range(30):
        entry = await hub.put("k", b"%02d" % i)
        assert [await read(s) for s in spokes] == [entry.version] * 3
    await hub.hub.delete(NAME)
    assert [await read(s) for s in spokes] == [None] * 3
    await until(lambda: len(spokes[0].told) == 31, "all told")
    assert [c.sequence for c in spokes[0].told] == list(range(1, 32))
    assert spokes[0].told[-1].entry is None


async def test_bucket_changes_reach_the_spoke_with_their_sequence(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke = await spoke_of(hub)
    await spoke.fresh()
    for _ in range(3):
        await hub.hub.create_bucket("second")
        await spoke.follower.settled(ObjectName("second", ""), now(spoke) + 5)
        assert spoke.namespace.buckets() == ["bkt", "second"]
        await hub.hub.delete_bucket("second")
        await spoke.follower.settled(ObjectName("second", ""), now(spoke) + 5)
        assert spoke.namespace.buckets() == ["bkt"]
    assert spoke.told == []


async def test_changes_without_a_spoke_that_answers_wait_for_its_lease(
    hub: HubBench, tmp_path: Path
) -> None:
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
    async with asyncio.timeout(LEASE.term_s + 1):
        await hub.put("k", b"x")


async def test_a_spoke_that_restarts_resumes_without_a_snapshot(
    hub: HubBench, tmp_path: Path
) -> None:
    await hub.put("a", b"x")
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
    for i in range(9):
        await hub.put(f"k{i}", b"x")
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
        await until(lambda: len(spoke.told) == 9, "what was missed")
        assert [c.sequence for c in spoke.told] == list(range(2, 11))
        assert await read(spoke, ObjectName("bkt", "k8")) is not None
    assert hub.hub.facts().requests["snapshot"] == 1


async def test_a_hub_that_restarts_is_resumed_without_a_snapshot(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    spoke = await spoke_of(hub)
    await spoke.fresh()
    await hub.stop()
    await until(lambda: spoke.follower.lease_state() == "expired", "lease lost")
    reasons = "; ".join(spoke.follower.ready())
    assert f"hub {hub.url} unreachable since" in reasons
    assert "answers may be" in reasons
    assert (spoke.follower.lag_seconds() or 0.0) > 0.0
    await hub.start()
    await spoke.fresh()
    entry = await hub.put("k", b"2")
    assert await read(spoke) == entry.version
    assert hub.hub.facts().requests.get("snapshot", 0) == 0


async def test_a_hub_with_a_new_state_is_another_epoch_and_resynced(
    hub: HubBench, spoke_of: SpokeMaker, tmp_path: Path
) -> None:
    await hub.put("k", b"1")
    await hub.put("gone", b"1")
    spoke = await spoke_of(hub)
    await spoke.fresh()
    old = spoke.namespace.epoch
    await hub.stop()
    hub.state = tmp_path / "other-state"
    await hub.store.delete(ObjectName("bkt", "gone"))
    await hub.start()
    await until(lambda: spoke.namespace.epoch not in (None, old), "the new epoch")
    await spoke.fresh()
    assert spoke.version("gone") is None
    entry = await hub.put("k", b"2")
    assert await read(spoke) == entry.version


@pytest.mark.parametrize("new", [0, 9], ids=["a shorter log", "a longer log"])
async def test_a_hub_restored_from_a_copy_is_noticed_by_the_spokes_of_the_lost_changes(
    hub: HubBench, tmp_path: Path, new: int
) -> None:
    """Epoch and sequences are the same, what they stand for is not."""
    await hub.put("k", b"1")
    await hub.stop()
    shutil.copytree(hub.state, tmp_path / "copy")
    await hub.start()
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
        for i in range(4):
            await hub.put(f"lost{i}", b"x")
        await until(lambda: spoke.version("lost3") is not None, "the changes that get lost")
        epoch = spoke.namespace.epoch
    await hub.stop()
    for i in range(4):
        await hub.store.delete(ObjectName("bkt", f"lost{i}"))
    hub.state = tmp_path / "copy"
    await hub.start()
    for i in range(new):
        await hub.put(f"new{i}", b"x")
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
        assert spoke.namespace.epoch == epoch
        ours = {r.name: r.entry for r in spoke.namespace.scan("bkt", limit=999)}
        theirs = {r.name: r.entry for r in hub.hub._namespace.scan("bkt", limit=999)}
        assert ours == theirs
        assert hub.hub.facts().requests["snapshot"] == 1
        await hub.stop()
        await until(lambda: spoke.follower.lease_state() == "expired", "lease lost")
        await hub.start()
        await spoke.fresh()
        assert hub.hub.facts().requests.get("snapshot", 0) == 0


async def test_while_a_snapshot_is_loaded_the_old_replica_is_answered_with_its_age(
    hub: HubBench, tmp_path: Path
) -> None:
    await hub.stop()
    hub.log_entries_max = 5
    await hub.start()
    policy = PartitionPolicy([Rule("bkt/strict/", None)])
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await hub.put("old", b"1")
        await spoke.fresh()  # which may be by a lease from before the change
        await until(lambda: spoke.version("old") is not None, "the change")
    await hub.hub.delete(ObjectName("bkt", "old"))
    for i in range(12):
        await hub.put(f"k{i:02}", b"x")
    BreakingLink.half_way, BreakingLink.go_on = asyncio.Event(), asyncio.Event()
    async with running_spoke(
        hub.url, tmp_path / "s", link_type=BreakingLink, policy=policy
    ) as spoke:
        async with asyncio.timeout(10):
            await BreakingLink.half_way.wait()
        age = await spoke.follower.admitted(ObjectName("bkt", "old"), now(spoke) + 5)
        assert age is not None
        assert 0 < age < 30
        assert spoke.version("old") is not None
        assert spoke.version("k00") is None
        with pytest.raises(HubUnavailable, match="strict"):
            await spoke.follower.admitted(ObjectName("bkt", "strict/x"), now(spoke) + 5)
        BreakingLink.go_on.set()  # it breaks off, and the next one comes to its end
        await spoke.fresh()
        assert await spoke.follower.admitted(ObjectName("bkt", "old"), now(spoke) + 5) is None
        assert (spoke.version("old"), len(spoke.namespace)) == (None, 12)


async def test_a_spoke_the_log_has_passed_takes_a_snapshot(hub: HubBench, tmp_path: Path) -> None:
    await hub.stop()
    hub.log_entries_max = 5
    await hub.start()
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
    for i in range(20):
        await hub.put(f"k{i:02}", b"x")
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await until(lambda: spoke.version("k19") is not None, "the snapshot")
        await spoke.fresh()
        assert len(spoke.namespace.scan("bkt", limit=99)) == 20
        assert spoke.told == []
    assert hub.hub.facts().requests["snapshot"] == 2


class MeddlingLink(AiohttpHubLink):
    """A link whose feed loses, repeats or holds back what it is told to."""

    lose_next = 0
    twice = False
    hold_changes: asyncio.Event | None = None
    hold_leases: asyncio.Event | None = None

    async def feed(
        self, epoch: str, after: int, incarnation: str = ""
    ) -> AsyncIterator[wire.Message]:
        async for message in super().feed(epoch, after, incarnation):
            if isinstance(message, wire.FeedChanges) and message.entries:
                if self.lose_next:
                    self.lose_next -= 1
                    continue
                if self.hold_changes is not None:
                    await self.hold_changes.wait()
            yield message
            if self.twice:
                yield message

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        if self.hold_leases is not None:
            await self.hold_leases.wait()
        return await super().lease(request)


class BreakingLink(AiohttpHubLink):
    """A link whose first snapshot stops half way, and can be watched there."""

    half_way: asyncio.Event
    go_on: asyncio.Event
    snapshots = 0

    async def snapshot(self) -> AsyncIterator[wire.Message]:
        self.snapshots += 1
        batches = 0
        async for message in super().snapshot():
            yield message
            batches += isinstance(message, wire.SnapshotBatch)
            if batches == 2 and self.snapshots == 1:
                self.half_way.set()
                await self.go_on.wait()
                raise HubUnavailable("the line went dead")


async def meddled(make: SpokeMaker, hub: HubBench) -> tuple[SpokeBench, MeddlingLink]:
    spoke = await make(hub, link_type=MeddlingLink)
    assert isinstance(spoke.link, MeddlingLink)
    await spoke.fresh()
    return spoke, spoke.link


async def test_a_gap_in_the_feed_is_noticed_and_filled(hub: HubBench, spoke_of: SpokeMaker) -> None:
    spoke, link = await meddled(spoke_of, hub)
    link.lose_next = 1
    await hub.put("lost", b"x")
    await hub.put("k", b"x")
    await until(lambda: spoke.version("k") is not None, "both changes")
    assert spoke.version("lost") is not None
    await until(lambda: len(spoke.told) == 2, "both told")
    assert [c.sequence for c in spoke.told] == [1, 2]
    assert hub.hub.facts().requests["snapshot"] == 1


async def test_a_message_that_comes_twice_changes_nothing(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke, link = await meddled(spoke_of, hub)
    link.twice = True
    for i in range(5):
        entry = await hub.put("k", b"%d" % i)
        assert await read(spoke) == entry.version
    await until(lambda: len(spoke.told) == 5, "all told")
    assert [c.sequence for c in spoke.told] == [1, 2, 3, 4, 5]


async def test_a_read_of_a_revoked_name_waits_for_its_change(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    await hub.put("other", b"1")
    spoke, link = await meddled(spoke_of, hub)
    link.hold_changes = asyncio.Event()
    entry = await hub.put("k", b"2")
    assert spoke.follower.lease_state() == "valid"
    assert spoke.version("k") != entry.version
    assert spoke.follower.revoked(PageSpan("bkt", "", "", None))
    assert not spoke.follower.revoked(PageSpan("bkt", "other", "", None))
    with pytest.raises(DeadlineExceeded, match="bkt/k: a change of it is under way"):
        await spoke.follower.settled(NAME, now(spoke) + 0.05)
    with pytest.raises(DeadlineExceeded, match="listing of bkt/"):
        await spoke.follower.page_admitted(PageSpan("bkt", "", "", None), now(spoke) + 0.05)
    await spoke.follower.settled(ObjectName("bkt", "other"), now(spoke) + 0.05)
    reading = asyncio.create_task(read(spoke))
    page = asyncio.create_task(
        spoke.follower.page_admitted(PageSpan("bkt", "", "", None), now(spoke) + 5)
    )
    await asyncio.sleep(0)
    assert not reading.done()
    link.hold_changes.set()
    assert await reading == entry.version
    await page


async def test_a_wait_for_a_revoked_name_ends_with_the_lease(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    spoke, link = await meddled(spoke_of, hub)
    link.hold_changes = asyncio.Event()
    await hub.put("k", b"2")
    link.hold_leases = asyncio.Event()
    async with asyncio.timeout(LEASE.term_s + 1):
        await spoke.follower.settled(NAME, now(spoke) + 5)
    staleness = spoke.follower.admit(NAME)
    assert staleness is not None
    assert spoke.follower.lease_state() == "expired"
    link.hold_leases.set()
    link.hold_changes.set()
    await spoke.fresh()


async def test_a_silent_spoke_delays_a_change_by_its_term_only_and_reads_no_old_value(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    spoke, link = await meddled(spoke_of, hub)
    link.hold_leases = asyncio.Event()
    link.hold_changes = asyncio.Event()
    before = now(spoke)
    await hub.put("k", b"2")
    assert now(spoke) - before < LEASE.term_s + LEASE.margin_s + 0.5
    assert spoke.follower.lease_state() == "expired"
    link.hold_leases.set()
    link.hold_changes.set()
    await spoke.fresh()
    assert await read(spoke) == spoke.version("k")


async def test_without_a_lease_strict_refuses_and_bounded_answers_with_its_age(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    policy = PartitionPolicy([Rule("bkt/strict/", None), Rule("bkt/brief/", 0.0)])
    spoke = await spoke_of(hub, policy=policy)
    await spoke.fresh()
    await hub.stop()
    await until(lambda: spoke.follower.lease_state() == "expired", "lease lost")
    await asyncio.sleep(0.05)
    age = spoke.follower.admit(NAME)
    assert age is not None
    assert 0 < age < 5
    assert spoke.follower.staleness_s() == pytest.approx(age, abs=0.5)
    with pytest.raises(HubUnavailable, match=r"strict; hub http://.* unreachable since"):
        spoke.follower.admit(ObjectName("bkt", "strict/x"))
    with pytest.raises(HubUnavailable, match="beyond its bound of 0 s"):
        spoke.follower.admit(ObjectName("bkt", "brief/x"))
    await hub.start()
    await spoke.fresh()
    assert spoke.follower.admit(ObjectName("bkt", "strict/x")) is None


async def test_a_spoke_that_restarts_without_its_hub_knows_the_age_of_its_replica(
    hub: HubBench, tmp_path: Path
) -> None:
    await hub.put("k", b"1")
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
    await hub.stop()
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        assert spoke.follower.lease_state() == "none"
        age = spoke.follower.admit(NAME)
        assert age is not None
        assert age < 30
        assert spoke.version("k") is not None


async def test_without_a_complete_replica_nothing_is_answered(tmp_path: Path) -> None:
    hub = HubBench(tmp_path / "hub", MemoryObjectStore(["bkt"]))
    await hub.start()
    url = hub.url
    await hub.stop()
    async with running_spoke(url, tmp_path / "s") as spoke:
        await until(lambda: "Connect" in spoke.follower.ready()[0], "an attempt")
        assert spoke.follower.ready()[0].startswith(f"hub {url} unreachable since")
        with pytest.raises(HubUnavailable, match="replica incomplete"):
            spoke.follower.admit(NAME)
        assert spoke.follower.staleness_s() is None
        assert math.isinf(spoke.follower._age_s())
        assert (spoke.follower.lag_seconds(), spoke.follower.hub_sequence) == (None, None)
        await hub.start()
        await spoke.fresh()
        assert spoke.follower.admit(NAME) is None
    await hub.stop()


async def test_a_snapshot_taken_while_names_change_loses_nothing(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    for i in range(40):
        await hub.put(f"k{i:02}", b"x")

    async def change() -> None:
        for i in range(60):
            key = f"k{(i * 7) % 50:02}"
            if i % 3:
                await hub.put(key, b"%d" % i)
            else:
                await hub.hub.delete(ObjectName("bkt", key))

    changing = asyncio.create_task(change())
    spoke = await spoke_of(hub)
    await changing
    await until(lambda: spoke.follower.sequence == hub.hub.facts().sequence, "level")
    await spoke.fresh()
    theirs = {r.name: r.entry for r in hub.hub._namespace.scan("bkt", limit=999)}
    ours = {r.name: r.entry for r in spoke.namespace.scan("bkt", limit=999)}
    assert ours == theirs


async def test_a_first_index_with_many_names_arrives_whole(tmp_path: Path) -> None:
    store = MemoryObjectStore(["bkt", "two"])
    for i in range(50):
        for bucket in ("bkt", "two"):
            await store.complete(await store.stage(ObjectName(bucket, f"k{i}"), {}, body(b"x")))
    hub = HubBench(tmp_path / "hub", store, replace(TUNING, snapshot_batch=7))
    await hub.start()
    async with running_spoke(hub.url, tmp_path / "s") as spoke:
        await spoke.fresh()
        assert len(spoke.namespace) == 100
        assert spoke.follower.sequence == 100
    await hub.stop()


async def test_a_snapshot_that_breaks_off_is_never_taken_for_the_whole(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    for i in range(12):
        await hub.put(f"k{i:02}", b"x")
    BreakingLink.half_way, BreakingLink.go_on = asyncio.Event(), asyncio.Event()
    spoke = await spoke_of(hub, link_type=BreakingLink)
    async with asyncio.timeout(10):
        await BreakingLink.half_way.wait()
    await until(lambda: spoke.follower.ready() == ["snapshot 50 % loaded"], "two batches")
    assert len(spoke.namespace) == 0
    assert spoke.namespace.epoch is None
    with pytest.raises(HubUnavailable, match="replica incomplete: snapshot 50 % loaded"):
        spoke.follower.admit(ObjectName("bkt", "k11"))
    BreakingLink.go_on.set()
    await spoke.fresh()
    assert len(spoke.namespace.scan("bkt", limit=99)) == 12
