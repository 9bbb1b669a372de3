"""A cache folder that is not there at start, or goes: the others serve, and it comes back."""

import errno
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.drive import Drive
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.memory_blocks import FaultyBlockStore
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.health import DiskState, HealthConfig
from hubspoke.core.ids import ObjectName
from hubspoke.core.ranking import RuleRanker
from hubspoke.errors import ConfigError, FolderInUse
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning
from tests.shell.test_spoke_service import MIB, TUNING, Hub, a_hub, get, until

NAMES = [ObjectName("data", f"a/{i}.bin") for i in range(6)]
BODIES = {name: os.urandom(MIB + i) for i, name in enumerate(NAMES)}
QUICK = replace(
    TUNING,
    capacity=64 * MIB,
    health=HealthConfig(pause_s=0.05, probe_interval_s=0.01),
    upkeep_interval_s=0.02,
)


class Switch:
    """A folder whose drive is there or not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.error: Exception | None = None

    def claim(self) -> None:
        if self.error is not None:
            raise self.error

    def gone(self, number: int = errno.EIO) -> None:
        self.error = ConfigError(f"--cache {self.root}: {os.strerror(number)}")
        self.error.__cause__ = OSError(number, os.strerror(number))

    def _fails(self, method: str) -> int | None:
        return errno.EIO if self.error is not None else None

    def _probe(self) -> None:
        if self.error is not None:
            raise OSError(errno.EIO, "injected")

    @property
    def drive(self) -> Drive:
        store = FaultyBlockStore(FileBlockStore([self.root]), self._fails)
        return Drive(store, self.root, self._probe, self.claim)


@pytest.fixture
def folders(tmp_path: Path) -> list[Switch]:
    return [Switch(tmp_path / name) for name in ("a", "b")]


@asynccontextmanager
async def a_spoke(
    hub: Hub,
    folders: Sequence[Switch],
    tuning: SpokeTuning = QUICK,
    share: int | None = None,
) -> AsyncIterator[SpokeService]:
    """share: bytes of capacity that each folder has; None: it stays as it is."""
    link = AiohttpHubLink(hub.url, tuning.spoke_id, tuning.pacing.lanes)
    spoke = SpokeService(
        link,
        MemoryNamespace(keep_log=False),
        [f.drive for f in folders],
        BootClock(),
        RuleRanker(),
        tuning,
        capacity_of=None if share is None else lambda roots: share * len(roots),
    )
    try:
        await spoke.start()
        await until(lambda: not spoke.ready())
        yield spoke
    finally:
        await spoke.close()


def states(spoke: SpokeService) -> list[str]:
    return [disk.health.state.value for disk in spoke.disks.disks]


def version_of(spoke: SpokeService, name: ObjectName) -> str | None:
    record = spoke.namespace.get(name)
    return None if record is None else record.entry.version


async def read_all(spoke: SpokeService) -> None:
    for name, body in BODIES.items():
        assert await get(spoke, 0, len(body), name) == body


def taken(folder: Switch) -> int:
    return sum(f.stat().st_blocks * 512 for f in (folder.root / "data").iterdir())


async def test_a_folder_that_is_not_there_at_start_is_bypassed_and_comes_back(
    folders: list[Switch],
) -> None:
    async with a_hub() as (hub, _):
        for name, body in BODIES.items():
            await hub.put(name, body)
        async with a_spoke(hub, folders) as spoke:
            await read_all(spoke)
            there = [len(spoke.disks.numbers(d)) for d in spoke.disks.disks]
            assert min(there) > 0
        folders[1].gone()
        async with a_spoke(hub, folders) as spoke:
            assert states(spoke)[0] == "healthy" and states(spoke)[1] in ("bypassed", "probing")
            told = (await spoke.facts()).cache.folders[1]
            assert told.state in ("bypassed", "probing")
            assert "Input/output error" in str(told.last_error)
            again = [o.name for o in spoke.core.cache.objects.values()]
            assert len(again) == there[0]
            lost = [name for name in NAMES if name not in again]
            # One of the lost objects is read, and so cached anew, one gets another version.
            read, changed = lost[0], lost[1]
            assert await get(spoke, 0, 10, read) == BODIES[read][:10]
            old = version_of(spoke, changed)
            await hub.put(changed, b"new")
            await until(lambda: version_of(spoke, changed) != old)
            folders[1].error = None
            await until(lambda: states(spoke) == ["healthy", "healthy"])
            await until(lambda: not spoke.core.cache.away.bytes)
            asked, back = len(hub.fetches), lost[2]
            assert await get(spoke, 0, len(BODIES[back]), back) == BODIES[back]
            assert len(hub.fetches) == asked
            assert await get(spoke, 0, 3, changed) == b"new"
            assert await get(spoke, 0, len(BODIES[read]), read) == BODIES[read]
            for name in again:
                assert await get(spoke, 0, len(BODIES[name]), name) == BODIES[name]
            await spoke.disks.written(10)
            cache = spoke.core.cache
            for disk, folder in zip(spoke.disks.disks, folders, strict=True):
                numbers = {str(n) for n in spoke.disks.numbers(disk)}
                assert {f.name for f in (folder.root / "data").iterdir()} == numbers
            assert sum(map(taken, folders)) == cache.used


async def test_a_folder_that_comes_back_gives_way_to_what_is_cached_since(
    folders: list[Switch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubspoke.core.cache.NUMBERS_SKIPPED", 0)
    new, body = ObjectName("data", "a/new.bin"), os.urandom(MIB)
    async with a_hub() as (hub, _):
        for name, content in BODIES.items():
            await hub.put(name, content)
        async with a_spoke(hub, folders) as spoke:
            await read_all(spoke)
            first = spoke.disks.numbers(spoke.disks.disks[0])
            before = {n: o.name for n, o in spoke.core.cache.objects.items()}
        assert max(before) in first
        folders[0].gone()
        await hub.put(new, body)
        async with a_spoke(hub, folders) as spoke:
            cache = spoke.core.cache
            await until(lambda: version_of(spoke, new) is not None)
            assert await get(spoke, 0, len(body), new) == body
            obj = cache.current(new)
            assert obj is not None and obj.number == max(before), "given again"
            folders[0].error = None
            await until(lambda: states(spoke) == ["healthy", "healthy"])
            await until(lambda: not cache.away.bytes)
            assert cache.current(new) is obj is cache.objects[obj.number] and not obj.dead
            assert cache.current(before[obj.number]) is None
            asked = len(hub.fetches)
            assert await get(spoke, 0, len(body), new) == body
            assert len(hub.fetches) == asked
            await read_all(spoke)


async def test_without_any_folder_reads_come_from_the_hub(folders: list[Switch]) -> None:
    for folder in folders:
        folder.gone()
    async with a_hub() as (hub, _):
        for name, body in BODIES.items():
            await hub.put(name, body)
        async with a_spoke(hub, folders) as spoke:
            await read_all(spoke)
            assert spoke.core.cache.used == 0
            for folder in folders:
                folder.error = None
            await until(lambda: states(spoke) == ["healthy", "healthy"])
            await read_all(spoke)
            assert spoke.core.cache.used > 0


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR])
async def test_a_mistake_is_refused_when_no_folder_is_left(
    folders: list[Switch], number: int
) -> None:
    folders[0].gone(number)
    async with a_hub() as (hub, _):
        with pytest.raises(ConfigError, match=f"--cache .*: {os.strerror(number)}"):
            async with a_spoke(hub, folders[:1]):
                pass
        async with a_spoke(hub, folders) as spoke:
            assert states(spoke)[1] == "healthy"


async def test_a_folder_that_another_process_holds_is_refused(folders: list[Switch]) -> None:
    folders[0].error = FolderInUse("--cache: in use by process 1")
    async with a_hub() as (hub, _):
        with pytest.raises(FolderInUse):
            async with a_spoke(hub, folders):
                pass


async def test_the_cache_is_smaller_while_a_folder_is_lost(folders: list[Switch]) -> None:
    async with a_hub() as (hub, _):
        for name, body in BODIES.items():
            await hub.put(name, body)
        async with a_spoke(hub, folders, share=4 * MIB) as spoke:
            cache = spoke.core.cache
            await read_all(spoke)
            lost = spoke.disks.disks[1]
            held = {n: cache.objects[n].resident for n in spoke.disks.numbers(lost)}
            folders[1].gone()
            for number in held:
                for _ in range(10):
                    with pytest.raises(OSError, match="injected"):
                        await lost.read(number, 0, 4096)
            await until(lambda: lost.health.state in (DiskState.BYPASSED, DiskState.PROBING))
            await until(lambda: cache.capacity == 4 * MIB)
            assert cache.away.bytes == sum(held.values()) * 4096
            facts = (await spoke.facts()).cache
            assert facts.bytes == cache.used - cache.away.bytes
            assert facts.bytes <= facts.capacity_bytes == 4 * MIB
            # Whatever is read, the lost one's blocks stay in the book.
            await read_all(spoke)
            assert {n: cache.objects[n].resident for n in held} == held
            assert cache.used - cache.away.bytes <= 4 * MIB
            folders[1].error = None
            await until(lambda: cache.capacity == 8 * MIB)
            assert cache.away.bytes == 0
            # And may go again as all others.
            cache.make_room(7 * MIB)
            assert cache.used <= MIB


async def test_a_smaller_cache_is_within_its_cap_before_it_is_ready(
    folders: list[Switch],
) -> None:
    async with a_hub() as (hub, _):
        for name, body in BODIES.items():
            await hub.put(name, body)
        async with a_spoke(hub, folders) as spoke:
            await read_all(spoke)
        assert sum(map(taken, folders)) > 6 * MIB
        slow = replace(QUICK, capacity=2 * MIB, upkeep_interval_s=60.0)
        async with a_spoke(hub, folders, slow) as spoke:
            assert 0 < sum(map(taken, folders)) <= 2 * MIB
            await read_all(spoke)
