"""Layouts of the objects that have one, and the bytes that are looked at to know them.

The core has no bytes. What it wants to see waits here until its pages are on disk; the shell takes
what is `due`, reads and parses it off the read path, and tells what it `saw`. An object is looked
at once at its head and once at its tail, as soon as a reader reads there.
"""

from collections.abc import Callable
from typing import NamedTuple

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ObjectName, Version, page_span
from hubspoke.core.layouts.layout import Layout
from hubspoke.core.layouts.probe import Look, Seen

PENDING_MAX = 1_024
LOOKED_MAX = 16_384  # objects remembered as looked at
PARTS_KEPT_MAX = 2 << 20  # 16 bytes each
DUE_MAX = 16


class Due(NamedTuple):
    """Bytes that are here and that the shell is to look at."""

    obj: CachedObject
    look: Look


class Book:
    """on_seen: told of each look what it said; None if the object is of no known format."""

    def __init__(self, cache: Cache, on_seen: Callable[[CachedObject, Seen | None], None]) -> None:
        self._cache = cache
        self._on_seen = on_seen
        self._layouts: dict[int, Layout] = {}  # by object number, the youngest at the end
        self._parts = 0
        self._pending: dict[int, Due] = {}
        self._expected: dict[ObjectName, tuple[Version, Look]] = {}
        self._given: set[int] = set()  # object numbers whose bytes the shell looks at now
        self._looked: dict[tuple[int, bool], None] = {}  # object number, whether at its head

    def get(self, number: int) -> Layout | None:
        """The layout of an object, if it is known."""
        return self._layouts.get(number)

    def looks_at(self, number: int) -> bool:
        """Whether it is not known yet what bytes of the object say."""
        return number in self._pending or number in self._given

    def reads_at_head(self, obj: CachedObject) -> bool:
        """A reader reads the object's first bytes; returns whether it is looked at now."""
        return self._look_once(obj, Look.head(obj.size), head=True)

    def reads_at_tail(self, obj: CachedObject) -> bool:
        """As `reads_at_head`, its last bytes."""
        return self._look_once(obj, Look.tail(obj.size), head=False)

    def _look_once(self, obj: CachedObject, look: Look, *, head: bool) -> bool:
        key = (obj.number, head)
        if key in self._looked or obj.number in self._layouts:
            return False
        if len(self._looked) >= LOOKED_MAX:
            del self._looked[next(iter(self._looked))]
        self._looked[key] = None
        self.want(obj, look)
        return True

    def want(self, obj: CachedObject, look: Look) -> None:
        """Look as soon as the bytes are here."""
        if len(self._pending) >= PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        self._pending[obj.number] = Due(obj, look)

    def expect(self, name: ObjectName, version: Version, look: Look) -> None:
        """As `want`, of an object that may not be open yet."""
        if len(self._expected) >= PENDING_MAX:
            del self._expected[next(iter(self._expected))]
        self._expected[name] = version, look

    def due(self) -> list[Due]:
        """What the shell is to look at now; each is given once."""
        for name, (version, look) in list(self._expected.items()):
            obj = self._cache.current(name)
            if obj is not None and obj.version == version:
                del self._expected[name]
                if obj.number not in self._layouts:
                    self.want(obj, look)
        found: list[Due] = []
        for number, due in list(self._pending.items()):
            obj = due.obj
            if obj.dead:
                del self._pending[number]
            elif self._cache.readable(obj, *page_span(*due.look.span)):
                del self._pending[number]
                self._given.add(number)
                found.append(due)
                if len(found) == DUE_MAX:
                    break
        return found

    def saw(self, due: Due, seen: Seen | None) -> None:
        """What the bytes said: a layout, where to look next, or (None) nothing."""
        obj = due.obj
        self._given.discard(obj.number)
        if obj.dead:
            return
        if isinstance(seen, Look):
            self.want(obj, seen)
        elif isinstance(seen, Layout):
            self._put(obj.number, seen)
        self._on_seen(obj, seen)

    def _put(self, number: int, layout: Layout) -> None:
        self._drop(number)
        self._layouts[number] = layout
        self._parts += layout.parts
        while self._parts > PARTS_KEPT_MAX and len(self._layouts) > 1:
            self._drop(next(iter(self._layouts)))

    def _drop(self, number: int) -> None:
        layout = self._layouts.pop(number, None)
        if layout is not None:
            self._parts -= layout.parts
            self._looked.pop((number, True), None)
            self._looked.pop((number, False), None)
