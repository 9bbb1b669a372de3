"""Whole files, lent to somebody whose reads are not seen: the kernel, for a mount's open files.

A file with a hole would read as zeros there, and one with an unchecked frame as whatever the disk
gives. So it is lent only when every byte is here and was checked since the start, and what is lent
is pinned as a whole until it is given back, also when its name has another version by then.
"""

import asyncio
import logging
from collections.abc import Callable

from hubspoke.adapters.disk_health import Disk, DiskSlow
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ObjectName, ReadState
from hubspoke.core.lending import Lending
from hubspoke.core.spoke import SpokeCore
from hubspoke.ports import Clock, FileSpan, Resolved
from hubspoke.spoke.filler import Filler

log = logging.getLogger(__name__)


class WholeFile:
    """A lent file. `span` may be released once the borrower has a descriptor of its own; the
    bytes stay where they are until `give_back`."""

    __slots__ = ("_give_back", "span")

    def __init__(self, span: FileSpan, give_back: Callable[[], None]) -> None:
        self.span = span
        self._give_back: Callable[[], None] | None = give_back

    def give_back(self) -> None:
        """Once or more."""
        self.span.release()
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class WholeFiles:
    """The lending half of a spoke; touched only on the loop."""

    def __init__(
        self,
        core: SpokeCore,
        filler: Filler,
        clock: Clock,
        predict_soon: Callable[[float], None],
        noted: Callable[[ObjectName], None],
    ) -> None:
        """As SpokeReads."""
        self._core = core
        self._lending = Lending(core.cache)
        self._filler = filler
        self._clock = clock
        self._predict_soon = predict_soon
        self._noted = noted

    def whole(self, resolved: Resolved) -> bool:
        """Whether it may be lent, as far as its bytes go."""
        obj = self._current(resolved)
        return obj is not None and self._lending.whole(obj) and self._disk(obj) is not None

    def lend_now(self, resolved: Resolved) -> WholeFile | None:
        """Without waiting for a disk."""
        obj = self._current(resolved)
        disk = None if obj is None else self._disk(obj)
        if obj is None or disk is None or not self._lending.hold(obj):
            return None
        span = disk.store.lend_file(obj.number, obj.size, now=True)
        if span is None:
            self._let_go(obj)
            return None
        return WholeFile(span, lambda: self._let_go(obj))

    async def lend(self, resolved: Resolved) -> WholeFile | None:
        """The same, where the file may have to be opened first."""
        obj = self._current(resolved)
        disk = None if obj is None else self._disk(obj)
        if obj is None or disk is None or not self._lending.hold(obj):
            return None
        try:
            opening = disk.lend_file(obj.number, obj.size)
        except DiskSlow:
            self._let_go(obj)
            return None
        try:
            span = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda f: self._too_late(obj, f))
            raise
        except OSError as e:
            log.debug("cache file not opened object=%s error=%s", obj.name, e)
            span = None
        if span is None:
            self._let_go(obj)
            return None
        return WholeFile(span, lambda: self._let_go(obj))

    def lent_before(self, resolved: Resolved) -> Callable[[], None] | None:
        """After a crash, before anything may be dropped: the file is still lent. Returns how it is
        given back; None: this version is not in the cache any more."""
        obj = self._current(resolved)
        if obj is None:
            return None
        self._lending.hold_again(obj)
        return lambda: self._let_go(obj)

    def opened(self, resolved: Resolved, client: str) -> None:
        """The predictor sees one access to all of it: what comes after it can be brought."""
        obj = self._current(resolved)
        if obj is None:
            return
        now = self._clock.now()
        self._noted(resolved.name)
        self._core.access(obj, 0, obj.size, client, ReadState.HIT, now)
        self._predict_soon(now)

    def _current(self, resolved: Resolved) -> CachedObject | None:
        obj = self._core.cache.current(resolved.name)
        return obj if obj is not None and obj.version == resolved.entry.version else None

    def _disk(self, obj: CachedObject) -> Disk | None:
        """Its drive, if reads may go there: nothing turns them to the hub once the file is lent."""
        disks = self._filler.disks
        return disks.of(obj.number) if disks.readable(obj.number) else None

    def _let_go(self, obj: CachedObject) -> None:
        self._lending.let_go(obj)
        self._filler.drop(self._core.cache.reap(obj))

    def _too_late(self, obj: CachedObject, future: "asyncio.Future[FileSpan | None]") -> None:
        """Nobody waits for the opened file any more."""
        if not future.cancelled() and future.exception() is None:
            span = future.result()
            if span is not None:
                span.release()
        self._let_go(obj)
