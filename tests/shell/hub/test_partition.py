"""Hub and spokes with an emulated WAN between them that stalls, resets and partitions."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubspoke.core.ids import ObjectName
from hubspoke.errors import DeadlineExceeded, HubUnavailable
from hubspoke.lab.wan import RelayWan
from tests.hub_bench import LEASE, HubBench, SpokeBench, running_spoke, until

RTT_MS = 20.0


@pytest.fixture
async def wan(hub: HubBench) -> AsyncIterator[RelayWan]:
    port = urlsplit(hub.url).port
    assert port is not None
    running = await asyncio.to_thread(RelayWan.start, port, rtt_ms=RTT_MS)
    yield running
    await asyncio.to_thread(running.close)


async def test_in_a_partition_a_change_waits_for_the_lease_and_no_longer(
    hub: HubBench, wan: RelayWan, tmp_path: Path
) -> None:
    async with running_spoke(wan.spoke_url, tmp_path / "s") as spoke:
        await spoke.fresh()
        first = await hub.put("k", b"1")
        await until(lambda: spoke.version("k") == first.version, "the first version")
        clock = spoke.follower._clock
        await asyncio.to_thread(wan.partition)
        began = clock.now()
        second = await hub.put("k", b"2")
        assert clock.now() - began < LEASE.term_s + LEASE.margin_s + 0.3
        # Nobody may have read the old value under a lease once the new one was acknowledged.
        assert spoke.follower.lease_state() == "expired"
        assert spoke.version("k") == first.version
        assert spoke.follower.admit(ObjectName("bkt", "k")) is not None
        await asyncio.to_thread(wan.heal)
        await until(
            lambda: spoke.follower.lease_state() == "valid", "the lease after the partition"
        )
        assert spoke.version("k") == second.version


async def test_at_a_quiet_hub_an_overwrite_takes_one_round_trip(
    hub: HubBench, wan: RelayWan, tmp_path: Path
) -> None:
    async with running_spoke(wan.spoke_url, tmp_path / "s") as spoke:
        await spoke.fresh()
        await hub.put("k", b"0")
        clock = spoke.follower._clock
        took = []
        for i in range(20):
            before = clock.now()
            await hub.put("k", b"%d" % i)
            took.append((clock.now() - before) * 1e3)
        # The quickest: a machine that is busy makes others slower, and none quicker.
        assert RTT_MS - 5 < min(took) < 2 * RTT_MS
        measured_s = spoke.follower.rtt_s()
        assert measured_s is not None and RTT_MS - 5 < measured_s * 1e3 < 2 * RTT_MS


async def read(spoke: SpokeBench, name: ObjectName) -> str | None:
    """Under a lease, or asked of the hub, or not at all."""
    if await spoke.follower.admitted(name, spoke.follower._clock.now() + 1) is not None:
        raise HubUnavailable("the hub cannot be asked")
    record = spoke.namespace.get(name)
    return record.entry.version if record is not None else None


async def test_no_read_without_an_age_is_stale_whatever_the_network_does(
    hub: HubBench, wan: RelayWan, tmp_path: Path
) -> None:
    """Each name has one writer; a reader that begins after an acknowledgement sees it or newer,
    and never an older version than one that was read before by anybody."""
    rng = random.Random(7)
    names = [ObjectName("bkt", f"k{i}") for i in range(6)]
    order: dict[ObjectName, list[str | None]] = {name: [None] for name in names}
    acked = dict.fromkeys(names, 0)
    seen = dict.fromkeys(names, 0)
    reads = dict.fromkeys(("fresh", "refused"), 0)
    running = True

    async def write(name: ObjectName) -> None:
        while running:
            entry = await hub.put(name.key, b"%d" % len(order[name]))
            order[name].append(entry.version)
            acked[name] = len(order[name]) - 1
            await asyncio.sleep(0.01)

    async def check(spoke: SpokeBench) -> None:
        while running:
            name = names[reads["fresh"] % len(names)]
            floor = max(acked[name], seen[name])
            try:
                version = await read(spoke, name)
            except (HubUnavailable, DeadlineExceeded):
                reads["refused"] += 1
                await asyncio.sleep(0.01)
                continue
            reads["fresh"] += 1
            known = order[name]
            # The newest may be appended and told to the spoke before its writer is answered.
            index = known.index(version) if version in known else len(known)
            assert index >= floor, (name, version, index, floor)
            seen[name] = max(seen[name], min(index, len(known) - 1))
            await asyncio.sleep(0)

    async with (
        running_spoke(wan.spoke_url, tmp_path / "s1", spoke_id="s1") as one,
        running_spoke(hub.url, tmp_path / "s2", spoke_id="s2") as two,
    ):
        await one.fresh()
        await two.fresh()
        tasks = [asyncio.create_task(write(n)) for n in names]
        tasks += [asyncio.create_task(check(s)) for s in (one, one, two)]
        for fault in ("partition", "reset", "stall", "partition", "stall", "reset"):
            await asyncio.sleep(rng.uniform(0.3, 0.6))
            await asyncio.to_thread(getattr(wan, fault))
            await asyncio.sleep(rng.uniform(0.1, 1.2))
            end = {"partition": wan.heal, "stall": wan.resume}.get(fault)
            if end is not None:
                await asyncio.to_thread(end)
        running = False
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
    assert reads["fresh"] > 500, reads
    assert reads["refused"] > 5, reads
    assert sum(acked.values()) > 50
