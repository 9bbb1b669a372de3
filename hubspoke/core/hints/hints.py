"""Plans at work: which reads follow them, what is fetched for them, what goes last.

Reads that follow a plan are explained and go to no other generator, so that nothing is fetched
which the plan does not name. Others go on as if there were no plan: they are somebody else's.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.items import ListedItems, folder_of
from hubspoke.core.generators import hints
from hubspoke.core.generators.candidates import Candidate, DepthConfig
from hubspoke.core.hints.book import TTL_DEFAULT_S, WINDOW_DEFAULT, Book, Held, HintedRange
from hubspoke.core.hints.kept import LONG_BYTES, Kept, blocks_of
from hubspoke.core.hints.plan import NOWHERE, Plan
from hubspoke.core.hints.table import ListedTable
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, page_span
from hubspoke.core.page_codes import IS_ABSENT, IS_QUEUED
from hubspoke.core.streams import Access

# Ahead before the first read, and whatever the rate: a second of a path of 1 Gbit/s is more than
# workers ask for when they begin; a small cache would lose what is read later for it.
FIRST_BYTES, FIRST_SHARE = 64 << 20, 1 / 64
MOST_SHARE = 1 / 4  # of the cache, ahead of all plans together
# Further ahead, where no plan loses anything for it: a loader asks in bursts.
EXTRA_S, FULL_SHARE = 2.0, 15 / 16
RATE_DEFAULT = 125e6  # of a path that nothing is known of, bytes a second
SURVEYED_AT_ONCE = 512  # items
REWIND_S = 0.25
AGAIN_S = 0.05  # until a plan is looked at again of which more is to be asked for
CLIENTS_MAX = 4_096
LET_GO_AT_ONCE = 2_048  # places
FORGOTTEN_MAX = 4_096  # objects whose folders are looked up


class Hints:
    """`book`: what is held."""

    def __init__(
        self, cache: Cache, depth: DepthConfig, forget: Callable[[ObjectName], None]
    ) -> None:
        """forget: what was believed of the folder of an object that a plan names."""
        self.book = Book()
        self._forget = forget
        # What the namespace has of a name; set by whoever knows.
        self.entry: Callable[[ObjectName], ObjectEntry | None] = lambda name: None
        self.path_rate = RATE_DEFAULT
        # Something that was to come found no room, or was not wanted after all.
        self.gave_up = False
        self._cache = cache
        self._depth = depth
        self._follows: dict[str, Held] = {}  # by client
        self._leaving: deque[tuple[Plan, int]] = deque()
        self._rewound_at = float("-inf")
        self._kept = Kept(cache, self.book, self._let_go)
        cache.hinted.order = self._kept

    @property
    def _plans(self) -> Iterator[Plan]:
        return (h.plan for h in self.book.held.values())

    # -- posts --------------------------------------------------------------------------------

    def post(
        self,
        job: str,
        ranges: Sequence[HintedRange],
        now: float,
        *,
        append: bool = False,
        ttl_s: float = TTL_DEFAULT_S,
        window: int = WINDOW_DEFAULT,
    ) -> Held:
        """Hold a plan, in the place of the job's last one or behind it. Raises TooLarge,
        PlansFull."""
        held, replaced = self.book.post(job, ranges, now, append=append, ttl_s=ttl_s, window=window)
        for name in {folder_of(r.name): r.name for r in ranges}.values():
            self._forget(name)
        self._survey(held.plan, len(ranges))
        if replaced is not None:
            self._leave(replaced)
        return held

    def post_order(
        self,
        job: str,
        items: ListedItems,
        order: npt.NDArray[np.int64],
        source: str,
        now: float,
        *,
        ttl_s: float = TTL_DEFAULT_S,
        window: int = WINDOW_DEFAULT,
    ) -> Held:
        """The same of an order of the items of a listing, which replaces. Raises as `post`."""
        lengths = items.lengths()[order]
        held, replaced = self.book.post_order(
            job,
            ListedTable(items),
            order[lengths > 0].tolist(),
            int(lengths.sum()),
            source,
            now,
            ttl_s=ttl_s,
            window=window,
        )
        for number in range(min(items.objects, FORGOTTEN_MAX)):
            self._forget(items.object_name(number))
        if replaced is not None:
            self._leave(replaced)
        return held

    def drop(self, held: Held, why: str) -> None:
        """The plan is held no longer."""
        self.book.drop(held, why)
        self._leave(held)

    def _leave(self, held: Held) -> None:
        """The blocks of a plan that is not in the book any more go to the other policies, a part
        at a time."""
        for client in [c for c, h in self._follows.items() if h is held]:
            del self._follows[client]
        self._leaving.append((held.plan, held.plan.base))

    def _let_go(self) -> None:
        if not self._leaving:
            return
        plan, at = self._leaving.popleft()
        until = min(plan.end, at + LET_GO_AT_ONCE)
        for place in range(at, until):
            item = plan.item(place)
            if plan.place[item] == place:
                self._kept.release(plan, item, read=False)
        if until < plan.end:
            self._leaving.appendleft((plan, until))

    def knows(self, obj: CachedObject, first: int, last: int) -> bool:
        """Whether plans name something of the pages that is still to be read."""
        return bool(self.book.held) and self._kept.needed(obj, first, last)

    # -- reads --------------------------------------------------------------------------------

    def take(self, accesses: Sequence[Access], now: float) -> Sequence[Access]:
        """Reads in order of time; returns those that follow no plan."""
        self._kept.look(now)
        self._let_go()
        if not self.book.held:
            return accesses
        rest = [a for a in accesses if not self._taken(a)]
        for held in list(self.book.held.values()):
            for item in held.plan.advance():
                self._over(held.plan, item)
        for held in self.book.expired(now):
            self.drop(held, f"not read and not posted to for {held.plan.ttl_s:g} s")
        return rest

    def _taken(self, a: Access) -> bool:
        name, start, end = a.obj.name, a.offset, a.offset + a.length
        best: tuple[float, Held, list[int]] | None = None
        strangers = []
        follows = self._follows.get(a.client)
        for held in self.book.held.values():
            items, touched = held.plan.find(name, start, end)
            if items:
                plan = held.plan
                far = min(abs(plan.place[i] - plan.front) for i in items)
                far = -1 if held is follows else far
                if best is None or far < best[0]:
                    best = far, held, items
            elif touched:
                strangers.append(held)
        if best is None:
            for held in strangers:
                if not held.plan.judge(fits=False):
                    self.drop(held, "reads of its objects do not follow it")
            return False
        self._follow(a, best[1], best[2])
        return True

    def _follow(self, a: Access, held: Held, items: list[int]) -> None:
        plan, start, end = held.plan, a.offset, a.offset + a.length
        plan.judge(fits=True)
        plan.hits += a.state is ReadState.HIT
        plan.late += a.state is ReadState.LATE
        plan.misses += a.state is ReadState.MISS
        if self._follows.get(a.client) is not held:
            self._follows[a.client] = held
            if len(self._follows) > CLIENTS_MAX:
                del self._follows[next(iter(self._follows))]
        for item in items:
            if plan.read(item, start, end, a.at):
                plan.consume(item)
                self._over(plan, item)
            elif plan.table.range(item)[2] >= LONG_BYTES:
                self._kept.passed(a.obj, start, end)

    def _over(self, plan: Plan, item: int) -> None:
        """The item was read for this time."""
        if plan.place[item] == NOWHERE:
            self._kept.release(plan, item)
            plan.here[item] = 0
            plan.table.free(item)

    # -- what comes ---------------------------------------------------------------------------

    def propose(self, now: float, hide_s: float, outstanding: int, most: int) -> list[Candidate]:
        """What comes next of all plans. outstanding: prefetch bytes that are to come, of which
        there may be `most`."""
        if self.gave_up and now - self._rewound_at >= REWIND_S:
            self.gave_up, self._rewound_at = False, now
            for plan in self._plans:
                plan.rewind()
        for plan in self._plans:
            if plan.verify_at() <= now:
                plan.verify(now)
        found: list[Candidate] = []
        held = list(self.book.held.values())
        for h in held:
            self._survey(h.plan, SURVEYED_AT_ONCE)
        active = [h for h in held if h.plan.planned < h.plan.end]
        here = sum(h.plan.here_bytes for h in held) + outstanding
        spare = max(0.0, FULL_SHARE * self._cache.limit - here) / max(1, len(active))
        sight = hints.Sight(self._cache.current, self.entry, self._is_here)
        for h in active:
            room = (most - outstanding) // len(active)
            depth = self._depth_of(h.plan, hide_s, spare, len(active))._replace(room=room)
            found += hints.propose(h.plan, h.number, depth, sight, now)
        return found

    def _depth_of(self, plan: Plan, hide_s: float, spare: float, active: int) -> hints.Depth:
        share = self._cache.limit / active
        each = plan.bytes_left / max(1, plan.left)
        first = min(FIRST_BYTES / active, share * FIRST_SHARE)
        hides = plan.bytes_per_s * hide_s + plan.spread * each
        extra = max(plan.bytes_per_s * max(EXTRA_S, self._depth.runway_s), FIRST_BYTES / active)
        extra = min(extra, plan.ahead_bytes + spare)
        ahead = max(min(max(first, hides), share * MOST_SHARE), extra)
        return hints.Depth(int(ahead), 0, hide_s, max(self.path_rate, 1.0))

    def next_look(self, now: float, hide_s: float) -> float | None:
        """When to ask for more although nobody reads; None if not at all."""
        found = [now] if self._leaving else []
        if self.gave_up:
            found.append(self._rewound_at + REWIND_S)
        for plan in self._plans:
            if plan.surveyed < plan.end:
                found.append(now)
            depth = self._depth_of(plan, hide_s, 0.0, max(1, len(self.book.held)))
            at = hints.next_look(plan, depth, now)
            if at is not None:
                found.append(at)
            elif plan.planned < plan.end and hints.wanted(plan, depth, now):
                found.append(now + AGAIN_S)
            if plan.ahead_bytes:
                found.append(plan.verify_at())
            found.append(plan.touched_at + plan.ttl_s)
        return min(found, default=None)

    def _is_here(self, plan: Plan, item: int) -> bool:
        name, offset, length = plan.table.range(item)
        obj = self._cache.current(name)
        if obj is None or offset >= obj.size:
            return False
        first, last = page_span(offset, min(length, obj.size - offset))
        absent = obj.pages.any(first, last, IS_ABSENT)
        if not absent and not obj.pages.any(first, last, IS_QUEUED):
            plan.came(item)
        return not absent

    def _survey(self, plan: Plan, most: int) -> None:
        """What was here before the plan: it is to stay."""
        until = min(plan.end, max(plan.surveyed, plan.base) + most)
        for place in range(max(plan.surveyed, plan.base), until):
            if not plan.to_come(place):
                continue
            item = plan.item(place)
            name, offset, length = plan.table.range(item)
            obj = self._cache.current(name)
            if obj is None or offset >= obj.size:
                continue
            for block in blocks_of(obj, offset, length):
                self._cache.hinted.hold(obj, block)
            self._is_here(plan, item)
        plan.surveyed = until
