"""Follows the streams that moved: asks the generators that look inside one object in turn, and
hands a stream on to the next object when its prefetch flows over the end.

What a stream is comes from `stream_table`; what becomes of the candidates is `prediction`'s.
"""

from collections import OrderedDict
from collections.abc import Callable

from hubspoke.core.epochs.items import Folder
from hubspoke.core.generators import backward, next_object, runway, sequential, strided
from hubspoke.core.generators.candidates import Ahead, Candidate, DepthConfig, Listing
from hubspoke.core.habits import Habits
from hubspoke.core.ids import ObjectName
from hubspoke.core.streams import Pattern, Stream

YOUNG_ACCESSES = 16  # a stream with fewer has had no time to be recognised
ENDING_MAX = 64  # streams that have flowed over their object
FOLLOWED = (Pattern.SEQUENTIAL, Pattern.BACKWARD, Pattern.STRIDED)


class Following:
    """What is believed of streams."""

    def __init__(
        self,
        depth: DepthConfig,
        listing: Listing,
        habits: Habits,
        shuffled: Callable[[Folder], bool],
        left_out: Callable[[ObjectName], bool],
        in_runs: Callable[[Stream], bool],
    ) -> None:
        """shuffled: whether an object after another in the folder's listing does not follow it.
        left_out: whether this one is of a kind that readers pass by. in_runs: whether what its
        clients read in a row ends where other pieces of the object did."""
        self._in_runs = in_runs
        self._shuffled = shuffled
        self._left_out = left_out
        self._depth = depth
        self._listing = listing
        self._habits = habits
        self._ending: OrderedDict[ObjectName, Stream] = OrderedDict()  # by the object that follows

    def begun(self, s: Stream) -> None:
        """A stream that begins where another one's prefetch flowed over carries it on."""
        before = self._ending.get(s.obj.name)
        part = None if before is None else self._habits.part(s.obj.name, s.obj.size)
        if before is None or part is None or s.start > part[0] + before.spread + before.hide_bytes:
            return
        s.pattern, s.boost, s.chained = before.pattern, before.boost, before.chained + 1
        s.rate = before.rate
        s.start = min(
            s.start, part[0]
        )  # the other workers' reads before this one are still to come

    def propose(self, s: Stream, now: float, hide_s: float, ahead: Ahead) -> list[Candidate]:
        """What the stream will read next. ahead: how much it may have ahead."""
        if not s.waits:
            s.boost.calm(now)
        elif s.pattern in FOLLOWED and s.accesses > YOUNG_ACCESSES:
            s.boost.waited(now, hide_s, self._depth.boost_max)
        waited, s.waits = s.waits > 0, 0
        found: list[Candidate] = []
        if waited or s.pattern is not Pattern.SEQUENTIAL:
            found = backward.propose(s, now, hide_s, self._depth, waited=waited, ahead=ahead)
        if s.pattern is not Pattern.BACKWARD:
            found = self._upwards(s, now, hide_s, ahead, waited=waited)
        return found

    def _upwards(
        self, s: Stream, now: float, hide_s: float, ahead: Ahead, *, waited: bool
    ) -> list[Candidate]:
        found, beyond = sequential.propose(
            s, now, hide_s, self._depth, waited=waited, ahead=ahead, in_runs=self._in_runs
        )
        if beyond and not self._shuffled(s.obj.data_set.folder):
            following = [
                (name, entry)
                for name, entry in self._listing.following(s.obj.name, next_object.FOLLOWING)
                if not self._left_out(name)
            ]
            if following:
                self._ending[following[0][0]] = s
                if len(self._ending) > ENDING_MAX:
                    self._ending.popitem(last=False)
            found += next_object.overflow(s, beyond, following, hide_s, self._habits)
        if not found and s.hide_bytes == 0:
            found = strided.propose(s, hide_s, waited=waited)
        if ahead.runway:
            found += runway.extend(s, now, self._depth.runway_s, ahead.runway)
        return found
