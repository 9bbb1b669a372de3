"""One writer thread for one LMDB environment: group commit, and a map that grows.

The event loop hands over closures and awaits futures; it never commits. A group is whatever was
handed over while the commit before was on its way, so a lone change waits for nobody and many
share one fsync. Readers hold `remap` for the length of their (never awaiting) transaction, since
growing the map invalidates every open one.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

import lmdb

from hubspoke.errors import StoreUnavailable

log = logging.getLogger(__name__)

# Work on `txn`; called again from the start when the map was full, so it keeps no state outside.
Write: TypeAlias = Callable[["lmdb.Transaction[bytes]"], object]

# One commit takes at most so many closures: bounds what a crash can lose together and the time
# until the first of them is acknowledged.
GROUP_MAX = 4096


class LmdbWriter:
    """The writer thread of one environment."""

    def __init__(
        self,
        env: lmdb.Environment,
        *,
        finish: Write,
        committed: Callable[[int], None],
        what: str,
    ) -> None:
        """finish: runs last in each group. committed: called on the loop with the number of the
        last write of the group, before those who await it go on. what: named in errors."""
        self.remap = threading.Lock()
        self._env = env
        self._finish = finish
        self._committed = committed
        self._what = what
        self._queue: queue.SimpleQueue[tuple[int, Write, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._last = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"lmdb {what}", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> tuple[int, asyncio.Future[None]]:
        """Queue a write. Its future ends when it is committed; cancelling it changes nothing.

        Raises StoreUnavailable when an earlier write failed: what memory holds and what the disk
        holds differ from then on, and only opening again can tell.
        """
        if self._failed is not None:
            raise StoreUnavailable(f"{self._what}: an earlier write failed: {self._failed}")
        if self._closed:
            raise StoreUnavailable(f"{self._what}: closed")
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = self._loop.create_future()
        self._last += 1
        self._queue.put((self._last, write, future))
        return self._last, future

    async def close(self) -> None:
        """Commit what is queued, then end the thread."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        ended = False
        while not ended:
            group: list[tuple[int, Write, asyncio.Future[None]]] = []
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

    def _group(self, group: list[tuple[int, Write, asyncio.Future[None]]]) -> None:
        error: BaseException | None = self._failed
        if error is None:
            try:
                self._commit([write for _, write, _ in group])
            except Exception as e:  # reported to every waiter, and to every later one
                log.error("namespace write failed what=%s error=%r", self._what, e)
                error = self._failed = e
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._report, group, error)
        except RuntimeError:
            log.debug("loop closed before a commit was reported what=%s", self._what)

    def _commit(self, writes: list[Write]) -> None:
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

    def _report(
        self, group: list[tuple[int, Write, asyncio.Future[None]]], error: BaseException | None
    ) -> None:
        if error is None:
            self._committed(group[-1][0])
        for _, _, future in group:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(StoreUnavailable(f"{self._what}: {error}"))
