"""What a spoke answers when no lease covers its replica: refuse, or answer up to an age.

Never decides for a read under a valid lease, and never makes "unreachable" into "absent".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hubspoke.core.ids import ObjectName

BOUNDED_DEFAULT_S = 3600.0


class PolicyRule(Protocol):
    """prefix: of BUCKET/KEY. bounded_s: None is strict, else the age up to which it answers."""

    @property
    def prefix(self) -> str: ...
    @property
    def bounded_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PartitionPolicy:
    """The longest matching prefix decides; without a match `default_s` holds."""

    rules: Sequence[PolicyRule] = ()
    default_s: float | None = BOUNDED_DEFAULT_S

    def bounds(self) -> dict[str, float | None]:
        """What holds below each prefix, the default as that of the empty one."""
        rules = {rule.prefix: rule.bounded_s for rule in self.rules}
        return dict(sorted(({"": self.default_s} | rules).items()))

    def bound_for(self, name: ObjectName) -> float | None:
        """Seconds of age up to which the name is answered; None: strict."""
        path = str(name)
        matching = [rule for rule in self.rules if path.startswith(rule.prefix)]
        if not matching:
            return self.default_s
        return max(matching, key=lambda rule: len(rule.prefix)).bounded_s

    def bound_below(self, name: ObjectName) -> float | None:
        """The same for a listing of all names that begin with `name`: the strictest of theirs."""
        path = str(name)
        inside = [rule.bounded_s for rule in self.rules if rule.prefix.startswith(path)]
        bounds = [bound for bound in (self.bound_for(name), *inside) if bound is not None]
        return min(bounds) if len(bounds) == len(inside) + 1 else None

    def refusal(self, name: ObjectName, age_s: float, *, below: bool = False) -> str | None:
        """Why the name is not answered at this age; None: it is.

        age_s: seconds since the replica was surely current, infinite when that is not known.
        below: asked is for a listing of what begins with `name`.
        """
        bound = self.bound_below(name) if below else self.bound_for(name)
        if bound is None:
            return "no lease, and its policy is strict"
        if age_s > bound:
            old = f"{age_s:.1f} s old" if age_s != float("inf") else "of unknown age"
            return f"no lease, and the replica is {old}, beyond its bound of {bound:g} s"
        return None
