"""Changes made in a folder store behind a running hub's back: each becomes one log entry.

The store is a real folder under the kernel's notifications, or under rescans where these cannot
be had; what cannot be had here (an overflow, the watch limit) is put in at the border to the
kernel.
"""

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hubspoke.adapters import inotify
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.folder_store import FolderStore
from hubspoke.adapters.folder_watch import FolderWatch
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import LogSequence, ObjectName
from hubspoke.core.noticed import NoticedConfig
from hubspoke.errors import ConfigError, HubSpokeError, NoSuchKey, StoreUnavailable
from hubspoke.frontends.s3.response import buffers
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from tests.hub_bench import until

TUNING = HubTuning(stranger_term_s=0.0, reconcile_rest_s=0.05, reconcile_retry_s=0.2)


class Bench:
    """A hub over a folder, and what its log says."""

    def __init__(self, root: Path, tuning: HubTuning = TUNING, bucket: str | None = None) -> None:
        self.root = root
        self.namespace = MemoryNamespace(keep_log=True)
        self.store = FolderStore(root, bucket)
        self.source = FolderWatch(root, bucket)
        self.hub = HubService(self.store, self.namespace, BootClock(), tuning, source=self.source)

    async def start(self, mode: str = "notifications") -> None:
        await self.hub.start()
        await until(lambda: self.mode() == mode and self.hub.facts().watch.rescans > 0, mode)

    def mode(self) -> str:
        return self.hub.facts().watch.mode

    def names(self, bucket: str = "bkt") -> list[str]:
        return [r.name.key for r in self.namespace.scan(bucket, limit=1_000_000)]

    def entries(self, key: str, bucket: str = "bkt") -> int:
        """Log entries of a name."""
        changes = self.namespace.changes_after(LogSequence(0), 1_000_000) or []
        return sum(c.name == ObjectName(bucket, key) for c in changes)

    async def sees(self, *keys: str, bucket: str = "bkt") -> None:
        await until(lambda: self.names(bucket) == sorted(keys), f"{keys} in {bucket}", 20)

    async def content(self, key: str, bucket: str = "bkt") -> bytes:
        resolved = await self.hub.resolve(ObjectName(bucket, key))
        result = await self.hub.read(resolved, 0, resolved.entry.size, "test")
        return b"".join([part async for part in buffers(result.body)])

    async def settled(self) -> None:
        """All that was noticed so far has been looked at."""
        mark = self.root / "mark" / os.urandom(4).hex()
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        await until(lambda: mark.name in self.names("mark"), "a mark")
        await until(lambda: self.hub.facts().watch.waiting == 0, "nothing waits")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    (tmp_path / "root" / "bkt").mkdir(parents=True)
    bench = Bench(tmp_path / "root")
    await bench.start()
    yield bench
    await bench.hub.close()


async def test_every_kind_of_change_of_a_file_becomes_one_log_entry(bench: Bench) -> None:
    file = bench.root / "bkt" / "a"
    file.write_bytes(b"one")
    await bench.sees("a")
    assert await bench.content("a") == b"one"
    (bench.root / "beside").write_bytes(b"two")

    async def next_entry(change: Callable[[], object], what: str) -> None:
        before = bench.entries("a")
        change()
        await until(lambda: bench.entries("a") > before, what)
        await bench.settled()
        assert bench.entries("a") == before + 1, what

    await next_entry(lambda: (bench.root / "beside").rename(file), "renamed over")
    assert await bench.content("a") == b"two"
    await next_entry(lambda: file.write_bytes(b"owt"), "overwritten in place, same size")
    assert await bench.content("a") == b"owt"

    def append() -> None:
        with file.open("ab") as f:
            f.write(b"+more")

    await next_entry(append, "appended")
    assert await bench.content("a") == b"owt+more"
    await next_entry(lambda: os.truncate(file, 3), "truncated")
    assert await bench.content("a") == b"owt"
    await next_entry(lambda: file.chmod(0o600), "its rights changed")
    await next_entry(lambda: file.rename(bench.root / "bkt" / "b"), "renamed away")
    await bench.sees("b")
    (bench.root / "bkt" / "b").unlink()
    await bench.sees()
    assert bench.hub.facts().watch.lost == 0


