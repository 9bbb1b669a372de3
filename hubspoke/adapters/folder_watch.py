"""Tells what changes in a folder store without the hub, by the kernel's notifications.

One thread watches every folder of the tree and reads what the kernel has queued; it hands names
and folders to the loop in small bundles and waits until they are taken, so a storm stays in the
kernel's queue, whose overflow is told as "lost". Never: leave a folder unwatched, or an event
untold, without saying so.

    folder appears -> watched -> a Part of the names in it (they may have come before the watch)
    folder is moved away -> its watches end -> a Part of the names that were below it
    file changes -> a NameNotice

watchfiles 1.3 (notify) was tried first and cannot do it: of 100 folders made together with a
file in a folder of theirs it told of 48 files; when the queue overflowed it told 5,462 of 20,000
files and nothing of the rest; one name that is no UTF-8 makes every later call fail. inotify
itself is three system calls.

Not told: a change of a file through a hard link or a symbolic link with another name, bytes
written through a shared mapping until the file is closed, and what happens on a file system that
is mounted inside the tree later.
"""

import asyncio
import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hubspoke.adapters import inotify
from hubspoke.adapters.folder_layout import OWN_FOLDER, FolderLayout
from hubspoke.adapters.inotify import Event, Inotify
from hubspoke.core.ids import ObjectName
from hubspoke.core.names import bucket_fault, key_fault
from hubspoke.core.noticed import BucketsNotice, LostNotice, NameNotice, Notice, Part

log = logging.getLogger(__name__)

_ENTRY = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
_GONE = inotify.DELETE | inotify.MOVED_FROM
_WRITING = inotify.CREATE | inotify.MODIFY
_MASK = (
    _ENTRY | inotify.MODIFY | inotify.ATTRIB | inotify.CLOSE_WRITE
    | inotify.ONLYDIR | inotify.DONT_FOLLOW | inotify.EXCL_UNLINK
)  # fmt: skip
_ROOT = inotify.DELETE_SELF | inotify.MOVE_SELF
# The kernel joins equal events that follow each other; so does a bundle.
_GATHER_S = 0.01
_BUNDLE = 500  # notices taken by the loop in one go: a millisecond
_FOLDERS_PER_TURN = 64  # watched between two looks at the queue
_STOP_S = 5.0

Tell = Callable[[Sequence[Notice]], None]


class _Folder:
    """A watched folder; its path is known by its parents, so that none has to be rewritten."""

    __slots__ = ("children", "gone", "name", "parent", "queued", "watch")

    def __init__(self, name: bytes, parent: "_Folder | None") -> None:
        self.name = name
        self.parent = parent
        self.watch = -1
        self.queued = True  # to be watched
        self.gone = False
        self.children: dict[bytes, _Folder] = {}

    def path(self) -> tuple[bytes, ...]:
        """Names below the root."""
        names: list[bytes] = []
        folder = self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return tuple(reversed(names))

    def all(self) -> "Iterator[_Folder]":
        waiting = [self]
        while waiting:
            folder = waiting.pop()
            yield folder
            waiting.extend(folder.children.values())


