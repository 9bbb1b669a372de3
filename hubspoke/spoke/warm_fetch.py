"""Brings what a warm job means into the cache: one pass over its names.

Objects are cut into pieces; all jobs together have a bounded number of pieces asked for and not
there yet. A piece is asked for again when it was lost on the way, within a budget: as long as
anything of the job arrives, it goes on. It must never hold more in memory than its pieces, and
never fetch a version that the replica no longer has.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hubspoke.core.cache import CachedObject
from hubspoke.core.ids import PAGE_BYTES, ObjectName
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.warm import WarmPiece
from hubspoke.errors import (
    DeadlineExceeded,
    HubSpokeError,
    HubUnavailable,
    NoSuchKey,
    VersionChanged,
)
from hubspoke.ports import Clock, NamespaceStore
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.survey import Survey
from hubspoke.spoke.waiters import Need
from hubspoke.spoke.warm_tuning import WarmTuning

if TYPE_CHECKING:  # a job has a fetch; the fetch only writes the job's progress
    from hubspoke.spoke.warm_job import Job

log = logging.getLogger(__name__)


class NotKept(HubSpokeError):
    """The cache does not take data now: a drive is slow, full or being looked at."""

    retryable = True


class JobFailed(HubSpokeError):
    """The job cannot go on; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Window:
    """What all jobs have asked for and not got yet."""

    def __init__(self, tuning: WarmTuning) -> None:
        self._tuning = tuning
        self._left = asyncio.Event()  # replaced at each leave: who waits looks again
        self.pieces = 0
        self.bytes = 0

    async def enter(self, bytes_: int) -> None:
        """Wait for a place; `leave` gives it back."""
        t = self._tuning
        while self.pieces >= t.pieces_max or (self.pieces and self.bytes + bytes_ > t.window_bytes):
            await self._left.wait()
        self.pieces += 1
        self.bytes += bytes_

    def leave(self, bytes_: int) -> None:
        self.pieces -= 1
        self.bytes -= bytes_
        self._left.set()
        self._left = asyncio.Event()


class _Watch(Need):
    """Waits for pages to be in the cache; keeps no frame that passes by."""

    hurried = False

    __slots__ = ()

    def hold(self, offset: int, data: bytes) -> None:
        return


@dataclass(slots=True)
class _Object:
    """An object of which pieces are under way."""

    obj: CachedObject
    pieces: int = 1  # one for the producer
    good: bool = True


