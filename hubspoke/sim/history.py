"""What clients asked and were told, as the judge reads it.

A moment is a time and a number: two things at one virtual time have an order all the same.
"""

import asyncio
import math
from dataclasses import dataclass

from hubspoke.core.ids import ObjectName
from hubspoke.sim import linearizability

Moment = tuple[float, int]
Value = str | None  # an ETag, unique to a write; None: there is no such object
NEVER: Moment = (math.inf, 0)


@dataclass(slots=True)
class Operation:
    """One write or one read of one name. returned: NEVER if nobody knows what became of it.

    from_: a read may tell a value that held at any moment since; its call, or earlier by the
    age it was answered with. who: "hub", a spoke. how: "PUT", "DELETE", "GET", "HEAD", "LIST".
    """

    name: ObjectName
    who: str
    how: str
    value: Value
    from_: Moment
    returned: Moment = NEVER
    age_s: float | None = None

    @property
    def writes(self) -> bool:
        return self.how in ("PUT", "DELETE")

    def __str__(self) -> str:
        value = self.value[:8] if self.value is not None else "absent"
        until = f"{self.returned[0]:9.4f}" if self.returned < NEVER else "  unknown"
        age = "" if self.age_s is None else f" age {self.age_s:.3f} s"
        return (
            f"{self.from_[0]:9.4f} .. {until}  {self.who:<4} {self.how:<6} "
            f"{self.name.key:<8} {value}{age}"
        )


@dataclass(frozen=True, slots=True)
class Page:
    """One listing page: the values of all names it speaks for, at one moment of its replica."""

    who: str
    at: float
    values: dict[ObjectName, Value]


class History:
    """Of one run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.operations: list[Operation] = []
        self.pages: list[Page] = []
        self._loop = loop
        self._number = 0

    def now(self) -> Moment:
        self._number += 1
        return (self._loop.time(), self._number)

    def add(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation

    def violations(self) -> list[str]:
        """Names whose answers no order of their changes explains, each with what led to it."""
        moments = sorted({m for op in self.operations for m in (op.from_, op.returned)})
        rank = {moment: float(i) for i, moment in enumerate(moments)}
        rank[NEVER] = math.inf
        judged = [
            linearizability.Operation(
                op.name,
                "write" if op.writes else "read",
                op.value,
                rank[op.from_],
                rank[op.returned],
                client=str(op),
            )
            for op in self.operations
        ]
        return [
            f"{v.witness.name}: no order of the changes explains the last line\n  "
            + "\n  ".join(self._leading_to(v.witness.client))
            for v in linearizability.check(judged)
        ]

    def _leading_to(self, told: str, most: int = 12) -> list[str]:
        """The last changes and reads of the same name before the operation, and itself."""
        witness = next(op for op in self.operations if str(op) == told)
        near = sorted(
            (o for o in self.operations if o.name == witness.name and o.from_ < witness.returned),
            key=lambda op: op.from_,
        )
        changes = [op for op in near if op.writes][-most:]
        reads = [op for op in near if not op.writes and op is not witness][-most:]
        return [*map(str, sorted(changes + reads, key=lambda op: op.from_)), told]
