"""Posted plans in the core: what follows them, what is fetched, what stays and what goes."""

from collections.abc import Sequence

import numpy as np
import pytest

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.items import ListedItems
from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.hints import book as book_module
from hubspoke.core.hints.book import HintedRange
from hubspoke.core.hints.hints import Hints
from hubspoke.core.hints.samplers import KINDS, Sampler
from hubspoke.core.hints.table import NamedTable
from hubspoke.core.ids import BLOCK_BYTES, ObjectEntry, ObjectName, ReadState, Version, page_span
from hubspoke.core.orders import distributed_sampler
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.core.streams import Access
from hubspoke.errors import InvalidRequest, PlansFull, TooLarge

SIZE = 100_000


def name(i: int) -> ObjectName:
    return ObjectName("data", f"img/{i:04}")


def entry(size: int = SIZE) -> ObjectEntry:
    return ObjectEntry(Version("v1"), size, "etag", 0)


class NoListing:
    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        return []


class World:
    """A spoke's core whose fetches arrive at once."""

    def __init__(
        self, capacity: int = 64 << 20, sizes: dict[ObjectName, int] | None = None
    ) -> None:
        self.core = SpokeCore(SpokeConfig(capacity), RuleRanker().score, NoListing(), 0.0, 0)
        self.core.path.round_trip(0.06)
        self.hints: Hints = self.core.prediction.hints
        self.sizes = sizes or {}
        self.hints.entry = lambda n: entry(self.sizes.get(n, SIZE))
        self.now = 0.0
        self.fetched: list[tuple[ObjectName, int, int]] = []

    def post(self, items: Sequence[int], *, job: str = "a", append: bool = False) -> None:
        ranges = [HintedRange(name(i), 0, SIZE) for i in items]
        self.hints.post(job, ranges, self.now, append=append, window=64)

    def look(self) -> None:
        self.core.predict(self.now)
        self.fetch()

    def fetch(self) -> None:
        while True:
            fetches, _ = self.core.dispatch(self.now)
            if not fetches:
                return
            for f in fetches:
                for i, r in enumerate(f.ranges):
                    self.fetched.append((r.obj.name, r.offset, r.length))
                    self.core.arrived(f, i, r.offset, r.length, r.length, self.now)
                self.core.finished(f, f.bytes, self.now)

    def obj(self, n: ObjectName) -> CachedObject:
        obj = self.core.cache.current(n)
        return obj or self.core.open(n, entry(self.sizes.get(n, SIZE)))[0]

    def read(
        self,
        i: int,
        client: str = "w",
        n: ObjectName | None = None,
        offset: int = 0,
        length: int = SIZE,
    ) -> ReadState:
        """One read, looked at at once; 10 ms after the one before."""
        self.now += 0.01
        obj = self.obj(n or name(i))
        state, _ = self.core.arrive(obj, offset, length)
        self.core.access(obj, offset, length, client, state, self.now)
        if state is not ReadState.HIT and self.core.demand(obj, offset, length) is not None:
            self.fetch()
        self.look()
        return state

    def here(self, n: ObjectName, offset: int = 0, length: int = SIZE) -> bool:
        obj = self.core.cache.current(n)
        if obj is None:
            return False
        return self.core.cache.state(obj, *page_span(offset, length)) is ReadState.HIT

    def plan(self, job: str = "a") -> dict[str, object]:
        plans = self.hints.book.describe(self.now)["hints"]
        found: dict[str, object] = next(p for p in plans if p["job"] == job)
        return found


def shuffled(n: int, seed: int = 1) -> list[int]:
    found: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return found


def test_a_plan_is_fetched_before_anybody_reads_and_nothing_else_is() -> None:
    world = World()
    order = shuffled(200)[:120]
    world.post(order)
    world.look()
    assert {n for n, _, _ in world.fetched} == {name(i) for i in order}
    states = [world.read(i) for i in order]
    assert states == [ReadState.HIT] * 120
    assert {n for n, _, _ in world.fetched} == {name(i) for i in order}
    assert (world.plan()["position"], world.plan()["items_left"]) == (120, 0)


def test_workers_in_turn_and_a_place_passed_by() -> None:
    world = World()
    world.post(range(60))
    world.look()
    for i in (0, 20, 1, 21, 2, 40, 22):
        assert world.read(i, client=f"w{i // 20}") is ReadState.HIT
    assert world.plan()["position"] == 41
    assert world.hints.book.held["a"].plan.base == 3
    for i in range(41, 60):
        world.read(i)
    assert world.plan()["items_left"] == 60 - 7 - 19


