"""One suite for every ports.NamespaceStore: order, pages, the log, restarts, kill -9."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.lmdb_writer import Write
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.errors import FormatError, StoreUnavailable
from hubspoke.ports import Intent, NamespaceRecord, NamespaceStore, Staged
from tests.full_disk import Disk
from tests.hub_bench import until

LONG = "x" * 495
HOSTILE = [
    "a", "a/", "a//b", "a/b", "/lead", "..", "../x", "a\x00b", "a\x01", "a b", "\u00e9", "e\u0301",
    "\U0001f600", "\uffff", "\ud7ff", "\ufeff", "A", LONG, LONG + "yyyyyyy", LONG + "y" * 300,
    LONG + "y" * 301, LONG + "\x00", LONG + "yyyyyy\x00" + "z" * 500, "x" * 1024,
    "x" * 1023 + "y", "x" * 500, "x" * 501, "x" * 496, "x" * 497, "é" * 512,
]  # fmt: skip


def entry(tag: str, size: int = 1) -> ObjectEntry:
    return ObjectEntry(Version(tag), size, f"etag-{tag}", 1_700_000_000_123_456_789, {"a": "ü"})


def put(sequence: int, key: str, tag: str = "v", bucket: str = "b") -> Change:
    return Change(LogSequence(sequence), ObjectName(bucket, key), entry(tag))


def gone(sequence: int, key: str, bucket: str = "b") -> Change:
    return Change(LogSequence(sequence), ObjectName(bucket, key), None)


async def fresh(store: NamespaceStore, epoch: str, sequence: int) -> None:
    """An empty one of that epoch."""
    await store.begin_load()
    await store.adopt(Epoch(epoch), LogSequence(sequence), buckets=[])


class Bench:
    """A store, and a way to open what it left behind again."""

    def __init__(self, reopen: Callable[[], NamespaceStore]) -> None:
        self._reopen = reopen
        self.store = reopen()

    async def restart(self) -> NamespaceStore:
        await self.store.close()
        self.store = self._reopen()
        return self.store


def make_bench(kind: str, path: Path, *, keep_log: bool, log_entries_max: int = 1000) -> Bench:
    if kind == "memory":
        kept = MemoryNamespace(keep_log=keep_log, log_entries_max=log_entries_max)
        return Bench(lambda: kept)
    return Bench(
        lambda: LmdbNamespace.open(
            path, keep_log=keep_log, log_entries_max=log_entries_max, map_bytes=1 << 20
        )
    )


@pytest.fixture(params=["memory", "lmdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def hub(kind: str, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = make_bench(kind, tmp_path / "ns", keep_log=True)
    await fresh(bench.store, "e1", 0)
    yield bench
    await bench.store.close()


@pytest.fixture
async def replica(kind: str, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = make_bench(kind, tmp_path / "ns", keep_log=False)
    yield bench
    await bench.store.close()


async def test_a_change_is_visible_before_it_is_durable(hub: Bench) -> None:
    task = asyncio.ensure_future(hub.store.apply([put(1, "a", "v1"), put(2, "b", "v2")]))
    await asyncio.sleep(0)
    record = hub.store.get(ObjectName("b", "a"))
    assert record == NamespaceRecord(ObjectName("b", "a"), entry("v1"), LogSequence(1))
    assert [r.name.key for r in hub.store.scan("b", limit=10)] == ["a", "b"]
    assert hub.store.sequence == 2
    assert hub.store.changes_after(LogSequence(0), 10) == [put(1, "a", "v1"), put(2, "b", "v2")]
    await task
    assert len(hub.store) == 2


async def test_hostile_and_long_keys_are_found_and_ordered_by_their_bytes(hub: Bench) -> None:
    assert len(set(HOSTILE)) == len(HOSTILE)
    await hub.store.apply([put(i + 1, key, f"v{i}") for i, key in enumerate(HOSTILE)])
    await hub.restart()
    for i, key in enumerate(HOSTILE):
        record = hub.store.get(ObjectName("b", key))
        assert record is not None, key
        assert (record.entry.version, record.name.key) == (f"v{i}", key)
    expected = sorted(HOSTILE, key=lambda k: k.encode())
    assert [r.name.key for r in hub.store.scan("b", limit=100)] == expected
    assert len(hub.store) == len(HOSTILE)
    assert hub.store.get(ObjectName("b", LONG + "y" * 299)) is None
    assert hub.store.get(ObjectName("b", "x" * 900)) is None


async def test_pages_cut_anywhere_hold_every_key_once(hub: Bench) -> None:
    await hub.store.apply([put(i + 1, key) for i, key in enumerate(HOSTILE)])
    expected = sorted(HOSTILE)
    for limit in (1, 2, 7):
        seen: list[str] = []
        while page := hub.store.scan("b", after=seen[-1] if seen else "", limit=limit):
            seen += [r.name.key for r in page]
            assert len(page) <= limit
        assert seen == expected
    for prefix in ("a", "a/", "x", LONG, LONG + "y" * 20, "x" * 1000, "é", "zz"):
        found = [r.name.key for r in hub.store.scan("b", prefix=prefix, limit=100)]
        assert found == [k for k in expected if k.startswith(prefix)], prefix
        for after in expected:
            found = [r.name.key for r in hub.store.scan("b", prefix=prefix, after=after, limit=3)]
            assert found == [k for k in expected if k.startswith(prefix) and k > after][:3]


async def test_buckets_do_not_see_each_other(hub: Bench) -> None:
    await hub.store.set_buckets(["b", "b-2", "a"])
    await hub.store.apply([put(1, "k", bucket="b"), put(2, "k2", bucket="b-2")])
    assert [r.name.key for r in hub.store.scan("b", limit=9)] == ["k"]
    assert [r.name.key for r in hub.store.scan("b-2", limit=9)] == ["k2"]
    assert hub.store.scan("a", limit=9) == []
    assert hub.store.scan("nope", limit=9) == []
    assert (await hub.restart()).buckets() == ["a", "b", "b-2"]


async def test_a_change_with_an_empty_key_only_moves_the_sequence(hub: Bench) -> None:
    await hub.store.apply([gone(1, "")])
    assert (hub.store.sequence, len(hub.store)) == (1, 0)
    assert hub.store.scan("b", limit=5) == []
    assert hub.store.changes_after(LogSequence(0), 5) == [gone(1, "")]


async def test_delete_and_overwrite_are_seen_at_once_and_after_a_restart(hub: Bench) -> None:
    await hub.store.apply([put(1, "a", "v1"), put(2, "b", "v2"), put(3, LONG * 2, "v3")])
    await hub.store.apply([put(4, "a", "v4"), gone(5, "b"), gone(6, LONG * 2), gone(7, "never")])
    for _ in range(2):
        assert [(r.name.key, r.entry.version) for r in hub.store.scan("b", limit=9)] == [
            ("a", "v4")
        ]
        assert hub.store.get(ObjectName("b", "b")) is None
        assert (len(hub.store), hub.store.sequence, hub.store.epoch) == (1, 7, "e1")
        await hub.restart()


async def test_the_log_reaches_back_to_its_bound_only(kind: str, tmp_path: Path) -> None:
    bench = make_bench(kind, tmp_path / "ns", keep_log=True, log_entries_max=10)
    await fresh(bench.store, "e1", 100)
    for i in range(25):
        await bench.store.apply([put(101 + i, f"k{i}")])
    for _ in range(2):
        assert bench.store.changes_after(LogSequence(100), 50) is None
        kept = bench.store.changes_after(LogSequence(115), 50)
        assert kept is not None
        assert [c.sequence for c in kept] == list(range(116, 126))
        assert bench.store.changes_after(LogSequence(120), 2) == [put(121, "k20"), put(122, "k21")]
        assert bench.store.changes_after(LogSequence(125), 2) == []
        await bench.restart()
    await bench.store.close()


async def test_a_replica_keeps_no_log(replica: Bench) -> None:
    await fresh(replica.store, "e1", 4)
    await replica.store.apply([put(5, "a")])
    assert replica.store.changes_after(LogSequence(4), 5) is None
    assert replica.store.changes_after(LogSequence(5), 5) == []


async def test_a_snapshot_record_never_replaces_a_newer_one(replica: Bench) -> None:
    def record(key: str, sequence: int) -> NamespaceRecord:
        return NamespaceRecord(ObjectName("b", key), entry(f"v{sequence}"), LogSequence(sequence))

    await replica.store.begin_load()
    await replica.store.load([record("a", 7), record("b", 3), record(LONG * 2, 8)])
    await replica.store.load([record("a", 5), record("b", 4), record(LONG * 2, 2)])
    assert replica.store.epoch is None
    await replica.store.adopt(Epoch("e1"), LogSequence(5), buckets=["b"])
    await replica.store.apply([put(6, "a", "old"), gone(7, LONG * 2), put(8, "c", "v8")])
    for _ in range(2):
        versions = {r.name.key: r.entry.version for r in replica.store.scan("b", limit=9)}
        assert versions == {"a": "v7", "b": "v4", "c": "v8", LONG * 2: "v8"}
        assert (replica.store.sequence, len(replica.store)) == (8, 4)
        await replica.restart()


def loaded(key: str, sequence: int) -> NamespaceRecord:
    return NamespaceRecord(ObjectName("b", key), entry(f"v{sequence}"), LogSequence(sequence))


def keys(store: NamespaceStore) -> list[str]:
    return [r.name.key for r in store.scan("b", limit=99)]


async def test_a_first_filling_that_was_cut_short_is_known_after_a_restart(replica: Bench) -> None:
    await replica.store.begin_load()
    await replica.store.load([loaded("a", 1)])
    assert (await replica.restart()).epoch is None
    assert (keys(replica.store), len(replica.store)) == ([], 0)


async def test_what_is_there_stays_until_what_was_loaded_takes_its_place_at_once(
    replica: Bench,
) -> None:
    await fresh(replica.store, "e1", 4)
    await replica.store.apply([put(5, "old", "v5"), put(6, LONG * 2, "v6")])
    await replica.store.put_fact("kept", "yes")
    await replica.store.begin_load()
    await replica.store.load([loaded("new", 2), loaded(LONG * 2, 1)])
    assert keys(replica.store) == ["old", LONG * 2]
    await replica.store.apply([put(7, "late", "v7")])
    for _ in range(2):
        assert keys(replica.store) == ["late", "old", LONG * 2]
        assert (replica.store.epoch, replica.store.sequence, len(replica.store)) == ("e1", 7, 3)
        await replica.restart()
    adopting = asyncio.ensure_future(
        replica.store.adopt(Epoch("e2"), LogSequence(3), buckets=["b"], facts={"at": "3"})
    )
    await asyncio.sleep(0)
    assert keys(replica.store) == ["new", LONG * 2]
    await asyncio.gather(adopting, replica.store.apply([put(4, "next", "v4")]))
    for _ in range(2):
        assert keys(replica.store) == ["new", "next", LONG * 2]
        assert (replica.store.epoch, replica.store.sequence, len(replica.store)) == ("e2", 4, 3)
        assert replica.store.get(ObjectName("b", LONG * 2)) == loaded(LONG * 2, 1)
        assert (replica.store.fact("at"), replica.store.fact("kept")) == ("3", "yes")
        assert replica.store.buckets() == ["b"]
        await replica.restart()


async def test_a_filling_that_was_cut_short_leaves_nothing_to_the_next(replica: Bench) -> None:
    await fresh(replica.store, "e1", 4)
    await replica.store.begin_load()
    await replica.store.load([loaded("left", 2), loaded(LONG * 2, 1)])
    await replica.restart()
    await replica.store.begin_load()
    await replica.store.load([loaded("a", 2)])
    await replica.store.adopt(Epoch("e2"), LogSequence(9), buckets=["b"])
    assert (keys(replica.store), len(replica.store)) == (["a"], 1)


async def test_a_log_that_was_replaced_is_hidden_at_once(hub: Bench) -> None:
    await hub.store.apply([put(1, "a"), put(2, "b")])
    await hub.store.begin_load()
    adopting = asyncio.ensure_future(hub.store.adopt(Epoch("e2"), LogSequence(50), buckets=[]))
    await asyncio.sleep(0)
    assert keys(hub.store) == []
    assert hub.store.changes_after(LogSequence(0), 5) is None
    await asyncio.gather(adopting, hub.store.apply([put(51, "c")]))
    await hub.restart()
    assert (hub.store.epoch, hub.store.sequence, hub.store.buckets()) == ("e2", 51, [])
    assert keys(hub.store) == ["c"]


async def test_intents_and_facts_survive_a_restart(hub: Bench) -> None:
    name = ObjectName("b", "é")
    staged = Staged(name, "tok", 9, "etag", {"content-type": "x"})
    first = Intent(7, name, staged, Version("v0"))
    second = Intent(8, ObjectName("b", "z"), None, None)
    await asyncio.gather(hub.store.put_intent(first), hub.store.put_intent(second))
    await hub.store.put_fact("term", "2.0")
    assert (await hub.restart()).intents() == [first, second]
    await hub.store.drop_intent(7)
    await hub.store.drop_intent(7)
    assert (await hub.restart()).intents() == [second]
    assert (hub.store.fact("term"), hub.store.fact("other")) == ("2.0", None)


async def test_many_concurrent_changes_all_arrive(hub: Bench) -> None:
    await asyncio.gather(*(hub.store.apply([put(i, f"k{i:04}")]) for i in range(1, 501)))
    assert [r.name.key for r in hub.store.scan("b", limit=999)] == [
        f"k{i:04}" for i in range(1, 501)
    ]
    log = hub.store.changes_after(LogSequence(0), 999)
    assert log is not None
    assert [c.sequence for c in log] == list(range(1, 501))


key_texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    st.builds(lambda n, s: "x" * n + s, st.integers(490, 1010), st.sampled_from(["", "a", "\0"])),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ops=st.lists(st.tuples(key_texts, st.booleans()), max_size=40),
    pages=st.lists(st.tuples(key_texts, key_texts, st.integers(1, 5)), max_size=5),
)
def test_lmdb_answers_as_the_memory_store_does(
    tmp_path_factory: pytest.TempPathFactory,
    ops: list[tuple[str, bool]],
    pages: list[tuple[str, str, int]],
) -> None:
    async def run() -> None:
        path = tmp_path_factory.mktemp("ns")
        bench = make_bench("lmdb", path, keep_log=True)
        model = MemoryNamespace(keep_log=True)
        await fresh(bench.store, "e", 0)
        await fresh(model, "e", 0)
        pending: list[Awaitable[None]] = []
        for i, (key, keep) in enumerate(ops, 1):
            change = put(i, key, f"v{i}") if keep else gone(i, key)
            await model.apply([change])
            pending.append(asyncio.ensure_future(bench.store.apply([change])))
            await asyncio.sleep(0)
            assert bench.store.scan("b", limit=100) == model.scan("b", limit=100)
        await asyncio.gather(*pending)
        await bench.restart()
        assert len(bench.store) == len(model)
        for prefix, after, limit in pages:
            short = prefix[:2]
            assert bench.store.scan("b", prefix=short, after=after, limit=limit) == model.scan(
                "b", prefix=short, after=after, limit=limit
            )
        await bench.store.close()

    asyncio.run(run())


WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[3])
    from hubspoke.adapters.lmdb_namespace import LmdbNamespace
    from hubspoke.core.ids import *

    async def main():
        keep_log = sys.argv[2] == "hub"
        ns = LmdbNamespace.open(Path(sys.argv[1]), keep_log=keep_log, map_bytes=1 << 20)
        if ns.epoch is None:
            await ns.begin_load()
            await ns.adopt(Epoch("e1"), LogSequence(0), buckets=[])
        while True:
            n = ns.sequence + 1
            batch = []
            for i in range(n, n + 3):
                entry = ObjectEntry(Version(f"v{i}"), i, "e", 0, {})
                batch.append(Change(LogSequence(i), ObjectName("b", f"k{i % 50:03}" * 130), entry))
            await ns.apply(batch)
            print(ns.sequence, flush=True)

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("kind", ["hub", "replica"])
async def test_kill_9_loses_nothing_awaited_and_tears_nothing(kind: str, tmp_path: Path) -> None:
    path, floor = tmp_path / "ns", 0
    for round_ in range(4):
        child = subprocess.Popen(  # noqa: ASYNC220 - the child is to be killed, not awaited
            [sys.executable, "-c", WRITER, str(path), kind, os.getcwd()], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        for _ in range(5 + 17 * round_):
            floor = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait(10)
        if rest and rest[-1].isdigit() and len(rest) > 1:
            floor = int(rest[-2])
        store = LmdbNamespace.open(path, keep_log=kind == "hub")
        assert store.epoch == "e1"
        assert store.sequence >= floor
        assert store.sequence % 3 == 0  # a change list is one unit
        last = {}
        for i in range(1, store.sequence + 1):
            last[f"k{i % 50:03}" * 130] = i
        records = store.scan("b", limit=1000)
        assert {r.name.key: r.sequence for r in records} == last
        assert all(r.entry.version == f"v{r.sequence}" for r in records)
        assert len(store) == len(last)
        floor = store.sequence
        await store.close()


async def test_the_log_keeps_to_its_bound_in_bytes_too(tmp_path: Path) -> None:
    path = tmp_path / "ns"
    store = LmdbNamespace.open(path, keep_log=True, log_bytes_max=256 << 10)
    await fresh(store, "e1", 0)
    large = ObjectEntry(Version("v"), 1, "e", 0, {"x-amz-meta-a": "m" * 2000})
    for i in range(1, 501):
        await store.apply([Change(LogSequence(i), ObjectName("b", "k"), large)])
    assert store.changes_after(LogSequence(0), 1) is None
    kept = store.changes_after(LogSequence(499), 9)
    assert kept is not None
    assert [c.sequence for c in kept] == [500]
    oldest = next(n for n in range(500) if store.changes_after(LogSequence(n), 1) is not None)
    # Two entries fill a page of 4 KiB: about 110 of them are 256 KiB.
    assert 380 < oldest < 450
    await store.close()
    again = LmdbNamespace.open(path, keep_log=True, log_bytes_max=64 << 10)  # lowered
    for i in range(501, 511):
        await again.apply([Change(LogSequence(i), ObjectName("b", "k"), large)])
    assert again.changes_after(LogSequence(470), 1) is None
    assert again.changes_after(LogSequence(505), 1) is not None
    await again.close()


@pytest.mark.parametrize("keep_log", [True, False], ids=["hub", "replica"])
async def test_a_state_folder_does_not_grow_under_overwrites(
    tmp_path: Path, keep_log: bool
) -> None:
    path = tmp_path / "ns"
    store = LmdbNamespace.open(path, keep_log=keep_log, log_entries_max=500, map_bytes=1 << 20)
    await fresh(store, "e1", 0)

    async def overwrite(rounds: int) -> int:
        for _ in range(rounds):
            n = store.sequence + 1
            await store.apply([put(n + i, f"k{(n + i) % 200:03}", f"v{n}") for i in range(20)])
        return (path / "data.mdb").stat().st_size

    settled = await overwrite(200)
    assert await overwrite(600) < 1.25 * settled  # four times as many changes
    await store.close()


async def test_a_replica_that_is_loaded_again_and_again_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "ns"
    store = LmdbNamespace.open(path, keep_log=False, map_bytes=1 << 20)
    sizes = []
    for round_ in range(8):
        await store.begin_load()
        for start in range(0, 2000, 500):
            await store.load([loaded(f"k{i:05}", i) for i in range(start, start + 500)])
        await store.adopt(Epoch(f"e{round_}"), LogSequence(round_), buckets=["b"])
        sizes.append((path / "data.mdb").stat().st_size)
        assert len(store) == 2000
    assert sizes[-1] <= sizes[2]
    await store.close()


LOADER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from hubspoke.adapters.lmdb_namespace import LmdbNamespace
    from hubspoke.core.ids import *
    from hubspoke.core.namespace import NamespaceRecord

    async def main():
        ns = LmdbNamespace.open(Path(sys.argv[1]), keep_log=False, map_bytes=1 << 20)
        n = int(ns.sequence)
        while True:
            n += 1
            await ns.begin_load()
            entry = ObjectEntry(Version(f"v{n}"), n, "e", 0, {})
            for i in range(0, 300, 50):
                names = [ObjectName("b", f"k{j:03}" * 130) for j in range(i, i + 50)]
                await ns.load([NamespaceRecord(name, entry, LogSequence(n)) for name in names])
                print("loaded", flush=True)
            await ns.adopt(Epoch(f"e{n}"), LogSequence(n), buckets=["b"], facts={"n": str(n)})
            print("adopted", flush=True)

    asyncio.run(main())
    """
)


