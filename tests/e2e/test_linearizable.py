"""What is acknowledged at the hub is never read stale: real processes, clients and a 60 ms WAN."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubspoke.lab.wan import TunWan
from hubspoke.sim.linearizability import check
from tests.fleet import Fleet, Node, running_fleet
from tests.witnesses import (
    BUCKET,
    VERBS,
    BotoClient,
    Client,
    PlainClient,
    Unanswered,
    Witness,
)

STRICT, BOUNDED = f"{BUCKET}/=strict", f"{BUCKET}/=bounded:3600"
SOAK_ROUNDS = int(os.environ.get("HUBSPOKE_SOAK_OVERWRITES", "5000"))
SOAK_SECONDS = float(os.environ.get("HUBSPOKE_SOAK_FAULT_SECONDS", "120"))
# What goes wrong ends a run, not the patience of who waits for it. A round takes 0.2 s at most on
# two cores shared with others; a fault, the time to mend it.
OVERWRITES_S = 120 + 0.2 * SOAK_ROUNDS
FAULTS_S = 120 + 2 * SOAK_SECONDS
BOTO_EVERY = 8


class Doors:
    """A client of each kind at each door."""

    def __init__(self, fleet: Fleet) -> None:
        urls = [fleet.hub_url, *(s.data for s in fleet.spokes)]
        self.plain: list[Client] = [PlainClient(url) for url in urls]
        self.boto: list[Client] = [BotoClient(url) for url in urls]

    def of(self, name: int) -> list[Client]:
        """Hub's door first. Names take turns, so that each name is seen by one kind."""
        return self.boto if name % BOTO_EVERY == 1 else self.plain

    async def close(self) -> None:
        for client in (*self.plain, *self.boto):
            await client.close()


@asynccontextmanager
async def doors(fleet: Fleet) -> AsyncIterator[Doors]:
    opened = Doors(fleet)
    try:
        yield opened
    finally:
        await opened.close()


async def overwrite(fleet: Fleet, rounds: int, names: int = 64) -> tuple[Witness, list[str]]:
    """Each round: overwrite, and as soon as it is acknowledged GET, HEAD and LIST everywhere."""
    witness, stale = Witness(), list[str]()
    numbers = iter(range(rounds))

    async def one_name(name: int, clients: list[Client]) -> None:
        at_hub, *at_spokes = clients
        for _ in numbers:
            number = await witness.put(at_hub, name)
            assert number is not None, witness.failures
            reads = [(c, verb) for c in at_spokes for verb in VERBS]
            seen = await asyncio.gather(*(witness.read(c, verb, name) for c, verb in reads))
            stale.extend(
                f"name {name}, {verb}: {value} after {number}"
                for (_, verb), value in zip(reads, seen, strict=True)
                if value is None or value < number
            )

    async with asyncio.timeout(OVERWRITES_S), doors(fleet) as opened, asyncio.TaskGroup() as tasks:
        for name in range(names):
            tasks.create_task(one_name(name, opened.of(name)))
    return witness, stale


def overwrites_are_never_read_stale(fleet: Fleet, rounds: int) -> None:
    began = time.monotonic()
    witness, stale = asyncio.run(overwrite(fleet, rounds))
    took = sorted(witness.put_s)
    print(
        f"{len(took)} overwrites in {time.monotonic() - began:.0f} s over {fleet.wan.name},"
        f" {dict(witness.counts)}: {len(stale)} stale; acknowledged after"
        f" p50 {took[len(took) // 2] * 1e3:.0f} p99 {took[len(took) * 99 // 100] * 1e3:.0f} ms"
    )
    assert stale == []
    assert check(witness.history) == []
    reads = rounds * len(fleet.spokes)
    assert witness.counts == {"put": rounds, "get": reads, "head": reads, "list": reads}


def test_an_acknowledged_overwrite_is_never_read_stale(tmp_path: Path) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED]) as fleet:
        overwrites_are_never_read_stale(fleet, 100)


@pytest.mark.soak
@pytest.mark.timeout(OVERWRITES_S + 60)
def test_thousands_of_acknowledged_overwrites_are_never_read_stale(tmp_path: Path) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED]) as fleet:
        overwrites_are_never_read_stale(fleet, SOAK_ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(OVERWRITES_S + 60)
@pytest.mark.skipif(TunWan.available() is not None, reason=str(TunWan.available()))
def test_the_same_over_the_kernels_own_tcp(tmp_path: Path) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED], tun=True) as fleet:
        overwrites_are_never_read_stale(fleet, SOAK_ROUNDS // 5)


# A stopped spoke ---------------------------------------------------------------------------------


async def read_at_wakening(fleet: Fleet, spoke: Node, at: int, stopped_s: float) -> Witness:
    """Overwrite while the spoke is stopped; requests that reached it meanwhile are answered as it
    wakes, when nothing has told it yet that its lease is over."""
    witness = Witness()
    async with doors(fleet) as opened:
        at_hub, here = opened.plain[0], opened.plain[1 + at]
        names = range(8)

        async def read_all(who: str) -> None:
            reads = [witness.read(here, verb, n, who) for n in names for verb in VERBS]
            for outcome in await asyncio.gather(*reads, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, Unanswered):
                    raise outcome

        for n in names:
            await witness.put(at_hub, n)
        await read_all("before")
        assert sum(witness.counts[verb] for verb in VERBS) == len(VERBS) * len(names)
        spoke.pause()
        woken = asyncio.get_running_loop().call_later(stopped_s, spoke.resume)
        for n in names:
            assert await witness.put(at_hub, n) is not None, witness.failures
        assert not woken.cancelled() and woken.when() > asyncio.get_running_loop().time()
        await read_all("wakening")
        await read_all("awake")
        await asyncio.to_thread(spoke.fresh)
        await read_all("fresh")
    return witness


@pytest.mark.parametrize("at", [0, 1], ids=["strict", "bounded"])
@pytest.mark.parametrize("stopped_s", [4.0, pytest.param(10.0, marks=pytest.mark.soak)])
def test_a_stopped_spoke_reads_nothing_stale_when_it_wakes(
    tmp_path: Path, at: int, stopped_s: float
) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED]) as fleet:
        witness = asyncio.run(read_at_wakening(fleet, fleet.spokes[at], at, stopped_s))
    assert check(witness.history) == []
    fresh = [o for o in witness.history if o.client.endswith("fresh")]
    assert len(fresh) == 8 * len(VERBS), witness.counts