def test_what_was_read_before_the_plan_came_is_passed_by() -> None:
    world = World(capacity=400 << 20)
    for i in range(10):
        world.read(i)
    ranges = [HintedRange(name(i), 0, SIZE) for i in range(3_000)]
    world.hints.post("a", ranges, world.now, window=16_384)
    world.look()
    states = [world.read(i) for i in range(10, 2_000)]
    assert states.count(ReadState.HIT) == 1_990
    plan = world.hints.book.held["a"].plan
    assert (plan.passed, plan.left, plan.base) == (10, 1_000, 2_000)


def test_what_is_hinted_stays_and_the_farthest_goes_first() -> None:
    world = World(capacity=40 * 102_400)
    for i in range(100, 130):  # of nobody's plan
        world.read(i)
    order = shuffled(60)
    world.post(order)
    world.look()
    for at, i in enumerate(order[:30]):
        world.read(i)
        ahead = order[at + 1 : at + 4]
        assert all(world.here(name(j)) for j in ahead), at
    assert world.core.cache.used <= world.core.cache.capacity


def test_a_kept_item_is_dropped_last_of_all_when_a_demand_needs_room() -> None:
    world = World(capacity=20 * 102_400)
    world.post(range(18))
    for _ in range(30):
        world.now += 0.2
        world.look()
    kept = [i for i in range(18) if world.here(name(i))]
    assert kept == list(range(len(kept))) and len(kept) >= 4
    for i in range(500, 540):
        world.read(i, client="other")
    assert world.here(name(0)) and world.here(name(1))


def test_ranges_of_a_packed_object_and_pages_that_neighbours_share() -> None:
    packed = ObjectName("data", "packed")
    world = World(sizes={packed: 4 * BLOCK_BYTES})
    ranges = [HintedRange(packed, i * 10_000, 10_000) for i in shuffled(300)]
    world.hints.post("a", ranges, 0.0)
    world.look()
    for r in ranges:
        assert world.read(0, n=packed, offset=r.offset, length=r.length) is ReadState.HIT
    assert sum(length for _, _, length in world.fetched) == 733 * 4_096


def test_a_long_object_is_read_in_pieces() -> None:
    long = ObjectName("data", "long")
    world = World(sizes={long: 24 * BLOCK_BYTES})
    world.hints.post("a", [HintedRange(long, 0, 24 * BLOCK_BYTES)], 0.0)
    world.look()
    states = []
    for at in range(0, 24 * BLOCK_BYTES, BLOCK_BYTES):
        states.append(world.read(0, n=long, offset=at, length=BLOCK_BYTES))
    assert states.count(ReadState.HIT) == 24
    assert world.plan()["items_left"] == 0


def test_reads_that_do_not_follow_drop_the_plan() -> None:
    world = World()
    world.post(range(5_000))
    for i in shuffled(4_000, 5):
        world.read(i + 900)
        if "a" not in world.hints.book.held:
            break
    (gone,) = world.hints.book.gone
    assert gone.dropped == "reads of its objects do not follow it"


def test_a_deadline_is_fetched_for_when_it_is_near() -> None:
    world = World()
    ranges = [HintedRange(name(0), 0, SIZE, 100.0), HintedRange(name(1), 0, SIZE, 200.0)]
    world.hints.post("a", ranges, 0.0)
    world.look()
    assert world.fetched == []
    at = world.core.next_look(0.0)
    assert at is not None and 90.0 < at < 100.0
    world.now = at + 0.01
    world.look()
    assert {n for n, _, _ in world.fetched} == {name(0)}


def test_several_plans_are_told_apart_by_who_reads() -> None:
    world = World()
    world.post(range(50))
    world.post(range(49, -1, -1), job="b")
    world.look()
    for i in range(25):
        world.read(i, client="x")
        world.read(49 - i, client="y")
    assert (world.plan("a")["position"], world.plan("b")["position"]) == (25, 25)


def test_an_item_may_come_again() -> None:
    world = World()
    world.post([0, 1, 0, 2, 0])
    world.look()
    for i in (0, 1, 0, 2):
        assert world.read(i) is ReadState.HIT
    assert (world.plan()["position"], world.plan()["items_left"]) == (4, 1)
    world.read(0)
    assert world.plan()["items_left"] == 0
    assert sum(length for _, _, length in world.fetched) == 3 * SIZE


