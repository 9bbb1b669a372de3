"""Labelled examples: each candidate of a run, its features, and what became of its bytes.

A run is explored: every candidate is held to be likely, so that also what the rules would leave
out is fetched and its end is seen. Labels are exact, by page: a candidate was used if at least
half of its pages were read before they were dropped or the run ended.
"""

import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hubspoke.core.features import NAMES, VERSION, Matrix, Rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.outcomes import Outcomes
from hubspoke.errors import FormatError
from hubspoke.learn.families import PATTERNS
from hubspoke.learn.variants import Variant, build, pattern_of
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World

USED_SHARE = 0.5
# Of one run: more of a long one would only repeat what is there.
EXAMPLES_PER_RUN = 150


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Columns of equal length. patterns: index into PATTERNS. used: 0 or 1. runs: of each
    pattern, see `variants.trained`."""

    rows: Matrix
    patterns: npt.NDArray[np.int8]
    used: npt.NDArray[np.int8]
    runs: int = 0

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class _Case:
    row: npt.NDArray[np.float32]
    pattern: int
    pages: int = 0
    used: int = 0


@dataclass(eq=False)
class _Watched(Outcomes):
    """Outcomes of each page beside those of the arms, which are not told of all candidates."""

    cases: list[_Case] = field(default_factory=list)
    scored: dict[tuple[object, ...], _Case] = field(default_factory=dict)
    pages: dict[tuple[int, int], _Case] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def fetched(self, c: Candidate, number: int, first: int, last: int) -> None:
        """Pages [first, last) of an object will be fetched for this candidate."""
        case = self.scored.get(_place(c))
        if case is None:
            return
        for page in range(first, last):
            if (number, page) not in self.pages:
                self.pages[number, page] = case
                case.pages += 1

    def used(self, number: int, first: int, bytes_: int, *, late: bool) -> None:
        super().used(number, first, bytes_, late=late)
        for page in range(first, first - -bytes_ // PAGE_BYTES):
            case = self.pages.pop((number, page), None)
            if case is not None:
                case.used += 1

    def wasted(self, unread: Sequence[tuple[int, int, int]]) -> None:  # type: ignore[override]
        super().wasted(unread)
        for number, page, bytes_ in unread:
            for p in range(page, page - -bytes_ // PAGE_BYTES):
                self.pages.pop((number, p), None)


def _place(c: Candidate) -> tuple[object, ...]:
    return c.source, c.stream_id, c.name, c.offset


def explore(workload: Workload) -> Examples:
    """Run the workload with every candidate fetched. Its objects tell their pattern."""
    watched = _Watched()
    places = list(PATTERNS)

    def score(candidates: Sequence[Candidate], rows: Rows) -> list[float]:
        for c, row in zip(candidates, rows(candidates), strict=True):
            case = _Case(row, places.index(pattern_of(c.name.key)))
            watched.scored[_place(c)] = case
            watched.cases.append(case)
        return [1.0] * len(candidates)

    # Orders are searched for by others: what they find is certain, and is not ranked.
    world = World(workload, search_s=None, score=score)
    scoring = world.spoke.core.prediction.scoring
    scoring.outcomes = watched
    queued = scoring.queued

    def noted(c: Candidate, number: int, first: int, last: int) -> None:
        watched.fetched(c, number, first, last)
        queued(c, number, first, last)

    scoring.queued = noted  # type: ignore[method-assign]  # of each candidate
    world.run()
    cases = [case for case in watched.cases if case.pages]
    # Evenly over the run: its beginning, where streams are young, and what came of it.
    if len(cases) > EXAMPLES_PER_RUN:
        cases = [cases[i * len(cases) // EXAMPLES_PER_RUN] for i in range(EXAMPLES_PER_RUN)]
    return Examples(
        np.array([case.row for case in cases], np.float32).reshape(len(cases), len(NAMES)),
        np.array([case.pattern for case in cases], np.int8),
        np.array([case.used >= USED_SHARE * case.pages for case in cases], np.int8),
    )


def gather(variants: Sequence[Variant], runs: int = 0) -> Examples:
    """The examples of all these runs, in order. runs: to be remembered."""
    found = [explore(build(v)) for v in variants]
    return Examples(
        np.concatenate([e.rows for e in found]),
        np.concatenate([e.patterns for e in found]),
        np.concatenate([e.used for e in found]),
        runs,
    )


def save(examples: Examples, path: Path) -> None:
    """The same examples are the same bytes."""
    columns: dict[str, npt.NDArray[np.generic]] = {
        "rows": examples.rows.T,
        "patterns": examples.patterns,
        "used": examples.used,
        "version": np.array([VERSION, examples.runs]),
    }
    write_arrays(path, columns)


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """An .npz whose bytes depend on the arrays alone, not on the clock."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy")  # of 1980
            packed.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, 9)
    part = path.with_name(path.name + ".part")
    part.write_bytes(buffer.getvalue())
    os.replace(part, path)


def read(path: Path) -> Examples:
    """Raises FormatError, OSError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows, (version, runs) = arrays["rows"].T, arrays["version"].tolist()
            found = Examples(
                rows.astype(np.float32),
                arrays["patterns"].astype(np.int8),
                arrays["used"].astype(np.int8),
                int(runs),
            )
    except (ValueError, KeyError, zipfile.BadZipFile) as e:
        raise FormatError(f"{path}: no examples: {e}") from e
    if version != VERSION or found.rows.ndim != 2 or found.rows.shape[1] != len(NAMES):
        raise FormatError(f"{path}: examples of features {version}, expected {VERSION}")
    return found
