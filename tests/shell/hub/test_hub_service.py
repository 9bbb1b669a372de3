"""The hub on a real store: order, conditions, crashes at each step, changes behind its back."""

import asyncio
import hashlib
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.folder_store import FolderStore
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import LogSequence, ObjectEntry, ObjectName
from hubspoke.core.leases import LeaseConfig
from hubspoke.core.namespace import NamespaceRecord
from hubspoke.errors import (
    BadDigest,
    BucketNotEmpty,
    DeadlineExceeded,
    HubUnavailable,
    NoSuchBucket,
    NoSuchKey,
    PreconditionFailed,
    StoreUnavailable,
    VersionChanged,
)
from hubspoke.frontends.s3.response import buffers, close
from hubspoke.hub.service import LEASE_TERM_FACT, HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import ReadResult, Staged
from hubspoke.wire import (
    FeedChanges,
    FeedResync,
    FeedStart,
    LeaseRequest,
    Message,
    ReadIndexRequest,
)
from tests.hub_bench import until

NAME = ObjectName("bkt", "k")
LEASE = LeaseConfig(term_s=0.3, term_max_s=0.4, margin_s=0.05, renew_s=0.1, ack_max_s=0.1)
TUNING = HubTuning(lease=LEASE, heartbeat_s=0.1, feed_batch=3, read_chunk_bytes=1000)


async def body(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def whole(result: ReadResult) -> bytes:
    return b"".join([part async for part in buffers(result.body)])


async def content(hub: HubService, name: ObjectName = NAME) -> bytes:
    resolved = await hub.resolve(name)
    return await whole(await hub.read(resolved, 0, resolved.entry.size, "test"))


def make(store: MemoryObjectStore | FolderStore, **kw: object) -> HubService:
    tuning = replace(TUNING, **kw)  # type: ignore[arg-type]  # forwarded keywords
    return HubService(store, MemoryNamespace(keep_log=True), BootClock(), tuning)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubService]:
    (tmp_path / "bkt").mkdir()
    service = make(FolderStore(tmp_path))
    await service.start()
    yield service
    await service.close()


async def test_what_lies_in_the_store_is_served_after_the_first_index(tmp_path: Path) -> None:
    (tmp_path / "bkt" / "deep").mkdir(parents=True)
    (tmp_path / "bkt" / "deep" / "x").write_bytes(b"hello")
    (tmp_path / "c0c").mkdir()
    hub = make(FolderStore(tmp_path))
    assert hub.ready() == ["starting"]
    with pytest.raises(HubUnavailable, match="not serving: starting"):
        await hub.resolve(NAME)
    await hub.start()
    assert hub.ready() == []
    assert (hub.progress.state, hub.progress.objects) == ("complete", 1)
    assert await hub.buckets() == ["bkt", "c0c"]
    assert await content(hub, ObjectName("bkt", "deep/x")) == b"hello"
    with pytest.raises(NoSuchKey, match="bkt/deep"):
        await hub.resolve(ObjectName("bkt", "deep"))
    with pytest.raises(NoSuchBucket, match="nope"):
        await hub.resolve(ObjectName("nope", "x"))
    await hub.close()


async def test_what_a_scan_left_out_is_told_at_the_start_and_in_the_facts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bkt").mkdir()
    (tmp_path / "NoBucket").mkdir()
    (tmp_path / "bkt" / "link").symlink_to("/etc/hostname")
    hub = make(FolderStore(tmp_path))
    await hub.start()
    skipped = {"beside the buckets: not a legal bucket name": 1, "a link out of the folder": 1}
    assert hub.facts().skipped == skipped
    examples = hub.facts().skipped_examples["a link out of the folder"]
    assert examples == [str(tmp_path / "bkt" / "link")]
    assert caplog.text.count("cannot be objects are left out: 1 x beside the buckets") == 1
    await hub.close()


async def test_put_get_overwrite_copy_delete(hub: HubService) -> None:
    first = await hub.put(NAME, {"content-type": "text/x"}, body(b"one", b"two"))
    assert await content(hub) == b"onetwo"
    second = await hub.put(NAME, {}, body(b"second"))
    assert second.version != first.version
    assert await content(hub) == b"second"
    copied = await hub.copy(await hub.resolve(NAME), ObjectName("bkt", "copy"), {})
    assert copied.etag == second.etag
    assert await content(hub, ObjectName("bkt", "copy")) == b"second"
    await hub.delete(NAME)
    await hub.delete(NAME)
    with pytest.raises(NoSuchKey):
        await hub.resolve(NAME)
    page = await hub.list_page("bkt", prefix="", after="", limit=10)
    assert [r[0] for r in page] == ["copy"]


