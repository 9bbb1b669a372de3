"""Strict reads of a spoke that has no lease, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from hubspoke import wire
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.core.ids import ObjectName
from hubspoke.core.namespace import PageSpan
from hubspoke.core.policy import PartitionPolicy
from hubspoke.errors import DeadlineExceeded, HubUnavailable
from tests.hub_bench import HubBench, SpokeBench, until
from tests.shell.hub.conftest import SpokeMaker

NAME = ObjectName("bkt", "k")


@dataclass(frozen=True)
class Strict:
    prefix: str = ""
    bounded_s: float | None = None


STRICT = PartitionPolicy([Strict()])


class LeaselessLink(AiohttpHubLink):
    """A link on which leases, changes or read indexes can be kept from the spoke."""

    no_lease = False
    hold_changes: asyncio.Event | None = None
    hold_index: asyncio.Event | None = None
    asked = 0

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        reply = await super().lease(request)
        if not self.no_lease:
            return reply
        return wire.LeaseReply(reply.epoch, 0.0, 0, [], "withheld", 0, reply.incarnation)

    async def read_index(self, request: wire.ReadIndexRequest) -> wire.ReadIndexReply:
        self.asked += 1
        reply = await super().read_index(request)
        if self.hold_index is not None:
            await self.hold_index.wait()
        return reply

    async def feed(
        self, epoch: str, after: int, incarnation: str = ""
    ) -> AsyncIterator[wire.Message]:
        async for message in super().feed(epoch, after, incarnation):
            if isinstance(message, wire.FeedChanges) and self.hold_changes is not None:
                await self.hold_changes.wait()
            yield message


def now(spoke: SpokeBench) -> float:
    return spoke.follower._clock.now()


async def leaseless(make: SpokeMaker, hub: HubBench) -> tuple[SpokeBench, LeaselessLink]:
    """A strict spoke whose replica is whole and whose lease has run out."""
    spoke = await make(hub, link_type=LeaselessLink, policy=STRICT)
    link = spoke.link
    assert isinstance(link, LeaselessLink)
    await spoke.fresh()
    link.no_lease = True
    await until(lambda: spoke.follower.lease_state() == "expired", "no lease")
    return spoke, link


async def test_a_strict_read_without_a_lease_asks_the_hub_and_is_current(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke, link = await leaseless(spoke_of, hub)
    for i in range(5):
        entry = await hub.put("k", b"%d" % i)
        assert await spoke.follower.admitted(NAME, now(spoke) + 5) is None
        assert spoke.version("k") == entry.version
    await hub.hub.delete(NAME)
    assert await spoke.follower.admitted(NAME, now(spoke) + 5) is None
    assert spoke.version("k") is None
    assert spoke.follower.lease_state() == "expired"
    assert link.asked == 6


async def test_a_listing_and_the_list_of_buckets_without_a_lease_are_current_too(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke, _ = await leaseless(spoke_of, hub)
    await hub.put("a", b"1")
    page = PageSpan("bkt", "", "", "")
    assert await spoke.follower.page_admitted(page, now(spoke) + 5) is False
    assert [r.name.key for r in spoke.namespace.scan("bkt", limit=9)] == ["a"]
    await hub.hub.create_bucket("second")
    assert await spoke.follower.buckets_admitted(now(spoke) + 5) is None
    assert spoke.namespace.buckets() == ["bkt", "second"]


async def test_readers_that_wait_together_share_round_trips(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke, link = await leaseless(spoke_of, hub)
    deadline = now(spoke) + 5
    readers = (spoke.follower.admitted(ObjectName("bkt", f"k{i}"), deadline) for i in range(200))
    assert set(await asyncio.gather(*readers)) == {None}
    assert link.asked <= 3


async def test_a_reader_never_uses_a_round_trip_that_was_sent_before_it_came(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    spoke, link = await leaseless(spoke_of, hub)
    link.hold_changes, link.hold_index = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(spoke.follower.admitted(NAME, now(spoke) + 5))
    await until(lambda: link.asked == 1, "the first round")
    entry = await hub.put("k", b"2")
    second = asyncio.create_task(spoke.follower.admitted(NAME, now(spoke) + 5))
    await until(lambda: link.asked == 2, "a round of its own")
    link.hold_index.set()
    assert await first is None  # began before the change was acknowledged: the old one is right
    assert spoke.version("k") != entry.version
    assert not second.done()
    link.hold_changes.set()
    assert await second is None
    assert spoke.version("k") == entry.version


async def test_a_read_of_a_name_whose_change_is_under_way_waits_for_it(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    await hub.put("other", b"1")
    spoke, _ = await leaseless(spoke_of, hub)
    complete, may_complete = hub.store.complete, asyncio.Event()

    async def held(staged: object) -> object:
        entry = await complete(staged)  # type: ignore[arg-type]
        await may_complete.wait()
        return entry

    hub.store.complete = held  # type: ignore[assignment,method-assign]
    writing = asyncio.create_task(hub.put("k", b"2"))
    await until(lambda: hub.hub._core.blocked(NAME), "the change under way")
    reading = asyncio.create_task(spoke.follower.admitted(NAME, now(spoke) + 5))
    assert await spoke.follower.admitted(ObjectName("bkt", "other"), now(spoke) + 5) is None
    assert not reading.done()
    may_complete.set()
    entry = await writing
    assert await reading is None
    assert spoke.version("k") == entry.version


async def test_a_replica_that_stays_behind_refuses_strict_reads_in_time(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke, link = await leaseless(spoke_of, hub)
    link.hold_changes = asyncio.Event()
    await hub.put("k", b"1")
    async with asyncio.timeout(hub.tuning.lease.term_s + 2):
        with pytest.raises(HubUnavailable, match="strict; waiting for a lease, at sequence 0 of 1"):
            await spoke.follower.admitted(NAME, now(spoke) + 60)
    link.hold_changes.set()
    assert await spoke.follower.admitted(NAME, now(spoke) + 5) is None


async def test_a_hub_known_to_be_lost_is_not_asked(hub: HubBench, spoke_of: SpokeMaker) -> None:
    spoke, link = await leaseless(spoke_of, hub)
    await hub.stop()
    await until(lambda: spoke.follower._calls.unanswered is not None, "the loss noticed")
    with pytest.raises(HubUnavailable, match=r"strict; hub http://.* unreachable since"):
        await spoke.follower.admitted(NAME, now(spoke) + 60)
    assert link.asked == 0
    await hub.start()
    await until(lambda: spoke.follower._calls.unanswered is None, "the return noticed")
    assert await spoke.follower.admitted(NAME, now(spoke) + 5) is None


async def test_a_reader_that_gives_up_leaves_the_round_to_the_others(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    spoke, link = await leaseless(spoke_of, hub)
    link.hold_index = asyncio.Event()
    one, two = (
        asyncio.create_task(spoke.follower.admitted(NAME, now(spoke) + 5)) for _ in range(2)
    )
    await until(lambda: link.asked == 2, "both rounds")
    one.cancel()
    link.hold_index.set()
    assert await two is None
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_a_lease_that_comes_while_a_change_is_under_way_does_not_let_its_readers_pass(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    spoke, link = await leaseless(spoke_of, hub)
    link.hold_changes = asyncio.Event()
    await hub.put("k", b"2")
    reading = asyncio.create_task(spoke.follower.admitted(NAME, now(spoke) + 0.3))
    await until(lambda: link.asked == 1, "the round")
    link.no_lease = False
    with pytest.raises((DeadlineExceeded, HubUnavailable)):
        await reading
    link.hold_changes.set()
    await spoke.fresh()
