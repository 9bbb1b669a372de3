"""A stride table: Chen and Baer's reference prediction table, IEEE Trans. Computers 1995.

An entry for each worker and file (theirs: for each load instruction) holds the last address, the
stride and one of four states; a stride seen twice is steady and fetched along, one miss-step makes
it transient, and what never agrees is left alone. They fetch one stride ahead; here it is as many
as fill the same window as read-ahead's.
"""

from hubspoke.sim.prediction.read_ahead import Span

ENTRIES = 4_096
INITIAL, TRANSIENT, STEADY, NONE = range(4)
# state -> (if the stride was right, if it was not)
NEXT = ((STEADY, TRANSIENT), (STEADY, NONE), (STEADY, INITIAL), (TRANSIENT, NONE))


class StrideTable:
    """See `read_ahead.Ahead`."""

    def __init__(self, pages_max: int) -> None:
        self._max = max(1, pages_max)
        self._entries: dict[tuple[int, int], list[int]] = {}  # last first, stride, state, ahead

    def after(
        self, client: int, obj: int, first: int, end: int, used: int, missed: bool
    ) -> list[Span]:
        key = (client, obj)
        entry = self._entries.pop(key, None)
        if entry is None:
            entry = [first, 0, INITIAL, first]
            if len(self._entries) >= ENTRIES:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = entry
            return []
        self._entries[key] = entry  # in order of last use
        last, stride, state, ahead = entry
        right = first - last == stride
        if not right and state != STEADY:  # a steady stride survives one step that is not its
            stride = first - last
        state = NEXT[state][not right]
        if not right or stride <= 0 or state != STEADY:
            entry[:] = first, stride, state, end
            return []
        unit = end - first
        spans: list[Span] = []
        ahead = max(ahead, first)
        # Only what was not asked for before: one more stride for each read, once it runs.
        for at in range(first + stride, first + stride * (1 + self._max // unit), stride):
            if at + unit > ahead:
                spans.append((at, at + unit))
                ahead = at + unit
        entry[:] = first, stride, state, ahead
        return spans
