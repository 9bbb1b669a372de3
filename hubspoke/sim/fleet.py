"""One hub and its spokes as machines: a disk that stays, a clock that goes on, and a process that
is started, stopped, continued and killed. The processes run the product's own shells.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hubspoke.adapters.faulty import FaultyObjectStore
from hubspoke.adapters.memory_blocks import MemoryBlockStore
from hubspoke.core.leases import LeaseConfig
from hubspoke.core.policy import PartitionPolicy
from hubspoke.core.ranking import RuleRanker
from hubspoke.errors import HubSpokeError, HubUnavailable
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.sim.clock import DriftingClock
from hubspoke.sim.disk import Disk, DurableNamespace
from hubspoke.sim.link import SimulatedLink
from hubspoke.sim.loop import Process, VirtualLoop
from hubspoke.sim.network import Network, Path
from hubspoke.spoke.renewal import FollowerTuning
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

START_RETRY_S = 0.5  # what starts a hub again when its store did not answer
UNIX_STEPS_S = (0.0, -3600.0, 7200.0)  # by how much a hub's Unix clock is off, life by life
COMMIT_S = (0.0005, 0.006)


class ProcessDied(HubUnavailable):
    """The connection of a client broke: what became of its request is not known."""


class Machine:
    """What hub and spoke have in common: a process that answers clients."""

    def __init__(self, loop: VirtualLoop, name: str, clock: DriftingClock) -> None:
        self.name = name
        self.clock = clock
        self.process: Process | None = None
        self.namespace: DurableNamespace | None = None
        self._loop = loop
        self._asked: dict[asyncio.Future[Any], None] = {}

    @property
    def up(self) -> bool:
        return self.process is not None

    async def ask(self, work: Work[T]) -> T:
        """Have `work` done in the process. Raises what it raises, and ProcessDied."""
        if self.process is None:
            raise HubUnavailable(f"{self.name} is not up")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._asked[answer] = None
        self.process.start(_answer(work, answer))
        try:
            return await answer
        finally:
            self._asked.pop(answer, None)

    def kill(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process = None
        if self.namespace is not None:
            self.namespace.killed()
            self.namespace = None
        for answer in list(self._asked):
            if not answer.done():
                answer.set_exception(ProcessDied(f"{self.name} was killed"))
        self._asked.clear()

    def kill_soon(self, callbacks: int) -> None:
        """After so many more steps of the process: at any await, not only where time passes."""
        if self.process is not None:
            self.process.on_fuse = self.kill
            self.process.fuse = callbacks


async def _answer(work: Work[T], answer: "asyncio.Future[T]") -> None:
    try:
        result = await work()
    except HubSpokeError as e:
        if not answer.done():
            answer.set_exception(e)
    else:
        if not answer.done():
            answer.set_result(result)


@dataclass(slots=True)
class FleetConfig:
    """Of one fleet; the same for all its lives."""

    lease: LeaseConfig = field(default_factory=LeaseConfig)
    policy: PartitionPolicy = field(default_factory=PartitionPolicy)
    log_entries_max: int = 1000
    ring_entries_max: int = 8192
    batch: int = 1000  # of feed and snapshot


class HubMachine(Machine):
    """store: outlives the process, as a bucket does."""

    def __init__(
        self,
        network: Network,
        clock: DriftingClock,
        store: FaultyObjectStore,
        config: FleetConfig,
        rng: random.Random,
        logged: Callable[[DurableNamespace], None],
    ) -> None:
        """logged: called when a life begins to serve, and with each change that its log takes."""
        super().__init__(network.loop, "hub", clock)
        self._network = network
        self._store = store
        self._config = config
        self._rng = rng
        self._logged = logged
        self._lives = 0
        self._incarnations = itertools.count(1)
        self._tuning = HubTuning(
            lease=config.lease,
            feed_batch=config.batch,
            snapshot_batch=config.batch,
            tail_entries_max=config.ring_entries_max,
        )
        self.lose_state()

    def lose_state(self) -> None:
        """The next life begins with an empty state folder."""
        self._disk = Disk(keep_log=True, log_entries_max=self._config.log_entries_max)

    def start(self) -> None:
        assert self.process is None
        self._lives += 1
        self.clock.unix_step_s = UNIX_STEPS_S[self._lives % len(UNIX_STEPS_S)]
        self.process = Process(self._loop, f"hub {self._lives}")
        self.process.start(self._serve(self.process))

    def kill(self) -> None:
        super().kill()
        self._network.hub_down()

    def serving(self) -> HubService:
        """Raises HubUnavailable."""
        if self._network.hub is None:
            raise HubUnavailable("the hub does not serve")
        return self._network.hub[1]

    async def _serve(self, process: Process) -> None:
        while True:
            self.namespace = DurableNamespace(
                self._disk, self._rng, commit_s=COMMIT_S, applied=self._logged
            )
            service = HubService(
                self._store,
                self.namespace,
                self.clock,
                self._tuning,
                new_epoch=lambda: f"epoch {self._lives}",
                new_incarnation=lambda: f"life {next(self._incarnations)}",
            )
            try:
                await service.start()
            except HubSpokeError as e:
                log.debug("hub did not start error=%s", e)
                self.namespace.killed()
                await asyncio.sleep(START_RETRY_S)
                continue
            self._logged(self.namespace)
            self._network.hub_up(process, service)
            return


class SpokeMachine(Machine):
    """One spoke: its replica, its follower, and the names half of its reader."""

    service: SpokeService
    link: SimulatedLink

    def __init__(
        self, name: str, path: Path, clock: DriftingClock, config: FleetConfig, rng: random.Random
    ) -> None:
        super().__init__(path.network.loop, name, clock)
        self.path = path
        self._config = config
        self._rng = rng
        self._disk = Disk(keep_log=False)
        self._lives = 0

    def start(self) -> None:
        assert self.process is None
        self._lives += 1
        self.process = Process(self._loop, f"{self.name} {self._lives}")
        self.namespace = DurableNamespace(self._disk, self._rng, commit_s=COMMIT_S)
        self.link = SimulatedLink(self.path, self._rng)
        follower = FollowerTuning(lease=self._config.lease, policy=self._config.policy)
        self.service = SpokeService(
            self.link,
            self.namespace,
            MemoryBlockStore(),
            self.clock,
            RuleRanker(),
            SpokeTuning(1 << 20, self.name, follower=follower, read_deadline_s=10.0),
            rng=self._rng,
        )
        # Only the follower: caches and their disks have threads, and are not what is judged here.
        self.process.start(self.service.follower.start())

    def kill(self) -> None:
        super().kill()
        self.path.spoke_down()

    def lose_state(self) -> None:
        """The next life begins with an empty replica."""
        self._disk = Disk(keep_log=False)
