"""Which jobs read in an order that can be computed: asks, confirms, and gives it to the job.

Of each job the first reads of an epoch are asked about when there are 16, 32, ...; whoever
searches answers later (`answered`). An answer is confirmed by reads that came after the question
and becomes the job's order, with what the next epoch's may be built beside it (`continuation`). The
job's follower checks every read and drops an order that does not fit; then it is asked about anew.
A job of which nothing is found costs a comparison of numbers for each batch of reads.
"""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.inference.continuation import continuations
from hubspoke.core.inference.question import (
    Answer,
    Build,
    Follow,
    Followers,
    Found,
    Question,
    Recipe,
    Request,
)
from hubspoke.core.inference.search import ITEMS_MAX, ITEMS_MIN, LIKELY_SEEDS
from hubspoke.core.orders.candidates import PROCESS, PROCESS_KEPT, TORCH

ASK_AT = (16, 32, 64, 128, 256, 512, 1_024)
THOROUGH_AT = 128
THOROUGH_EVERY_S = 86_400.0  # without success, for a job
CONFIRM_READS = 64
MISFITS_MAX = 0.05  # share of those: an order that is right but for a tenth wastes a tenth
DISPLACED_READS = 256
# How much farther than ever before a read may be displaced; of few items a smaller part, since what
# lies within is brought.
SLACK_ITEMS, SLACK_ITEMS_MIN, SLACK_PART = 64, 8, 64
JOBS_MAX = 64
PROCESSES = (PROCESS.name, PROCESS_KEPT.name)
PROCESSES_MAX = 8  # that may be the job's
FOLLOWS_MAX = 3  # in vain: each takes as long as a search of all seeds
# Where only one rank of several is seen, most places that follow upon a read one are not read.
# Counted in all when there are DENSE_READS: before that workers may be far from one another.
DENSE_SHARE, DENSE_READS = 0.5, 512
GUESSES_ITEMS_MAX = 2**24  # of all orders that are built for one epoch: 8 bytes each


class ReadingJob(Protocol):
    """core.epochs.job.Job."""

    n: int
    epoch: int
    order: "array[int]"  # distinct items of this epoch in the order of reading
    last_at: float

    @property
    def known(self) -> KnownOrder | None:
        """The order that is followed."""
        ...

    @property
    def guessing(self) -> bool:
        """Whether the next reads decide between orders that are at hand."""
        ...


Adopt = Callable[[KnownOrder, float], None]  # told what the job reads, and the time


@dataclass(slots=True, eq=False)
class _Computed:
    """An order of a seed. after: what the epoch before turns out to be if this one is read.
    shown: whether the next epoch's is known, or guessed; next: what of it is built."""

    recipe: Recipe
    known: KnownOrder
    after: Recipe | None = None
    shown: bool = False
    next: "list[_Computed]" = field(default_factory=list)
    asked_next: bool = False


@dataclass(slots=True, eq=False)
class _Belief:
    """About one job."""

    job: ReadingJob
    adopt: Adopt
    epoch: int
    shards: tuple[int, ...] = ()
    asked: int = 0  # how many reads the latest question of this epoch had
    pending: int = 0  # its number
    unconfirmed: Found | None = None
    current: _Computed | None = None
    recipes: list[tuple[int, Recipe]] = field(default_factory=list)  # of which epoch
    processes: tuple[int, tuple[Recipe, ...]] = (0, ())  # whose first epoch this was
    searched_at: float = -math.inf
    says: str = "too few reads"
    partly: str = ""  # the order of which only a part is read here
    follows: int = 0  # in vain


@dataclass(frozen=True, slots=True)
class _Asked:
    belief: _Belief
    of: _Computed | None = None  # whose next order is built
    after: Recipe | None = None


def _displacement(found: Found, job: ReadingJob) -> int:
    """How many places apart workers read at a time: reads that come one after the other lie so far
    apart, whatever their number. A few that lie elsewhere do not count."""
    reads = np.array(job.order[-DISPLACED_READS:], np.int32)
    ahead = found.places[reads].astype(np.int64) - np.arange(len(reads))
    lowest, highest = np.percentile(ahead, (5, 95)).tolist()
    return int(highest - lowest) + _slack(job)


