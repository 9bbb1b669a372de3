"""Hints: what a job has posted that it will read.

Assumes: the plan is exact, so all of it is read unless the job ends; reads come in its order but
for a window. Proposes what lies between the first place that may still be read and what is read
within the time that hides latency, and a place with a deadline when that is near. Nothing beyond
the plan. A long item is proposed in pieces.
"""

from collections.abc import Callable
from typing import NamedTuple

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.hints.plan import Plan
from hubspoke.core.ids import BLOCK_BYTES, PAGE_BYTES, ObjectEntry, ObjectName

ITEMS_MAX = 1_024  # proposed at once
STEPS_MAX = 4_096  # places looked at for that


class Depth(NamedTuple):
    """How far ahead. bytes_: of places to be read. room: of them that may be asked for now. lead_s:
    before its deadline a place is asked for, and longer by what the path takes for what is ahead of
    it, at so many bytes a second."""

    bytes_: int
    room: int
    lead_s: float
    bytes_per_s: float


class Sight(NamedTuple):
    """What the generator may look at: cached objects, and what the namespace has of a name."""

    current: Callable[[ObjectName], CachedObject | None]
    entry: Callable[[ObjectName], ObjectEntry | None]
    here: Callable[[Plan, int], bool]  # whether the whole item is here or coming


def propose(plan: Plan, number: int, depth: Depth, sight: Sight, now: float) -> list[Candidate]:
    """What comes next of the plan and is not here. number: of the plan."""
    found: list[Candidate] = []
    room = depth.room
    for _ in range(STEPS_MAX):
        at = plan.planned
        if at >= plan.surveyed or len(found) >= ITEMS_MAX or not wanted(plan, depth, now):
            break
        if room <= 0:
            break
        if not plan.to_come(at):
            plan.planned, plan.planned_bytes = at + 1, 0
            continue
        item = plan.item(at)
        name, offset, length = plan.table.range(item)
        done = plan.planned_bytes
        n = length - done
        if sight.here(plan, item):
            plan.ahead_bytes += n
            plan.planned, plan.planned_bytes = at + 1, 0
            continue
        n = min(n, max(depth.bytes_ - plan.ahead_bytes, BLOCK_BYTES))
        if n + 2 * PAGE_BYTES > room:
            # Whoever queues it would cut it. A piece of a long item is as good.
            n = room // PAGE_BYTES * PAGE_BYTES - 2 * PAGE_BYTES
            if n <= 0 or (found and length <= BLOCK_BYTES):
                break
        entry = None if sight.current(name) is not None else sight.entry(name)
        if entry is not None or sight.current(name) is not None:
            use_in_s = max(plan.due_s(at, now), plan.ahead_bytes / depth.bytes_per_s)
            found.append(
                Candidate("hints", number, name, entry, offset + done, n, use_in_s, at + 1)
            )
            plan.came(item)
            room -= n + 2 * PAGE_BYTES
        plan.ahead_bytes += n
        if done + n < length:
            plan.planned_bytes = done + n
        else:
            plan.planned, plan.planned_bytes = at + 1, 0
    return found


def wanted(plan: Plan, depth: Depth, now: float) -> bool:
    """Whether the next place is to be asked for by now."""
    near = plan.ahead_bytes < depth.bytes_
    if not plan.timed:
        return near
    deadline = plan.deadline(plan.planned)
    if deadline is None:
        return near
    if deadline - now <= depth.lead_s + 1.25 * plan.ahead_bytes / depth.bytes_per_s:
        return True
    return near and plan.followed


def next_look(plan: Plan, depth: Depth, now: float) -> float | None:
    """When the next place will have to be asked for, without a read meanwhile; None if never."""
    if plan.planned >= plan.end or not plan.timed:
        return None
    deadline = plan.deadline(plan.planned)
    if deadline is None:
        return None
    return max(now, deadline - depth.lead_s - 1.25 * plan.ahead_bytes / depth.bytes_per_s)
