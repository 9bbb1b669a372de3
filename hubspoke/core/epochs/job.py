"""A job on a data set: clients that together read each item once an epoch.

    reads nothing twice -> believed (k^2 / 2n > 3: k reads of n items drawn with replacement have no
    repeat with a probability of exp(-k^2 / 2n)) -> reads again -> the next epoch, if nearly all was
    read or all of the last reads are repeats (an epoch of a part) -> ...

Repeats that are neither a new epoch nor another job's are draws with replacement, and no epoch is
believed while there are many. A few are the sampler's padding or a worker that was late; what a
client asks for twice in a row is one read.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import pairwise, repeat

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.follow import Follower
from hubspoke.core.epochs.guesses import READS_MAX, Guesses
from hubspoke.core.epochs.known import KnownOrder

EVIDENCE_MIN = 3.0
REPEATS_PART = 8  # of what draws with replacement would have repeated, at most this part
NEARLY_ALL = 0.9
PATIENCE_S, PATIENCE_MAX_S = 1.5, 60.0
PACE_S = 10.0
RECENT = 16  # reads that are looked at for an epoch's end
LATELY, LATELY_PART = 64, 0.75  # the same where less was seen, and what part of them repeats
SEEN_MIN = 0.25
ENDING_REPEATS = 4  # of those; the padding of a few ranks is fewer

Numbers = npt.NDArray[np.int32]


class Job:
    """`read` and `by` are of the present epoch: whether an item was read, by which client."""

    def __init__(self, number: int, n: int) -> None:
        """n: items of the data set."""
        self.number = number
        self.n = n
        self.read = np.zeros(n, np.bool_)
        self.by = np.zeros(n, np.uint16)
        self.order = array("i")  # items of this epoch in the order of reading
        self.former: Numbers | None = None  # the same of the last one
        self.epoch = 0
        self.repeats = 0
        # (client, item, reads before it) that were repeats
        self.conflicts: list[tuple[int, int, int]] = []
        self.rate = 0.0  # items per second
        self.last_at = float("-inf")
        self._walk_at, self._walk_count = float("-inf"), 0  # since when, items before this epoch
        self._pause_s = 0.0  # the longest of late
        self._walked = False  # in the last epoch
        self.follower: Follower | None = None
        self.guesses: Guesses | None = None  # what this epoch's order may be
        self.lost: str | None = None  # the family of an order that turned out to be another's
        self._recent: deque[tuple[int, int, bool]] = deque(maxlen=LATELY)
        self._counted_at = float("-inf")
        self._counted = 0

    @property
    def count(self) -> int:
        """Items read in this epoch."""
        return len(self.order)

    @property
    def known(self) -> KnownOrder | None:
        """The order that is followed."""
        return None if self.follower is None else self.follower.order

    @property
    def guessing(self) -> bool:
        """Whether the next reads decide between orders that are at hand."""
        return self.guesses is not None

    @property
    def evidence(self) -> float:
        """Repeats to be expected of draws with replacement."""
        if self.epoch:
            return max(self.former_count, self.count) ** 2 / (2 * self.n)
        return self.count**2 / (2 * self.n)

    def scans(self, now: float) -> bool:
        """Whether it goes on through the listing from time to time."""
        if self.follower is not None or not self.count:
            return False
        return now - self._walk_at > PACE_S and self.walks

    def reaches_in_s(self, items: Numbers, now: float) -> npt.NDArray[np.float32]:
        """When a walk in listing order comes to items, if it goes on at its pace since its start,
        pauses and all: also the present one, or half of two bursts would be twice the pace."""
        pace = (self._walk_count + self.count) / max(now - self._walk_at, PACE_S)
        return ((items - self.order[-1] - 1) % self.n).astype(np.float32) / np.float32(pace)

    @property
    def former_count(self) -> int:
        return 0 if self.former is None else len(self.former)

    @property
    def believed(self) -> bool:
        """Whether what is unread will be read in this epoch."""
        if self.follower is not None:
            return True
        expected = self.evidence
        if expected <= EVIDENCE_MIN or self.repeats * REPEATS_PART > expected:
            return False
        return not self.walks

    @property
    def walks(self) -> bool:
        """Whether items come in listing order, which other generators know better. The first ones
        of an epoch do not tell: then as in the last."""
        last = self.order[-2 * RECENT :]
        if len(last) <= RECENT:
            return self._walked
        near = sum([-2 <= after - before <= 2 for before, after in pairwise(last)])
        return near > 0.5 * (len(last) - 1)

    def take(self, items: Numbers, clients: Sequence[int], now: float) -> bool:
        """Reads in order of time. Returns whether an epoch began."""
        self._paused(now - self.last_at)
        self.last_at = now
        self._rated(len(items), now)
        began = self._mark(items, clients)
        if began and self._walked:
            self._walk_count += self.former_count
        elif began or self._walk_at == float("-inf"):
            self._walk_at, self._walk_count = now, 0
        if self.guesses is not None:
            self._decide(self.guesses)
        elif self.follower is not None and not self.follower.moved(items, self.read):
            self.lose()
        return began

    def _decide(self, guesses: Guesses) -> None:
        reads = np.array(self.order[:READS_MAX], np.int32)
        found = guesses.decide(reads, self.n)
        if found is not None:
            self._follow(found)
        elif not guesses.followers:
            self.guesses = None

    def _follow(self, follower: Follower) -> None:
        self.follower, self.guesses = follower, None
        follower.moved(np.array(self.order, np.int32), self.read)

    @property
    def patience_s(self) -> float:
        """After so long without a read the job may have ended: longer than its pauses."""
        return min(max(PATIENCE_S, 2 * self._pause_s), PATIENCE_MAX_S)

    def _paused(self, pause_s: float) -> None:
        self._pause_s *= 0.9
        if self._pause_s < pause_s < PATIENCE_MAX_S:
            self._pause_s = pause_s

    def lose(self) -> None:
        """The order turned out to be another's."""
        if self.follower is not None:
            self.lost, self.follower = self.follower.order.family, None

    def _mark(self, items: Numbers, clients: Sequence[int]) -> bool:
        each = items.tolist()
        if len(each) == 1:
            again = bool(self.read[each[0]])
        else:
            again = bool(self.read[items].any()) or len(set(each)) < len(each)
        if not again:
            self.read[items] = True
            self.by[items] = clients
            self.order.fromlist(each)
            late = each[-LATELY:]
            self._recent.extend(zip(late, clients[-LATELY:], repeat(False, len(late)), strict=True))
            return False
        began = False
        for item, client in zip(each, clients, strict=True):
            began |= self._one(item, client)
        return began

    def _rated(self, reads: int, now: float) -> None:
        """Items per second, over half a second at least and mostly the last few."""
        self._counted += reads
        since = now - self._counted_at
        if since < 0.5:
            return
        if since < 60.0:
            rate = self._counted / since
            self.rate = rate if not self.rate else self.rate + 0.3 * (rate - self.rate)
        self._counted_at, self._counted = now, 0

    def _one(self, item: int, client: int) -> bool:
        again = bool(self.read[item])
        if again and self._latest(client) == item:
            return False  # asked for once more: nothing was drawn
        self._recent.append((item, client, again))
        if not again:
            self.read[item] = True
            self.by[item] = client
            self.order.append(item)
            return False
        if self._ended():
            self._next_epoch(client)
            return True
        self.repeats += 1
        self.conflicts.append((client, item, self.count))
        return False

    def _latest(self, client: int) -> int | None:
        """What the client read last."""
        return next((item for item, of, _ in reversed(self._recent) if of == client), None)

    def _ended(self) -> bool:
        last = [again for _, _, again in self._recent]
        repeats = sum(last[-RECENT:])
        if self.count >= NEARLY_ALL * self.n:
            ends = self.count == self.n or repeats >= min(ENDING_REPEATS, self.n // 2)
            return ends and not self._pads(last)
        if repeats == RECENT and self._once(RECENT) and self.count >= 2 * RECENT:
            return True
        # A job that was joined in the middle: its next epoch repeats as much as was seen of this.
        seen = self.count / self.n
        if seen < SEEN_MIN or len(last) < LATELY or sum(last) < LATELY_PART * LATELY * seen:
            return False
        return self._once(sum(last)) and self._all_repeat()

    def _pads(self, last: Sequence[bool]) -> bool:
        """Whether the repeats fill up the ranks' last batches, from the start of this epoch's
        order: the next one, if it is known, begins with others. More than a few are an epoch."""
        if self.follower is None or sum(last) >= LATELY_PART * min(LATELY, self.n // 2):
            return False
        following = self.follower.following()
        again = np.array([item for item, _, again in self._recent if again][-RECENT:], np.int32)
        if following is not None:
            return self.follower.begins(again) and not following.begins(again)
        coming = self.follower.guesses()
        # One of several, the same order once more begins with the same items: the number tells.
        others = [f for f in coming if f.order.items is not self.follower.order.items]
        padding = bool(coming) and self.follower.begins(again)
        return padding and not any(f.begins(again) for f in others)

    def _once(self, late: int) -> bool:
        """Whether there was next to no repeat before the last ones."""
        return (self.repeats + 1 - late) * REPEATS_PART <= self.evidence

    def _all_repeat(self) -> bool:
        """Whether the repeats are not a single client's, who may be another job."""
        repeating = {client for _, client, again in self._recent if again}
        before = np.array(self.order[-1_024:], np.int64)
        clients = set(self.by[before].tolist()) | {client for _, client, _ in self._recent}
        return 3 * len(repeating) >= len(clients)

    def _next_epoch(self, client: int) -> None:
        lately = list(self._recent)
        self._walked = self.walks
        if self.count >= NEARLY_ALL * self.n:  # the others are the last of the former epoch
            began = [item for item, _, again in lately[-RECENT:] if again]
        else:
            first = next(i for i, (_, _, again) in enumerate(lately) if again)
            began = [item for item, _, _ in lately[first:]]
        self.former = np.array(self.order, np.int32)
        self.read[:] = False
        self.order = array("i", dict.fromkeys(began))
        self.read[began] = True
        self.by[began] = client
        self.epoch += 1
        self.repeats = 0
        self.conflicts = []
        self._recent.clear()
        self.guesses = None
        if self.follower is not None:
            before, self.follower = self.follower, self.follower.following()
            guesses = before.guesses()
            self.guesses = Guesses(guesses) if guesses else None

    def leave(self, items: Numbers) -> None:
        """Another job read these; what repeated them, too, is told apart by the caller."""
        self.read[items] = False
        kept = np.array(self.order, np.int32)
        self.order = array("i", kept[self.read[kept]].tolist())
        self.repeats, self.conflicts = 0, []

    def join(self, items: Numbers, clients: npt.NDArray[np.uint16], before: "Job") -> None:
        """Reads of this epoch, in order of time, that were counted as those of `before`."""
        self.last_at = max(self.last_at, before.last_at)
        if self._walk_at == float("-inf"):
            self._walk_at = before._walk_at
        self.rate = self.rate or before.rate / 2
        fresh = np.zeros(len(items), np.bool_)
        fresh[np.unique(items, return_index=True)[1]] = True
        fresh &= ~self.read[items]
        self.repeats += len(items) - int(np.count_nonzero(fresh))
        before_each = self.count + np.cumsum(fresh)
        again = (column[~fresh].tolist() for column in (clients, items, before_each))
        self.conflicts += zip(*again, strict=True)
        items, clients = items[fresh], clients[fresh]
        self.read[items] = True
        self.by[items] = clients
        self.order.extend(items.tolist())

    def adopt(self, order: KnownOrder) -> None:
        """This is what the job reads in the present epoch."""
        self._follow(Follower(order, self.n))
