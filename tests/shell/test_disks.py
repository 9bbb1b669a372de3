"""Cache folders behind their health: where objects go, and what a hung disk can hold up."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubspoke import wire
from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.disk_health import (
    READ_THREADS,
    WRITES_PENDING_MAX,
    DiskSlow,
)
from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.adapters.disks import Disks
from hubspoke.adapters.drive import Drive, probe_folder
from hubspoke.adapters.memory_blocks import FaultyBlockStore, MemoryBlockStore
from hubspoke.core.cache import Cache, CachedObject
from hubspoke.core.health import DiskState, HealthConfig
from hubspoke.core.ids import ObjectEntry, ObjectName, Version

QUICK = HealthConfig(slow_s=0.05, pause_s=0.05, probe_interval_s=0.01)


def objects(count: int) -> list[CachedObject]:
    cache = Cache(64 << 20)
    names = [ObjectName("b", str(i)) for i in range(count)]
    return [cache.open(n, ObjectEntry(Version("v"), 8192, "e", 0))[0] for n in names]


class Fault:
    def __init__(self) -> None:
        self.errno: int | None = None
        self.hang: threading.Event | None = None
        self.inner = MemoryBlockStore()

    def __call__(self, method: str) -> int | None:
        if self.hang is not None:
            assert self.hang.wait(30)
        return self.errno

    def probe(self) -> None:
        if self.errno is not None:
            raise OSError(self.errno, "injected")

    @property
    def drive(self) -> Drive:
        return Drive(FaultyBlockStore(self.inner, self), None, self.probe)


@pytest.fixture
def faults() -> Iterator[list[Fault]]:
    made = [Fault(), Fault()]
    yield made
    for fault in made:
        if fault.hang is not None:
            fault.hang.set()


@asynccontextmanager
async def disks_of(drives: list[Drive]) -> AsyncIterator[Disks]:
    disks = Disks(drives, BootClock(), QUICK)
    await disks.load()
    try:
        yield disks
    finally:
        await disks.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a state, which has no event for tests
            await asyncio.sleep(0.005)


def frame(offset: int = 0, *, of: bytes = b"x") -> wire.Frame:
    data = of * 4096
    digest = wire.digest(data)
    return wire.FrameHeader(wire.FRAME_DATA, 0, 0, offset, 4096, 4096, digest), data


async def write(disks: Disks, obj: CachedObject, offset: int = 0) -> None:
    await disks.write(obj, [frame(offset)]).ended


async def test_new_objects_go_to_healthy_folders_and_old_ones_stay(faults: list[Fault]) -> None:
    async with disks_of([f.drive for f in faults]) as disks:
        old = objects(2)
        for o in old:
            await write(disks, o)
        assert disks.objects_by_folder() == [1, 1]
        sick = disks.of(old[0].number)
        assert sick is not None
        faults[disks.disks.index(sick)].errno = errno.EIO
        for _ in range(3):
            with pytest.raises(OSError, match="injected"):
                await write(disks, old[0])
        assert sick.health.state is DiskState.SUSPECT
        assert disks.for_fill(old[0].number) is None
        with pytest.raises(DiskSlow):
            disks.write(old[0], [frame()])
        for number in range(100, 110):
            place = disks.for_fill(number)
            assert place is not None and place is not sick
        assert disks.for_fill(None) is not sick


async def test_an_object_whose_file_was_never_made_goes_elsewhere(faults: list[Fault]) -> None:
    async with disks_of([f.drive for f in faults]) as disks:
        (obj,) = objects(1)
        first = disks.for_fill(obj.number)
        assert first is not None
        disks._home[obj.number] = first
        first.health.failed = lambda *a: False  # type: ignore[method-assign]
        first.health.state = DiskState.BYPASSED
        await write(disks, obj)
        assert disks.of(obj.number) is not first


async def test_a_folder_comes_back_and_does_what_it_owed(faults: list[Fault]) -> None:
    async with disks_of([faults[0].drive]) as disks:
        told: list[list[tuple[int, int, int]]] = []
        disks.events.recovered = lambda disk: told.append(disk.owed())
        (obj,) = objects(1)
        await write(disks, obj)
        faults[0].errno = errno.EIO
        disks.punch(obj.number, 0, 4096)
        for _ in range(2):
            with pytest.raises(OSError, match="injected"):
                await write(disks, obj)
        await until(lambda: disks.disks[0].health.state is DiskState.SUSPECT)
        faults[0].errno = None
        await until(lambda: disks.disks[0].health.state is DiskState.HEALTHY)
        # The punch, and what the writes may have left.
        assert told == [[(obj.number, 0, 4096)] * 3]
        disks.drop(obj.number)
        await until(lambda: not faults[0].inner.load())


async def test_a_hung_folder_refuses_at_once_what_it_cannot_begin(faults: list[Fault]) -> None:
    async with disks_of([f.drive for f in faults]) as disks:
        pair = objects(2)
        for o in pair:
            await write(disks, o)
        hung, well = (disks.of(o.number) for o in pair)
        assert hung is not None and well is not None
        faults[disks.disks.index(hung)].hang = go_on = threading.Event()
        reads = [hung.read(pair[0].number, 0, 4096) for _ in range(READ_THREADS)]
        await until(lambda: hung.health.state is DiskState.BYPASSED)
        with pytest.raises(DiskSlow, match="reads are waiting"):
            hung.read(pair[0].number, 0, 4096)
        hung.health.state = DiskState.HEALTHY
        writes = [hung.write(pair[0], [frame()] * 2) for _ in range(WRITES_PENDING_MAX // 2)]
        with pytest.raises(DiskSlow, match="writes are waiting"):
            hung.write(pair[0], [frame()])
        assert disks.for_fill(pair[0].number) is None
        # The other folder has threads of its own.
        assert await asyncio.wait_for(well.read(pair[1].number, 0, 4096), 5) == b"x" * 4096
        go_on.set()
        await asyncio.gather(*reads, *(w.ended for w in writes))
        assert all(w.written == 2 for w in writes)
        assert not hung.behind


async def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    threads = DiskThreads("t", 1)
    go_on = threading.Event()
    future = threads.submit(go_on.wait)
    assert not await threads.close(0.05)
    go_on.set()
    assert await future
    assert await threads.close(5)


async def test_who_gave_up_leaves_no_unseen_exception() -> None:
    threads = DiskThreads("t", 1)

    def fails() -> None:
        raise OSError(errno.EIO, "nobody looks")

    threads.submit(fails).cancel()
    threads.submit(fails)
    await until(lambda: threads.pending == 0)
    assert await threads.close(5)


async def test_a_number_in_two_folders_is_kept_once(tmp_path: Path) -> None:
    (obj,) = objects(1)
    for name in ("a", "b"):
        store = FileBlockStore([tmp_path / name])
        store.load()
        store.create(obj.number, obj.name, obj.version, obj.size)
        store.write(obj.number, 0, b"x" * 4096, 1)
        store.close()
    drives = [Drive(FileBlockStore([tmp_path / n]), tmp_path / n) for n in ("a", "b")]
    disks = Disks(drives, BootClock(), QUICK)
    assert [o.number for o in await disks.load()] == [obj.number]
    assert disks.objects_by_folder() == [1, 0]
    await disks.close()
    assert not list((tmp_path / "b" / "data").iterdir())


def test_a_probe_writes_reads_and_leaves_nothing(tmp_path: Path) -> None:
    probe_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        probe_folder(tmp_path / "absent")
