"""What the cache has on disk never exceeds --cache-size, whatever is read, held open or changed.

`make soak` churns a hundred times the cap through it, which a day of an ordinary cache does not;
bytes are what can go wrong here, not hours. The spoke is stopped (SIGSTOP) for each sample, so
that one is a moment and not a walk through files that change.

Counted are the pages of all files in `data`, and of files that are removed and still open: those
never exceed the cap by a byte. What the file system keeps about a file is apart, and bounded: a
block for each file, and extents, 12 bytes for at least one page of 4 KiB in a tree whose nodes
are at least half full, so 24/4096 of the cap. So is the index: at most twice the slots it needs
and SLOTS_SPARE more, of 24 bytes, and while it is compacted a second one of half of that.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hubspoke.adapters.block_store import SLOTS_SPARE
from hubspoke.adapters.cache_index import SLOT_BYTES
from tests.e2e.cache_churn import MIB, Churn, await_
from tests.processes import Running, get_json, hub, running, spoke

PAGE, BLOCK = 4096, 512


@dataclass
class Sampler:
    """Looks at one spoke's cache folders all the time."""

    process: Running
    folders: list[Path]
    interval_s: float
    samples: int = 0
    most: int = 0  # bytes of pages in files
    most_open: int = 0  # of these in files that were removed and still open
    most_about: int = 0  # bytes the file system keeps about the files, beyond a block for each
    most_index: int = 0
    most_told: int = 0  # by the report
    written: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(look, pause), daemon=True)
            for look, pause in ((self._disk, self.interval_s), (self._report, 0.05))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, look: Callable[[], None], pause: float) -> None:
        try:
            while not self._stop.wait(pause):
                look()
        except Exception as e:
            self.errors.append(f"{type(e).__name__}: {e}")

    def _report(self) -> None:
        cache = get_json(self.process.admin + "/v1/report")[1]["cache"]
        self.most_told = max(self.most_told, cache["bytes"])
        self.written = cache["flash_written_bytes"]

    def _disk(self) -> None:
        with stopped(self.process.pid):
            paths = [path for folder in self.folders for path in (folder / "data").iterdir()]
            there = [pages_and_blocks(path) for path in paths]
            gone = [pages_and_blocks(p) for p in removed_and_open(self.process.pid, self.folders)]
            index = sum(
                entry.stat().st_blocks * BLOCK
                for folder in self.folders
                for entry in os.scandir(folder)
                if entry.name.startswith("index")
            )
        files = there + gone
        data = sum(pages for pages, _ in files)
        self.samples += 1
        self.most = max(self.most, data)
        self.most_open = max(self.most_open, sum(pages for pages, _ in gone))
        self.most_about = max(
            self.most_about, sum(blocks for _, blocks in files) - data - PAGE * len(files)
        )
        self.most_index = max(self.most_index, index)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 10
        while any(state(task) not in "TZX" for task in Path(f"/proc/{pid}/task").iterdir()):
            assert time.monotonic() < deadline, "not stopped"
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"  # has ended meanwhile


def removed_and_open(pid: int, folders: list[Path]) -> Iterator[Path]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.endswith(" (deleted)") and target.startswith(tuple(map(str, folders))):
            yield link


def pages_and_blocks(path: Path) -> tuple[int, int]:
    """Bytes of the pages that hold data, and bytes that the file system counts for the file."""
    total, at = 0, 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while True:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                return total, os.fstat(fd).st_blocks * BLOCK
            end = os.lseek(fd, at, os.SEEK_HOLE)
            total += -(-end // PAGE) * PAGE - at
            at = end
    finally:
        os.close(fd)


def churned(tmp_path: Path, cap: int, times: float, folders: int, limit_s: float) -> None:
    """Write `times` the cap through a cache of that size."""
    size = cap // 4
    caches = [tmp_path / f"cache-{i}" for i in range(folders)]
    more = [a for cache in caches[1:] for a in ("--cache", str(cache))]
    more += ["--cache-size", str(cap), "--state", str(tmp_path / "spoke-state")]
    (tmp_path / "store" / "data").mkdir(parents=True)
    with running(*hub(tmp_path / "store", tmp_path / "hub-state")) as a_hub:
        a_hub.ready()
        with running(*spoke(a_hub.data, caches[0], *more)) as a_spoke:
            a_spoke.ready()
            await_(lambda: get_json(a_spoke.admin + "/readyz")[0] == 200, 15, "ready")
            churn = Churn(a_hub.data, a_spoke.data, a_spoke.admin, 20, size, held=8)
            sampler = Sampler(a_spoke, caches, 0.02)
            most_held = 0
            try:
                churn.start(readers=4)
                deadline = time.monotonic() + limit_s
                while sampler.written < times * cap and not (churn.wrong or sampler.errors):
                    assert time.monotonic() < deadline, (sampler, churn)
                    most_held = max(most_held, churn.open_now)
                    time.sleep(0.05)
            finally:
                churn.stop()
                sampler.stop()
            print(sampler, churn, most_held)
            assert churn.wrong == [] and sampler.errors == []
            assert most_held * size >= 2 * cap
            assert min(churn.answered, churn.finished_late, churn.overwritten, churn.warmed) > 0
            assert sampler.most_told <= cap
            assert sampler.most <= cap
            assert sampler.most_about <= cap * 24 // PAGE
            assert sampler.most_index <= 3 * SLOT_BYTES * (2 * cap // PAGE + SLOTS_SPARE)

            def settled() -> bool:
                """The book and the disk say the same."""
                told = get_json(a_spoke.admin + "/v1/report")[1]["cache"]["bytes"]
                files = [path for cache in caches for path in (cache / "data").iterdir()]
                return bool(told == sum(pages_and_blocks(path)[0] for path in files))

            await_(settled, 15, "as many bytes on disk as in the book")
        assert "ERROR" not in a_spoke.log, a_spoke.log


@pytest.mark.timeout(180)
def test_the_cap_holds_under_churn_with_open_handles_on_twice_the_cap(tmp_path: Path) -> None:
    churned(tmp_path, 16 * MIB, 15, folders=2, limit_s=120)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("folders", [1, 2])
def test_a_hundred_times_the_cap_goes_through_and_never_exceeds_it(
    tmp_path: Path, folders: int
) -> None:
    churned(tmp_path, 32 * MIB, 100, folders, limit_s=600)
