"""Where each page of an object is, in little memory: nothing for what never came.

One code a page says its state and what is known of its use. The codes of a block (256 pages) are
one immutable byte string, kept in one of three forms (`page_forms`).

Blocks are found by groups of 256: a dict by group, and inside it a search in C over one byte a
block. So a block that is wholly there costs some 10 bytes of book, a lone page about as much,
and an object of any size costs nothing until pages come (bench/cache_core.py). A dict by block
was 100 bytes a block, two bytes a page 512. Most objects have one group and many of these one
block, so the first group is not in the dict and its columns are immutable: byte strings of one
byte are shared by the interpreter, and with 20,000 objects dict and arrays were 8 bytes a page.
"""

from collections.abc import Iterator

from hubspoke.core.page_codes import ABSENT, PAGES_PER_BLOCK, STATE, Codes
from hubspoke.core.page_forms import (
    EMPTY,
    FEW,
    UNIFORM,
    all_short,
    any_short,
    code_of,
    expand,
    pack,
    repacked,
)

BLOCKS_PER_GROUP = 256
_GROUP_PAGES = BLOCKS_PER_GROUP * PAGES_PER_BLOCK
_NO_MARK = b"\x00"


class _Group:
    """256 neighbouring blocks; of those that are not wholly absent, three parallel columns."""

    __slots__ = ("index", "maps", "marks")

    def __init__(self, index: int, held: bytes) -> None:
        self.index = bytes((index,))  # block within the group, in no order
        self.maps = [held]
        self.marks = _NO_MARK  # eviction's byte


_NO_GROUPS: dict[int, _Group] = {}  # of objects that have no other than the first; stays empty


