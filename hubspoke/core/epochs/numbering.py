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


_NOUGHTS = str.maketrans("123456789", "0" * 9)


def _numbers(lines: str, shapes: set[str]) -> "array[int] | None":
    """All numbers in lines of these shapes, in order; None if one is too long."""
    if len(shapes) > 1 or not lines.isascii():
        found = DIGITS.findall(lines)
        long = max(map(len, found), default=0) > DIGITS_MAX
        return None if long else array("q", map(int, found))
    # The digits of all lines are in the same columns: each number is a few columns of them.
    (shape,) = shapes
    spans = [m.span() for m in DIGITS.finditer(shape)]
    if max((b - a for a, b in spans), default=0) > DIGITS_MAX:
        return None
    columns = np.frombuffer(f"{lines}\n".encode(), np.uint8).reshape(-1, len(shape) + 1)
    numbers = np.empty((len(columns), len(spans)), np.int64)
    for i, (a, b) in enumerate(spans):
        tens = 10 ** np.arange(b - a - 1, -1, -1, dtype=np.int64)
        numbers[:, i] = (columns[:, a:b] - np.uint8(ord("0"))) @ tens
    return array("q", numbers.tobytes())


class Names:
    """Of one folder, taken in listing order; up to 1 us each."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[array[int], array[int]]] = {}  # by all that is no number
        self._count = 0

    def take(self, names: Iterable[str]) -> None:
        """The next names. Those of a slice are nearly always alike: then they are cut as one."""
        names = list(names)
        lines = "\n".join(names)
        shapes = set(lines.translate(_NOUGHTS).split("\n"))
        likes = {DIGITS.sub("0", shape) for shape in shapes}
        plain = lines.count("\n") < len(names)
        if plain and len(likes) == 1 and self._count + len(names) <= FILES_MAX:
            (like,) = likes
            kind = self._kinds.get(like)
            numbers = None if kind is None else _numbers(lines, shapes)
            if kind is not None and numbers is not None:
                if len(self._kinds) <= KINDS_MAX:
                    kind[0].extend(range(self._count, self._count + len(names)))
                    kind[1].extend(numbers)
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