async def test_changes_through_the_hub_are_no_second_entry(bench: Bench) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"

    before = bench.hub.facts().sequence
    for i in range(20):
        await bench.hub.put(ObjectName("bkt", f"d{i}/k"), {}, body())
    for i in range(10):
        await bench.hub.delete(ObjectName("bkt", f"d{i}/k"))
    assert bench.hub.facts().sequence == before + 30
    await bench.settled()
    watch = bench.hub.facts().watch
    assert watch.changes == 1, "the mark"
    assert len(bench.names()) == 10


async def test_folders_that_come_filled_or_go_are_seen_with_all_that_is_in_them(
    bench: Bench, tmp_path: Path
) -> None:
    bkt = bench.root / "bkt"
    for i in range(50):  # filled before any watch can be there
        (bkt / f"n{i:02}" / "deep").mkdir(parents=True)
        (bkt / f"n{i:02}" / "deep" / "f").write_bytes(b"x")
    await bench.sees(*(f"n{i:02}/deep/f" for i in range(50)))
    for i in range(50):
        shutil.rmtree(bkt / f"n{i:02}")
    await bench.sees()
    tree = tmp_path / "tree"
    (tree / "x" / "y").mkdir(parents=True)
    (tree / "x" / "1").touch()
    (tree / "x" / "y" / "2").touch()
    tree.rename(bkt / "in")
    await bench.sees("in/x/1", "in/x/y/2")
    (bkt / "in" / "x").rename(bkt / "moved")
    await bench.sees("moved/1", "moved/y/2")
    (bkt / "moved" / "y" / "3").touch()  # the watches went along
    await bench.sees("moved/1", "moved/y/2", "moved/y/3")
    (bkt / "moved").rename(tmp_path / "out")
    await bench.sees()
    (tmp_path / "out" / "y" / "4").touch()  # and ended
    await bench.settled()
    assert bench.names() == []
    assert bench.hub.facts().watch.folders == 4, "root, bkt, in, mark"


async def test_two_folders_that_change_places_are_told_apart(bench: Bench) -> None:
    bkt = bench.root / "bkt"
    for folder in ("a", "b"):
        (bkt / folder).mkdir()
        (bkt / folder / f"of-{folder}").write_text(folder)
    await bench.sees("a/of-a", "b/of-b")
    (bkt / "a").rename(bkt / "c")
    (bkt / "b").rename(bkt / "a")
    (bkt / "c").rename(bkt / "b")
    await bench.sees("a/of-b", "b/of-a")
    (bkt / "a" / "new").touch()
    await bench.sees("a/new", "a/of-b", "b/of-a")


async def test_buckets_come_and_go_with_their_objects(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "k").write_bytes(b"x")
    (tmp_path / "new").rename(bench.root / "new")
    (bench.root / "Not.A.Bucket").mkdir()
    (bench.root / "empty").mkdir()
    await until(lambda: bench.namespace.buckets() == ["bkt", "empty", "new"], "buckets")
    await bench.sees("k", bucket="new")
    assert await bench.hub.buckets() == ["bkt", "empty", "new"]
    (bench.root / "new").rename(tmp_path / "away")
    (bench.root / "empty").rmdir()
    await until(lambda: bench.namespace.buckets() == ["bkt"], "buckets gone")
    assert bench.namespace.get(ObjectName("new", "k")) is None


async def test_one_bucket_that_is_the_whole_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".hubspoke" / "staging").mkdir(parents=True)
    bench = Bench(root, bucket="one")
    await bench.start()
    (root / "a").touch()
    (root / "d").mkdir()
    (root / "d" / "b").touch()
    (root / ".hubspoke" / "staging" / "x").touch()
    await bench.sees("a", "d/b", bucket="one")
    assert bench.hub.facts().watch.folders == 2
    await bench.hub.close()