def test_a_plan_replaced_or_dropped_keeps_nothing() -> None:
    world = World(capacity=20 * 102_400)
    world.post(range(10))
    world.look()
    world.post(range(100, 103))
    world.hints.drop(world.hints.book.held["a"], "deleted")
    for i in range(500, 560):
        world.read(i, client="other")
    assert not any(world.here(name(i)) for i in range(10))
    assert world.hints.book.gone[0].dropped == "deleted"


def test_a_plan_expires() -> None:
    world = World()
    world.hints.post("a", [HintedRange(name(0), 0, SIZE)], 0.0, ttl_s=5.0)
    world.read(900)
    assert "a" in world.hints.book.held
    world.now = 5.1
    world.read(901)
    assert world.hints.book.gone[0].dropped == "not read and not posted to for 5 s"


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(book_module, "ITEMS_PER_JOB_MAX", 100)
    world.post(range(80))
    with pytest.raises(PlansFull, match="80 items are still to be read, and 30 more: at most 100"):
        world.hints.book.check("a", 30, 0, append=True)
    world.hints.book.check("a", 30, 0, append=False)
    with pytest.raises(TooLarge, match="about 600 MiB: at most 512"):
        world.hints.book.check("b", 1, 600 << 20, append=False)
    with pytest.raises(PlansFull, match="all plans together"):
        world.hints.book.check("b", 1, 512 << 20, append=False)
    for i in range(63):
        world.post([i], job=f"j{i}")
    with pytest.raises(PlansFull, match="64 jobs have plans") as refused:
        world.post([1], job="one more")
    assert refused.value.retry_after_s > 0


def test_what_was_read_is_forgotten() -> None:
    table = NamedTable()
    items = [table.intern(name(0), i * 10, 10) for i in range(5)] + [table.intern(name(1), 0, 9)]
    assert [table.range(i) for i in items[:2]] == [(name(0), 0, 10), (name(0), 10, 10)]
    assert table.intern(name(0), 20, 10) == items[2]
    assert list(table.touching(name(0), 15, 31)) == items[1:4]
    for i in items:
        table.free(i)
    assert (table.bytes, list(table.touching(name(0), 0, 99))) == (0, [])
    assert table.intern(name(7), 0, 1) in items


class Listing:
    def __init__(self, n: int) -> None:
        self.names = [name(i) for i in range(n)]

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        return [(n, entry()) for n in self.names if n > name][:limit]


def test_a_sampler_is_followed_by_the_listing() -> None:
    world = World()
    items = ListedItems(("data", "img/"), Listing(40), record=None)
    while not items.complete:
        items.grow()
    order = Sampler("torch.DistributedSampler", 40, seed=3).order()
    world.hints.post_order("a", items, order, "torch.DistributedSampler", 0.0)
    for _ in range(3):
        world.now += 0.1
        world.look()
    assert [world.read(i) for i in order.tolist()] == [ReadState.HIT] * 40


def test_every_kind_of_sampler_reads_each_item_once() -> None:
    for kind in KINDS:
        assert sorted(Sampler(kind, 24).order().tolist()) == list(range(24)), kind
    ranks = [Sampler("torch.DistributedSampler", 10, seed=1, world=2, rank=r) for r in (0, 1)]
    expected = distributed_sampler(10, ranks=2, seed=1)
    assert [r.order().tolist() for r in ranks] == expected.tolist()
    merged = Sampler("transformers.Trainer", 8, seed=1, world=2, batch=2).order().tolist()
    first = Sampler("transformers.Trainer", 8, seed=1, world=2, batch=2, rank=0).order().tolist()
    assert merged[:2] + merged[4:6] == first


def test_a_sampler_that_makes_no_sense_is_named() -> None:
    with pytest.raises(InvalidRequest, match="rank 2: below world, which is 2"):
        Sampler("dlio", 8, world=2, rank=2).order()
    with pytest.raises(InvalidRequest, match=r"replacement True: dlio goes by epoch, rank"):
        Sampler("dlio", 8, replacement=True).order()
    with pytest.raises(InvalidRequest, match="9 samples for 2 ranks"):
        Sampler("dlio", 9, world=2).order()
    with pytest.raises(TooLarge):
        Sampler("sequential", 1 << 40).order()


def test_reads_of_a_plan_are_no_streams() -> None:
    world = World()
    world.post(range(30))
    world.look()
    accesses = [
        Access(world.obj(name(i)), 0, SIZE, "w", 0.1, ReadState.HIT) for i in (0, 1, 700, 2)
    ]
    rest = world.hints.take(accesses, 0.1)
    assert [a.obj.name for a in rest] == [name(700)]
    assert DepthConfig().hide_s(0.06) > 0
