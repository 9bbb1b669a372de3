"""Names that cannot be objects, and objects that a mount cannot show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hubspoke.doctor.judge.finding import Finding, note, ok, warning

EXAMPLES = 3
_REMEDIES = {
    "beside the buckets: not a folder": "move it into a folder, or serve all with --bucket NAME",
    "beside the buckets: not a legal bucket name": (
        "rename it (3 to 63 of a-z, 0-9, '.', '-'), or serve all with --bucket NAME"
    ),
    "a link out of the folder": "copy or bind-mount what it means into the store",
    "a link to a folder": "bind-mount the folder in the link's place (mount --bind)",
    "a link to nothing": "remove it, or bring back what it meant",
    "a folder that may not be read": "let the hub's user read it, if it has data",
}
_FROM_S3 = "rename it at the hub, or read it by S3, where it is listed and read exactly"


@dataclass(frozen=True, slots=True)
class NameFacts:
    """where: the store or the hub. looked_at: names seen; complete: were they all. unseen: count
    and examples of what is no object, or is not shown on a mount, by reason."""

    where: str
    looked_at: int
    complete: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)


def in_store(facts: NameFacts) -> list[Finding]:
    """What a folder store leaves out."""
    remedy = "rename it, or move it out of the store"
    found = [
        _left_out(facts, reason, "left out, ", _REMEDIES.get(reason, remedy))
        for reason in facts.counts
    ]
    return found + _rest(facts, "is served")


def on_mount(facts: NameFacts) -> list[Finding]:
    """What a mount of this hub cannot show."""
    found = [_left_out(facts, reason, "not on a mount, ", _FROM_S3) for reason in facts.counts]
    return found + _rest(facts, "can be shown on a mount")


def _left_out(facts: NameFacts, reason: str, kind: str, remedy: str) -> Finding:
    shown = ", ".join(facts.examples[reason][:EXAMPLES])
    count = facts.counts[reason]
    more = ", ..." if count > EXAMPLES else ""
    return warning("names", f"{facts.where}: {count} {kind}{reason}: {shown}{more}", remedy)


def _rest(facts: NameFacts, what: str) -> list[Finding]:
    if not facts.complete:
        found = f"{facts.where}: only the first {facts.looked_at} names were looked at in time"
        return [note("names", found)]
    if facts.counts:
        return []
    return [ok("names", f"{facts.where}: each of {facts.looked_at} names {what}")]