async def test_names_that_cannot_be_objects_stop_nothing(bench: Bench, tmp_path: Path) -> None:
    bkt = bench.root / "bkt"
    raw = os.fsencode(bkt)
    os.mkdir(raw + b"/\xff\xfe")
    for bad in (b"/\xff\xfe/inside", b"/\xfd"):
        os.mknod(raw + bad)
    deep = bkt
    for _ in range(12):  # a key of more than 1,024 bytes
        deep = deep / ("d" * 100)
        deep.mkdir()
        (deep / "f").touch()
    (bkt / "loop").symlink_to(bkt)
    (bkt / "out").symlink_to(tmp_path)
    (bkt / "dangling").symlink_to("nowhere")
    os.mkfifo(bkt / "pipe")
    (bkt / "new\nline").touch()
    (bkt / "é").touch()
    await until(lambda: "é" in bench.names() and "new\nline" in bench.names(), "the good names")
    (bkt / "after").touch()
    await until(lambda: "after" in bench.names(), "what comes after them")
    await bench.settled()
    below = ["/".join(["d" * 100] * n) + "/f" for n in range(1, 11)]
    assert bench.names() == sorted([*below, "after", "new\nline", "é"])
    assert bench.hub.facts().watch.lost == 0


async def test_what_is_replaced_by_something_that_cannot_be_opened_is_gone(bench: Bench) -> None:
    for key in ("link", "socket", "below/a"):
        (bench.root / "bkt" / key).parent.mkdir(exist_ok=True)
        (bench.root / "bkt" / key).write_bytes(b"x")
    await bench.sees("below/a", "link", "socket")
    (bench.root / "bkt" / "link").unlink()
    (bench.root / "bkt" / "link").symlink_to("link")
    (bench.root / "bkt" / "socket").unlink()
    os.mknod(bench.root / "bkt" / "socket", stat.S_IFSOCK)
    shutil.rmtree(bench.root / "bkt" / "below")
    (bench.root / "bkt" / "below").symlink_to("below")
    await bench.sees()


async def test_a_slow_writer_makes_few_entries_and_readers_get_one_version(bench: Bench) -> None:
    file = bench.root / "bkt" / "slow"
    file.write_bytes(bytes([0]) * 200_000)
    await bench.sees("slow")
    reads, changed = [], 0
    with file.open("r+b", buffering=0) as f:
        for i in range(200):
            f.write(bytes([1]) * 1000)
            if i % 5 == 0:
                try:
                    reads.append(await bench.content("slow"))
                except HubSpokeError:
                    changed += 1
            await asyncio.sleep(0.002)
    await bench.settled()
    assert await bench.content("slow") == bytes([1]) * 200_000
    for data in reads:  # one moment of the file each
        ones = data.count(1)
        assert data == bytes([1]) * ones + bytes([0]) * (200_000 - ones)
    # One for each read that found the file changed, which looks at it, and one for the end.
    assert bench.entries("slow") <= 2 + changed + len(reads)


async def test_a_slow_writer_alone_makes_one_entry(bench: Bench) -> None:
    file = bench.root / "bkt" / "slow"
    with file.open("wb", buffering=0) as f:
        for _ in range(300):
            f.write(bytes(1000))
            await asyncio.sleep(0.002)
    await bench.sees("slow")
    await bench.settled()
    assert bench.namespace.get(ObjectName("bkt", "slow")).entry.size == 300_000  # type: ignore[union-attr]
    # A pause of the writer that is longer than 100 ms, on a busy machine, is an end to it.
    assert bench.entries("slow") <= 3


async def test_a_writer_that_never_closes_is_seen(bench: Bench) -> None:
    with (bench.root / "bkt" / "open").open("wb", buffering=0) as f:
        f.write(b"one")
        await bench.sees("open")
        await until(lambda: bench.entries("open") > 0, "first")
        f.write(b"two")
        await until(
            lambda: bench.namespace.get(ObjectName("bkt", "open")).entry.size == 6,  # type: ignore[union-attr]
            "second",
        )


async def test_a_storm_of_files_is_seen_whole_in_bounded_memory(bench: Bench) -> None:
    bkt = bench.root / "bkt"
    most = 0

    def copy() -> None:
        for d in range(20):
            (bkt / f"d{d:02}").mkdir()
            for i in range(300):
                (bkt / f"d{d:02}" / f"{i:03}").write_bytes(b"x")

    small = NoticedConfig(names_max=300, names_per_folder_max=100, parts_max=10)
    bench.hub._watch._noticed._config = small
    copying = asyncio.create_task(asyncio.to_thread(copy))
    while not copying.done():
        most = max(most, bench.hub.facts().watch.waiting)
        await asyncio.sleep(0.005)
    await until(lambda: len(bench.names()) == 6000, "6,000 files", 60)
    assert most <= small.names_max + small.parts_max
    for d in range(20):
        await asyncio.to_thread(shutil.rmtree, bkt / f"d{d:02}")
    await until(lambda: not bench.names(), "none", 60)


