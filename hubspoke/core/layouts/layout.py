"""The structure of a file as its own index tells it: named parts, in groups of the same names.

Parsers are given bytes of anybody's files. So each is bounded by the bytes it was given, and has
one way to say that they are wrong: NoLayout, which means "nothing is known about this file". They
are generators that yield every few thousand steps of Python, so that the loop has its turn while
the footer of a wide table is read (25,600 column chunks take 0.2 s).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

INDEX_BYTES_MAX = 16 << 20  # a longer index is not looked at
PARTS_MAX = 400_000  # of one file

Places = npt.NDArray[np.int64]


class NoLayout(Exception):
    """These bytes are not the index they were taken for."""


class Span(NamedTuple):
    """Bytes [offset, offset + length) of a file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Part `name` of group g lies at offsets[g, name], lengths[g, name] bytes long; a part that
    the group does not have is 0 bytes long.

    index: the bytes that said so. Parquet has a group for each row group and a name for each
    column; other formats have one group, their names in order of place.
    """

    format: str
    names: tuple[str, ...]
    offsets: Places
    lengths: Places
    index: Span
    starts: Places = field(init=False)  # of all parts in order of place
    order: Places | None = field(init=False)  # which part that is; None: they lie in order

    def __post_init__(self) -> None:
        flat = self.offsets.ravel()
        order = None
        if (flat[1:] < flat[:-1]).any():
            order = np.argsort(flat, kind="stable")
            flat = flat[order]
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "starts", flat)

    @property
    def groups(self) -> int:
        return len(self.offsets)

    @property
    def parts(self) -> int:
        return self.offsets.size

    def touched(self, offset: int, length: int) -> list[int]:
        """Parts (group * names + name) that a read has bytes of."""
        starts = self.starts
        first = max(0, int(starts.searchsorted(offset, "right")) - 1)
        if first + 1 < len(starts) and offset + length > starts[first + 1]:
            last = int(starts.searchsorted(offset + length, "left"))
        else:
            last = first + 1
        found = range(first, last) if self.order is None else self.order[first:last].tolist()
        lengths = self.lengths
        names = len(self.names)
        return [
            part
            for i, part in enumerate(found, first)
            if starts[i] < offset + length and starts[i] + lengths[divmod(part, names)] > offset
        ]


Parsing = Generator[None, None, Layout]
T = TypeVar("T")


def row(values: Sequence[int]) -> Places:
    """Places, or lengths, of one group. Raises NoLayout."""
    try:
        return np.array(values, np.int64)
    except OverflowError as e:
        raise NoLayout("a part is nowhere") from e


def layout_of(
    format: str,
    size: int,
    names: Sequence[str],
    offsets: Sequence[Places],
    lengths: Sequence[Places],
    index: Span,
) -> Layout:
    """Of groups as rows, checked against the file's size. Raises NoLayout."""
    if not names or not offsets:
        raise NoLayout("it names no part")
    if {len(r) for r in (*offsets, *lengths)} != {len(names)}:
        raise NoLayout("its groups differ")
    start, length = np.stack(offsets), np.stack(lengths)
    if start.min() < 0 or length.min() < 0 or length.max() > size:
        raise NoLayout("a part is nowhere")
    if (start + length).max() > size:
        raise NoLayout("a part is beyond the end")
    return Layout(format, tuple(names), start, length, index)


def finish(parsing: Generator[None, None, T]) -> T:
    """Parse without a break. Raises NoLayout."""
    while True:
        try:
            next(parsing)
        except StopIteration as end:
            found: T = end.value
            return found
