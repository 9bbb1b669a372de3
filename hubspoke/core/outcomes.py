"""What became of what was fetched in advance, and what that says of the next such candidate.

Useful, late and wasted bytes are counted for each *arm*: the source of a candidate, the pattern
of its stream, the folder it lies in. They correct the probability that rules or model give, as a
Beta distribution whose prior they are: few bytes change little, many decide. Counts halve with
time and have a bound, so a change of pattern is believed after as many bytes as are kept.

In a large cache nothing is dropped for hours, so what was to be read soon and has not been for
GRACE_S counts as wasted too, until it is read.

An arm that is judged to be of no use is never fetched, so nothing more would be learned of it:
one in EXPLORE of its candidates keeps the probability it would have without its past.

Bytes are attributed by block, to what was queued there last: exact pages would cost a book as
large as the cache's own.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from hubspoke.core.eviction.policy import BLOCK_BITS
from hubspoke.core.page_codes import PAGES_PER_BLOCK

PRIOR_BYTES = 8 << 20  # outcomes of so many bytes weigh as much as rules or model
KNOWN_BYTES_MAX = 256 << 20
HALF_LIFE_S = 300.0
ARMS_MAX = 512
BLOCKS_MAX = 65_536
EXPLORE = 16
GRACE_S = 5.0
SOON_S = 10.0  # what is proposed for later than that is given more time than GRACE_S
ISSUED_MAX = 4_096

Arm = tuple[str, str, str]  # source, pattern, folder
NONE = "none"  # the pattern of what belongs to no stream


@dataclass(slots=True)
class Tally:
    """Bytes, halved with time, but for the last two."""

    useful: float = 0.0
    late: float = 0.0
    wasted: float = 0.0
    overdue: float = 0.0  # asked of the hub, to have been read by now, and not settled
    at: float = 0.0
    refused: int = 0
    asked: float = 0.0  # of the hub, and not due yet
    early: float = 0.0  # of those, settled already

    @property
    def known(self) -> float:
        return self.useful + self.late + self.wasted + self.overdue

    def settle(self, bytes_: int) -> None:
        """They were read, or dropped."""
        overdue = min(self.overdue, bytes_)
        self.overdue -= overdue
        self.early = min(self.early + bytes_ - overdue, self.asked)

    def fall_due(self, bytes_: int) -> None:
        """They should have been read by now. What was is counted: with all that falls due beside
        it, a reader who makes a pause would look like one who left everything."""
        early = min(self.early, bytes_)
        self.early -= early
        self.overdue += bytes_ - early
        self.asked = max(self.asked - bytes_, 0.0)
        self.early = min(self.early, self.asked)

    def age(self, now: float) -> None:
        """Halve with the time since the last call, which costs nothing if that is short."""
        if now - self.at < 1.0:
            return
        self._scale(0.5 ** ((now - self.at) / HALF_LIFE_S))
        self.at = now

    def bound(self) -> None:
        if self.known > KNOWN_BYTES_MAX:
            self._scale(KNOWN_BYTES_MAX / self.known)

    def _scale(self, by: float) -> None:
        self.useful *= by
        self.late *= by
        self.wasted *= by
        self.overdue *= by


class Outcomes:
    """Tallies of the arms used last, and the arm of each block that was queued last."""

    def __init__(self) -> None:
        self.tallies: dict[Arm, Tally] = {}
        # And whether it will be read soon. The oldest goes at once: the first entry of a dict is
        # searched for behind those that went before it.
        self._blocks: OrderedDict[int, tuple[Arm, bool]] = OrderedDict()
        self._issued: deque[tuple[float, Arm, int]] = deque(maxlen=ISSUED_MAX)
        self._now = 0.0

    def queued(self, arm: Arm, number: int, first: int, last: int, use_in_s: float) -> None:
        """Pages [first, last) of an object will be fetched for this arm."""
        entry = (arm, use_in_s <= SOON_S)
        blocks = self._blocks
        base = number << BLOCK_BITS
        for block in range(first // PAGES_PER_BLOCK, (last - 1) // PAGES_PER_BLOCK + 1):
            blocks[base + block] = entry
            blocks.move_to_end(base + block)
        while len(blocks) > BLOCKS_MAX:
            blocks.popitem(last=False)

    def issued(self, number: int, first: int, bytes_: int) -> None:
        """Bytes from page `first` on are asked of the hub in advance."""
        arm, soon = self._blocks.get(_key(number, first), (None, False))
        if arm is None or not soon:
            return
        self._tally(arm).asked += bytes_
        if self._issued and self._issued[-1][1] == arm and self._now - self._issued[-1][0] < 1.0:
            at, _, before = self._issued.pop()
            self._issued.append((at, arm, before + bytes_))
        else:
            self._issued.append((self._now, arm, bytes_))

    def used(self, number: int, first: int, bytes_: int, *, late: bool) -> None:
        """A reader came for bytes at page `first`; late: before they were here."""
        tally = self._of(number, first)
        if tally is None:
            return
        if late:
            tally.late += bytes_
        else:
            tally.useful += bytes_
        tally.settle(bytes_)
        tally.bound()

    def wasted(self, unread: Iterable[tuple[int, int, int]]) -> None:
        """(object, page, bytes) that were dropped before anybody asked for them."""
        for number, page, bytes_ in unread:
            tally = self._of(number, page)
            if tally is not None:
                tally.wasted += bytes_
                tally.settle(bytes_)
                tally.bound()

    def _of(self, number: int, page: int) -> Tally | None:
        entry = self._blocks.get(_key(number, page))
        return None if entry is None else self._tally(entry[0])

    def _tally(self, arm: Arm) -> Tally:
        tally = self.tallies.get(arm)
        if tally is None:
            tally = Tally(at=self._now)
            while len(self.tallies) >= ARMS_MAX:
                del self.tallies[min(self.tallies, key=lambda a: self.tallies[a].at)]
            self.tallies[arm] = tally
        return tally

    def look(self, now: float) -> None:
        """It is `now`: what is counted until the next call is of this time."""
        self._now = now
        while self._issued and self._issued[0][0] + GRACE_S <= now:
            _, arm, bytes_ = self._issued.popleft()
            tally = self._tally(arm)
            tally.age(now)
            tally.fall_due(bytes_)
            tally.bound()

    def accuracy(self, arm: Arm) -> tuple[float, float]:
        """Share of the arm's bytes that somebody read, and of how many that is known; 1 of 0."""
        tally = self.tallies.get(arm)
        known = 0.0 if tally is None else tally.known
        if tally is None or not known:
            return 1.0, 0.0
        if self._now - tally.at >= 1.0:
            tally.age(self._now)
            known = tally.known
        return min(1.0, (tally.useful + tally.late) / known), known

    def adjusted(self, probability: float, arm: Arm, refused_below: float) -> float:
        """The probability in the light of what became of such candidates.

        refused_below: what is less likely is not fetched.
        """
        share, known = self.accuracy(arm)
        if not known:
            return probability
        found = (PRIOR_BYTES * probability + known * share) / (PRIOR_BYTES + known)
        if found >= refused_below or probability < refused_below:
            return found
        tally = self.tallies[arm]
        tally.refused += 1
        return probability if tally.refused % EXPLORE == 0 else found

    def kept(self) -> list[tuple[Arm, tuple[float, float, float, float]]]:
        """What `restore` takes in."""
        return [(arm, (t.useful, t.late, t.wasted, t.known)) for arm, t in self.tallies.items()]

    def restore(
        self, tallies: Iterable[tuple[Arm, tuple[float, float, float, float]]], now: float
    ) -> None:
        """Take in what an earlier run has learned: (useful, late, wasted, known) bytes of arms."""
        self._now = now
        for arm, (useful, late, wasted, known) in tallies:
            if len(self.tallies) < ARMS_MAX:
                overdue = max(0.0, known - useful - late - wasted)
                self.tallies[arm] = tally = Tally(useful, late, wasted, overdue, now)
                tally.bound()


def _key(number: int, page: int) -> int:
    return (number << BLOCK_BITS) + page // PAGES_PER_BLOCK
