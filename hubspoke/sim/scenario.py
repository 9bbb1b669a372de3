"""One seed: a fleet, its clients and its troubles are drawn, run and judged.

Everything random comes from the seed, and nothing else varies: the same seed of the same code
gives the same run, message for message.
"""

import asyncio
import gc
import random
from collections import Counter
from dataclasses import dataclass, field, replace

from hubspoke.adapters.faulty import Faults, FaultyObjectStore
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName
from hubspoke.core.leases import LeaseConfig
from hubspoke.core.policy import PartitionPolicy
from hubspoke.sim.clock import DriftingClock
from hubspoke.sim.disk import DurableNamespace
from hubspoke.sim.faults import FaultRates, Trouble
from hubspoke.sim.fleet import FleetConfig, HubMachine, SpokeMachine
from hubspoke.sim.history import History, Value
from hubspoke.sim.loop import VirtualLoop
from hubspoke.sim.network import Network, Path, PathModel
from hubspoke.sim.workload import BUCKET, Clients

# Keys that are prefixes of others, a directory marker, order that is not the alphabet's.
KEYS = ("a", "a/", "a/b", "a/b/c", "ab", "z\u00e9")
# After every fault has ended: the longest lease, the longest backoffs, and a snapshot.
SETTLES_S = 60.0
SLOWEST_S = 10.0
# Rates that differ by what the margin covers.
RATES = (0.9876, 1.0, 1.0124)


@dataclass(frozen=True, slots=True)
class Profile:
    """What the clients of a seed are like, and how often something goes wrong.

    write_pause_s: mean, of each writer; read_pause_s: of the reader at each machine. every_way:
    each change is read by GET, HEAD and LIST at each spoke once it is acknowledged; else by one of
    them, as it falls out. pauses_s, one_way_s: mean times between two faults, and paths, of which
    a seed draws. lossy: share of the messages that a storm delays, repeats or loses.
    """

    keys: tuple[str, ...] = KEYS
    seconds: float = 20.0
    writers: int = 3
    write_pause_s: float = 0.15
    read_pause_s: float = 0.1
    every_way: bool = False
    pauses_s: tuple[float, ...] = (0.5, 1.5, 5.0, 15.0)
    one_way_s: tuple[float, ...] = (0.001, 0.01, 0.03, 0.03, 0.075, 0.15, 0.3)
    lossy: float = 1.0


STORM = Profile()
# For many rounds: leases are seldom lost, and many writes share what is sent all the time. No path
# on which acknowledgements of revocations are late as a rule: it would get no lease.
CALM = Profile(
    keys=tuple(f"m{i:02}" for i in range(64)),
    seconds=20.0,
    writers=16,
    write_pause_s=0.1,
    read_pause_s=1.0,
    every_way=True,
    pauses_s=(10.0, 30.0),
    one_way_s=(0.001, 0.01, 0.03, 0.03, 0.075),
    lossy=0.1,
)


@dataclass(slots=True)
class Outcome:
    """violations: what readers must never have seen; empty is good."""

    seed: int
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    callbacks: int = 0
    history: History | None = None


def run(seed: int, profile: Profile = STORM) -> Outcome:
    """Run and judge one seed."""
    loop = VirtualLoop()
    collecting = gc.isenabled()
    gc.disable()  # what it frees when would be in the run's order
    try:
        scenario = Scenario(loop, seed, profile)
        outcome = loop.run_until_complete(scenario.run())
        outcome.callbacks = loop.callbacks
    finally:
        loop.bury()
        if collecting:
            gc.enable()
    return outcome