class WarmFetch:
    """One job's fetching. `run` it once for each pass."""

    def __init__(
        self,
        job: "Job",
        core: SpokeCore,
        filler: Filler,
        namespace: NamespaceStore,
        survey: Survey,
        clock: Clock,
        window: Window,
        tuning: WarmTuning,
    ) -> None:
        self._job = job
        self._core = core
        self._filler = filler
        self._namespace = namespace
        self._survey = survey
        self._clock = clock
        self._window = window
        self._tuning = tuning
        self._threads = asyncio.Semaphore(job.threads or tuning.pieces_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: JobFailed | None = None
        self._failing_since: float | None = None

    async def run(self) -> None:
        """One pass. Raises JobFailed; when cancelled, its pieces are given up."""
        selection = self._job.selection
        assert selection is not None, self._job.id
        try:
            async for record, _ in self._survey.walk(selection):
                if record.entry.size:
                    await self._object(record.name)
            while self._tasks:
                await asyncio.wait(self._tasks)
                self._raise()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _object(self, name: ObjectName) -> None:
        record = self._namespace.get(name)  # as of now
        if record is None:
            return
        cache = self._core.cache
        pages = -(-record.entry.size // PAGE_BYTES)
        obj = cache.current(name)
        if obj is None or obj.version != record.entry.version:
            if not self._job.fits(pages * PAGE_BYTES):
                return
            obj, obsolete = self._core.open(name, record.entry)
            self._filler.drop(obsolete)
            runs = [(0, pages)]
        else:
            cache.to_be_read(obj)
            runs = obj.not_local(0, pages)
            absent = sum(b - a for a, b in runs) * PAGE_BYTES
            if not absent or not self._job.fits(absent):
                return
        pieces_of = _Object(obj)
        step = self._tuning.piece_bytes // PAGE_BYTES
        for a, b in runs:
            while a < b:
                end = min(b, (a // step + 1) * step)
                await self._start(pieces_of, a, end)
                a = end
        self._piece_ended(pieces_of)

    async def _start(self, of: _Object, first: int, last: int) -> None:
        await self._threads.acquire()
        try:
            await self._window.enter(of.obj.range_bytes(first, last))
        except BaseException:
            self._threads.release()
            raise
        of.pieces += 1
        task = asyncio.get_running_loop().create_task(self._carry(of, first, last))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._raise()

    async def _carry(self, of: _Object, first: int, last: int) -> None:
        piece = WarmPiece(of.obj, first, last, forced=self._job.force)
        bytes_ = piece.bytes
        good = False
        try:
            good = await self._piece(piece)
        except JobFailed as e:
            self._failure = self._failure or e
        finally:
            piece.given_up = True
            self._window.leave(bytes_)
            self._threads.release()
            of.good = of.good and good
            if good:
                self._failing_since = None
                self._job.arrived(bytes_, self._clock.now())
            self._piece_ended(of)

    def _piece_ended(self, of: _Object) -> None:
        of.pieces -= 1
        if of.pieces == 0 and of.good:
            self._job.tally.cached_objects += 1

    async def _piece(self, piece: WarmPiece) -> bool:
        """Until all pages of the piece are local; False if that version or object is lost."""
        obj = piece.obj
        attempts = 0
        while not obj.dead and (runs := obj.not_local(piece.first, piece.last)):
            self._raise()
            try:
                if not self._core.fills(obj.number):
                    raise NotKept(f"{obj.name}: no cache folder takes data now")
                await self._ask(piece, runs[0])
            except JobFailed:
                raise
            except (VersionChanged, NoSuchKey):
                # The hub has another version, or none; its change is on the way over the feed.
                await self._filler.waiters.next_change(obj.name, self._tuning.look_again_s)
                return False
            except (HubUnavailable, NotKept) as e:
                attempts += 1
                await self._again(e, attempts)
            except HubSpokeError as e:
                attempts += 1
                if attempts >= self._tuning.object_attempts:
                    self._job.problem(obj.name, e)
                    return False
                await self._again(e, attempts)
        return not obj.dead

    async def _ask(self, piece: WarmPiece, run: tuple[int, int]) -> None:
        """Wait for one run of the piece, asked of the hub if nobody did. Raises what failed it,
        JobFailed when there is no room."""
        obj, filler = piece.obj, self._filler
        watch = _Watch(obj.number, *run)
        filler.waiters.add(watch)
        try:
            asked = piece.waiting
            if obj.absent(piece.first, piece.last):
                self._core.scheduler.warm.push(piece)
                filler.dispatch()
            self._check_room(piece)
            await filler.waiters.wait(watch, self._tuning.look_again_s, obj.name)
        except DeadlineExceeded as e:
            self._check_room(piece)
            absent = obj.absent(piece.first, piece.last)
            if absent and not piece.waiting and not asked:
                # It was sent, and what came was not kept.
                raise NotKept(f"{obj.name}: what arrived was not cached") from e
        finally:
            filler.waiters.remove(watch)

    def _check_room(self, piece: WarmPiece) -> None:
        if not piece.refused:
            return
        cache, tally = self._core.cache, self._job.tally
        if piece.forced:
            raise NotKept(f"{piece.obj.name}: all of the cache is in use")
        raise JobFailed(
            "no_room",
            f"{piece.obj.name}: {cache.room} of {cache.capacity} bytes of the cache are free, "
            f"{tally.bytes - tally.cached_bytes} are missing, and what is cached is still to be "
            "read; force drops it",
        )

    async def _again(self, error: HubSpokeError, attempts: int) -> None:
        """Pause after a failure; raises JobFailed when the budget is used up."""
        t = self._tuning
        now = self._clock.now()
        if self._failing_since is None:
            self._failing_since = now
            log.info("warm job waits id=%s error=%s", self._job.id, error)
        if now - self._failing_since > t.retry_s:
            raise JobFailed(
                _code(error), f"nothing arrived for {t.retry_s:g} s: {error}"
            ) from error
        pause = min(t.retry_pause_s * 2 ** min(attempts, 10), t.retry_pause_max_s)
        await asyncio.sleep(pause)


def _code(error: HubSpokeError) -> str:
    if isinstance(error, HubUnavailable):
        return "hub_unavailable"
    return "cache_unavailable" if isinstance(error, NotKept) else "failed"
