"""A hub on a real port that can be stopped and started, and spokes that follow it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.core.ids import Change, ObjectEntry, ObjectName
from hubspoke.core.leases import LeaseConfig
from hubspoke.core.policy import PartitionPolicy
from hubspoke.frontends.hub_protocol import HubProtocolApp
from hubspoke.frontends.server import HttpServer, bind
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import ObjectStore
from hubspoke.spoke.follower import Follower
from hubspoke.spoke.renewal import FollowerTuning

# Short terms, so that tests which wait one out are quick.
LEASE = LeaseConfig(term_s=0.6, term_max_s=0.8, margin_s=0.05, renew_s=0.1, ack_max_s=0.2)
TUNING = HubTuning(lease=LEASE, region="eu", heartbeat_s=0.2, snapshot_batch=3, feed_batch=4)


async def body(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Poll a condition that no event tells about."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"not within {timeout_s} s: {what}")


class HubBench:
    """One hub that can be stopped and started again on the same store, state and port."""

    def __init__(self, state: Path, store: ObjectStore, tuning: HubTuning = TUNING) -> None:
        self.state = state
        self.store = store
        self.tuning = tuning
        self.log_entries_max = 1000
        self._port = 0
        self.hub: HubService
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        namespace = LmdbNamespace.open(
            self.state, keep_log=True, log_entries_max=self.log_entries_max
        )
        self.hub = HubService(self.store, namespace, BootClock(), self.tuning)
        await self.hub.start()
        sock = bind("127.0.0.1", self._port, "--listen")
        self._port = sock.getsockname()[1]
        self._server = HttpServer(HubProtocolApp(self.hub), sock, "--listen")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is None:
            return
        self.hub.end_feeds()
        await self._server.stop()
        await self.hub.close()
        self._server = None

    async def put(self, key: str, data: bytes, bucket: str = "bkt") -> ObjectEntry:
        return await self.hub.put(ObjectName(bucket, key), {}, body(data))


@dataclass
class SpokeBench:
    """A follower over a real link, with what it told."""

    follower: Follower
    namespace: LmdbNamespace
    link: AiohttpHubLink
    told: list[Change] = field(default_factory=list)

    def version(self, key: str, bucket: str = "bkt") -> str | None:
        record = self.namespace.get(ObjectName(bucket, key))
        return record.entry.version if record is not None else None

    async def fresh(self) -> None:
        await until(lambda: self.follower.lease_state() == "valid", "a valid lease")


@asynccontextmanager
async def running_spoke(
    url: str,
    path: Path,
    *,
    spoke_id: str = "s1",
    policy: PartitionPolicy | None = None,
    lease: LeaseConfig = LEASE,
    link_type: Callable[[str, str, int], AiohttpHubLink] = AiohttpHubLink,
) -> AsyncIterator[SpokeBench]:
    namespace = LmdbNamespace.open(path, keep_log=False)
    link = link_type(url, spoke_id, 1)
    told: list[Change] = []
    tuning = FollowerTuning(lease=lease, policy=policy or PartitionPolicy(), backoff_s=0.02)
    follower = Follower(
        link, namespace, BootClock(), spoke_id=spoke_id, on_change=told.append, tuning=tuning
    )
    await follower.start()
    try:
        yield SpokeBench(follower, namespace, link, told)
    finally:
        await follower.close()
        await link.close()
        await namespace.close()