class Scenario:
    """What a seed stands for."""

    def __init__(self, loop: VirtualLoop, seed: int, profile: Profile) -> None:
        self.seed = seed
        self._profile = profile
        self._rng = rng = random.Random(seed)
        self._loop = loop
        self._network = Network(loop)
        self._states: list[tuple[Value, ...]] = []  # of all names, after each change at the hub
        self.names = [ObjectName(BUCKET, key) for key in profile.keys]
        config = self._config()
        self._store = FaultyObjectStore(
            MemoryObjectStore([BUCKET]), seed=rng.getrandbits(32), pause=self._store_pause
        )
        self._calm = Faults(delay=1.0)
        if rng.random() < 0.5:
            self._calm = Faults(fail_before=0.02, fail_after=0.02, delay=1.0)
        self._store_rng = self._own_rng()
        self._store.faults = self._calm
        self.hub = HubMachine(
            self._network, self._clock(), self._store, config, self._own_rng(), self._logged
        )
        self.spokes = [
            SpokeMachine(f"s{i}", self._path(), self._clock(), config, self._own_rng())
            for i in range(1, rng.choice((2, 3)) + 1)
        ]
        self.history = History(loop)
        self.clients = Clients(
            self.hub, self.spokes, self.names, self.history, self._own_rng(), profile.every_way
        )
        rates = FaultRates(pause_s=rng.choice(profile.pauses_s))
        self.trouble = Trouble(self.hub, self.spokes, self._store, rates, self._own_rng())

    async def run(self) -> Outcome:
        profile = self._profile
        outcome = Outcome(self.seed, history=self.history)
        self.hub.start()
        for spoke in self.spokes:
            spoke.start()
        write, read = self.clients.write_forever, self.clients.read_forever
        clients = [write(profile.write_pause_s) for _ in range(profile.writers)]
        clients += [read(m, profile.read_pause_s) for m in (self.hub, *self.spokes)]
        tasks = [asyncio.create_task(work) for work in (*clients, self.trouble.run())]
        await asyncio.sleep(profile.seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.trouble.heal()
        self._store.faults = Faults()
        for spoke in self.spokes:
            spoke.path.model = replace(spoke.path.model, slow=0.0, twice=0.0, broken=0.0)
        await self._settle(outcome)
        self._judge(outcome)
        outcome.counts = self.clients.counts + self.trouble.counts
        return outcome

    async def _settle(self, outcome: Outcome) -> None:
        """With nothing in the way everybody gets a lease and the hub's state."""
        until = self._loop.time() + SETTLES_S
        await asyncio.sleep(SLOWEST_S)  # what was sent before the last fault has come
        # No event tells, and waiting costs no time here.
        while (waiting := self._unsettled()) and self._loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        outcome.violations += [f"{SETTLES_S:.0f} s after the last fault: {w}" for w in waiting]
        for name in self.names:
            for machine in (self.hub, *self.spokes):
                if not waiting:
                    leased = await self.clients.read(machine, name, "HEAD")
                    if not leased and machine is not self.hub:
                        outcome.violations.append(f"{machine.name} refuses {name} without a fault")

    def _unsettled(self) -> list[str]:
        if self._network.hub is None:
            return ["the hub does not serve"]
        facts = self._network.hub[1].facts()
        waiting = [f"{s.name}: {s.service.ready()}" for s in self.spokes if s.service.ready()]
        return waiting + [
            f"{s.name} is at {s.service.follower.sequence}, the hub at {facts.sequence}"
            for s in self.spokes
            if s.service.follower.sequence != facts.sequence
        ]

    def _judge(self, outcome: Outcome) -> None:
        outcome.violations += self.clients.torn
        outcome.violations += self.history.violations()
        known: dict[tuple[ObjectName, ...], set[tuple[Value, ...]]] = {}
        for page in self.history.pages:
            names = tuple(page.values)
            if names not in known:
                at = [self.names.index(n) for n in names]
                known[names] = {tuple(state[i] for i in at) for state in self._states}
            if tuple(page.values.values()) not in known[names]:
                outcome.violations.append(f"page of no single state: {page}")

    # Drawing -------------------------------------------------------------------------------------

    def _config(self) -> FleetConfig:
        rng = self._rng
        short = LeaseConfig(term_s=0.8, term_max_s=1.6, margin_s=0.04, renew_s=0.2, ack_max_s=0.3)
        bound = rng.choice((None, 1.0, 3600.0))
        return FleetConfig(
            lease=rng.choice((LeaseConfig(), LeaseConfig(), short)),
            policy=PartitionPolicy(default_s=bound),
            log_entries_max=rng.choice((5, 40, 1000)),
            ring_entries_max=rng.choice((3, 40, 8192)),
            batch=rng.choice((1, 2, 1000)),
        )

    def _clock(self) -> DriftingClock:
        rng = self._rng
        return DriftingClock(self._loop, offset_s=rng.uniform(0, 1e6), rate=rng.choice(RATES))

    def _path(self) -> Path:
        lossy = self._profile.lossy
        model = PathModel(one_way_s=self._rng.choice(self._profile.one_way_s))
        model = replace(
            model, slow=lossy * model.slow, twice=lossy * model.twice, broken=lossy * model.broken
        )
        return Path(self._network, model, self._own_rng())

    def _own_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    async def _store_pause(self) -> None:
        await asyncio.sleep(self._store_rng.choice((0.0, 0.001, 0.01, 0.05)))

    def _logged(self, namespace: DurableNamespace) -> None:
        records = [namespace.get(name) for name in self.names]
        self._states.append(tuple(r.entry.etag if r is not None else None for r in records))
