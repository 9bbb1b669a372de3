"""Hub, spoke and a real kernel mount in one process; who reads the mount does so in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.memory_blocks import MemoryBlockStore
from hubspoke.core.leases import LeaseConfig
from hubspoke.core.policy import PartitionPolicy
from hubspoke.core.ranking import RuleRanker
from hubspoke.frontends.fuse.mount import Mount, MountConfig
from hubspoke.hub.tuning import HubTuning
from hubspoke.spoke.renewal import FollowerTuning
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning
from hubspoke.values import StalenessRule
from tests.hub_bench import HubBench, until
from tests.mounts import is_mounted, unmounted, why_not

T = TypeVar("T")
# So long that whatever waits one out does not end within a test.
LONG = LeaseConfig(term_s=60.0, term_max_s=60.0, renew_s=0.2)
SHORT = LeaseConfig(term_s=0.6, term_max_s=0.8, margin_s=0.05, renew_s=0.1, ack_max_s=0.2)


@dataclass
class Mounted:
    """`bench` is the hub; `point` shows its bucket "bkt"."""

    bench: HubBench
    service: SpokeService
    point: Path

    @property
    def data(self) -> Path:
        return self.point / "bkt"

    async def run(self, work: Callable[[], T]) -> T:
        """In a thread, while the loop serves the mount."""
        async with asyncio.timeout(60):
            return await asyncio.to_thread(work)

    async def put(self, key: str, data: bytes) -> None:
        """Acknowledged when this returns; fails if that takes long, as a lease run out would."""
        async with asyncio.timeout(20):
            await self.bench.put(key, data)


@asynccontextmanager
async def mounted(
    folder: Path, lease: LeaseConfig = LONG, *rules: StalenessRule
) -> AsyncIterator[Mounted]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    bench = HubBench(
        folder / "hub", MemoryObjectStore(["bkt"]), HubTuning(lease=lease, stranger_term_s=0.0)
    )
    await bench.start()
    follower = FollowerTuning(lease=lease, policy=PartitionPolicy(rules), backoff_s=0.05)
    tuning = SpokeTuning(64 << 20, "s1", follower=follower, read_deadline_s=10.0)
    link = AiohttpHubLink(bench.url, "s1", tuning.pacing.lanes)
    replica = LmdbNamespace.open(folder / "spoke", keep_log=False)
    service = SpokeService(link, replica, MemoryBlockStore(), BootClock(), RuleRanker(), tuning)
    point = folder / "mnt"
    point.mkdir()
    mount = Mount(MountConfig(point), service, {})
    try:
        await service.start()
        await mount.start()
        await until(lambda: service.follower.lease_state() == "valid", "a lease", 20.0)
        yield Mounted(bench, service, point)
    finally:
        await mount.close()
        if is_mounted(point):
            await asyncio.to_thread(unmounted, point)
        await service.close()
        await bench.stop()


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Mounted]:
    """With leases so long that nothing may wait for their end."""
    async with mounted(tmp_path) as made:
        yield made
