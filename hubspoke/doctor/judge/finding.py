"""What a check says."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """From good to bad. note: worth knowing, or not checked. warning: it works, and will hurt.
    problem: it does not work, or data is at risk; the command ends with status 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """check: what was looked at, one word. found: in words, with figures and units. remedy: a
    command or a setting, "" where nothing is to be done."""

    check: str
    severity: Severity
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Severity.OK, found)


def note(check: str, found: str, remedy: str = "") -> Finding:
    return Finding(check, Severity.NOTE, found, remedy)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Severity.WARNING, found, remedy)


def problem(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, Severity.PROBLEM, found, remedy)


def worst(findings: Iterable[Finding]) -> Severity:
    """The worst of them; ok if there is none."""
    order = list(Severity)
    return max((f.severity for f in findings), key=order.index, default=Severity.OK)


def size(count: float) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
