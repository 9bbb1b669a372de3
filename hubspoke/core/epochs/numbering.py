"""How a loader numbers the files of a folder, if not by their place in the listing.

Loaders leave out what is no data (`index.json`), and where numbers in names have no leading zeros
many put 2 before 10. So those files count whose names are alike but for their numbers, if nearly
all are, in the order of their numbers. A wrong numbering does no harm: no seed fits it.
"""

import re
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

ALIKE_PART = 0.9  # of a folder's files
KINDS_MAX = 16  # of names; with more of them none is nearly all
FILES_MAX = 2**18  # sorted in 50 ms
DIGITS = re.compile(r"(\d+)")
DIGITS_MAX = 18  # of a number: they are 64 bits

Numbers = npt.NDArray[np.int32]


class Names:
    """Of one folder, taken in listing order; up to 1 us each."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[array[int], array[int]]] = {}  # by all that is no number
        self._count = 0

    def take(self, names: Iterable[str]) -> None:
        """The next names. Those of a slice are nearly always alike: then they are cut as one."""
        names = list(names)
        lines = "\n".join(names)
        likes = set(DIGITS.sub("0", lines).split("\n")) if lines.count("\n") < len(names) else ()
        if len(likes) == 1 and self._count + len(names) <= FILES_MAX:
            (like,) = likes
            numbers = DIGITS.findall(lines)
            if like in self._kinds and max(map(len, numbers), default=0) <= DIGITS_MAX:
                kind = self._kinds[like]
                if len(self._kinds) <= KINDS_MAX:
                    kind[0].extend(range(self._count, self._count + len(names)))
                    kind[1].extend(map(int, numbers))
                self._count += len(names)
                return
        self._take_each(names)

    def _take_each(self, names: list[str]) -> None:
        for name in names:
            if len(self._kinds) <= KINDS_MAX and self._count < FILES_MAX:
                parts = DIGITS.split(name)
                numbers, like = parts[1::2], "0".join(parts[::2])
                kind = self._kinds.get(like)
                if kind is None:
                    kind = self._kinds[like] = array("i"), array("q")
                short = len(name) <= DIGITS_MAX
                if short or max(map(len, numbers), default=0) <= DIGITS_MAX:
                    kind[0].append(self._count)
                    kind[1].extend(map(int, numbers))
            self._count += 1

    def numbering(self) -> Numbers | None:
        """The data's files in the order of their numbers; None if that is the listing."""
        if not 0 < self._count <= FILES_MAX:
            return None
        files, numbers = max(self._kinds.values(), key=lambda kind: len(kind[0]))
        if len(files) < ALIKE_PART * self._count or not len(numbers):
            return None
        listed = np.array(files, np.int32)
        columns = np.array(numbers, np.int64).reshape(len(files), -1)
        found = listed[np.lexsort(columns.T[::-1])]
        same = len(found) == self._count and bool((np.diff(found) == 1).all())
        return None if same else found
