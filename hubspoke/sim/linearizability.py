"""Is a history of reads and writes of one namespace linearizable, name by name?

Decides by what a client could see: each operation has a start and an end, and somewhere between
them it must seem to have happened at once. Names are registers that are independent of each
other, so each is checked alone (Herlihy & Wing, 1990: the property is local).

    call of X      X is pending: it may have happened from here on
    return of X    X has happened: drop the possible worlds in which that cannot be

A *world* is the name's value and what has happened in it of what is pending (Lowe, "Testing for
linearizability", 2017: just-in-time linearization). No world left: the history is wrong, and the
operation that returned last is the witness. It must never blame a history that some order
explains, so a write whose answer was lost may happen at any later time, or never.

Lost writes of one value are alike from the call of the last on, so they are counted, not named:
to name them made a world of each subset, and 20 lost deletes of a name took for ever. Nothing is
done before a return needs it, and of two worlds with the same value the one that has more left to
use and owes less to readers can do all that the other can: only it is kept.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["write", "read"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What one client did. value: what it wrote or read; None: absent (a delete, a 404).

    start, end: of one clock. end: `math.inf` for a write whose answer is not known. A read that
    failed, and a write that was refused before it began, say nothing and are left out.
    """

    name: Hashable
    kind: Kind
    value: Hashable
    start: float
    end: float
    client: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """`witness` cannot have happened between its start and its end, whatever the order before.

    before: operations of that name that started before its end, in order of their ends; last few.
    """

    witness: Operation
    before: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"{self.witness} fits no order of", *map(str, self.before)]
        return "\n  ".join(lines)


_BEFORE_TOLD = 12


class _World(NamedTuple):
    """done: pending writes with a known end that have happened.

    cost: what is better not there: the lost writes used, the nth of a value as (value, n), and the
    pending reads that have not happened, by their numbers.
    """

    value: Hashable
    done: frozenset[int]
    cost: frozenset[Hashable]


@dataclass(slots=True)
class _Pending:
    """Operations called and not returned. lost: how many writes of a value whose end is unknown."""

    writes: dict[int, Hashable] = field(default_factory=dict)
    lost: Counter[Hashable] = field(default_factory=Counter)
    reads: dict[Hashable, set[Hashable]] = field(default_factory=dict)

    def written(self, world: _World, value: Hashable) -> frozenset[Hashable]:
        """The cost after a write of the value: a read that fits happens at once, which takes
        nothing away from what may follow."""
        fitting = self.reads.get(value)
        return world.cost - fitting if fitting else world.cost

    def next(self, world: _World) -> Iterable[_World]:
        """Worlds one write further."""
        value, done, cost = world
        for i, wrote in self.writes.items():
            if i not in done:
                yield _World(wrote, done | {i}, self.written(world, wrote))
        for wrote, n in self.lost.items():
            if wrote == value:
                continue
            used = next((k for k in range(n) if (wrote, k) not in cost), None)
            if used is not None:
                yield _World(wrote, done, self.written(world, wrote) | {(wrote, used)})


def check(history: Iterable[Operation], initial: Hashable = None) -> list[Violation]:
    """One violation for each name whose operations fit no order; empty: linearizable.

    initial: value of every name before the history.
    """
    by_name: dict[Hashable, list[Operation]] = {}
    for operation in history:
        assert operation.start <= operation.end, operation
        by_name.setdefault(operation.name, []).append(operation)
    return [v for ops in by_name.values() if (v := _check_one(ops, initial)) is not None]


def _check_one(operations: list[Operation], initial: Hashable) -> Violation | None:
    unread = Counter(o.value for o in operations if o.kind == "read")
    # A write of unknown outcome whose value nobody saw need not have happened.
    kept = [o for o in operations if o.end < math.inf or (o.kind == "write" and unread[o.value])]
    # At the same instant calls come first: the two overlap.
    events = sorted(
        [(o.start, 0, i) for i, o in enumerate(kept)]
        + [(o.end, 1, i) for i, o in enumerate(kept) if o.end < math.inf]
    )
    pending = _Pending()
    worlds: Iterable[_World] = [_World(initial, frozenset(), frozenset())]
    for at, is_return, i in events:
        o = kept[i]
        if not is_return:
            if o.end < math.inf or unread[o.value]:
                worlds = _called(worlds, pending, i, o)
            continue
        worlds = _returned(worlds, pending, i, o)
        if not worlds:
            seen = sorted((o for o in operations if o.start <= at), key=lambda o: o.end)
            return Violation(kept[i], tuple(o for o in seen if o is not kept[i])[-_BEFORE_TOLD:])
        if o.kind == "read":
            unread[o.value] -= 1
            if not unread[o.value]:
                worlds = _forgotten(worlds, pending, o.value)
    return None


def _called(worlds: Iterable[_World], pending: _Pending, i: int, o: Operation) -> list[_World]:
    if o.kind == "read":
        pending.reads.setdefault(o.value, set()).add(i)
        return [w if w.value == o.value else w._replace(cost=w.cost | {i}) for w in worlds]
    if o.end < math.inf:
        pending.writes[i] = o.value
    else:
        pending.lost[o.value] += 1
    return list(worlds)


def _returned(worlds: Iterable[_World], pending: _Pending, i: int, o: Operation) -> list[_World]:
    """The worlds in which it has happened: those that had it, and the nearest to the others."""
    reads = o.kind == "read"
    kept, seen = _Least(), _Least()
    number = itertools.count()
    todo = [(len(w.cost), next(number), w) for w in worlds]
    heapq.heapify(todo)
    while todo:
        _, _, world = heapq.heappop(todo)
        if not seen.take(world):
            continue
        if (i not in world.cost) if reads else (i in world.done):
            kept.take(world if reads else world._replace(done=world.done - {i}))
            continue
        for further in pending.next(world):
            heapq.heappush(todo, (len(further.cost), next(number), further))
    if reads:
        pending.reads[o.value].discard(i)
    else:
        del pending.writes[i]
    return kept.worlds()


def _forgotten(worlds: Iterable[_World], pending: _Pending, value: Hashable) -> list[_World]:
    """Nobody will read the value again, so a lost write of it need not happen any more."""
    kept = _Least()
    tokens = {(value, k) for k in range(pending.lost.pop(value, 0))}
    for world in worlds:
        kept.take(world._replace(cost=world.cost - tokens))
    return kept.worlds()


class _Least:
    """Worlds without those that another one can stand for."""

    def __init__(self) -> None:
        self._costs: dict[tuple[Hashable, frozenset[int]], list[frozenset[Hashable]]] = {}

    def take(self, world: _World) -> bool:
        """Returns whether no world before it could stand for it."""
        costs = self._costs.setdefault((world.value, world.done), [])
        if any(cost <= world.cost for cost in costs):
            return False
        costs[:] = [cost for cost in costs if not world.cost <= cost]
        costs.append(world.cost)
        return True

    def worlds(self) -> list[_World]:
        return [_World(*at, cost) for at, costs in self._costs.items() for cost in costs]