# Where notifications fail -----------------------------------------------------------------------


async def test_an_overflow_of_the_kernels_queue_is_a_comparison_of_everything(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bkt = bench.root / "bkt"
    (bkt / "gone").touch()
    await bench.sees("gone")
    real = inotify.Inotify.read
    lost = False

    def overflowing(self: inotify.Inotify) -> list[inotify.Event]:
        """As the kernel does: events are missing, and one says so."""
        nonlocal lost
        events = real(self)
        if not lost and any(e.name == b"last" for e in events):
            lost = True
            return [inotify.Event(-1, inotify.OVERFLOW, b"")]
        return [] if not lost else events

    monkeypatch.setattr(inotify.Inotify, "read", overflowing)
    (bkt / "gone").unlink()
    (bkt / "d").mkdir()
    (bkt / "d" / "new").touch()
    (bkt / "last").touch()
    await bench.sees("d/new", "last")
    await until(lambda: bench.mode() == "notifications", "notifications again")
    assert bench.hub.facts().watch.lost == 1
    (bkt / "d" / "after").touch()  # in a folder whose coming was lost
    await bench.sees("d/after", "d/new", "last")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "max_user_watches"), (errno.EMFILE, "max_user_instances")],
)
async def test_without_watches_everything_is_compared_at_the_interval_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    root = tmp_path / "root"
    (root / "bkt" / "a").mkdir(parents=True)
    real = inotify.Inotify.add
    left = 2  # watches, for three folders

    def limited(self: inotify.Inotify, path: bytes, mask: int) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(number, "limit")
        left -= 1
        return real(self, path, mask)

    monkeypatch.setattr(inotify.Inotify, "add", limited)
    bench = Bench(root, replace(TUNING, rescan_s=0.1))
    await bench.hub.start()
    await until(lambda: bench.mode() == "rescan", "rescan")
    text = bench.hub.facts().watch.text()
    assert text.startswith("rescan every 0.1 s: ") and reason in text
    assert bench.hub.facts().watch.folders == 0, "watches that do not help are given back"
    (root / "bkt" / "a" / "new").touch()
    await bench.sees("a/new")
    (root / "bkt" / "a" / "new").unlink()
    await bench.sees()
    left = 1000  # the limit was raised
    await until(lambda: bench.mode() == "notifications", "notifications")
    await bench.hub.close()


async def test_a_limit_met_while_it_watches_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: inotify.Inotify, path: bytes, mask: int) -> int:
        raise OSError(errno.ENOSPC, "limit")

    monkeypatch.setattr(inotify.Inotify, "add", full)
    (bench.root / "bkt" / "d").mkdir()
    (bench.root / "bkt" / "d" / "f").touch()
    await until(lambda: bench.mode() == "off", "off: no interval is set here")
    assert "max_user_watches" in bench.hub.facts().watch.text()
    await bench.sees("d/f")


async def test_a_file_system_that_may_not_tell_all_changes_is_rescanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root" / "bkt").mkdir(parents=True)
    monkeypatch.setattr(inotify, "LOCAL", {})
    bench = Bench(tmp_path / "root", replace(TUNING, rescan_s=0.05))
    await bench.start("rescan")
    assert "changes made elsewhere are not told" in bench.hub.facts().watch.text()
    (tmp_path / "root" / "bkt" / "a").touch()
    await bench.sees("a")
    await bench.hub.close()


async def test_a_store_folder_that_goes_away_is_no_deletion(bench: Bench, tmp_path: Path) -> None:
    (bench.root / "bkt" / "a").write_bytes(b"x")
    await bench.sees("a")
    bench.root.rename(tmp_path / "elsewhere")
    bench.root.mkdir()  # as an unmounted file system leaves it
    await until(lambda: bench.hub.facts().watch.lost > 0, "the loss")
    await until(lambda: bench.hub.progress.state == "reconciling", "an attempt")
    with pytest.raises(StoreUnavailable):
        await bench.hub.settle(ObjectName("bkt", "a"))
    with pytest.raises(StoreUnavailable, match="not the one it was"):
        await bench.content("a")  # and not: no such key
    await until(lambda: "not the one it was" in str(bench.hub.limits()), "it says so")
    assert bench.names() == ["a"] and bench.namespace.buckets() == ["bkt"]
    bench.root.rmdir()
    (tmp_path / "elsewhere").rename(bench.root)
    await until(lambda: not bench.hub.limits(), "a comparison with what is back")
    assert await bench.content("a") == b"x"
    (bench.root / "bkt" / "b").write_bytes(b"y")
    await bench.sees("a", "b")


