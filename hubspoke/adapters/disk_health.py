"""A cache folder behind its health: every call timed, bounded, and judged where it is made.

A folder has a thread for changes, which keeps their order (create, write, punch, drop), and a few
for reads; nothing waits on another folder's. It decides nothing: core.health does. It never lets
a call of a disk run on the loop, except those that the page cache answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hubspoke import wire
from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.adapters.drive import Drive, probe_folder
from hubspoke.core.cache import CachedObject, StoredFrame
from hubspoke.core.health import Call, DiskState, FolderHealth, HealthConfig
from hubspoke.errors import ConfigError
from hubspoke.ports import Clock, FileSpan, IndexedObject

log = logging.getLogger(__name__)
T = TypeVar("T")

READ_THREADS = 4  # NVMe reads 256 KiB in 0.1 ms: four keep it busy, and a hung disk holds no more
# Frames of at most 256 KiB: what a disk may be behind before fills pass it by. A file system that
# commits its journal holds a write up for 50 to 250 ms, in which 60 MB arrive at 250 MB/s.
WRITES_PENDING_MAX = 256
READS_PENDING_MAX = 256
PROBE_DEADLINE_S = 1.0  # with an fsync, which waits for others' writes too
OPEN_S = 30.0  # an index of a million frames is read in two
CLOSE_S = 3.0  # what a disk gets to end its calls at the end


class DiskSlow(OSError):
    """The call was not made or not waited for: the folder is behind, slow or hung."""


async def _nobody(disk: "Disk", found: list[IndexedObject]) -> None:
    """Nobody takes what a folder holds."""


@dataclass(slots=True)
class FolderEvents:
    """Whom folders tell. recovered: healthy again. opened: it could not be opened at start, and
    now holds these objects; it is not in use yet. moved: frames are written, or will not be."""

    recovered: Callable[["Disk"], None] = lambda disk: None
    moved: Callable[[], None] = lambda: None
    opened: Callable[["Disk", list[IndexedObject]], Awaitable[None]] = _nobody


@dataclass(slots=True)
class Writing:
    """Frames of one object on their way to a disk, in order. ended: may hold OSError and
    CorruptFrame. written: how many of them are there; counted by the disk's thread, so that it
    holds as soon as `ended` is done."""

    frames: Sequence[wire.Frame]
    written: int = 0
    ended: asyncio.Future[None] = field(init=False)


class _Running:
    """One call under way. started: set by its thread. slow_s: counts as slow when it takes
    longer, and again at each doubling, or one call that hangs would be one slow call for ever."""

    __slots__ = ("call", "counted", "slow_s", "started", "took")

    def __init__(self, call: Call, slow_s: float) -> None:
        self.call = call
        self.slow_s = slow_s
        self.started: float | None = None
        self.took = 0.0  # the longest of its steps
        self.counted = False

    def step(self, now: float) -> None:
        """A part of it has ended: a long list of frames is not one slow call."""
        if self.started is not None:
            self.took = max(self.took, now - self.started)
        self.started = now


class Disk:
    """One folder; touched only on the loop."""

    def __init__(
        self,
        drive: Drive,
        clock: Clock,
        config: HealthConfig,
        events: FolderEvents,
    ) -> None:
        self.opened = False
        self.store = drive.store
        self.root = drive.root
        self.health = FolderHealth(config, clock.now())
        self._clock = clock
        self._events = events
        self._claim = drive.claim
        self._opening: asyncio.Future[list[IndexedObject]] | None = None
        self._probe = drive.probe
        if self._probe is None and drive.root is not None:
            root = drive.root
            self._probe = lambda: probe_folder(root)
        name = str(drive.root or "memory")
        self._writer = DiskThreads(f"write {name}", 1)
        self._readers = DiskThreads(f"read {name}", READ_THREADS)
        self._prober = DiskThreads(f"probe {name}", 1)
        self._running: set[_Running] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._tending: asyncio.Task[None] | None = None
        self._frames_pending = 0
        self._created: set[int] = set()  # only the writer's thread changes it
        self._undropped: list[Callable[[], None]] = []
        self._unpunched: list[tuple[int, int, int]] = []

    @property
    def behind(self) -> bool:
        """More writes are waiting than a disk in time has."""
        return max(self._writer.pending, self._frames_pending) >= WRITES_PENDING_MAX

    def stalled(self, seconds: float) -> bool:
        """Whether a write under way takes longer than that already."""
        now = self._clock.now()
        return any(
            r.call is Call.WRITE and r.started is not None and now - r.started > seconds
            for r in self._running
        )

    def holds(self, number: int) -> bool:
        """Whether the object has a file here."""
        return number in self._created

    # -- opening ------------------------------------------------------------------------------

    async def open(self) -> list[IndexedObject]:
        """Take the folder into use; what it holds from before. Raises ConfigError, and DiskSlow
        when it takes too long: asked again, that call is waited for."""
        if self._opening is None:
            self._opening = self._writer.submit(self._open)
        done, _ = await asyncio.wait({self._opening}, timeout=OPEN_S)
        if not done:
            raise DiskSlow(f"{self.root}: not opened after {OPEN_S:g} s")
        opening, self._opening = self._opening, None
        found = opening.result()
        self.opened = True
        self._created.update(o.number for o in found)
        return found

    def _open(self) -> list[IndexedObject]:
        self._claim()
        return self.store.load()

    def not_opened(self, error: Exception) -> None:
        """The spoke starts without the folder, which is opened as soon as that is possible."""
        self._told(self.health.not_opened(self._clock.now(), f"open: {error}"))

    async def _opened(self) -> bool:
        try:
            found = await self.open()
        except (OSError, ConfigError) as e:
            self.health.last_error = f"open: {e}"
            return False
        await self._events.opened(self, found)
        return True

    # -- calls --------------------------------------------------------------------------------

    def _timed(self, threads: DiskThreads, call: Call, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._stepped(threads, call, lambda _: work())

    def _stepped(
        self, threads: DiskThreads, call: Call, work: Callable[[Callable[[], None]], T]
    ) -> asyncio.Future[T]:
        """work: is given what it has to call between its steps."""
        running = _Running(call, self.health.config.slow_s)
        now = self._clock.now

        def timed() -> T:
            running.step(now())
            try:
                return work(lambda: running.step(now()))
            finally:
                running.step(now())

        future = threads.submit(timed)
        self._running.add(running)
        future.add_done_callback(lambda f: self._ended(running, f))
        if self._watch is None:
            self._arm()
        return future

    def _ended(self, running: _Running, future: "asyncio.Future[T]") -> None:
        self._running.discard(running)
        now, h = self._clock.now(), self.health
        error = None if future.cancelled() else future.exception()
        if isinstance(error, OSError):
            self._told(h.failed(running.call, now, f"{running.call.value}: {error}"))
        elif running.took > h.config.slow_s and not running.counted:
            self._told(h.slow(running.call, now))
        elif not running.counted:
            h.succeeded(running.call, now)

    def _arm(self) -> None:
        delay = self.health.config.slow_s / 2
        self._watch = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        """Calls that hang count as slow before they end, or they would never count."""
        self._watch = None
        now, h = self._clock.now(), self.health
        for running in list(self._running):
            started = running.started
            if started is not None and now - started > running.slow_s:
                running.counted = True
                running.slow_s *= 2
                self._told(h.slow(running.call, now))
        if self._running:
            self._arm()

    def _told(self, changed: bool) -> None:
        if not changed:
            return
        h = self.health
        log.warning(
            "cache folder %s state=%s read_errors=%d write_errors=%d slow_calls=%d last_error=%s",
            self.root,
            h.state.value,
            h.errors[Call.READ],
            h.errors[Call.WRITE],
            h.slow_calls,
            h.last_error,
        )
        if self._tending is None or self._tending.done():
            self._tending = asyncio.get_running_loop().create_task(self._tend())

    def write(self, obj: CachedObject, frames: Sequence[wire.Frame]) -> Writing:
        """Check and store frames, after all that was asked before; what follows a bad one is
        left out. Raises DiskSlow at once when the disk is behind."""
        if self.behind:
            raise DiskSlow(f"{self.root}: {self._frames_pending} writes are waiting")
        number, store, name = obj.number, self.store, str(obj.name)
        writing = Writing(frames)

        def work(step: Callable[[], None]) -> None:
            for header, data in frames:
                step()
                wire.check_digest(header, data, name)
                if number not in self._created:
                    store.create(number, obj.name, obj.version, obj.size)
                    self._created.add(number)
                store.write(number, header.offset, data, header.digest)
                writing.written += 1

        def ended(future: asyncio.Future[None]) -> None:
            self._frames_pending -= len(frames)
            if not future.cancelled() and isinstance(future.exception(), OSError):
                header, data = frames[writing.written]
                self.owe(number, header.offset, len(data))  # some of it may be there
            self._events.moved()

        self._frames_pending += len(frames)
        writing.ended = self._stepped(self._writer, Call.WRITE, work)
        writing.ended.add_done_callback(ended)
        return writing

    def read(self, number: int, offset: int, length: int) -> asyncio.Future[bytes]:
        """Bytes from the disk. Raises DiskSlow at once when reads hang."""
        store = self.store
        return self._reading(lambda: store.read(number, offset, length))

    def check(
        self, number: int, frame: StoredFrame, digest: Callable[[bytes], int]
    ) -> asyncio.Future[bool]:
        """Whether the frame on the disk has its digest. As `read` otherwise."""
        store = self.store
        return self._reading(
            lambda: digest(store.read(number, frame.offset, frame.length)) == frame.digest
        )

    def _reading(self, work: Callable[[], T]) -> asyncio.Future[T]:
        slow, now = self.health.config.slow_s, self._clock.now()
        hung = sum(
            r.call is Call.READ and r.started is not None and now - r.started > slow
            for r in self._running
        )
        if hung >= READ_THREADS or self._readers.pending >= READS_PENDING_MAX:
            raise DiskSlow(f"{self.root}: {self._readers.pending} reads are waiting")
        return self._timed(self._readers, Call.READ, work)

    def read_now(self, number: int, offset: int, length: int) -> bytes | None:
        """See ports.BlockStore."""
        return self.store.read_now(number, offset, length)

    def lend_now(self, number: int, offset: int, length: int) -> FileSpan | None:
        """See ports.BlockStore."""
        return self.store.lend_now(number, offset, length)

    def lend_file(self, number: int, length: int) -> "asyncio.Future[FileSpan | None]":
        """See ports.BlockStore; where the file may have to be opened first. As `read` otherwise."""
        store = self.store
        return self._reading(lambda: store.lend_file(number, length, now=False))

    def punch(self, number: int, offset: int, length: int) -> None:
        """Free bytes, after all that was asked before. If it fails, `owed` tells later."""
        store = self.store

        def work() -> None:
            if number in self._created:
                store.punch(number, offset, length)

        def ended(future: asyncio.Future[None]) -> None:
            if isinstance(future.exception(), OSError):
                self.owe(number, offset, length)

        self._timed(self._writer, Call.WRITE, work).add_done_callback(ended)

    def owe(self, number: int, offset: int, length: int) -> None:
        """These bytes could not be freed yet."""
        self._unpunched.append((number, offset, length))

    def owed(self) -> list[tuple[int, int, int]]:
        """(object, offset, length) that could not be freed, each told once. Whether the bytes
        are of use again by now is for the caller to know: punched, they would read as zeros."""
        told, self._unpunched = self._unpunched, []
        return told

    def drop(self, number: int) -> None:
        """Remove an object, after all that was asked before; done again later if it fails."""

        def work() -> None:
            if number in self._created:
                self.store.drop(number)
                self._created.discard(number)

        self._remove(work)

    def drop_again(self) -> None:
        """Remove what could not be removed."""
        again, self._undropped = self._undropped, []
        for work in again:
            self._remove(work)

    def _remove(self, work: Callable[[], None]) -> None:
        # No bound: there are at most as many as the folder has objects, and each takes 200 bytes.
        def owed(future: asyncio.Future[None]) -> None:
            if isinstance(future.exception(), OSError):
                self._undropped.append(work)

        self._timed(self._writer, Call.WRITE, work).add_done_callback(owed)

    # -- probing ------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Probe until the folder is healthy; ends by itself."""
        h, step = self.health, self.health.config.probe_interval_s / 2
        while h.state is not DiskState.HEALTHY:
            await asyncio.sleep(step)
            if not h.probe_due(self._clock.now()):
                continue
            good = await self._probed()
            if h.probed(self._clock.now(), good=good):
                log.info("cache folder %s state=healthy", self.root)
                self.drop_again()
                self._events.recovered(self)

    async def _probed(self) -> bool:
        if not self.opened and not await self._opened():
            return False
        if self._probe is None:
            return True
        if self._prober.pending:
            return False  # the one before still hangs
        future = self._prober.submit(self._probe)
        done, _ = await asyncio.wait({future}, timeout=PROBE_DEADLINE_S)
        error = future.exception() if done else TimeoutError(f"no end after {PROBE_DEADLINE_S:g} s")
        if error is not None:
            self.health.last_error = f"probe: {error}"
        return error is None

    async def written(self) -> None:
        """What was asked of the disk so far is done, or has failed."""
        await self._writer.submit(lambda: None)

    async def close(self) -> None:
        """End what is under way; a call that hangs keeps its thread and its descriptors."""
        if self._watch is not None:
            self._watch.cancel()
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        pools = (self._writer, self._readers, self._prober)
        if all(await asyncio.gather(*(pool.close(CLOSE_S) for pool in pools))):
            self.store.close()
        else:
            log.warning("cache folder %s hangs and is left open", self.root)
        if self._watch is not None:
            self._watch.cancel()
