"""The forms in which the codes of a block are kept, and what is asked of the short one.

    uniform   all pages alike            shared by all such blocks of the process
    short     up to 15 pages not absent  their indices, then their codes; equal ones are shared
    full      anything else              256 bytes

A few pages of a short form are looked up and changed as they are: to make 256 bytes of it, and a
short form of these again, took most of what the book of a lone read costs.
"""

import re
from bisect import bisect_left
from functools import lru_cache

from hubspoke.core.page_codes import ABSENT, PAGES_PER_BLOCK, Codes

_SHORT_MAX = 15
# Equal short forms that are shared: one and two pages at any place, in their usual states.
_SHARED_MAX = 4_096

UNIFORM = [bytes((code,)) * PAGES_PER_BLOCK for code in range(32)]
EMPTY = UNIFORM[ABSENT]
_ONE = [bytes((byte,)) for byte in range(256)]
_HELD = re.compile(rb"[^\x00]")
FEW = 4  # pages that are looked up one by one


@lru_cache(_SHARED_MAX)
def _shared(short: bytes) -> bytes:
    return short


@lru_cache(1_024)
def expand(short: bytes) -> bytes:
    """The 256 codes of a short form."""
    n = len(short) >> 1
    full = bytearray(PAGES_PER_BLOCK)
    for page, code in zip(short[:n], short[n:], strict=True):
        full[page] = code
    return bytes(full)


def code_of(short: bytes, page: int) -> int:
    """Code of one page of a short form: to look it up costs less than all 256 bytes."""
    n = len(short) >> 1
    at = short.find(page, 0, n)
    return ABSENT if at < 0 else short[n + at]


def all_short(short: bytes, first: int, last: int, codes: Codes) -> bool:
    """Whether every page of [first, last) is one of `codes`."""
    if last - first > FEW:
        return codes.all.fullmatch(expand(short), first, last) is not None
    n = len(short) >> 1
    for page in range(first, last):
        at = short.find(page, 0, n)
        if (codes.absent if at < 0 else short[n + at] in codes.members) is False:
            return False
    return True


def any_short(short: bytes, first: int, last: int, codes: Codes) -> bool:
    """Whether some page of [first, last) is one of `codes`."""
    n = len(short) >> 1
    if not codes.absent:
        if codes.any.search(short, n) is None:
            return False
        if last - first == PAGES_PER_BLOCK:
            return True
    if last - first > FEW:
        return codes.any.search(expand(short), first, last) is not None
    for page in range(first, last):
        at = short.find(page, 0, n)
        if codes.absent if at < 0 else short[n + at] in codes.members:
            return True
    return False


def repacked(short: bytes, first: int, last: int, table: bytes, n: int) -> bytes | None:
    """`pack` of a short form, or of b"" for nothing, of which pages [first, last) get other codes;
    n: pages of the block that exist. None: they are as they were."""
    held = len(short) >> 1
    if last - first == 1 and held < n:
        # One page whose code becomes another one stays where it is: most changes are such.
        at = short.find(first, 0, held)
        after = table[short[held + at]] if at >= 0 else ABSENT
        if after != ABSENT:
            at += held
            if after == short[at]:
                return None
            short = short[:at] + _ONE[after] + short[at + 1 :]
            return _shared(short) if held <= 2 else short
    pages, of = short[:held], short[held:]
    other = False
    for page in range(first, last):
        at = pages.find(page)
        before = ABSENT if at < 0 else of[at]
        after = table[before]
        if after == before:
            continue
        other = True
        if at < 0:
            at = bisect_left(pages, page)
            pages = pages[:at] + _ONE[page] + pages[at:]
            of = of[:at] + _ONE[after] + of[at:]
        elif after == ABSENT:
            pages, of = pages[:at] + pages[at + 1 :], of[:at] + of[at + 1 :]
        else:
            of = of[:at] + _ONE[after] + of[at + 1 :]
    if not other:
        return None
    if len(pages) > _SHORT_MAX:
        return pack(expand(pages + of), n)
    if not pages:
        return EMPTY
    if len(pages) == n and of.count(of[0]) == n:
        return UNIFORM[of[0]]
    return _shared(pages + of) if len(pages) <= 2 else pages + of


def pack(full: bytes, n: int) -> bytes:
    """The smallest form of a block of which the first n pages exist."""
    code = full[0]
    if full.count(code, 0, n) == n:
        return UNIFORM[code]
    if n < PAGES_PER_BLOCK:
        full = full[:n] + bytes(PAGES_PER_BLOCK - n)
    if PAGES_PER_BLOCK - full.count(ABSENT) > _SHORT_MAX:
        return full
    pages = bytes(m.start() for m in _HELD.finditer(full))
    short = pages + full.translate(None, b"\x00")
    return _shared(short) if len(pages) <= 2 else short
