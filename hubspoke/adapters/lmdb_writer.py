"""One writer thread for one LMDB environment: group commit, and a map that grows.

The event loop hands over closures and awaits futures; it never commits. A group is whatever was
handed over while the commit before was on its way, so a lone change waits for nobody and many
share one fsync. Readers hold `remap` for the length of their (never awaiting) transaction, since
growing the map invalidates every open one.

A commit that the disk refuses (full, an I/O error) is repeated until it succeeds: what memory
shows is never taken back, only late on disk. Who awaits it is told at once, and new writes are
refused meanwhile, so that what waits stays bounded. Never: give up a write that was taken, or
commit one before another that was handed over earlier.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

import lmdb

from hubspoke.adapters.lmdb_env import of_disk
from hubspoke.errors import HubSpokeError, StoreUnavailable

log = logging.getLogger(__name__)

# Work on `txn`; called again from the start when the commit is repeated, possibly after it came
# about all the same: it keeps no state outside, and done twice it does no more than once.
Write: TypeAlias = Callable[["lmdb.Transaction[bytes]"], object]

# One commit takes at most so many closures: bounds what a crash can lose together and the time
# until the first of them is acknowledged.
GROUP_MAX = 4096
# Between attempts, doubled up to the maximum: a disk is full for seconds to hours.
RETRY_S = 0.1
RETRY_MAX_S = 2.0

_Item: TypeAlias = tuple[int, Write, "asyncio.Future[None]"]


class LmdbWriter:
    """The writer thread of one environment."""

    def __init__(
        self,
        env: lmdb.Environment,
        *,
        finish: Write,
        committed: Callable[[int], None],
        reopen: Callable[[], lmdb.Environment],
        what: str,
    ) -> None:
        """finish: runs last in each group. committed: called on the loop with the number of the
        last write of the group, before those who await it go on. reopen: called in the thread
        with `remap` held when the environment can be used no more; it may raise. what: named in
        errors."""
        self.remap = threading.Lock()
        self.trouble: str | None = None  # why nothing can be written now
        self._env: lmdb.Environment | None = env  # None: to be opened again
        self._finish = finish
        self._committed = committed
        self._reopen = reopen
        self._what = what
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._last = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._impatient: set[asyncio.Future[None]] = set()  # told at the first failure
        self._bug: str | None = None  # a write raised: no repetition would help
        self._closed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lmdb {what}", daemon=True)
        self._thread.start()

    def submit(
        self, write: Write, *, must: bool = False, patient: bool = False
    ) -> tuple[int, asyncio.Future[None]]:
        """Queue a write. Its future ends when it is committed; cancelling it changes nothing.

        The future fails with StoreUnavailable when the disk refuses; the write is still made as
        soon as it can be. patient: it fails only when the writer ends before. must: taken also
        while the disk refuses; else raises StoreUnavailable then, and nothing was queued.
        """
        if self._bug is not None:
            raise StoreUnavailable(f"{self._what}: an earlier write failed: {self._bug}")
        if self._closed:
            raise StoreUnavailable(f"{self._what}: closed")
        if self.trouble is not None and not must:
            raise StoreUnavailable(f"{self._what} cannot be written: {self.trouble}")
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = self._loop.create_future()
        self._last += 1
        self._queue.put((self._last, write, future))
        future.add_done_callback(_retrieved)
        if not patient:
            self._impatient.add(future)
            future.add_done_callback(self._impatient.discard)
            if self.trouble is not None:
                self._fail(self.trouble)
        return self._last, future

    async def close(self) -> None:
        """Commit what is queued, then end the thread; a disk that refuses is asked once more."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # In the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        ended = False
        while not ended:
            group: list[_Item] = []
            item = self._queue.get()
            while item is not None:
                group.append(item)
                if len(group) == GROUP_MAX:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            ended = item is None
            if group:
                self._group(group)

    def _group(self, group: list[_Item]) -> None:
        pause = RETRY_S
        while True:
            if self._bug is not None:
                return self._tell(self._given_up, group, self._bug)
            last_try = self._closing.is_set()
            try:
                self._commit([write for _, write, _ in group])
                return self._tell(self._succeeded, group)
            except Exception as e:
                if not (of_disk(e) or isinstance(e, HubSpokeError)):
                    # Reported to every waiter, and to every later one.
                    log.exception("namespace write failed what=%s", self._what)
                    self._bug = repr(e)
                    continue
                if isinstance(e, lmdb.Error) and not isinstance(e, lmdb.DiskError):
                    self._env = None
                reason = str(e) or repr(e)
                if last_try:
                    return self._tell(self._given_up, group, reason)
                self._tell(self._refused, reason)
            self._closing.wait(pause)
            pause = min(pause * 2, RETRY_MAX_S)

    def _commit(self, writes: list[Write]) -> None:
        if self._env is None:  # LMDB refuses everything after a failed write of its root page
            with self.remap:
                self._env = self._reopen()
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for write in writes:
                        write(txn)
                    self._finish(txn)
                return
            except lmdb.MapFullError:
                size = self._env.info()["map_size"] * 2
                log.info("map grows what=%s bytes=%d", self._what, size)
                with self.remap:
                    self._env.set_mapsize(size)

    def _tell(self, report: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(report, *args)
        except RuntimeError:
            log.debug("loop closed before a commit was reported what=%s", self._what)

    # On the loop -------------------------------------------------------------------------------

    def _succeeded(self, group: list[_Item]) -> None:
        if self.trouble is not None:
            log.info("can be written again what=%s", self._what)
            self.trouble = None
        self._committed(group[-1][0])
        for _, _, future in group:
            if not future.done():
                future.set_result(None)

    def _refused(self, reason: str) -> None:
        if self.trouble is None:
            log.error("cannot be written what=%s reason=%s", self._what, reason)
        self.trouble = reason
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        for future in list(self._impatient):
            if not future.done():
                future.set_exception(StoreUnavailable(f"{self._what} cannot be written: {reason}"))

    def _given_up(self, group: list[_Item], reason: str) -> None:
        self.trouble = self.trouble or reason
        for _, _, future in group:
            if not future.done():
                future.set_exception(StoreUnavailable(f"{self._what}: {reason}"))


def _retrieved(future: asyncio.Future[None]) -> None:
    """Not everybody who hands a write over waits for it."""
    if not future.cancelled():
        future.exception()