async def test_a_hub_does_not_start_on_a_store_that_shows_nothing_of_its_log(
    bench: Bench, tmp_path: Path
) -> None:
    (bench.root / "bkt" / "a").write_bytes(b"x")
    await bench.sees("a")
    await bench.hub.close()
    bench.root.rename(tmp_path / "elsewhere")
    for left in ((), ("bkt",)):  # the mount point of a file system that is not mounted
        bench.root.mkdir(exist_ok=True)
        for bucket in left:
            (bench.root / bucket).mkdir()
        hub = HubService(FolderStore(bench.root), bench.namespace, BootClock(), TUNING)
        with pytest.raises(ConfigError, match=r"shows no object.* has 1: .*mounted"):
            await hub.start()
        assert bench.names() == ["a"] and bench.namespace.buckets() == ["bkt"]
        await hub.close()
    shutil.rmtree(bench.root)
    (tmp_path / "elsewhere").rename(bench.root)
    hub = HubService(FolderStore(bench.root), bench.namespace, BootClock(), TUNING)
    await hub.start()
    assert (await hub.resolve(ObjectName("bkt", "a"))).entry.size == 1
    await hub.close()


async def test_a_change_not_yet_noticed_is_noticed_by_the_read_and_never_mixed(
    tmp_path: Path,
) -> None:
    (tmp_path / "root" / "bkt").mkdir(parents=True)
    file = tmp_path / "root" / "bkt" / "a"
    file.write_bytes(b"1" * 4_000_000)
    store = FolderStore(tmp_path / "root")
    hub = HubService(
        store, MemoryNamespace(keep_log=True), BootClock(), HubTuning(stranger_term_s=0.0)
    )
    await hub.start()
    await until(lambda: hub.facts().watch.mode == "off", "no notifications")
    name = ObjectName("bkt", "a")
    resolved = await hub.resolve(name)
    result = await hub.read(resolved, 0, 4_000_000, "test")
    parts = buffers(result.body)
    got = await anext(parts)
    file.write_bytes(b"2" * 4_000_000)  # in place, same size, in the middle of the read
    with pytest.raises(HubSpokeError):
        async for part in parts:
            got += part
    assert set(bytes(got)) == {ord("1")}
    await until(
        lambda: hub.known(name) is not None and hub.known(name) != resolved.entry, "the entry"
    )
    now = await hub.resolve(name)
    assert await hub.read_version(name, now.entry.version, 0, 3) == b"222"
    await hub.close()


# Stores that tell nothing -----------------------------------------------------------------------


async def test_a_store_that_tells_nothing_is_compared_at_the_interval() -> None:
    """As an S3 store: its only notices are those of a read and of the comparison."""
    store = MemoryObjectStore(["bkt"])
    hub = HubService(
        store,
        MemoryNamespace(keep_log=True),
        BootClock(),
        HubTuning(stranger_term_s=0.0, rescan_s=0.05),
    )
    await hub.start()
    staged = await store.stage(ObjectName("bkt", "a"), {}, _body(b"x"))
    await store.complete(staged)
    await store.create_bucket("new")
    await until(lambda: hub.known(ObjectName("bkt", "a")) is not None, "the object")
    await until(lambda: "new" in hub._namespace.buckets(), "the bucket")
    await store.delete(ObjectName("bkt", "a"))
    await until(lambda: hub.known(ObjectName("bkt", "a")) is None, "its end")
    with pytest.raises(NoSuchKey):
        await hub.resolve(ObjectName("bkt", "a"))
    changes = hub.facts().watch.changes
    assert changes == 2
    await hub.close()


async def _body(data: bytes) -> AsyncIterator[bytes]:
    yield data