class PageMap:
    """The pages of one object. Page ranges are [first, last) and lie inside of the object."""

    __slots__ = ("_first", "_others", "_pages")

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._first: _Group | None = None
        self._others: dict[int, _Group] = _NO_GROUPS

    def __len__(self) -> int:
        return self._pages

    def __getitem__(self, page: int) -> int:
        """State of one page."""
        return self._full(page // PAGES_PER_BLOCK)[page % PAGES_PER_BLOCK] & STATE

    def _held(self, block: int) -> bytes:
        """A block in the form it is kept in."""
        group = self._others.get(block >> 8) if block >> 8 else self._first
        if group is None:
            return EMPTY
        at = group.index.find(block & 255)
        return EMPTY if at < 0 else group.maps[at]

    def _full(self, block: int) -> bytes:
        held = self._held(block)
        return held if len(held) == PAGES_PER_BLOCK else expand(held)

    # -- searching ----------------------------------------------------------------------------

    def alike(self, first: int, last: int) -> int:
        """The code of all pages of the range; -1: they differ, or it takes longer to find out. One
        look in the place of one for each set of codes: most reads are of pages of one code."""
        block = first >> 8
        base = block << 8
        if last - base > PAGES_PER_BLOCK:
            return -1
        group = self._others.get(block >> 8) if block >> 8 else self._first
        at = -1 if group is None else group.index.find(block & 255)
        if group is None or at < 0:
            return ABSENT
        held = group.maps[at]
        if held is UNIFORM[held[0] & 31]:
            return held[0]
        if len(held) == PAGES_PER_BLOCK:
            code = held[first - base]
            return code if held.count(code, first - base, last - base) == last - first else -1
        return code_of(held, first - base) if last - first == 1 else -1

    def all(self, first: int, last: int, codes: Codes) -> bool:
        """Whether every page of the range is one of `codes`."""
        block = first >> 8
        base = block << 8
        if last - base <= PAGES_PER_BLOCK:
            group = self._others.get(block >> 8) if block >> 8 else self._first
            if group is None:
                return codes.absent
            at = group.index.find(block & 255)
            if at < 0:
                return codes.absent
            held = group.maps[at]
            if held is UNIFORM[held[0] & 31]:
                return held[0] in codes.members
            if len(held) == PAGES_PER_BLOCK:
                return codes.all.fullmatch(held, first - base, last - base) is not None
            return all_short(held, first - base, last - base, codes)
        return all(
            codes.all.fullmatch(full, a, b) is not None for full, a, b in self._parts(first, last)
        )

    def any(self, first: int, last: int, codes: Codes) -> bool:
        """Whether some page of the range is one of `codes`."""
        block = first >> 8
        base = block << 8
        if first < last <= base + PAGES_PER_BLOCK:
            held = self._held(block)
            if held is UNIFORM[held[0] & 31]:
                return held[0] in codes.members
            if len(held) == PAGES_PER_BLOCK:
                return codes.any.search(held, first - base, last - base) is not None
            return any_short(held, first - base, last - base, codes)
        for full, a, b in self._parts(first, last):
            if codes.any.search(full, a, b) is not None:
                return True
        return False

    def count(self, first: int, last: int, codes: Codes) -> int:
        """How many pages of the range are one of `codes`."""
        block = first >> 8
        base = block << 8
        if last - base <= PAGES_PER_BLOCK:
            held = self._held(block)
            if held is UNIFORM[held[0] & 31]:
                return last - first if held[0] in codes.members else 0
            if last - first == 1 and len(held) < PAGES_PER_BLOCK:
                return int(code_of(held, first - base) in codes.members)
            full = held if len(held) == PAGES_PER_BLOCK else expand(held)
            return (
                last - first - len(full[first - base : last - base].translate(None, codes.members))
            )
        n = 0
        for full, a, b in self._parts(first, last):
            part = full[a:b]
            n += len(part) - len(part.translate(None, codes.members))
        return n

    def _parts(self, first: int, last: int) -> Iterator[tuple[bytes, int, int]]:
        while first < last:
            base = first & ~255
            end = min(last, base + PAGES_PER_BLOCK)
            yield self._full(base >> 8), first - base, end - base
            first = end

    def first_run(self, first: int, last: int, codes: Codes) -> tuple[int, int] | None:
        """The first of `runs`, without looking for the others."""
        block = first >> 8
        base = block << 8
        if first < last <= base + PAGES_PER_BLOCK:
            held = self._held(block)
            if held is UNIFORM[held[0] & 31]:
                return (first, last) if held[0] in codes.members else None
            if last - first == 1 and len(held) < PAGES_PER_BLOCK:
                return (first, last) if code_of(held, first - base) in codes.members else None
            full = held if len(held) == PAGES_PER_BLOCK else expand(held)
            found = codes.runs.search(full, first - base, last - base)
            return None if found is None else (base + found.start(), base + found.end())
        start = end = -1
        for full, a, b in self._parts(first, last):
            base = first & ~255
            found = codes.runs.search(full, a, b)
            first = base + b
            if found is None or (end >= 0 and found.start() != a):
                if end >= 0:
                    break
                continue
            start = base + found.start() if end < 0 else start
            end = base + found.end()
            if found.end() < b:
                break
        return None if end < 0 else (start, end)

    def runs(self, first: int, last: int, codes: Codes) -> list[tuple[int, int]]:
        """Maximal runs inside the range whose pages are of `codes`."""
        found: list[tuple[int, int]] = []
        start = end = -1  # the run that may go on
        while first < last:
            block = first >> 8
            base = block << 8
            group = self._others.get(block >> 8) if block >> 8 else self._first
            if group is None:
                stop = min(last, (first // _GROUP_PAGES + 1) * _GROUP_PAGES)
                alike = codes.absent
            else:
                stop = min(last, base + PAGES_PER_BLOCK)
                at = group.index.find(block & 255)
                held = EMPTY if at < 0 else group.maps[at]
                if held is UNIFORM[held[0] & 31]:
                    alike = held[0] in codes.members
                elif stop - first == 1 and len(held) < PAGES_PER_BLOCK:
                    alike = code_of(held, first - base) in codes.members
                else:
                    full = held if len(held) == PAGES_PER_BLOCK else expand(held)
                    for m in codes.runs.finditer(full, first - base, stop - base):
                        if base + m.start() != end:
                            if end >= 0:
                                found.append((start, end))
                            start = base + m.start()
                        end = base + m.end()
                    first = stop
                    continue
            if alike:
                if first != end:
                    if end >= 0:
                        found.append((start, end))
                    start = first
                end = stop
            first = stop
        if end >= 0:
            found.append((start, end))
        return found

    # -- changing -----------------------------------------------------------------------------

    def change(self, first: int, last: int, table: bytes) -> bool:
        """Give every page of the range its new code by a table of `changing`; returns whether
        that is another one for any of them."""
        changed = False
        while first < last:
            block = first >> 8
            base = block << 8
            end = min(last, base + PAGES_PER_BLOCK)
            group = self._others.get(block >> 8) if block >> 8 else self._first
            at = -1 if group is None else group.index.find(block & 255)
            held = EMPTY if group is None or at < 0 else group.maps[at]
            code = held[0]
            if held is UNIFORM[code & 31] and end - first == min(
                PAGES_PER_BLOCK, self._pages - base
            ):
                # All pages of a block that are alike stay so: the common case, in one look.
                if table[code] != code:
                    changed = True
                    self._keep(block, group, at, UNIFORM[table[code]])
                first = end
                continue
            if end - first <= FEW and (held is EMPTY or len(held) < PAGES_PER_BLOCK):
                short = b"" if held is EMPTY else held
                n = min(PAGES_PER_BLOCK, self._pages - base)
                packed = repacked(short, first - base, end - base, table, n)
                if packed is not None:
                    changed = True
                    self._keep(block, group, at, packed)
                first = end
                continue
            full = held if len(held) == PAGES_PER_BLOCK else expand(held)
            part = full[first - base : end - base]
            new = part.translate(table)
            if new != part:
                changed = True
                self._put(block, group, at, full[: first - base] + new + full[end - base :])
            first = end
        return changed

    def put(self, block: int, full: bytes) -> None:
        """Give a block the codes of all its 256 pages; those beyond the object's end are 0."""
        group = self._group(block >> 8)
        self._put(block, group, -1 if group is None else group.index.find(block & 255), full)

    def _put(self, block: int, group: _Group | None, at: int, full: bytes) -> None:
        """group, at: where the block is, if it is anywhere."""
        packed = pack(full, min(PAGES_PER_BLOCK, self._pages - block * PAGES_PER_BLOCK))
        self._keep(block, group, at, packed)

    def _keep(self, block: int, group: _Group | None, at: int, packed: bytes) -> None:
        if group is None:
            self._add(block >> 8, _Group(block & 255, packed))
        elif at < 0:
            group.index += bytes((block & 255,))
            group.maps.append(packed)
            group.marks += _NO_MARK
        elif packed is EMPTY and not group.marks[at]:
            self._remove(block >> 8, group, at)
        else:
            group.maps[at] = packed

    def _group(self, number: int) -> _Group | None:
        return self._others.get(number) if number else self._first

    def _add(self, number: int, group: _Group) -> None:
        if not number:
            self._first = group
            return
        if self._others is _NO_GROUPS:
            self._others = {}
        self._others[number] = group

    def _remove(self, number: int, group: _Group, at: int) -> None:
        group.index = group.index[:at] + group.index[at + 1 :]
        group.marks = group.marks[:at] + group.marks[at + 1 :]
        del group.maps[at]
        if group.index:
            return
        if number:
            del self._others[number]
        else:
            self._first = None

    # -- eviction's byte ----------------------------------------------------------------------

    def mark(self, block: int) -> int:
        """The byte eviction keeps with a block; 0 if it keeps none."""
        group = self._others.get(block >> 8) if block >> 8 else self._first
        if group is None:
            return 0
        at = group.index.find(block & 255)
        return group.marks[at] if at >= 0 else 0

    def set_mark(self, block: int, mark: int) -> None:
        group = self._group(block >> 8)
        at = -1 if group is None else group.index.find(block & 255)
        if group is None or at < 0:
            assert mark == 0, "a wholly absent block is in no order"
            return
        group.marks = group.marks[:at] + bytes((mark,)) + group.marks[at + 1 :]
        if not mark and group.maps[at] is EMPTY:
            self._remove(block >> 8, group, at)

    def blocks(self) -> Iterator[int]:
        """Blocks that are not wholly absent and unused, in no order; pages may change meanwhile."""
        for number in (0, *self._others):
            group = self._group(number)
            if group is not None:
                yield from [(number << 8) + index for index in group.index]

    def change_all(self, table: bytes) -> None:
        """`change` for the whole object, in time of the blocks that are not wholly absent."""
        for block in self.blocks():
            first = block * PAGES_PER_BLOCK
            self.change(first, min(first + PAGES_PER_BLOCK, self._pages), table)