async def test_kill_9_while_loading_leaves_the_old_or_the_new_and_never_a_mix(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ns"
    for round_ in range(6):
        child = subprocess.Popen(  # noqa: ASYNC220 - the child is to be killed, not awaited
            [sys.executable, "-c", LOADER, str(path), os.getcwd()], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(7 + 2 * round_)]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = LmdbNamespace.open(path, keep_log=False, map_bytes=1 << 20)
        n = int(store.sequence)
        assert n >= said.count(b"adopted\n") + round_
        assert (store.epoch, store.fact("n")) == (f"e{n}", str(n))
        records = store.scan("b", limit=999)
        assert len(records) == len(store) == 300
        assert {r.entry.version for r in records} == {f"v{n}"}
        await store.close()


async def test_a_map_that_is_full_grows(tmp_path: Path) -> None:
    store = LmdbNamespace.open(tmp_path / "ns", keep_log=True, map_bytes=256 << 10)
    await fresh(store, "e", 0)
    n = 0
    for _ in range(10):
        batch = [put(n + i, f"{n + i:05}" * 40) for i in range(1, 501)]
        n += 500
        await store.apply(batch)
        assert len(store.scan("b", limit=10_000)) == n
    await store.close()


async def test_unknown_format_is_refused_at_the_hub_and_set_aside_at_a_spoke(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for keep_log in (True, False):
        path = tmp_path / f"ns-{keep_log}"
        store = LmdbNamespace.open(path, keep_log=keep_log)
        await fresh(store, "e", 9)
        meta = store._meta
        store._writer.submit(lambda txn, meta=meta: txn.put(b"format", b"99", db=meta))  # type: ignore[misc]
        await store.close()
        if keep_log:
            with pytest.raises(FormatError, match="format b'99'"):
                LmdbNamespace.open(path, keep_log=True)
        else:
            again = LmdbNamespace.open(path, keep_log=False)
            assert (again.epoch, again.sequence) == (None, 0)
            await again.close()
            assert (tmp_path / "ns-False.set-aside-1").is_dir()
    assert "set aside" in caplog.text


async def test_garbage_is_refused_at_the_hub_and_set_aside_at_a_spoke(tmp_path: Path) -> None:
    for keep_log in (True, False):
        path = tmp_path / f"ns-{keep_log}"
        path.mkdir()
        (path / "data.mdb").write_bytes(b"not a database " * 4096)
        if keep_log:
            with pytest.raises(FormatError):
                LmdbNamespace.open(path, keep_log=True)
        else:
            store = LmdbNamespace.open(path, keep_log=False)
            assert store.epoch is None
            await store.close()


async def test_hub_state_is_never_taken_for_a_replica(tmp_path: Path) -> None:
    store = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    await fresh(store, "e", 9)
    await store.close()
    with pytest.raises(FormatError, match="state of a hub"):
        LmdbNamespace.open(tmp_path / "ns", keep_log=False)
    again = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    assert again.sequence == 9
    await again.close()


async def test_a_failed_write_is_reported_to_every_later_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise ValueError("a bug")

    store = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    await fresh(store, "e", 0)
    _, failing = store._writer.submit(broken)
    with pytest.raises(StoreUnavailable, match="a bug"):
        await failing
    with pytest.raises(StoreUnavailable, match="earlier write failed"):
        await store.apply([put(1, "a")])
    await store.close()


@pytest.mark.parametrize("keep_log", [True, False])
@pytest.mark.parametrize(
    "error", [lmdb.DiskError("x"), lmdb.Error("Input/output error"), OSError(5)]
)
async def test_a_full_disk_delays_changes_and_loses_none(
    tmp_path: Path, error: Exception, keep_log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = LmdbNamespace.open(tmp_path / "ns", keep_log=keep_log)
    await fresh(store, "e", 0)
    disk = Disk(store)
    disk.error = error
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await store.apply([put(1, "a")])
    assert store.get(put(1, "a").name) is not None  # visible, only not durable
    assert store.trouble()
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await store.put_intent(Intent(7, put(1, "a").name, None, None))
    assert store.intents() == []
    if keep_log:  # the store is ahead of it
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            await store.apply([put(2, "b")])
    else:
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            await store.apply([put(2, "b")])
        assert store.sequence == 1
    await until(lambda: disk.attempts >= 2, "another attempt")
    disk.error = None
    await store.written()
    assert store.trouble() is None
    last = 2 if keep_log else 1
    await store.apply([put(last + 1, "c")])
    await store.close()
    assert caplog.text.count("cannot be written") == 1
    again = LmdbNamespace.open(tmp_path / "ns", keep_log=keep_log)
    assert (again.sequence, len(again)) == (last + 1, last + 1)
    await again.close()


async def test_an_environment_that_panics_is_opened_again(tmp_path: Path) -> None:
    store = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    await fresh(store, "e", 0)
    former = store._env
    panics = iter([lmdb.PanicError("mdb_txn_begin: fatal")])

    def panic(_: object) -> None:
        for error in panics:
            raise error

    with pytest.raises(StoreUnavailable, match="fatal"):
        await store._writer.submit(panic)[1]
    await store.written()
    assert store._env is not former
    await store.apply([put(1, "a")])
    assert store.get(put(1, "a").name) is not None
    await store.close()


async def test_a_change_that_came_about_all_the_same_is_not_made_twice(tmp_path: Path) -> None:
    store = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    await fresh(store, "e", 0)
    writer = store._writer
    commit = writer._commit

    def commit_and_fail(writes: list[Write]) -> None:
        writer._commit = commit  # type: ignore[method-assign]
        commit(writes)
        raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    writer._commit = commit_and_fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="Input/output"):
        await store.apply([put(1, "a")])
    await store.written()
    await store.apply([put(2, "b")])
    assert len(store) == 2
    assert store.changes_after(LogSequence(0), 9) == [put(1, "a"), put(2, "b")]
    await store.close()


async def test_a_namespace_whose_disk_stays_full_closes_and_keeps_what_it_had(
    tmp_path: Path,
) -> None:
    store = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    await fresh(store, "e", 0)
    disk = Disk(store)
    disk.error = OSError(28, "No space left on device")
    with pytest.raises(StoreUnavailable, match="No space left"):
        await store.apply([put(1, "a")])
    waiting = asyncio.create_task(store.written())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await store.close()
    with pytest.raises(StoreUnavailable, match="No space left"):
        await waiting
    again = LmdbNamespace.open(tmp_path / "ns", keep_log=True)
    assert again.sequence == 0
    await again.close()