async def test_reads_come_in_bounded_chunks(hub: HubService) -> None:
    data = bytes(range(256)) * 20
    await hub.put(NAME, {}, body(data))
    resolved = await hub.resolve(NAME)
    result = await hub.read(resolved, 100, 3500, "test")
    assert not isinstance(result.body, bytes)
    parts = [part async for part in buffers(result.body)]
    assert [len(p) for p in parts] == [1000, 1000, 1000, 500]
    assert b"".join(parts) == data[100:3600]
    assert await whole(await hub.read(resolved, 5, 0, "test")) == b""


async def test_a_reader_that_gives_up_ends_the_read_ahead(hub: HubService) -> None:
    await hub.put(NAME, {}, body(bytes(5000)))
    before = asyncio.all_tasks()
    result = await hub.read(await hub.resolve(NAME), 0, 5000, "test")
    taken = buffers(result.body)
    assert len(await anext(taken)) == 1000
    await close(taken)
    assert asyncio.all_tasks() == before


async def test_of_two_conditional_creates_one_wins(hub: HubService) -> None:
    results = await asyncio.gather(
        *(hub.put(NAME, {}, body(b"%d" % i), if_none_match=True) for i in range(5)),
        return_exceptions=True,
    )
    won = [r for r in results if isinstance(r, ObjectEntry)]
    assert len(won) == 1
    assert all(isinstance(r, ObjectEntry | PreconditionFailed) for r in results)
    assert (await hub.resolve(NAME)).entry == won[0]


async def test_if_match_holds_only_for_the_current_etag(hub: HubService) -> None:
    with pytest.raises(PreconditionFailed, match="does not exist"):
        await hub.put(NAME, {}, body(b"x"), if_match="abc")
    first = await hub.put(NAME, {}, body(b"x"))
    await hub.put(NAME, {}, body(b"y"), if_match=first.etag)
    with pytest.raises(PreconditionFailed, match=f"{first.etag} expected"):
        await hub.put(NAME, {}, body(b"z"), if_match=first.etag)
    assert await content(hub) == b"y"
    await hub.put(NAME, {}, body(b"z"), if_match="*")


