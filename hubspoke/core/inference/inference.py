"""Which jobs read in an order that can be computed: asks, confirms, and gives it to the job.

Of each job the first reads of an epoch are asked about when there are 16, 32, ...; whoever
searches answers later (`answered`). All seeds are searched when the likely ones do not fit, which
takes long: those are asked about again beside it. An answer is confirmed by reads that came after
the question and becomes the job's order, with what the next epoch's may be built beside it
(`continuation`). The job's follower checks every read and drops an order that does not fit; then it
is asked about anew.
A job of which nothing is found costs a comparison of numbers for each batch of reads.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.inference.alignment import SLACK_ITEMS, displacement, passed
from hubspoke.core.inference.belief import (
    Adopt,
    Asked,
    Belief,
    Computed,
    ReadingJob,
    listed,
    numbered,
)
from hubspoke.core.inference.continuation import continuations
from hubspoke.core.inference.evidence import places_of
from hubspoke.core.inference.question import (
    FOLLOW_PARTS,
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

ASK_AT = (16, 32, 64, 96, 128, 192, 256, 512, 1_024)
THOROUGH_AT = 128
THOROUGH_EVERY_S = 86_400.0  # without success, for a job
CONFIRM_READS = 64
MISFITS_MAX = 0.05  # share of those: an order that is right but for a tenth wastes a tenth
JOBS_MAX = 64
PROCESSES = (PROCESS.name, PROCESS_KEPT.name)
PROCESSES_MAX = 8  # that may be the job's
FOLLOWS_MAX = 3  # in vain: each takes as long as a search of all seeds
GUESSES_ITEMS_MAX = 2**24  # of all orders that are built for one epoch: 8 bytes each


class Inference:
    """Of all jobs. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._beliefs: dict[ReadingJob, Belief] = {}
        self._asked: dict[int, Asked] = {}
        self._requests: list[Request] = []
        self._told: dict[int, Callable[[Answer, float], None]] = {}
        self._needless: list[int] = []
        self._number = 0

    def look(
        self,
        job: ReadingJob,
        adopt: Adopt,
        now: float,
        shards: tuple[int, ...] = (),
        numbering: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """The job has read something, or an epoch of it began. adopt: is told its order, now or
        later. shards: see `Question`. numbering: which items those are that the loader numbers, if
        they are not all in listing order."""
        b = self._beliefs.get(job)
        if b is None:
            b = self._new(job, adopt)
            b.shards, b.numbering = shards, numbering
        if job.epoch != b.epoch:
            self._begin(b)
        if job.known is not None:
            self._go_on(b, job.known)
        elif ITEMS_MIN <= job.n <= ITEMS_MAX and not job.guessing:
            self._seek(b, now)

    def _new(self, job: ReadingJob, adopt: Adopt) -> Belief:
        while len(self._beliefs) >= JOBS_MAX:
            self.gone(min(self._beliefs, key=lambda j: j.last_at))
        self._beliefs[job] = found = Belief(job, adopt, job.epoch, job.order)
        return found

    def _begin(self, b: Belief) -> None:
        b.epoch, b.reads, b.asked = b.job.epoch, b.job.order, 0
        self._stop_seeking(b)
        b.unconfirmed = None
        b.says, b.partly = "too few reads", ""
        if b.job.known is None and not b.job.guessing:
            b.current = None  # the last epoch's, which had no order after it

    # -- an order is followed -----------------------------------------------------------------

    def _go_on(self, b: Belief, known: KnownOrder) -> None:
        """Have the next epoch's order built while this one is read."""
        self._stop_seeking(b)
        current = b.current
        if current is None:
            return
        if current.known is not known:
            found = next((c for c in current.next if c.known is known), None)
            b.current = found
            if found is None:
                return  # another source's order
            if found.recipe.family in PROCESSES:
                b.follows, b.parts = 0, FOLLOW_PARTS
            if found.after is not None:
                b.recipes[-1] = b.recipes[-1][0], found.after
            current, b.recipes = found, [*b.recipes[-3:], (b.epoch, found.recipe)]
            b.says = known.why
        if not current.asked_next:
            current.asked_next = True
            self._prepare(b, current)

    def _prepare(self, b: Belief, current: Computed) -> None:
        """Have what the next epoch may be built."""
        found = continuations(b.recipes)
        current.shown = found.shown
        for recipe in found.recipes[: max(1, GUESSES_ITEMS_MAX // b.job.n)]:
            if recipe == current.recipe:
                current.next.append(self._computed(current.known, recipe))
            else:
                self._build(b, current, recipe)
        drawn = current.recipe.family == TORCH.name and current.recipe.seed >= LIKELY_SEEDS
        follows = b.parts == FOLLOW_PARTS and b.follows < FOLLOWS_MAX
        if drawn and not found.shown and follows:
            # Nobody's default: by a process, which will draw the next.
            b.follows, b.parts, b.processes = b.follows + 1, 0, (b.epoch, ())
            self._follow(b, current)

    def _follow(self, b: Belief, of: Computed) -> None:
        """The next part of the processes' seeds."""
        part, b.parts = b.parts, b.parts + 1
        self._ask(b, of, lambda number: Follow(number, of.recipe.seed, part))

    def _build(self, b: Belief, of: Computed, recipe: Recipe, after: Recipe | None = None) -> None:
        n = numbered(b)
        self._ask(b, of, lambda number: Build(number, n, recipe, b.shards), after)

    # -- no order is followed -----------------------------------------------------------------

    def _seek(self, b: Belief, now: float) -> None:
        if b.current is not None:
            b.says = f"{b.current.recipe}: refuted"
            if b.recipes and b.recipes[-1][0] == b.epoch:
                b.recipes.pop()
            b.current, b.asked = None, 0
        reads = b.job.order
        if b.reads is not reads:  # some of them were another job's
            b.reads, b.asked, b.unconfirmed = reads, 0, None
            self._stop_seeking(b)
            b.searched_at = -math.inf
        if b.unconfirmed is not None:
            self._confirm(b, b.unconfirmed, now)
            return
        ready = max((n for n in ASK_AT if n <= len(reads)), default=0)
        if b.pending or ready <= b.asked:
            return
        b.asked = min(len(reads), ASK_AT[-1])
        self._question(b, numbered=b.numbered)

    def _question(
        self, b: Belief, *, numbered: bool, thorough: bool = False, first: bool = True
    ) -> None:
        """By one of the numberings; the other one comes second."""
        reads, n = np.array(b.job.order[: b.asked], np.int32), b.job.n
        if numbered and b.numbering is not None:
            reads, n = places_of(b.numbering, n)[reads], len(b.numbering)
            reads = reads[reads >= 0]
        self._number += 1
        self._asked[self._number] = Asked(b, reads=b.asked, numbered=numbered, first=first)
        likely = tuple(dict.fromkeys(self._likely(b)))
        self._requests.append(Question(self._number, n, reads, likely, thorough, b.shards))
        if thorough:
            b.searching, b.says = self._number, "all seeds are tried"
        else:
            b.pending, b.says = self._number, "likely seeds are tried"

    def _likely(self, b: Belief) -> list[Recipe]:
        """After the epochs before, some of which may not have been seen, or from the process'
        stream."""
        found = list(continuations(b.recipes).recipes) if b.recipes else []
        found += [recipe.moved(n) for _, recipe in b.recipes[-2:] for n in (1, 0, 2)]
        first, processes = b.processes
        return [*found, *(recipe.moved(b.epoch - first) for recipe in processes)]

    def _confirm(self, b: Belief, found: Found, now: float) -> None:
        """Reads that came after the question must lie where the order has them next."""
        later = np.array(b.job.order[b.asked :][:CONFIRM_READS], np.int32)
        if len(later) < min(CONFIRM_READS, b.job.n // 16):
            return
        b.unconfirmed = None
        # Those asked about may have been half of the order.
        apart = displacement(found.places, b.job.order[: b.asked])
        window = min(apart, found.last - found.first + 1)
        places = found.places[later]
        farthest = found.last + len(later) + window + SLACK_ITEMS  # whatever the number of items
        misfits = int(((places < found.first - window) | (places > farthest)).sum())
        if misfits > MISFITS_MAX * len(later):
            b.says = f"{found.recipe}: not confirmed"
            self._seek(b, now)
            return
        left_out = passed(found.places, b.job.order)
        if left_out:
            b.says = b.partly = (
                f"{found.recipe}, of which one place in {left_out} is read here: the other ranks "
                "read elsewhere, so what comes next is not told"
            )
            return
        b.searched_at = -math.inf  # a search of this job's has had success
        b.recipes = [*b.recipes[-3:], (b.epoch, found.recipe)]
        odds = math.ceil(found.log_p / math.log(10))
        why = f"{found.recipe}; by chance 1e{odds}, confirmed by {len(later)} reads"
        window = displacement(found.places, b.job.order)
        known = KnownOrder(found.items, window, found.recipe.family, why, lambda: None)
        b.current = self._computed(known, found.recipe)
        b.says = why
        b.adopt(b.current.known, now)
        self._go_on(b, b.current.known)

    def _computed(self, order: KnownOrder, recipe: Recipe, after: Recipe | None = None) -> Computed:
        def following() -> KnownOrder | None:
            return made.next[0].known if made.shown and made.next else None

        def guesses() -> tuple[KnownOrder, ...]:
            return () if made.shown else tuple(c.known for c in made.next)

        known = KnownOrder(order.items, order.window, order.family, order.why, following, guesses)
        made = Computed(recipe, known, after)
        return made

    # -- requests and answers -----------------------------------------------------------------

    def _ask(
        self,
        b: Belief,
        of: Computed | None,
        request: Callable[[int], Request],
        after: Recipe | None = None,
    ) -> int:
        self._number += 1
        self._asked[self._number] = Asked(b, of, after)
        self._requests.append(request(self._number))
        return self._number

    def ask(self, request: Callable[[int], Request], told: Callable[[Answer, float], None]) -> int:
        """Ask for somebody else, who is told the answer and the time. Returns its number."""
        self._number += 1
        self._told[self._number] = told
        self._requests.append(request(self._number))
        return self._number

    def requests(self) -> list[Request]:
        """What is to be searched for now; each is told once, and `answered` at last, unless it is
        needless before."""
        requests, self._requests = self._requests, []
        return requests

    def needless(self) -> list[int]:
        """Requests that were told and that nobody waits for any more; each is told once."""
        numbers, self._needless = self._needless, []
        return numbers

    def cancel(self, number: int) -> None:
        """Nobody waits for a request's answer any more."""
        asked = self._told.pop(number, None) or self._asked.pop(number, None)
        if asked is None:
            return
        waiting = [r for r in self._requests if r.number != number]
        if len(waiting) == len(self._requests):
            self._needless.append(number)
        self._requests = waiting

    def gone(self, job: ReadingJob) -> None:
        """The job is not looked at any more."""
        b = self._beliefs.pop(job, None)
        for number in [n for n, asked in self._asked.items() if asked.belief is b]:
            self.cancel(number)

    def _stop_seeking(self, b: Belief) -> None:
        """The order is known, or reads are of another one."""
        for number in (b.pending, b.searching):
            if number:
                self.cancel(number)
        b.pending = b.searching = 0

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
            self._prepared(b, asked.of, answer, asked.after, now)
        elif number in (b.pending, b.searching):
            thorough = number == b.searching
            if thorough:
                b.searching = 0
            else:
                b.pending = 0
            if b.job.known is None and b.unconfirmed is None:
                self._told_of(b, asked, answer, now, thorough=thorough)
                self._seek(b, now)

    def _told_of(
        self, b: Belief, asked: Asked, answer: Answer, now: float, *, thorough: bool
    ) -> None:
        """A question has ended: what comes next."""
        due = b.asked >= THOROUGH_AT and now - b.searched_at >= THOROUGH_EVERY_S
        if isinstance(answer, Found):
            b.asked, b.numbered = asked.reads, asked.numbered
            b.unconfirmed = listed(b, answer)
            b.says = f"{answer.recipe}: to be confirmed"
        elif b.numbering is not None and asked.first:
            self._question(b, thorough=thorough, numbered=not asked.numbered, first=False)
        elif due and not b.partly:
            b.searched_at = now
            self._question(b, thorough=True, numbered=b.numbered)
        else:
            nothing = b.partly or f"no seed fits {b.asked} reads"
            b.says = "all seeds are tried" if b.searching else nothing

    def _prepared(
        self, b: Belief, of: Computed, answer: Answer, after: Recipe | None, now: float
    ) -> None:
        if isinstance(answer, Followers):
            self._followed(b, of, answer, now)
        elif isinstance(answer, Found):
            answer = listed(b, answer)
            why = f"{answer.recipe}; after {of.recipe}"
            known = KnownOrder(
                answer.items, of.known.window, answer.recipe.family, why, lambda: None
            )
            of.next.append(self._computed(known, answer.recipe, after))

    def _followed(self, b: Belief, of: Computed, answer: Followers, now: float) -> None:
        """Of 2^32 one more than the right one fits by chance: each is a guess, or, if the next
        epoch has begun, expected of it."""
        first, had = b.processes
        seeds = answer.seeds[: max(0, PROCESSES_MAX - len(had) // len(PROCESSES))]
        found = tuple(Recipe(name, seed) for name in PROCESSES for seed in seeds)
        b.processes = first, (*had, *found)
        epochs = b.epoch - first
        if b.current is not None:
            for process in found:
                self._build(b, b.current, process.moved(epochs + 1), process.moved(epochs))
        elif found and b.unconfirmed is None:
            b.asked = b.pending = 0
            self._seek(b, now)
        if b.parts < FOLLOW_PARTS:
            self._follow(b, of)

    def describe(self, job: ReadingJob) -> str:
        """What is believed of a job's order and why, for /v1/streams."""
        b = self._beliefs.get(job)
        return "not looked at" if b is None else b.says
