"""Which candidates are fetched, by when.

A candidate is fetched if it is likely enough to be read; generators already bound what they
propose by what hides the latency, so the plan only guards the whole: what is queued and flying
for prefetch together stays below a share of the cache, most likely first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class PlanConfig:
    # Below this, more than a third of the bytes would cross for nothing.
    probability_min: float = 0.4
    # Prefetch must not push out what was fetched before it is used.
    share_of_cache: float = 0.25


class Planned(NamedTuple):
    candidate: Candidate
    deadline: float


def choose(
    candidates: Sequence[Candidate],
    score: Callable[[Sequence[Candidate]], Sequence[float]],
    config: PlanConfig,
    *,
    now: float,
    outstanding_bytes: int,
    capacity: int,
) -> list[Planned]:
    """Candidates worth fetching, with deadlines.

    outstanding_bytes: prefetch bytes queued or flying. Returns at most what keeps them below
    the share of `capacity`; the least likely are left out first, and one that does not fit is
    cut: its head is needed before its tail.
    """
    scores = score(candidates)
    # The likeliest first, of equals in their order: `sorted` keeps it.
    order = sorted(range(len(candidates)), key=[-p for p in scores].__getitem__)
    room = int(capacity * config.share_of_cache) - outstanding_bytes
    chosen: list[Planned] = []
    for i in order:
        c = candidates[i]
        length = c.length if c.length <= room else room // PAGE_BYTES * PAGE_BYTES
        if scores[i] < config.probability_min or length <= 0:
            continue
        room -= length
        fitting = c if length == c.length else c.of_bytes(c.offset, length)
        chosen.append(Planned(fitting, now + c.use_in_s))
    return chosen