async def test_a_body_that_fails_changes_nothing(hub: HubService, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise BadDigest("checksum")

    await hub.put(NAME, {}, body(b"good"))
    before = hub.facts().sequence
    with pytest.raises(BadDigest):
        await hub.put(NAME, {}, broken())
    assert await content(hub) == b"good"
    assert hub.facts().sequence == before


async def test_buckets_come_and_go_and_only_empty_ones_go(hub: HubService) -> None:
    await hub.create_bucket("second")
    await hub.create_bucket("second")
    assert await hub.buckets() == ["bkt", "second"]
    await hub.put(ObjectName("second", "x"), {}, body(b"x"))
    with pytest.raises(BucketNotEmpty):
        await hub.delete_bucket("second")
    await hub.delete(ObjectName("second", "x"))
    await hub.delete_bucket("second")
    with pytest.raises(NoSuchBucket):
        await hub.put(ObjectName("second", "x"), {}, body(b"x"))
    with pytest.raises(NoSuchBucket):
        await hub.delete_bucket("second")


async def test_nobody_sees_a_bucket_before_every_lease_knows_of_it(hub: HubService) -> None:
    await hub.put(NAME, {}, body(b"x"))
    await hub.lease(LeaseRequest("s1", hub.facts().epoch, 1))
    creating = asyncio.create_task(hub.create_bucket("second"))
    listing = asyncio.create_task(hub.buckets())
    await until(lambda: hub._core.blocked_bucket() is not None, "the revocation")
    with pytest.raises(NoSuchKey):
        await hub.resolve(ObjectName("second", "x"))
    await creating
    assert await listing in (["bkt"], ["bkt", "second"])
    assert await hub.buckets() == ["bkt", "second"]


async def test_multipart_uploads_become_one_change(hub: HubService) -> None:
    upload = await hub.create_multipart(NAME, {})
    before = hub.facts().sequence
    parts = [await hub.put_part(NAME, upload, n, body(bytes([n]) * 6_000_000)) for n in (1, 2)]
    assert [p.number for p in await hub.list_parts(NAME, upload)] == [1, 2]
    assert [u.upload_id for u in await hub.list_multiparts("bkt")] == [upload]
    entry = await hub.complete_multipart(NAME, upload, [(p.number, p.etag) for p in parts])
    assert (entry.size, entry.etag[-2:]) == (12_000_000, "-2")
    assert hub.facts().sequence == before + 1
    other = await hub.create_multipart(NAME, {})
    await hub.abort_multipart(NAME, other)
    assert await hub.list_multiparts("bkt") == []


async def test_concurrent_writers_of_many_names_all_succeed_in_one_log(hub: HubService) -> None:
    names = [ObjectName("bkt", f"k{i % 7}") for i in range(60)]
    entries = await asyncio.gather(*(hub.put(n, {}, body(b"%d" % i)) for i, n in enumerate(names)))
    assert hub.facts().sequence == 60
    for name in set(names):
        last = (await hub.resolve(name)).entry
        assert last in [e for e, n in zip(entries, names, strict=True) if n == name]
        held = await hub._store.head(name)
        assert held is not None
        assert held.version == last.version


class SlowStore(MemoryObjectStore):
    """Completes when told to, and fails as told."""

    def __init__(self) -> None:
        super().__init__(["bkt"])
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.error: Exception | None = None
        self.fail_after = False
        self.heads_fail = 0

    async def complete(self, staged: Staged) -> ObjectEntry:
        self.entered.set()
        await self.go.wait()
        if self.fail_after:
            await super().complete(staged)
        if self.error is not None:
            raise self.error
        return await super().complete(staged)

    async def head(self, name: ObjectName) -> ObjectEntry | None:
        if self.heads_fail:
            self.heads_fail -= 1
            raise StoreUnavailable("head: not now")
        return await super().head(name)


async def test_readers_of_a_name_wait_while_its_change_is_under_way() -> None:
    store = SlowStore()
    hub = make(store, read_wait_s=0.1)
    await hub.start()
    put = asyncio.create_task(hub.put(NAME, {}, body(b"x")))
    await store.entered.wait()
    with pytest.raises(DeadlineExceeded, match="bkt/k: its change has been under way"):
        await hub.resolve(NAME)
    with pytest.raises(DeadlineExceeded):
        await hub.list_page("bkt", prefix="", after="", limit=5)
    assert await hub.list_page("bkt", prefix="other", after="", limit=5) == []
    with pytest.raises(NoSuchKey):
        await hub.resolve(ObjectName("bkt", "other"))
    reads = [asyncio.create_task(hub.resolve(NAME)) for _ in range(3)]
    page = asyncio.create_task(hub.list_page("bkt", prefix="", after="", limit=5))
    await asyncio.sleep(0)
    store.go.set()
    entry = await put
    assert [r.entry for r in await asyncio.gather(*reads)] == [entry] * 3
    assert await page == [("k", entry.size, entry.etag, entry.modified_ns)]
    await hub.close()


async def test_a_client_that_goes_away_leaves_its_change_running() -> None:
    store = SlowStore()
    hub = make(store)
    await hub.start()
    put = asyncio.create_task(hub.put(NAME, {}, body(b"x")))
    await store.entered.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    store.go.set()
    assert await content(hub) == b"x"
    await hub.close()


@pytest.mark.parametrize("done", [False, True])
async def test_a_change_of_unknown_outcome_is_settled_by_a_head(
    done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    store.go.set()
    hub = make(store)
    await hub.start()
    await hub.put(NAME, {}, body(b"old"))
    store.error, store.fail_after, store.heads_fail = OSError("lost the answer"), done, 1
    with pytest.raises(StoreUnavailable, match="lost the answer"):
        await hub.put(NAME, {}, body(b"new"))
    store.error = None
    assert await content(hub) == (b"new" if done else b"old")
    assert (await hub.resolve(NAME)).entry == await store.head(NAME)
    await hub.put(NAME, {}, body(b"newer"))
    assert await content(hub) == b"newer"
    await hub.close()
    assert hub._namespace.intents() == []
    assert "settling waits for the store" in caplog.text


async def test_a_second_writer_gives_up_at_its_deadline() -> None:
    store = SlowStore()
    hub = make(store, change_wait_s=0.1)
    await hub.start()
    first = asyncio.create_task(hub.put(NAME, {}, body(b"1")))
    await store.entered.wait()
    with pytest.raises(DeadlineExceeded, match="other changes of it"):
        await hub.put(NAME, {}, body(b"2"))
    store.go.set()
    await first
    assert await content(hub) == b"1"
    assert store._staged == {}
    await hub.close()


async def test_a_lease_nobody_acknowledges_delays_a_change_by_its_term_only(
    hub: HubService,
) -> None:
    await hub.put(NAME, {}, body(b"1"))  # also waits out the time after a start
    clock = BootClock()
    epoch = hub.facts().epoch
    reply = await hub.lease(LeaseRequest("s1", epoch, 1))
    assert (reply.term_s, reply.required, reply.revocations) == (0.3, 1, [])
    assert hub.facts().spokes == ["s1"]
    before = clock.now()
    await hub.put(NAME, {}, body(b"2"))
    assert 0.25 < clock.now() - before < 0.35 + 1.0
    assert (await hub.lease(LeaseRequest("s1", "other", 1))).reason.startswith("epoch other")


async def test_an_acknowledged_revocation_lets_the_change_go_on(hub: HubService) -> None:
    await hub.put(NAME, {}, body(b"1"))
    epoch = hub.facts().epoch
    await hub.lease(LeaseRequest("s1", epoch, 1))
    put = asyncio.create_task(hub.put(NAME, {}, body(b"2")))
    acked: list[int] = []
    async with asyncio.timeout(5):
        while not acked:
            reply = await hub.lease(LeaseRequest("s1", epoch, 1))
            acked = [r.revocation_id for r in reply.revocations]
            await asyncio.sleep(0)
        assert not put.done()
        reply = await hub.lease(LeaseRequest("s1", epoch, 1, acked))
        await put
    after = await hub.lease(LeaseRequest("s1", epoch, 1))
    assert (after.required, after.revocations, after.through) == (2, [], acked[0])


async def test_a_change_behind_the_hubs_back_is_noticed_by_the_read(
    hub: HubService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await hub.put(NAME, {}, body(b"before"))
    resolved = await hub.resolve(NAME)
    (tmp_path / "bkt" / "k").write_bytes(b"behind")
    with pytest.raises(VersionChanged):
        await hub.read(resolved, 0, 6, "test")
    assert await content(hub) == b"behind"
    resolved = await hub.resolve(NAME)
    (tmp_path / "bkt" / "k").unlink()
    with pytest.raises(NoSuchKey):
        await hub.read(resolved, 0, 6, "test")
    with pytest.raises(NoSuchKey):
        await hub.resolve(NAME)
    assert hub.facts().sequence == 3


async def test_a_delete_of_a_name_only_the_store_knows_removes_it(
    hub: HubService, tmp_path: Path
) -> None:
    (tmp_path / "bkt" / "k").write_bytes(b"behind")
    await hub.delete(NAME)
    assert not (tmp_path / "bkt" / "k").exists()


async def test_a_conditional_create_keeps_what_only_the_store_has(
    hub: HubService, tmp_path: Path
) -> None:
    path = tmp_path / "bkt" / "k"
    path.write_bytes(b"behind")
    with pytest.raises(PreconditionFailed, match="exists"):
        await hub.put(NAME, {}, body(b"new"), if_none_match=True)
    assert path.read_bytes() == b"behind"
    with pytest.raises(PreconditionFailed, match="expected"):
        await hub.put(NAME, {}, body(b"new"), if_match="0" * 32)
    found = (await hub.resolve(NAME)).entry
    await hub.put(NAME, {}, body(b"new"), if_match=found.etag)
    path.unlink()
    await hub.put(NAME, {}, body(b"again"), if_none_match=True)
    assert await content(hub) == b"again"


async def test_a_file_written_during_a_conditional_upload_is_kept(
    hub: HubService, tmp_path: Path
) -> None:
    path = tmp_path / "bkt" / "k"

    async def slow() -> AsyncIterator[bytes]:
        yield b"new"
        path.write_bytes(b"behind")

    with pytest.raises(PreconditionFailed, match="exists"):
        await hub.put(NAME, {}, slow(), if_none_match=True)
    assert path.read_bytes() == b"behind"


async def test_a_name_only_the_store_has_is_found_when_asked_for(
    hub: HubService, tmp_path: Path
) -> None:
    path = tmp_path / "bkt" / "k"
    path.write_bytes(b"behind")
    assert await content(hub) == b"behind"
    assert [r[0] for r in await hub.list_page("bkt", prefix="", after="", limit=9)] == ["k"]
    path.unlink()
    with pytest.raises((NoSuchKey, VersionChanged)):
        await content(hub)
    path.write_bytes(b"once more")
    assert await content(hub) == b"once more"


async def test_a_storm_of_misses_is_no_storm_of_heads() -> None:
    store = SlowStore()
    store.go.set()
    hub = make(store, absent_s=60.0, absent_max=2)
    await hub.start()
    names = [ObjectName("bkt", f"none-{i}") for i in range(3)]
    heads = 0
    head = store.head

    async def counted(name: ObjectName) -> ObjectEntry | None:
        nonlocal heads
        heads += 1
        await asyncio.sleep(0)
        return await head(name)

    store.head = counted  # type: ignore[method-assign]
    for _ in range(5):
        answers = await asyncio.gather(
            *(hub.resolve(names[0]) for _ in range(100)), return_exceptions=True
        )
        assert {type(a) for a in answers} == {NoSuchKey}
    assert heads == 1
    for name in names:
        with pytest.raises(NoSuchKey):
            await hub.resolve(name)
    assert len(hub._lookups._absent) == 2
    await hub.close()


async def test_a_store_that_does_not_answer_makes_no_name_absent() -> None:
    store = SlowStore()
    store.go.set()
    hub = make(store)
    await hub.start()
    store.heads_fail = 1
    with pytest.raises(StoreUnavailable):
        await hub.resolve(NAME)
    await hub.close()


async def restart(state: Path, root: Path) -> HubService:
    namespace = LmdbNamespace.open(state, keep_log=True)
    hub = HubService(FolderStore(root), namespace, BootClock(), TUNING)
    await hub.start()
    return hub


async def reconciled(hub: HubService) -> None:
    await until(lambda: hub.facts().watch.rescans > 0, "the comparison of the start")


async def test_changes_made_while_the_hub_was_away_become_log_entries(tmp_path: Path) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    (root / "bkt").mkdir(parents=True)
    hub = await restart(state, root)
    for key in ("same", "changed", "gone"):
        await hub.put(ObjectName("bkt", key), {}, body(key.encode()))
    epoch, before = hub.facts().epoch, hub.facts().sequence
    await hub.close()
    (root / "bkt" / "changed").write_bytes(b"else")
    (root / "bkt" / "gone").unlink()
    (root / "bkt" / "new").write_bytes(b"new")
    (root / "other").mkdir()
    hub = await restart(state, root)
    await reconciled(hub)
    assert (hub.facts().epoch, hub.facts().sequence) == (epoch, before + 4)
    assert hub.progress.state == "complete"
    assert hub.progress.changed == 3
    page = await hub.list_page("bkt", prefix="", after="", limit=9)
    assert [r[0] for r in page] == ["changed", "new", "same"]
    assert await content(hub, ObjectName("bkt", "changed")) == b"else"
    assert await hub.buckets() == ["bkt", "other"]
    await hub.close()


async def test_a_first_index_cut_short_begins_anew_under_its_own_epoch(tmp_path: Path) -> None:
    namespace = MemoryNamespace(keep_log=True)
    store = MemoryObjectStore(["bkt"])
    for i in range(3):
        entry = await store.complete(await store.stage(ObjectName("bkt", f"k{i}"), {}, body(b"x")))
    await namespace.begin_load()
    await namespace.load([NamespaceRecord(ObjectName("bkt", "gone"), entry, LogSequence(1))])
    hub = HubService(store, namespace, BootClock(), TUNING, new_epoch=lambda: "fresh")
    await hub.start()
    assert (hub.facts().epoch, hub.facts().objects) == ("fresh", 3)
    await hub.close()


async def test_after_a_restart_the_first_change_waits_out_the_leases_and_reads_do_not(
    tmp_path: Path,
) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    (root / "bkt").mkdir(parents=True)
    hub = await restart(state, root)
    await hub.put(NAME, {}, body(b"1"))
    await hub.close()
    hub = await restart(state, root)
    clock = BootClock()
    before = clock.now()
    await hub.put(NAME, {}, body(b"2"))  # no lease was ever granted
    assert clock.now() - before < 0.2
    await hub.lease(LeaseRequest("s1", hub.facts().epoch, 2))
    await hub.close()
    hub = await restart(state, root)
    before = clock.now()
    assert await content(hub) == b"2"
    assert clock.now() - before < 0.2
    await hub.put(NAME, {}, body(b"3"))
    assert clock.now() - before > 0.25
    await hub.close()


class UnsweptStore(MemoryObjectStore):
    """Fails the last step of each start, so long as told to."""

    swept = False

    async def sweep(self, keep: Collection[str]) -> None:
        if not self.swept:
            raise StoreUnavailable("not swept")


async def test_a_first_start_cut_short_behind_its_index_still_waits_out_the_leases() -> None:
    """The next start finds an epoch, but the leases of whoever served the store before run on."""
    store, namespace, clock = UnsweptStore(["bkt"]), MemoryNamespace(keep_log=True), BootClock()
    with pytest.raises(StoreUnavailable, match="not swept"):
        await HubService(store, namespace, clock, TUNING).start()
    assert namespace.epoch is not None
    store.swept = True
    before = clock.now()
    hub = HubService(store, namespace, clock, TUNING)
    await hub.start()
    await hub.put(NAME, {}, body(b"1"))
    assert clock.now() - before >= TUNING.lease.term_max_s
    await hub.close()
    # They have run out, and no lease was granted since: the next start need not wait.
    assert namespace.fact(LEASE_TERM_FACT) == "0.0"


class SetClock(BootClock):
    """Somebody has set the Unix time forward by so much, or back."""

    def __init__(self, by_s: int) -> None:
        self._by_s = by_s

    def unix_ns(self) -> int:
        return super().unix_ns() + self._by_s * 10**9


async def test_revocation_ids_rise_also_when_the_unix_clock_is_set_back() -> None:
    """A spoke would take a new revocation for an old one that is over, and read on."""
    store, namespace = MemoryObjectStore(["bkt"]), MemoryNamespace(keep_log=True)
    through = 0
    for by_s in (0, -86400, 86400, -86400 * 365):
        hub = HubService(store, namespace, SetClock(by_s), TUNING)
        await hub.start()
        ask = ReadIndexRequest("s1", hub.facts().epoch)
        assert hub.read_index(ask).through >= through
        await hub.put(NAME, {}, body(b"1"))
        assert hub.read_index(ask).through > through
        through = hub.read_index(ask).through
        await hub.close()


# Crashes ---------------------------------------------------------------------------------------

STEPS = ["staged", "intent", "completing", "completed", "applying", "applied", "acknowledged"]

VICTIM = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from pathlib import Path
    from hubspoke.adapters.clock import BootClock
    from hubspoke.adapters.folder_store import FolderStore
    from hubspoke.adapters.lmdb_namespace import LmdbNamespace
    from hubspoke.core.ids import ObjectName
    from hubspoke.core.leases import LeaseConfig
    from hubspoke.hub.service import LEASE_TERM_FACT, HubService
    from hubspoke.hub.tuning import HubTuning

    root, state, step, what = sys.argv[1:]
    armed = False

    def here(at):
        if armed and at == step:
            os.kill(os.getpid(), signal.SIGKILL)

    class Store(FolderStore):
        async def stage(self, *a):
            staged = await super().stage(*a)
            here("staged")
            return staged
        async def complete(self, staged):
            here("completing")
            entry = await super().complete(staged)
            here("completed")
            return entry
        async def delete(self, name):
            here("completing")
            await super().delete(name)
            here("completed")

    class Namespace(LmdbNamespace):
        async def put_intent(self, intent):
            await super().put_intent(intent)
            here("intent")
        async def apply(self, changes):
            here("applying")
            await super().apply(changes)
            here("applied")

    async def body(data):
        yield data

    async def main():
        global armed
        lease = LeaseConfig(term_s=0.05, term_max_s=0.05, margin_s=0.01)
        namespace = Namespace.open(Path(state), keep_log=True)
        hub = HubService(Store(Path(root)), namespace, BootClock(), HubTuning(lease=lease))
        await hub.start()
        name = ObjectName("bkt", "k")
        if what != "create":
            await hub.put(name, {"content-type": "text/x"}, body(b"old"))
        armed = True
        if what == "delete":
            await hub.delete(name)
        else:
            await hub.put(name, {"content-type": "text/x"}, body(b"new"))
        here("acknowledged")
        await asyncio.sleep(30)

    asyncio.run(main())
    """
)


@pytest.mark.parametrize(
    ("what", "step"),
    [
        (what, step)
        for what in ("create", "overwrite", "delete")
        for step in STEPS
        if (what, step) != ("delete", "staged")  # a delete stages nothing
    ],
)
async def test_a_hub_killed_at_any_step_of_a_change_settles_it_at_start(
    step: str, what: str, tmp_path: Path
) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    (root / "bkt").mkdir(parents=True)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, str(root), str(state), step, what, stderr=subprocess.PIPE
    )
    _, complaint = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == -9, complaint.decode()
    hub = await restart(state, root)
    await reconciled(hub)
    done = STEPS.index(step) >= STEPS.index("completed")
    old = None if what == "create" else b"old"
    new = None if what == "delete" else b"new"
    expected = new if done else old
    if expected is None:
        with pytest.raises(NoSuchKey):
            await hub.resolve(NAME)
    else:
        assert await content(hub) == expected
    entry, held = hub.known(NAME), await hub._store.head(NAME)
    assert (entry and entry.version) == (held and held.version)
    if expected is not None:
        assert entry is not None
        assert entry.etag == hashlib.md5(expected).hexdigest()
        assert entry.headers == {"content-type": "text/x"}
    assert hub._namespace.intents() == []
    sequences = (0 if what == "create" else 1) + done
    assert hub.facts().sequence == sequences
    await hub.put(NAME, {}, body(b"after"))
    assert await content(hub) == b"after"
    await hub.close()


# The feed --------------------------------------------------------------------------------------


async def take(feed: AsyncIterator[Message], sequence: int) -> list[int]:
    """Sequences that arrive until `sequence` has."""
    seen: list[int] = []
    async with asyncio.timeout(5):
        async for message in feed:
            if isinstance(message, FeedChanges):
                seen += [e.sequence for e in message.entries]
            if seen and seen[-1] >= sequence:
                return seen
    raise AssertionError("the feed ended")


async def test_a_feed_goes_on_from_the_log_and_then_live(hub: HubService) -> None:
    for i in range(8):
        await hub.put(ObjectName("bkt", f"k{i}"), {}, body(b"x"))
    feed = hub.feed(hub.facts().epoch, 2)
    start = await anext(feed)
    assert isinstance(start, FeedStart)
    assert (start.sequence, start.buckets) == (8, ["bkt"])
    assert await take(feed, 8) == [3, 4, 5, 6, 7, 8]
    await asyncio.gather(*(hub.put(ObjectName("bkt", f"n{i}"), {}, body(b"x")) for i in range(10)))
    assert await take(feed, 18) == list(range(9, 19))
    await feed.aclose()  # type: ignore[attr-defined]  # a generator


async def test_a_feed_that_fell_behind_the_ring_goes_on_from_the_log(tmp_path: Path) -> None:
    hub = make(MemoryObjectStore(["bkt"]), tail_entries_max=4)
    await hub.start()
    feed = hub.feed(hub.facts().epoch, 0)
    await anext(feed)
    await hub.put(NAME, {}, body(b"x"))
    assert await take(feed, 1) == [1]
    for _ in range(20):
        await hub.put(NAME, {}, body(b"x"))
    assert await take(feed, 21) == list(range(2, 22))
    await hub.close()


async def test_only_a_spoke_the_log_has_passed_must_take_a_snapshot() -> None:
    namespace = MemoryNamespace(keep_log=True, log_entries_max=5)
    hub = HubService(
        MemoryObjectStore(["bkt"]), namespace, BootClock(), replace(TUNING, tail_entries_max=2)
    )
    await hub.start()
    epoch = hub.facts().epoch
    slow, quick = hub.feed(epoch, 0), hub.feed(epoch, 0)
    await anext(slow)
    await anext(quick)
    for i in range(1, 21):
        await hub.put(NAME, {}, body(b"x"))
        assert await take(quick, i) == [i]
    message = await anext(slow)
    assert isinstance(message, FeedResync)
    assert "dropped sequence 1" in message.reason
    for after, reason in ((3, "no longer reaches"), (99, "ahead of 20")):
        refused = await anext(hub.feed(epoch, after))
        assert isinstance(refused, FeedResync)
        assert reason in refused.reason
    other = await anext(hub.feed("other", 20))
    assert isinstance(other, FeedResync)
    await hub.close()