class FolderWatch:
    """hub.watch.ChangeSource over a folder."""

    def __init__(self, root: Path, bucket: str | None = None) -> None:
        self._given = root
        self._bucket = bucket
        self._watcher: _Watcher | None = None

    async def start(self, tell: Tell) -> str | None:
        """Watch everything; begins afresh if it ran. Returns None when all of it is watched, else
        why it cannot be. `tell` is called on the loop, during the start too, until the next
        start or `close`."""
        await self.close()
        root = await asyncio.to_thread(os.path.realpath, os.fsencode(self._given))
        self._watcher = _Watcher(FolderLayout(root, self._bucket), tell)
        return await self._watcher.watching

    async def close(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await watcher.stop()

    @property
    def folders(self) -> int:
        """Watched now."""
        return self._watcher.folders if self._watcher is not None else 0

    @property
    def events(self) -> int:
        """Read from the kernel since the last start."""
        return self._watcher.events if self._watcher is not None else 0


class _Unwatchable(Exception):
    """Not everything can be watched; the message says why."""


class _Watcher:
    """The thread, from one start to its end."""

    def __init__(self, layout: FolderLayout, tell: Tell) -> None:
        self._layout = layout
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self.watching: asyncio.Future[str | None] = self._loop.create_future()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._ended = asyncio.Event()
        self._taken = threading.Event()
        self._folders: dict[int, _Folder] = {}
        self._pending: list[_Folder] = []  # to be watched
        self._devices: set[int] = set()  # known to be local
        self._complete = False
        self.events = 0
        # A folder that does not answer must not keep the process.
        threading.Thread(target=self._run, name="folder-watch", daemon=True).start()

    @property
    def folders(self) -> int:
        return len(self._folders)

    async def stop(self) -> None:
        self._stopping = True
        self._taken.set()
        if self._ended.is_set():
            return
        os.eventfd_write(self._wake, 1)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._ended.wait()
        except TimeoutError:
            log.warning("the watch of the store folder does not end")

    def _run(self) -> None:
        fault: str | None = None
        try:
            try:
                self._queue = Inotify()
            except OSError as e:
                raise _Unwatchable(_reason(e)) from e
            try:
                self._watch_all()
            finally:
                self._queue.close()
        except _Unwatchable as e:
            fault = str(e)
        except Exception as e:
            log.exception("the watch of the store folder failed")
            fault = f"{type(e).__name__}: {e}"
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, fault)

    def _end(self, fault: str | None) -> None:
        os.close(self._wake)
        self._ended.set()
        if not self.watching.done():
            self.watching.set_result(fault or "stopped")
        elif fault is not None and not self._stopping:
            self._tell([LostNotice(fault)])

    def _watch_all(self) -> None:
        root = _Folder(b"", None)
        self._pending.append(root)
        poll = select.poll()
        poll.register(self._queue.fd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            notices: dict[Notice, None] = {}
            for _ in range(min(_FOLDERS_PER_TURN, len(self._pending))):
                self._watch(self._pending.pop(), notices)
            if not self._pending and not self._complete:
                self._complete = True
                self._loop.call_soon_threadsafe(self._watching)
            if not self._pending and not notices:
                poll.poll()
                time.sleep(_GATHER_S)
            for event in self._queue.read():
                self.events += 1
                self._take(event, notices)
            self._hand_over(list(notices))

    def _watching(self) -> None:
        if not self.watching.done():
            self.watching.set_result(None)

    def _hand_over(self, notices: list[Notice]) -> None:
        for at in range(0, len(notices), _BUNDLE):
            self._taken.clear()
            if self._stopping:
                return
            self._loop.call_soon_threadsafe(self._give, notices[at : at + _BUNDLE])
            while not self._taken.wait(_STOP_S):
                log.warning("the loop does not take what changed in the store")

    def _give(self, notices: list[Notice]) -> None:
        self._taken.set()
        if not self._stopping:
            self._tell(notices)

    # Folders -----------------------------------------------------------------------------------

    def _watch(self, folder: _Folder, notices: dict[Notice, None]) -> None:
        """Watch it, then find the folders in it: what comes in between is told by the watch."""
        folder.queued = False
        if folder.gone:
            return
        names = folder.path()
        path = os.path.join(self._layout.root, *names)
        is_root = folder.parent is None
        try:
            watch = self._queue.add(path, _MASK | (_ROOT if is_root else 0))
            self._check_device(path)
            with os.scandir(path) as entries:
                inside = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError as e:
            if not is_root and e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                # Gone, exchanged for another thing (which is told), or closed to this user: as in
                # a scan; opening it is told as a change of its attributes.
                self._forget(folder)
                return
            raise _Unwatchable(_reason(e, path)) from e
        former = self._folders.get(watch)
        if former is not None and former is not folder:
            former.watch = -1  # the same folder under an older path, whose going was not read yet
            self._forget(former)
        folder.watch = watch
        self._folders[watch] = folder
        for name in inside:
            self._appear(folder, name)
        if self._complete and (part := self._part(names, deep=False)) is not None:
            notices[part] = None

    def _check_device(self, path: bytes) -> None:
        device = os.stat(path, follow_symlinks=False).st_dev
        if device not in self._devices:
            if fault := inotify.local_fault(path):
                raise _Unwatchable(f"{os.fsdecode(path)}: {fault}")
            self._devices.add(device)

    def _appear(self, parent: _Folder, name: bytes) -> None:
        """A folder is there: watch it soon, if objects can be in it."""
        names = (*parent.path(), name)
        if names[0] == OWN_FOLDER and len(names) == 1:
            return
        if len(names) == 1 and self._bucket_of(names) is None:
            return
        key = self._key(names)
        if key is None or (key and key_fault(key + "/")):
            return
        folder = parent.children.get(name)
        if folder is None:
            folder = parent.children[name] = _Folder(name, parent)
            self._pending.append(folder)
        elif not folder.queued and folder.watch < 0:
            folder.queued = True
            self._pending.append(folder)

    def _forget(self, folder: _Folder) -> None:
        """It is not there any more, nor is anything below it."""
        if folder.parent is not None and folder.parent.children.get(folder.name) is folder:
            del folder.parent.children[folder.name]
        for each in folder.all():
            each.gone = True
            if each.watch >= 0 and self._folders.get(each.watch) is each:
                del self._folders[each.watch]
                self._queue.remove(each.watch)
                each.watch = -1

    # Events ------------------------------------------------------------------------------------

    def _take(self, event: Event, notices: dict[Notice, None]) -> None:
        if event.mask & inotify.OVERFLOW:
            raise _Unwatchable("more changes at once than the kernel's queue holds")
        folder = self._folders.get(event.watch)
        if folder is None:
            return  # of a watch that was ended; what it tells was looked at since
        if event.mask & (inotify.IGNORED | inotify.UNMOUNT | _ROOT):
            if folder.parent is None:
                raise _Unwatchable("the store's folder was moved, removed or unmounted")
            if event.mask & inotify.UNMOUNT:
                raise _Unwatchable(f"{os.fsdecode(b'/'.join(folder.path()))} was unmounted")
            if event.mask & inotify.IGNORED:
                del self._folders[event.watch]
                folder.watch = -1
                self._forget(folder)
            return
        if not event.name:
            return
        names = (*folder.path(), event.name)
        if event.mask & inotify.ISDIR:
            self._take_folder(event, folder, names, notices)
        elif (name := self._name(names)) is not None:
            writing = bool(event.mask & _WRITING)
            notices.pop(NameNotice(name, not writing), None)
            notices[NameNotice(name, writing)] = None

    def _take_folder(
        self,
        event: Event,
        parent: _Folder,
        names: tuple[bytes, ...],
        notices: dict[Notice, None],
    ) -> None:
        if len(names) == 1 and self._layout.bucket is None and event.mask & _ENTRY:
            notices[BucketsNotice()] = None
        if event.mask & _GONE:
            if (folder := parent.children.get(event.name)) is not None:
                self._forget(folder)
            # Of a folder that was removed, each file's end was told already.
            part = self._part(names, deep=True) if event.mask & inotify.MOVED_FROM else None
            if part is not None:
                notices[part] = None
        else:
            self._appear(parent, event.name)
        if (marker := self._name((*names, b""))) is not None:
            notices[NameNotice(marker, False)] = None

    # Names -------------------------------------------------------------------------------------

    def _bucket_of(self, names: tuple[bytes, ...]) -> str | None:
        if self._layout.bucket is not None:
            return self._layout.bucket
        bucket = names[0].decode("ascii", "replace") if names else ""
        return bucket if bucket_fault(bucket) is None else None

    def _key(self, names: tuple[bytes, ...]) -> str | None:
        """The path below the bucket; "" for its folder, None where no object can be."""
        below = names if self._layout.bucket is not None else names[1:]
        if self._layout.bucket is not None and below and below[0] == OWN_FOLDER:
            return None
        try:
            return b"/".join(below).decode()
        except UnicodeDecodeError:
            return None

    def _name(self, names: tuple[bytes, ...]) -> ObjectName | None:
        bucket, key = self._bucket_of(names), self._key(names)
        if bucket is None or not key or key_fault(key):
            return None
        return ObjectName(bucket, key)

    def _part(self, names: tuple[bytes, ...], *, deep: bool) -> Part | None:
        bucket, key = self._bucket_of(names), self._key(names)
        if bucket is None or key is None:
            return None
        return Part(bucket, key + "/" if key else "", deep)


def _reason(error: OSError, path: bytes = b"") -> str:
    """What to change, where the kernel's words do not say it."""
    if error.errno == errno.ENOSPC:
        return "more folders than fs.inotify.max_user_watches allows"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "no inotify instance to be had (fs.inotify.max_user_instances, open files)"
    where = f"{os.fsdecode(path)}: " if path else ""
    return f"{where}{error.strerror}"
