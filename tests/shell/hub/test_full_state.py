"""State folders that are full for a while: what goes on, what is refused, and what comes back."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from hubspoke import wire
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.core.ids import ObjectName
from hubspoke.core.policy import PartitionPolicy
from hubspoke.errors import HubUnavailable, StoreUnavailable
from tests.full_disk import Disk
from tests.hub_bench import HubBench, body, until
from tests.shell.hub.conftest import SpokeMaker

FULL = OSError(28, "No space left on device")
NAME = ObjectName("bkt", "k")


def disk_of(namespace: object) -> Disk:
    assert isinstance(namespace, LmdbNamespace)
    return Disk(namespace)


async def test_a_hub_whose_log_cannot_be_written_goes_on_reading_and_leasing(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    entry = await hub.put("k", b"1")
    spoke = await spoke_of(hub, policy=PartitionPolicy((), None))
    await spoke.fresh()
    disk = disk_of(hub.hub._namespace)
    disk.error = FULL
    with pytest.raises(StoreUnavailable, match="No space left"):
        await hub.put("new", b"2")
    with pytest.raises(StoreUnavailable, match=r"log cannot be written: .*No space left"):
        await hub.put("newer", b"3")
    assert hub.hub.ready() == []
    assert "writes are impossible, the log cannot be written" in hub.hub.limits()[0]
    await asyncio.sleep(2 * hub.tuning.lease.term_max_s)  # any lease would have ended
    assert spoke.follower.lease_state() == "valid"
    assert spoke.follower.admit(NAME) is None
    assert await hub.hub.read_version(NAME, entry.version, 0, 1) == b"1"
    async with aiohttp.ClientSession() as session:
        url = f"{hub.url}{wire.PREFIX}snapshot"
        async with session.get(url) as answer:
            assert answer.status == 200
    disk.error = None
    await until(lambda: hub.hub.limits() == [], "the log being written again")
    await hub.put("new", b"2")
    await until(lambda: spoke.version("new") is not None, "the change at the spoke")


async def test_a_change_the_store_has_and_the_log_has_not_comes_when_there_is_room(
    hub: HubBench, spoke_of: SpokeMaker
) -> None:
    await hub.put("k", b"1")
    spoke = await spoke_of(hub)
    await spoke.fresh()
    namespace = hub.hub._namespace
    disk = disk_of(namespace)
    complete = hub.store.complete

    async def then_full(staged: object) -> object:
        disk.error = FULL
        return await complete(staged)  # type: ignore[arg-type]

    hub.store.complete = then_full  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailable, match="No space left"):
        await hub.put("k", b"22")
    hub.store.complete = complete  # type: ignore[method-assign]
    reading = asyncio.create_task(hub.hub.resolve(NAME))
    await asyncio.sleep(0.1)
    assert not reading.done()  # neither the old nor the new version: its outcome is not durable
    disk.error = None
    assert (await reading).entry.size == 2
    await until(lambda: spoke.version("k") == namespace.get(NAME).entry.version, "at the spoke")  # type: ignore[union-attr]
    await hub.put("k", b"333")
    assert (await hub.hub.resolve(NAME)).entry.size == 3
    await until(lambda: namespace.intents() == [], "no intent left")


async def test_a_hub_stopped_with_a_full_log_settles_the_change_at_its_start(
    hub: HubBench, tmp_path: Path
) -> None:
    await hub.put("k", b"1")
    disk = disk_of(hub.hub._namespace)
    complete = hub.store.complete

    async def then_full(staged: object) -> object:
        disk.error = FULL
        return await complete(staged)  # type: ignore[arg-type]

    hub.store.complete = then_full  # type: ignore[assignment,method-assign]
    with pytest.raises(StoreUnavailable, match="No space left"):
        await hub.hub.put(NAME, {}, body(b"22"))
    hub.store.complete = complete  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await hub.stop()
    await hub.start()
    assert (await hub.hub.resolve(NAME)).entry.size == 2


async def test_a_replica_that_cannot_be_written_has_no_lease_says_so_and_goes_on_later(
    hub: HubBench, spoke_of: SpokeMaker, caplog: pytest.LogCaptureFixture
) -> None:
    await hub.put("k", b"1")
    spoke = await spoke_of(hub)
    await spoke.fresh()
    disk = disk_of(spoke.namespace)
    disk.error = FULL
    await hub.put("k", b"22")  # taken, but not durable
    await until(lambda: spoke.follower.lease_state() == "expired", "the lease given up")
    await until(lambda: [c.entry.size for c in spoke.told if c.entry] == [22 // 11], "told")
    assert "replica cannot be written" in spoke.follower.ready()[0]
    await asyncio.sleep(hub.tuning.lease.term_max_s + hub.tuning.lease.margin_s)
    loop = asyncio.get_running_loop()
    before = loop.time()
    await hub.put("new", b"3")
    assert loop.time() - before < hub.tuning.lease.ack_max_s  # nobody is waited for
    assert spoke.follower.lease_state() == "expired"
    assert spoke.follower.admit(NAME) is not None  # bounded: answered with its age
    with pytest.raises(HubUnavailable, match="replica cannot be written"):
        spoke.follower.absent(ObjectName("bkt", "new"))
    disk.error = None
    await spoke.fresh()
    await until(lambda: spoke.version("new") is not None, "the change at the spoke")
    assert spoke.follower.ready() == []
    spoke.follower.absent(ObjectName("bkt", "none"))
    for text in ("cannot be written what", "following waits", "hub lost"):
        assert caplog.text.count(text) <= 1, caplog.text
