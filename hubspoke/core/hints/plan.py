"""One posted plan: which items come in which order, and how far its readers are.

Ranks and workers take their parts in turn and overtake each other, so a read counts for the plan if
it comes up to `window` places after the last one that did. What lies farther behind than four
times what reads were behind of late, or than two windows, was passed by without a read: a job may
have read it before the plan came.

    base: first place that may still be read     front: one past the last place that was

An item may come several times; a read is the first time that is left.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from hubspoke.core.hints.table import Table
from hubspoke.core.ids import ObjectName

NOWHERE = -1
TRIM = 65_536  # places that are over, before memory is given back
SLACK = 1_024  # places behind the front that nothing is concluded of
BEGUN_MAX = 4_096  # items of which a part was read
JUDGED = 512  # reads of its objects
MISFITS = 480  # of them, to say that nobody follows it
RATED_S = 0.5
VERIFY_S, VERIFY_MAX_S = 1.0, 60.0
PLACE_BYTES = 16  # of memory, for each place


class Plan:
    """Times are seconds on one clock."""

    def __init__(self, table: Table, window: int, ttl_s: float, now: float) -> None:
        self.table = table
        self.window = window
        self.ttl_s = ttl_s
        self.touched_at = now  # the last post or read
        self.base = self.front = self.end = 0
        self.place = array("q")  # of an item: where it is read next
        self.here = bytearray()  # of an item: in the cache, or asked for
        self.here_bytes = 0  # of items that are here and to be read
        self.bytes_left = 0  # of places that are to be read
        self.hits = self.late = self.misses = self.passed = 0
        self.bytes_per_s = self.places_per_s = 0.0
        self.left = 0  # places that may still be read
        self.spread = 0  # places by which a read was behind the front, the most of late
        self.read_at = float("-inf")
        self.planned = self.planned_bytes = 0  # up to there it was asked for: place, bytes of it
        self.ahead_bytes = 0  # of places before that are to be read
        self.far = 0  # nothing from there on is here and is read there next
        self.surveyed = 0  # up to there it was looked for what is here
        self._begin = 0  # place of the first entry of the order
        self._order = array("l")
        self._deadlines: dict[int, float] = {}
        self._later: dict[int, deque[int]] = {}
        self._begun: dict[int, int] = {}  # bytes that are left of items of which some were read
        self._verified_at, self._verify_s = float("-inf"), VERIFY_S
        self._judged: deque[bool] = deque(maxlen=JUDGED)
        self._fitted = 0
        self._counted_at = float("-inf")
        self._counted = self._counted_bytes = 0

    # -- what comes ---------------------------------------------------------------------------

    def append(
        self, items: Sequence[int], bytes_: int, deadlines: Iterable[tuple[int, float]] = ()
    ) -> None:
        """More places at the end, of so many bytes. deadlines: (which of `items`, time)."""
        self.bytes_left += bytes_
        self.left += len(items)
        place, later, end = self.place, self._later, self.end
        if len(place) < self.table.count:
            more = self.table.count - len(place)
            place.frombytes(array("q", [NOWHERE]).tobytes() * more)
            self.here.extend(bytes(more))
        for i, at in deadlines:
            self._deadlines[end + i] = at
        for at, item in enumerate(items, end):
            if place[item] == NOWHERE:
                place[item] = at
            else:
                later.setdefault(item, deque()).append(at)
        self._order.extend(items)
        self.end += len(items)
        self.far = self.end

    @property
    def memory_bytes(self) -> int:
        return self.table.bytes + PLACE_BYTES * (self.end - self._begin)

    def item(self, place: int) -> int:
        return self._order[place - self._begin]

    def items(self, first: int, last: int) -> Sequence[int]:
        """Of the places [first, last)."""
        return self._order[first - self._begin : last - self._begin]

    def to_come(self, place: int) -> bool:
        """Whether the place is still to be read."""
        at = self.place[self._order[place - self._begin]]
        return at != NOWHERE and at <= place

    def deadline(self, place: int) -> float | None:
        return self._deadlines.get(place)

    @property
    def followed(self) -> bool:
        """Whether anything of it was read."""
        return self.front > 0

    @property
    def timed(self) -> bool:
        """Whether any place has a deadline."""
        return bool(self._deadlines)

    def due_s(self, place: int, now: float) -> float:
        """Seconds until the place is read, by the rate so far or by its deadline."""
        found = max(0, place - self.front) / (self.places_per_s or 1e3)
        at = self._deadlines.get(place)
        return found if at is None else min(found, max(0.0, at - now))

    def needed(self, name: ObjectName, start: int, end: int) -> Iterator[int]:
        """Items with bytes in [start, end) that are still to be read."""
        place = self.place
        return (i for i in self.table.touching(name, start, end) if place[i] != NOWHERE)

    # -- reads --------------------------------------------------------------------------------

    def find(self, name: ObjectName, start: int, end: int) -> tuple[list[int], bool]:
        """Items that a read may be of now, and whether it is of the plan's items at all."""
        touched = self.table.touching(name, start, end)
        limit = self.front + self.window
        place = self.place
        return [i for i in touched if NOWHERE < place[i] <= limit], bool(touched)

    def judge(self, *, fits: bool) -> bool:
        """A read of the plan's items does, or does not, follow it; returns whether the plan is
        worth keeping."""
        if len(self._judged) == JUDGED:
            self._fitted -= self._judged[0]
        self._judged.append(fits)
        self._fitted += fits
        return len(self._judged) < JUDGED or self._fitted > JUDGED - MISFITS

    def read(self, item: int, start: int, end: int, now: float) -> bool:
        """Bytes [start, end) of the item's object were read. Returns whether that was all of the
        item that was left."""
        _, offset, length = self.table.range(item)
        self.touched_at = self.read_at = now
        before = self._begun.get(item, length)
        left = max(0, before - (min(end, offset + length) - max(start, offset)))
        self._rated(before - left, now, whole=not left)
        if not left:
            return True
        if self.place[item] <= self.planned:
            self.ahead_bytes = max(0, self.ahead_bytes - (before - left))
        self._begun[item] = left
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        return False

    def consume(self, item: int) -> None:
        """The item was read for this time."""
        at = self._over(item)
        self.spread = max(self.spread, self.front - at)
        self.front = max(self.front, at + 1)

    def _over(self, item: int) -> int:
        at = self.place[item]
        assert at != NOWHERE, item
        length = self.table.range(item)[2]
        left = self._begun.pop(item, length)
        if at <= self.planned:
            asked = left if at < self.planned else max(0, self.planned_bytes - (length - left))
            self.ahead_bytes = max(0, self.ahead_bytes - asked)
        self._deadlines.pop(at, None)
        later = self._later.get(item)
        if later is None:
            self.place[item] = NOWHERE
        else:
            self.place[item] = later.popleft()
            if not later:
                del self._later[item]
            self.far = max(self.far, self.place[item] + 1)
        self.bytes_left -= length
        self.left -= 1
        if self.here[item] and self.place[item] == NOWHERE:
            self.here_bytes -= length
        return at

    def advance(self) -> list[int]:
        """Move `base` on; returns items that were passed by without a read, for this time."""
        passed = []
        least = self.front - min(2 * self.window, 4 * self.spread + SLACK)
        while self.base < self.front:
            if self.to_come(self.base):
                if self.base >= least:
                    break
                item = self.item(self.base)
                self._over(item)
                self.passed += 1
                passed.append(item)
            self.base += 1
        if self.base - self._begin > TRIM and 2 * (self.base - self._begin) > len(self._order):
            del self._order[: self.base - self._begin]
            self._begin = self.base
        return passed

    def _rated(self, bytes_: int, now: float, *, whole: bool) -> None:
        """Consumption, over half a second at least and mostly the last few."""
        self._counted += whole
        self._counted_bytes += bytes_
        since = now - self._counted_at
        if since < RATED_S:
            return
        if since < 60.0:
            for_now = self._counted / since
            part = 1.0 if not self.places_per_s else 0.3
            self.places_per_s += part * (for_now - self.places_per_s)
            self.bytes_per_s += part * (self._counted_bytes / since - self.bytes_per_s)
            self.spread = int(0.98 * self.spread)
        self._counted_at, self._counted, self._counted_bytes = now, 0, 0

    # -- what is here -------------------------------------------------------------------------

    def came(self, item: int) -> bool:
        """The item is here, or asked for; returns whether that is news."""
        if self.here[item]:
            return False
        self.here[item] = 1
        if self.place[item] != NOWHERE:
            self.here_bytes += self.table.range(item)[2]
            self.far = max(self.far, self.place[item] + 1)
        return True

    def went(self, item: int) -> None:
        """It is not."""
        if self.here[item]:
            self.here[item] = 0
            if self.place[item] != NOWHERE:
                self.here_bytes -= self.table.range(item)[2]

    def rewind(self) -> None:
        """Of what was asked for, some may not come: it is looked at again."""
        self.planned, self.planned_bytes, self.ahead_bytes = self.base, 0, 0

    def verify_at(self) -> float:
        """When to look again whether what was asked for came, although nobody reads: a fetch may
        have failed. More and more seldom."""
        return max(self.touched_at, self._verified_at) + self._verify_s

    def verify(self, now: float) -> None:
        """It is looked at again."""
        since = max(self.touched_at, self._verified_at)
        again = since == self._verified_at
        self._verify_s = min(2 * self._verify_s, VERIFY_MAX_S) if again else VERIFY_S
        self._verified_at = now
        self.rewind()

    def back_to(self, place: int) -> None:
        """What is at the place is not here any more."""
        if place >= self.planned:
            return
        for at in range(max(place, self.base), self.planned):
            if self.to_come(at):
                self.ahead_bytes -= self.table.range(self.item(at))[2]
        self.ahead_bytes = max(0, self.ahead_bytes)
        self.planned, self.planned_bytes = place, 0

    def begun(self, item: int) -> bool:
        """Whether a part of it was read."""
        return item in self._begun

    def farthest(self) -> int | None:
        """The last place of which the item is here and is not read before."""
        order, begin = self._order, self._begin
        while self.far > self.base:
            item = order[self.far - 1 - begin]
            if self.here[item] and self.place[item] == self.far - 1:
                return self.far - 1
            self.far -= 1
        return None