# Everything at once ------------------------------------------------------------------------------


async def cause(fault: str, fleet: Fleet, seconds: float, victim: Node) -> None:
    """Lets one thing go wrong for some time, and mends it."""
    run = asyncio.to_thread
    match fault:
        case "partition":
            await run(fleet.wan.partition)
            await asyncio.sleep(seconds)
            await run(fleet.wan.heal)
        case "stall":
            await run(fleet.wan.stall)
            await asyncio.sleep(seconds)
            await run(fleet.wan.resume)
        case "stop":
            victim.pause()
            await asyncio.sleep(seconds)
            victim.resume()
        case "kill":
            await run(victim.kill)
            await asyncio.sleep(seconds / 4)
            await run(victim.restart)
        case "stop in a partition":
            victim.pause()
            await cause("partition", fleet, seconds, victim)
            victim.resume()
        case _:
            raise AssertionError(fault)


FAULTS = ("partition", "stall", "stop", "kill", "stop in a partition")


class Traffic:
    """Writers and readers of some names until `stop`; whatever fails is tried again."""

    def __init__(self, opened: Doors, seed: int, names: int = 12) -> None:
        self.witness = Witness()
        self._going_on = True
        self._rng = random.Random(seed)
        at_hub, *at_spokes = opened.plain
        boto_hub, *boto_spokes = opened.boto
        writers = [(at_hub, n) for n in range(names)] + [(boto_hub, n) for n in range(0, names, 4)]
        self._tasks = [asyncio.create_task(self._write(client, n)) for client, n in writers]
        for i, (plain, boto) in enumerate(zip(at_spokes, boto_spokes, strict=True)):
            self._tasks += [
                asyncio.create_task(self._read(client, f"spoke {i}", names))
                for client in (plain, plain, plain, boto)
            ]

    async def _write(self, client: Client, name: int) -> None:
        while self._going_on:
            if self._rng.random() < 0.15:
                await self.witness.delete(client, name)
            else:
                await self.witness.put(client, name)
            await asyncio.sleep(self._rng.uniform(0.0, 0.3))

    async def _read(self, client: Client, who: str, names: int) -> None:
        while self._going_on:
            try:
                verb = self._rng.choice(VERBS)
                await self.witness.read(client, verb, self._rng.randrange(names), who)
            except Unanswered:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.005)

    async def stop(self) -> Witness:
        self._going_on = False
        await asyncio.gather(*self._tasks)
        return self.witness


async def with_faults(fleet: Fleet, faults: list[tuple[str, float, Node]], seed: int) -> Witness:
    async with asyncio.timeout(FAULTS_S), doors(fleet) as opened:
        traffic = Traffic(opened, seed)
        for fault, seconds, victim in faults:
            await asyncio.sleep(0.5)
            await cause(fault, fleet, seconds, victim)
        for spoke in fleet.spokes:
            await asyncio.to_thread(spoke.fresh)
        await asyncio.sleep(0.5)
        return await traffic.stop()


def history_is_linearizable(witness: Witness, least: int) -> None:
    print(dict(witness.counts))
    violations = check(witness.history)
    assert violations == [], "\n".join(map(str, violations))
    for verb in ("put", *VERBS):
        assert witness.counts[verb] > least, (witness.counts, witness.failures)
    assert witness.counts["get failed"] > 0, "the faults came to nobody's notice"


def test_a_history_with_every_fault_is_linearizable(tmp_path: Path) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED]) as fleet:
        one, two = fleet.spokes
        faults = [
            ("partition", 2.6, one),
            ("stop", 2.6, two),
            ("stop", 1.0, fleet.hub),
            ("kill", 0.4, one),
            ("kill", 0.4, fleet.hub),
        ]
        history_is_linearizable(asyncio.run(with_faults(fleet, faults, 0)), 30)


def soak_with_faults(fleet: Fleet, seed: int) -> None:
    rng = random.Random(seed)
    nodes = [fleet.hub, *fleet.spokes]
    faults, left = list[tuple[str, float, Node]](), SOAK_SECONDS
    while left > 0:
        faults.append((rng.choice(FAULTS), rng.uniform(0.3, 5.0), rng.choice(nodes)))
        left -= faults[-1][1] + 0.5
    history_is_linearizable(asyncio.run(with_faults(fleet, faults, seed)), 200)


@pytest.mark.soak
@pytest.mark.timeout(FAULTS_S + 60)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_history_with_faults_is_linearizable(tmp_path: Path, seed: int) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED]) as fleet:
        soak_with_faults(fleet, seed)


@pytest.mark.soak
@pytest.mark.timeout(FAULTS_S + 60)
@pytest.mark.skipif(TunWan.available() is not None, reason=str(TunWan.available()))
def test_the_same_with_faults_over_the_kernels_own_tcp(tmp_path: Path) -> None:
    with running_fleet(tmp_path, bucket=BUCKET, policies=[STRICT, BOUNDED], tun=True) as fleet:
        soak_with_faults(fleet, 3)
