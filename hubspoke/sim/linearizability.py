"""Is a history of reads and writes of one namespace linearizable, name by name?

Decides by what a client could see: each operation has a start and an end, and somewhere between
them it must seem to have happened at once. Names are registers that are independent of each
other, so each is checked alone (Herlihy & Wing, 1990: the property is local).

    call of X      X is pending: it may have happened from here on
    return of X    X has happened: drop the possible worlds in which that cannot be

A *world* is the name's value and which pending operations have happened in it (Lowe, "Testing for
linearizability", 2017: just-in-time linearization). No world left: the history is wrong, and the
operation that returned last is the witness. It must never blame a history that some order
explains, so a write whose answer was lost may happen at any later time, or never.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

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


_World = tuple[Hashable, frozenset[int]]  # value, pending operations that have happened
_BEFORE_TOLD = 12


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
    read = {o.value for o in operations if o.kind == "read"}
    # A write of unknown outcome whose value nobody saw need not have happened.
    kept = [o for o in operations if o.end < math.inf or (o.kind == "write" and o.value in read)]
    # At the same instant calls come first: the two overlap.
    events = sorted(
        [(o.start, 0, i) for i, o in enumerate(kept)] + [(o.end, 1, i) for i, o in enumerate(kept)]
    )
    pending: dict[int, Operation] = {}
    worlds: set[_World] = {(initial, frozenset())}
    for at, is_return, i in events:
        if at == math.inf:
            break
        if not is_return:
            pending[i] = kept[i]
            continue
        worlds = {
            (value, happened - {i})
            for value, happened in _reachable(worlds, pending)
            if i in happened
        }
        del pending[i]
        if not worlds:
            seen = sorted((o for o in operations if o.start <= at), key=lambda o: o.end)
            return Violation(kept[i], tuple(o for o in seen if o is not kept[i])[-_BEFORE_TOLD:])
        worlds = _least(worlds, pending)
    return None


def _reachable(worlds: set[_World], pending: dict[int, Operation]) -> set[_World]:
    """All worlds that pending operations lead to. A read that fits happens at once: that takes
    nothing away from what may follow, so only writes branch."""
    reads: dict[Hashable, list[int]] = {}
    for i, o in pending.items():
        if o.kind == "read":
            reads.setdefault(o.value, []).append(i)
    writes = [(i, o.value, o.end == math.inf) for i, o in pending.items() if o.kind == "write"]
    found: set[_World] = set()
    todo = [(value, happened.union(reads.get(value, ()))) for value, happened in worlds]
    while todo:
        world = todo.pop()
        if world in found:
            continue
        found.add(world)
        now, happened = world
        tried = {now}
        for i, value, unknown in writes:
            # Writes of unknown outcome and one value are alike: one of them stands for all, and
            # for none where the name has that value.
            if i in happened or (unknown and value in tried):
                continue
            if unknown:
                tried.add(value)
            todo.append((value, happened.union((i,), reads.get(value, ()))))
    return found


def _least(worlds: set[_World], pending: dict[int, Operation]) -> set[_World]:
    """Leave out a world that only used up more writes of unknown outcome than another did."""
    unknown = frozenset(i for i, o in pending.items() if o.end == math.inf)
    if not unknown:
        return worlds
    groups: dict[_World, list[frozenset[int]]] = {}
    for value, happened in sorted(worlds, key=lambda w: len(w[1])):
        used = groups.setdefault((value, happened - unknown), [])
        if not any(less <= happened & unknown for less in used):
            used.append(happened & unknown)
    return {(v, known | u) for (v, known), used in groups.items() for u in used}
