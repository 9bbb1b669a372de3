"""What goes wrong in a run: partitions, resets, stops, kills and lost state, at random moments."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

from hubspoke.adapters.faulty import Faults, FaultyObjectStore
from hubspoke.sim.fleet import HubMachine, Machine, SpokeMachine
from hubspoke.sim.network import Direction

BLOCKS = (tuple(Direction), tuple(Direction), (Direction.UP,), (Direction.DOWN,))
FUSE_MAX = 60  # callbacks: about one change of a name from its begin to its end


@dataclass(frozen=True, slots=True)
class FaultRates:
    """pause_s: mean time between two faults. weights: of each kind of `Trouble`."""

    pause_s: float
    partition: int = 6
    reset: int = 2
    stop_spoke: int = 4
    kill_spoke: int = 4
    stop_hub: int = 1
    kill_hub: int = 3
    lose_hub_state: int = 1
    lose_spoke_state: int = 1
    store_down: int = 2


class Trouble:
    """Brings faults about, several at once, and ends all of them at `heal`."""

    def __init__(
        self,
        hub: HubMachine,
        spokes: list[SpokeMachine],
        store: FaultyObjectStore,
        rates: FaultRates,
        rng: random.Random,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._hub = hub
        self._spokes = spokes
        self._store = store
        self._rates = rates
        self._rng = rng
        self._under_way: list[asyncio.Task[None]] = []
        self._restarting: dict[str, None] = {}

    async def run(self) -> None:
        kinds = [k for k in FaultRates.__dataclass_fields__ if k != "pause_s"]
        weights = [getattr(self._rates, k) for k in kinds]
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._rates.pause_s))
            kind = self._rng.choices(kinds, weights)[0]
            self.counts[kind] += 1
            self._under_way.append(asyncio.create_task(getattr(self, "_" + kind)()))

    async def heal(self) -> None:
        """End every fault: each undoes in its end what it has done."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for machine in (self._hub, *self._spokes):
            if machine.process is not None:
                machine.process.fuse = None
                if machine.process.stopped:
                    machine.process.go_on()
            else:
                _start(machine)

    async def _partition(self) -> None:
        path = self._rng.choice(self._spokes).path
        directions = self._rng.choice(BLOCKS)
        path.block(*directions)
        try:
            await asyncio.sleep(self._rng.choice((0.3, 1.0, 2.5, 6.0)) * self._rng.random())
        finally:
            if self._rng.random() < 0.3:
                path.reset()
            path.unblock(*directions)

    async def _reset(self) -> None:
        self._rng.choice(self._spokes).path.reset()

    async def _stop_spoke(self) -> None:
        await self._stop(self._rng.choice(self._spokes), 6.0)

    async def _stop_hub(self) -> None:
        await self._stop(self._hub, 3.0)

    async def _kill_spoke(self) -> None:
        await self._restart(self._rng.choice(self._spokes), lose_state=False)

    async def _lose_spoke_state(self) -> None:
        await self._restart(self._rng.choice(self._spokes), lose_state=True)

    async def _kill_hub(self) -> None:
        await self._restart(self._hub, lose_state=False)

    async def _lose_hub_state(self) -> None:
        await self._restart(self._hub, lose_state=True)

    async def _store_down(self) -> None:
        before, self._store.faults = self._store.faults, Faults(fail_before=1.0, delay=1.0)
        try:
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))
        finally:
            self._store.faults = before

    async def _stop(self, machine: Machine, most_s: float) -> None:
        process = machine.process
        if process is None or process.stopped:
            return
        process.stop()
        await asyncio.sleep(self._rng.uniform(0.1, most_s))
        process.go_on()

    async def _restart(self, machine: HubMachine | SpokeMachine, *, lose_state: bool) -> None:
        if machine.process is None or machine.process.fuse is not None:
            return
        if self._rng.random() < 0.7:
            machine.kill_soon(self._rng.randint(0, FUSE_MAX))
        else:
            machine.kill()
        await asyncio.sleep(self._rng.choice((0.0, 0.3, 4.0)) * self._rng.random())
        machine.kill()  # a stopped one has not burnt its fuse
        if lose_state:
            machine.lose_state()
        machine.start()


def _start(machine: Machine) -> None:
    assert isinstance(machine, HubMachine | SpokeMachine)
    machine.start()
