"""Pages of items that were read are dropped from frames that stay in part: a spoke that is killed
then must never serve a hole as data.

A process of its own reads shuffled records through a real SpokeCore and a block store on disk,
until it is killed by a signal that it cannot catch.
"""

import signal
import sys
import time
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest

from hubspoke import wire
from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.core.cache import Cache
from hubspoke.core.fetches import Fetch
from hubspoke.core.frames import StoredFrame
from hubspoke.core.ids import (
    FRAME_BYTES_MAX,
    PAGE_BYTES,
    ObjectEntry,
    ObjectName,
    ReadState,
    Version,
    page_span,
)
from hubspoke.core.page_codes import IS_UNVERIFIED
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig

RECORD, PER_FILE, FILES = 30_000, 400, 2
SIZE = RECORD * PER_FILE
NAMES = [ObjectName("b", f"set/{i}.rec") for i in range(FILES)]
ENTRY = ObjectEntry(Version("v1"), SIZE, "e", 0)


def content(file: int, offset: int, length: int) -> bytes:
    """No page of it is zeros."""
    pages = np.arange(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES), dtype=np.int64)
    data = np.repeat(pages * FILES + file + 1, PAGE_BYTES // 8).tobytes()
    start = offset % PAGE_BYTES
    return data[start : start + length]


class Listing:
    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        return [(n, ENTRY) for n in NAMES if n > name][:limit]


class Spoke:
    """The shell's part of it, without a network: what is asked for is there at once."""

    def __init__(self, root: Path) -> None:
        self.store = FileBlockStore([root])
        assert self.store.load() == []
        config = SpokeConfig(FILES * SIZE // 2)
        self.core = SpokeCore(config, RuleRanker().score, Listing(), 0.0, 0)
        self.core.path.round_trip(0.06)
        self.now = 0.0
        self.created: set[int] = set()

    def read(self, file: int, offset: int, length: int) -> None:
        self.now += 0.01
        core = self.core
        obj, _ = core.open(NAMES[file], ENTRY)
        state, _ = core.arrive(obj, offset, length)
        core.access(obj, offset, length, "c", state, self.now)
        if state is ReadState.MISS:
            for p in core.demand(obj, offset, length) or []:
                self.store.punch(p.obj.number, p.offset, p.length)
        core.predict(self.now)
        while self._carry():
            pass

    def _carry(self) -> bool:
        fetches, punched = self.core.dispatch(self.now)
        for p in punched:
            self.store.punch(p.obj.number, p.offset, p.length)
        for fetch in fetches:
            self._arrives(fetch)
        return bool(fetches)

    def _arrives(self, fetch: Fetch) -> None:
        for index, r in enumerate(fetch.ranges):
            if r.obj.number not in self.created:
                self.created.add(r.obj.number)
                self.store.create(r.obj.number, r.obj.name, r.obj.version, r.obj.size)
            at, end = r.offset, r.offset + r.length
            while at < end:
                cut = min(end, (at // FRAME_BYTES_MAX + 1) * FRAME_BYTES_MAX)
                data = content(NAMES.index(r.obj.name), at, cut - at)
                self.store.write(r.obj.number, at, data, wire.digest(data))
                self.core.arrived(fetch, index, at, cut - at, cut - at, self.now)
                at = cut
            self.core.closed(fetch, index)
        self.core.finished(fetch, fetch.bytes, self.now)


def run(root: Path) -> None:
    """Epochs without end; tells when the cache has given up parts of frames."""
    spoke, epoch = Spoke(root), 0
    while True:
        for n in np.random.default_rng(epoch).permutation(FILES * PER_FILE).tolist():
            spoke.read(n // PER_FILE, n % PER_FILE * RECORD, RECORD)
        spoke.store.compact()
        epoch += 1
        if epoch == 2:
            assert spoke.core.cache.counters.evicted_bytes > SIZE
            (root / "evicting").touch()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.13])
def test_a_killed_spoke_has_no_hole_in_what_it_finds(tmp_path: Path, after_s: float) -> None:
    process = Popen([sys.executable, __file__, str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "evicting").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(after_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    store = FileBlockStore([tmp_path])
    cache, found = Cache(FILES * SIZE), 0
    for indexed in store.load():
        obj = cache.restore(
            indexed.number, indexed.name, indexed.version, indexed.size, indexed.frames
        )
        file = NAMES.index(obj.name)
        for frame in obj.unverified_frames(0, len(obj.pages)):
            data = store.read(obj.number, frame.offset, frame.length)
            assert wire.digest(data) == frame.digest
            assert data == content(file, frame.offset, frame.length)
            assert not cache.verified(obj, frame, good=True)
        assert not obj.pages.any(0, len(obj.pages), IS_UNVERIFIED)
        found += obj.local_bytes()
    store.close()
    assert found >= FILES * SIZE // 8, "most of what was here is found again"


def test_dropping_a_part_of_an_unverified_frame_drops_all_of_it() -> None:
    cache = Cache(1 << 30)
    frame = (0, FRAME_BYTES_MAX)
    obj = cache.restore(1, NAMES[0], ENTRY.version, SIZE, [])
    assert obj.whole_frames(*page_span(RECORD, RECORD)) == page_span(RECORD, RECORD)
    obj = cache.restore(2, NAMES[1], ENTRY.version, SIZE, [StoredFrame(*frame, 7)])
    assert obj.whole_frames(*page_span(RECORD, RECORD)) == (0, FRAME_BYTES_MAX // PAGE_BYTES)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