def _slack(job: ReadingJob) -> int:
    return min(SLACK_ITEMS, max(SLACK_ITEMS_MIN, job.n // SLACK_PART))


def _sparse(found: Found, job: ReadingJob) -> int:
    """In how many places of the order one read lies where most are left out; 0: few are."""
    at = np.sort(found.places[np.array(job.order, np.int32)]).astype(np.int64)
    at = at[at >= 0]
    gaps = np.diff(at)
    if not len(gaps):
        return 0
    dense = (gaps <= 1).mean() >= DENSE_SHARE
    if len(at) >= DENSE_READS:
        dense &= len(at) >= DENSE_SHARE * (at[-1] - at[0] + 1)
    return 0 if dense else max(2, round(float(np.median(gaps))))


class Inference:
    """Of all jobs. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._beliefs: dict[ReadingJob, _Belief] = {}
        self._asked: dict[int, _Asked] = {}
        self._requests: list[Request] = []
        self._told: dict[int, Callable[[Answer, float], None]] = {}
        self._number = 0

    def look(self, job: ReadingJob, adopt: Adopt, now: float, shards: tuple[int, ...] = ()) -> None:
        """The job has read something, or an epoch of it began. adopt: is told its order, now or
        later. shards: see `Question`."""
        b = self._beliefs.get(job)
        if b is None:
            b = self._new(job, adopt)
            b.shards = shards
        if job.epoch != b.epoch:
            self._begin(b)
        if job.known is not None:
            self._go_on(b, job.known)
        elif ITEMS_MIN <= job.n <= ITEMS_MAX and not job.guessing:
            self._seek(b, now)

    def _new(self, job: ReadingJob, adopt: Adopt) -> _Belief:
        while len(self._beliefs) >= JOBS_MAX:
            del self._beliefs[min(self._beliefs, key=lambda j: j.last_at)]
        self._beliefs[job] = found = _Belief(job, adopt, job.epoch)
        return found

    def _begin(self, b: _Belief) -> None:
        b.epoch, b.asked, b.pending = b.job.epoch, 0, 0
        b.unconfirmed = None
        b.says, b.partly = "too few reads", ""
        if b.job.known is None and not b.job.guessing:
            b.current = None  # the last epoch's, which had no order after it

    # -- an order is followed -----------------------------------------------------------------

    def _go_on(self, b: _Belief, known: KnownOrder) -> None:
        """Have the next epoch's order built while this one is read."""
        current = b.current
        if current is None:
            return
        if current.known is not known:
            found = next((c for c in current.next if c.known is known), None)
            b.current = found
            if found is None:
                return  # another source's order
            if found.recipe.family in PROCESSES:
                b.follows = 0
            if found.after is not None:
                b.recipes[-1] = b.recipes[-1][0], found.after
            current, b.recipes = found, [*b.recipes[-3:], (b.epoch, found.recipe)]
            b.says = known.why
        if not current.asked_next:
            current.asked_next = True
            self._prepare(b, current)

    def _prepare(self, b: _Belief, current: _Computed) -> None:
        """Have what the next epoch may be built."""
        found = continuations(b.recipes)
        current.shown = found.shown
        for recipe in found.recipes[: max(1, GUESSES_ITEMS_MAX // b.job.n)]:
            if recipe == current.recipe:
                current.next.append(self._computed(current.known, recipe))
            else:
                self._build(b, current, recipe)
        drawn = current.recipe.family == TORCH.name and current.recipe.seed >= LIKELY_SEEDS
        if (
            drawn and not found.shown and b.follows < FOLLOWS_MAX
        ):  # nobody's default: by a process, which will draw the next
            b.follows += 1
            self._ask(b, current, lambda number: Follow(number, current.recipe.seed))

    def _build(
        self, b: _Belief, of: _Computed, recipe: Recipe, after: Recipe | None = None
    ) -> None:
        self._ask(b, of, lambda number: Build(number, b.job.n, recipe, b.shards), after)

    # -- no order is followed -----------------------------------------------------------------

    def _seek(self, b: _Belief, now: float) -> None:
        if b.current is not None:
            b.says = f"{b.current.recipe}: refuted"
            if b.recipes and b.recipes[-1][0] == b.epoch:
                b.recipes.pop()
            b.current, b.asked = None, 0
        reads = b.job.order
        if len(reads) < b.asked:  # some of them were another job's
            b.asked, b.pending, b.unconfirmed = 0, 0, None
        if b.unconfirmed is not None:
            self._confirm(b, b.unconfirmed, now)
            return
        ready = max((n for n in ASK_AT if n <= len(reads)), default=0)
        if b.pending or ready <= b.asked:
            return
        thorough = ready >= THOROUGH_AT and now - b.searched_at >= THOROUGH_EVERY_S
        thorough &= not b.partly
        if thorough:
            b.searched_at = now
        first = np.array(reads[: ASK_AT[-1]], np.int32)
        b.asked = len(first)
        likely = tuple(dict.fromkeys(self._likely(b)))
        b.pending = self._ask(
            b, None, lambda number: Question(number, b.job.n, first, likely, thorough, b.shards)
        )
        b.says = "all seeds are tried" if thorough else "likely seeds are tried"

    def _likely(self, b: _Belief) -> list[Recipe]:
        """After the epochs before, some of which may not have been seen, or from the process'
        stream."""
        found = list(continuations(b.recipes).recipes) if b.recipes else []
        found += [recipe.moved(n) for _, recipe in b.recipes[-2:] for n in (1, 0, 2)]
        first, processes = b.processes
        return [*found, *(recipe.moved(b.epoch - first) for recipe in processes)]

    def _confirm(self, b: _Belief, found: Found, now: float) -> None:
        """Reads that came after the question must lie where the order has them next."""
        later = np.array(b.job.order[b.asked :][:CONFIRM_READS], np.int32)
        if len(later) < min(CONFIRM_READS, b.job.n // 16):
            return
        b.unconfirmed = None
        window = found.last - found.first + 1
        places = found.places[later]
        farthest = found.last + len(later) + window + SLACK_ITEMS  # whatever the number of items
        misfits = int(((places < found.first - window) | (places > farthest)).sum())
        if misfits > MISFITS_MAX * len(later):
            b.says = f"{found.recipe}: not confirmed"
            self._seek(b, now)
            return
        apart = _sparse(found, b.job)
        if apart:
            b.says = b.partly = (
                f"{found.recipe}, of which one place in {apart} is read here: the other ranks "
                "read elsewhere, so what comes next is not told"
            )
            return
        b.searched_at = -math.inf  # a search of this job's has had success
        b.recipes = [*b.recipes[-3:], (b.epoch, found.recipe)]
        odds = math.ceil(found.log_p / math.log(10))
        why = f"{found.recipe}; by chance 1e{odds}, confirmed by {len(later)} reads"
        window = _displacement(found, b.job)
        known = KnownOrder(found.items, window, found.recipe.family, why, lambda: None)
        b.current = self._computed(known, found.recipe)
        b.says = why
        b.adopt(b.current.known, now)
        self._go_on(b, b.current.known)

    def _computed(
        self, order: KnownOrder, recipe: Recipe, after: Recipe | None = None
    ) -> _Computed:
        def following() -> KnownOrder | None:
            return made.next[0].known if made.shown and made.next else None

        def guesses() -> tuple[KnownOrder, ...]:
            return () if made.shown else tuple(c.known for c in made.next)

        known = KnownOrder(order.items, order.window, order.family, order.why, following, guesses)
        made = _Computed(recipe, known, after)
        return made

    # -- requests and answers -----------------------------------------------------------------

    def _ask(
        self,
        b: _Belief,
        of: _Computed | None,
        request: Callable[[int], Request],
        after: Recipe | None = None,
    ) -> int:
        self._number += 1
        self._asked[self._number] = _Asked(b, of, after)
        self._requests.append(request(self._number))
        return self._number

    def ask(self, request: Callable[[int], Request], told: Callable[[Answer, float], None]) -> None:
        """Ask for somebody else, who is told the answer and the time."""
        self._number += 1
        self._told[self._number] = told
        self._requests.append(request(self._number))

    def requests(self) -> list[Request]:
        """What is to be searched for now; each is told once, and `answered` at last."""
        requests, self._requests = self._requests, []
        return requests

    def answered(self, number: int, answer: Answer, now: float) -> None:
        """A request has ended; None: nothing was found."""
        told = self._told.pop(number, None)
        if told is not None:
            told(answer, now)
            return
        asked = self._asked.pop(number, None)
        if asked is None or self._beliefs.get(asked.belief.job) is not asked.belief:
            return
        b = asked.belief
        if asked.of is not None:
            self._prepared(b, asked.of, answer, asked.after)
        elif number == b.pending:
            b.pending = 0
            if isinstance(answer, Found):
                b.unconfirmed = answer
                b.says = f"{answer.recipe}: to be confirmed"
            else:
                b.says = b.partly or f"no seed fits {b.asked} reads"
            if b.job.known is None:
                self._seek(b, now)

    def _prepared(self, b: _Belief, of: _Computed, answer: Answer, after: Recipe | None) -> None:
        if isinstance(answer, Followers):
            # Of 2^32 one more than the right one fits by chance: each is a guess.
            seeds = answer.seeds[:PROCESSES_MAX]
            processes = tuple(Recipe(name, seed) for name in PROCESSES for seed in seeds)
            b.processes = b.recipes[-1][0], processes
            for process in processes:
                self._build(b, of, process.moved(1), process)
        elif isinstance(answer, Found):
            why = f"{answer.recipe}; after {of.recipe}"
            known = KnownOrder(
                answer.items, of.known.window, answer.recipe.family, why, lambda: None
            )
            of.next.append(self._computed(known, answer.recipe, after))

    def describe(self, job: ReadingJob) -> str:
        """What is believed of a job's order and why, for /v1/streams."""
        b = self._beliefs.get(job)
        return "not looked at" if b is None else b.says
