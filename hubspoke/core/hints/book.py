"""The plans that are held: by job, bounded in number and memory, for a time.

Never takes a part of a post: it is held as a whole or refused, and then nothing has changed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hubspoke.core.hints.plan import PLACE_BYTES, Plan
from hubspoke.core.hints.table import ITEM_BYTES, NamedTable, Table
from hubspoke.core.ids import ObjectName
from hubspoke.errors import PlansFull, TooLarge

JOBS_MAX = 64
ITEMS_PER_POST_MAX = 16_384
ITEMS_PER_JOB_MAX = 1_048_576  # to be read; a sampler may have more
SAMPLER_ITEMS_MAX = 1 << 25
MEMORY_BYTES_MAX = 512 << 20
WINDOW_DEFAULT, WINDOW_MAX = 8_192, 65_536  # items
TTL_DEFAULT_S, TTL_MAX_S = 3_600.0, 7 * 86_400.0
GONE_KEPT = 16
RETRY_MIN_S, RETRY_MAX_S = 0.5, 60.0


class HintedRange(NamedTuple):
    """One read to come. deadline: on the spoke's clock, None if there is none."""

    name: ObjectName
    offset: int
    length: int
    deadline: float | None = None


@dataclass(slots=True, eq=False)
class Held:
    """One job's plan. number: of the plan, for candidates. source: "plan" or the sampler's."""

    job: str
    number: int
    plan: Plan
    source: str
    dropped: str = ""  # why, once it is


class Book:
    """Plans by the names of their jobs."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.gone: deque[Held] = deque(maxlen=GONE_KEPT)
        self._numbers = 0

    # -- posts --------------------------------------------------------------------------------

    def check(self, job: str, items: int, bytes_: int, *, append: bool) -> None:
        """Whether so many items more, of so many bytes of memory, may be held.

        Raises TooLarge for what will never be, PlansFull for what may be once some of what is held
        was read.
        """
        known = self.held.get(job)
        before = known.plan.left if known is not None and append else 0
        if bytes_ > MEMORY_BYTES_MAX:
            raise TooLarge(
                f"{items:,} items take about {bytes_ >> 20} MiB: at most {MEMORY_BYTES_MAX >> 20}"
            )
        if known is None and len(self.held) >= JOBS_MAX and not self._finished():
            raise PlansFull(
                f"{JOBS_MAX} jobs have plans: drop one, or post to one of them", RETRY_MAX_S
            )
        if known is not None and before and before + items > ITEMS_PER_JOB_MAX:
            excess = before + items - ITEMS_PER_JOB_MAX
            raise PlansFull(
                f"{job}: {before:,} items are still to be read, and {items:,} more: at most "
                f"{ITEMS_PER_JOB_MAX:,}",
                self._retry_s(known, excess),
            )
        others = sum(h.plan.memory_bytes for h in self.held.values() if append or h is not known)
        if others + bytes_ > MEMORY_BYTES_MAX:
            raise PlansFull(
                f"all plans together would take {others + bytes_ >> 20} MiB: at most "
                f"{MEMORY_BYTES_MAX >> 20}",
                self._retry_s(known, items),
            )

    def _finished(self) -> list[Held]:
        return [h for h in self.held.values() if not h.plan.left]

    @staticmethod
    def _retry_s(held: Held | None, items: int) -> float:
        """Until so many items of a plan have been read."""
        rate = held.plan.places_per_s if held is not None else 0.0
        return min(max(items / rate if rate else 1.0, RETRY_MIN_S), RETRY_MAX_S)

    def post(
        self,
        job: str,
        ranges: Sequence[HintedRange],
        now: float,
        *,
        append: bool,
        ttl_s: float,
        window: int,
    ) -> tuple[Held, Held | None]:
        """Hold a plan, checked before; returns it and the one that it replaced."""
        bytes_ = sum(len(r.name.key) for r in ranges) + len(ranges) * (ITEM_BYTES + PLACE_BYTES)
        self.check(job, len(ranges), bytes_, append=append)
        known = self.held.get(job)
        if append and known is not None and isinstance(known.plan.table, NamedTable):
            held, replaced = known, None
        else:
            plan = Plan(NamedTable(), window, ttl_s, now)
            held, replaced = self._hold(job, plan, "plan")
        plan, table = held.plan, held.plan.table
        assert isinstance(table, NamedTable)
        items = [table.intern(r.name, r.offset, r.length) for r in ranges]
        deadlines = [(i, r.deadline) for i, r in enumerate(ranges) if r.deadline is not None]
        plan.append(items, sum(r.length for r in ranges), deadlines)
        plan.touched_at, plan.ttl_s, plan.window = now, ttl_s, window
        return held, replaced

    def post_order(
        self,
        job: str,
        table: Table,
        order: Sequence[int],
        bytes_: int,
        source: str,
        now: float,
        *,
        ttl_s: float,
        window: int,
    ) -> tuple[Held, Held | None]:
        """The same of a sampler's order of a table's items, of so many bytes; it replaces."""
        self.check(job, len(order), table.bytes + len(order) * PLACE_BYTES, append=False)
        plan = Plan(table, window, ttl_s, now)
        plan.append(order, bytes_)
        return self._hold(job, plan, source)

    def _hold(self, job: str, plan: Plan, source: str) -> tuple[Held, Held | None]:
        replaced = self.held.pop(job, None)
        if len(self.held) >= JOBS_MAX:
            del self.held[self._finished()[0].job]
        self._numbers += 1
        held = self.held[job] = Held(job, self._numbers, plan, source)
        return held, replaced

    # -- ends ---------------------------------------------------------------------------------

    def drop(self, held: Held, why: str) -> None:
        """It is held no longer."""
        held.dropped = why
        self.held.pop(held.job, None)
        self.gone.appendleft(held)

    def expired(self, now: float) -> list[Held]:
        """Plans that were neither posted to nor read for their time."""
        return [h for h in self.held.values() if now - h.plan.touched_at > h.plan.ttl_s]

    # -- what is told about it ----------------------------------------------------------------

    def describe(self, now: float) -> dict[str, Any]:
        """For GET /v1/hints."""
        return {
            "hints": [describe(h, now) for h in self.held.values()],
            "dropped": [describe(h, now) for h in self.gone],
            "memory_bytes": sum(h.plan.memory_bytes for h in self.held.values()),
            "limits": {
                "jobs": JOBS_MAX,
                "items_per_post": ITEMS_PER_POST_MAX,
                "items_per_job": ITEMS_PER_JOB_MAX,
                "sampler_items": SAMPLER_ITEMS_MAX,
                "memory_bytes": MEMORY_BYTES_MAX,
            },
        }


def describe(held: Held, now: float) -> dict[str, Any]:
    """One plan, for people and scripts."""
    p = held.plan
    reads = p.hits + p.late + p.misses
    found: dict[str, Any] = {
        "job": held.job,
        "source": held.source,
        "items": p.end,
        "position": p.front,
        "items_left": p.left,
        "bytes_left": p.bytes_left,
        "cached_bytes": min(p.here_bytes, p.bytes_left),
        "window": p.window,
        "items_per_second": round(p.places_per_s, 3) or None,
        "reads": reads,
        "hits": p.hits,
        "hit_ratio": p.hits / reads if reads else None,
        "items_passed_by": p.passed,
    }
    if held.dropped:
        return found | {"why": held.dropped}
    return found | {"expires_in_seconds": round(max(0.0, p.touched_at + p.ttl_s - now), 3)}
