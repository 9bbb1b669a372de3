"""The cache folders of a spoke: where each object lies, and where a new one should.

Losing one loses only its blocks: an object lies in one folder, and new ones go to those that are
healthy.
"""

import asyncio
from collections.abc import Sequence

from hubspoke import wire
from hubspoke.adapters.disk_health import Disk, DiskSlow, FolderEvents, Writing
from hubspoke.adapters.drive import Drive
from hubspoke.adapters.folders import refuse_mistakes
from hubspoke.core.cache import CachedObject
from hubspoke.core.health import HealthConfig
from hubspoke.errors import ConfigError, FolderInUse
from hubspoke.ports import Clock, IndexedObject


class Disks:
    """All cache folders of a spoke: where each object lies, and where a new one should."""

    def __init__(
        self,
        drives: Sequence[Drive],
        clock: Clock,
        config: HealthConfig,
    ) -> None:
        assert drives
        self.events = FolderEvents()
        self.disks = [Disk(d, clock, config, self.events) for d in drives]
        self.events.moved = self._moved
        self._home: dict[int, Disk] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def _moved(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def moved(self, timeout_s: float) -> None:
        """Until some folder has done something that was asked of it, or the time is up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=timeout_s)
        finally:
            self._waiting.discard(future)

    async def load(self) -> list[IndexedObject]:
        """Open all folders. A number found twice keeps the first: one spoke gave the numbers, so
        the second folder is another spoke's. A folder that cannot be opened is bypassed. Raises
        ConfigError if none can and no disk is to blame, FolderInUse."""
        found: list[IndexedObject] = []
        failed: list[tuple[Disk, Exception]] = []
        for disk in self.disks:
            try:
                objects = await disk.open()
            except FolderInUse:
                raise
            except (OSError, ConfigError) as e:
                failed.append((disk, e))
                continue
            for o in objects:
                if o.number in self._home:
                    disk.drop(o.number)
                    continue
                self._home[o.number] = disk
                found.append(o)
        refuse_mistakes([e for _, e in failed], len(self.disks))
        for disk, error in failed:
            disk.not_opened(error)
        return found

    def settle(self, number: int, disk: Disk) -> None:
        """The object was found in a folder that was opened later."""
        assert number not in self._home, number
        self._home[number] = disk

    def numbers(self, disk: Disk) -> list[int]:
        """Of the objects in a folder."""
        return [number for number, home in self._home.items() if home is disk]

    def of(self, number: int) -> Disk | None:
        """The folder that has the object's file, or is about to."""
        return self._home.get(number)

    def readable(self, number: int) -> bool:
        """Whether the object's folder should be read before the hub is asked."""
        disk = self._home.get(number)
        return disk is None or disk.health.readable

    def for_fill(self, number: int | None) -> Disk | None:
        """Where frames of the object go; None: nowhere now. A new object goes to a healthy
        folder, in turns."""
        if number is not None:
            disk = self._home.get(number)
            if disk is not None and (disk.health.writable or disk.holds(number)):
                return disk if disk.health.writable and not disk.behind else None
        healthy = [d for d in self.disks if d.health.writable and not d.behind]
        return healthy[(number or 0) % len(healthy)] if healthy else None

    def behind(self, number: int) -> bool:
        """Whether the object's frames would go to a folder that is well but has enough to do."""
        disk = self._home.get(number)
        well = [d for d in ((disk,) if disk is not None else self.disks) if d.health.writable]
        return bool(well) and all(d.behind for d in well)

    def write(self, obj: CachedObject, frames: Sequence[wire.Frame]) -> Writing:
        """See Disk.write; DiskSlow too when no folder takes it."""
        disk = self.for_fill(obj.number)
        if disk is None:
            raise DiskSlow(f"{obj.name}: no cache folder takes its frames now")
        self._home[obj.number] = disk
        return disk.write(obj, frames)

    def punch(self, number: int, offset: int, length: int) -> None:
        """See Disk.punch."""
        disk = self._home.get(number)
        if disk is not None:
            disk.punch(number, offset, length)

    def drop(self, number: int) -> None:
        """See Disk.drop; the number is never used again."""
        disk = self._home.pop(number, None)
        if disk is not None:
            disk.drop(number)

    @property
    def written_bytes(self) -> int:
        """To all folders since the start."""
        return sum(d.store.written_bytes for d in self.disks)

    def objects_by_folder(self) -> list[int]:
        """How many objects lie in each folder."""
        counts = dict.fromkeys(self.disks, 0)
        for disk in self._home.values():
            counts[disk] += 1
        return list(counts.values())

    async def written(self, timeout_s: float) -> None:
        """What was asked of the folders so far is done, or time is up."""
        waits = [asyncio.ensure_future(d.written()) for d in self.disks if d.health.readable]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        """End all folders' calls, at most CLOSE_S later."""
        await asyncio.gather(*(d.close() for d in self.disks))
