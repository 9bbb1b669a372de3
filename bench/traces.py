"""What a trace costs: bytes a read in the file, microseconds a read in the spoke and in a reader.

    python bench/traces.py [FILE]

FILE: a recorded trace; without it one is made of 64 workers that read the reference job's way, two
reads of 4 KiB a sequence, with moments that jitter. Times are medians of rounds. The recorder's
share of a spoke is drain (a filter of the list) and code (columns, zstd, xxh3).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hubspoke.core.accesses import Accesses
from hubspoke.core.cache import Cache
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.ledger import Ledger
from hubspoke.core.streams import Access
from hubspoke.spoke.recording import Recording, RecordingTuning
from hubspoke.traces.format import read_trace, write_trace
from hubspoke.traces.trace import Trace

READS = 100_000
ROUNDS = 5
SEQUENCE = 8_192


def made(reads: int = 767_232) -> Trace:
    """16 ranks x 4 workers; rank r of step s reads sequences 384 s + 24 r to 24 r + 23."""
    read = np.arange(reads)
    sequence = read // 2
    step, rank, within = sequence // 384, sequence % 384 // 24, sequence % 24
    at = step * 1.11 + np.random.default_rng(0).gamma(2.0, 0.01, reads) + within * 1e-3
    order = np.argsort(at, kind="stable")
    size = int(sequence[-1] + 1) * SEQUENCE
    column = (sequence * SEQUENCE + read % 2 * 4096)[order]
    return Trace(
        ["tokens/tokens.bin"],
        np.array([size]),
        at[order],
        np.zeros(reads, np.int32),
        column,
        np.full(reads, 4096),
        (rank * 4 + within % 4)[order].astype(np.int32),
        np.zeros(reads, np.uint8),
        {},
    )


def median_us(work: Callable[[], object], reads: int) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) / reads * 1e6


def accesses(trace: Trace) -> list[Access]:
    entry = ObjectEntry(Version("v"), int(trace.sizes.max()), "e", 0)
    cache = Cache(1 << 40)
    objects = [cache.open(ObjectName("b", name), entry)[0] for name in trace.names]
    columns = (trace.objects, trace.offsets, trace.lengths, trace.clients, trace.at)
    rows = zip(*(c[:READS].tolist() for c in columns), strict=True)
    return [
        Access(objects[o], offset, length, f"127.0.0.1:{client}", at, ReadState.HIT)
        for o, offset, length, client, at in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    given = parser.parse_args().file
    trace = made() if given is None else read_trace(given)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.hstrace"
        write = median_us(lambda: write_trace(path, trace), len(trace))
        read = median_us(lambda: read_trace(path), len(trace))
        print(f"file: {len(trace)} reads, {path.stat().st_size / len(trace):.2f} B a read")
        print(f"written {write:.2f} us a read, read {read:.2f} us a read")
    some = accesses(trace)
    tuning = RecordingTuning(waiting_max=len(some))

    def code() -> None:
        recording = Recording({}, 0.0, tuning)
        recording.take(some, 0)
        while recording.slice() is not None:
            pass

    def drain(watched: bool) -> Callable[[], object]:
        rings = Accesses(Ledger(0.0, 0), lambda hits: None)
        if watched:
            rings.watch(lambda reads, dropped: None)

        def once() -> None:
            rings._events += some
            rings.drain()

        return once

    print(f"coded in the spoke {median_us(code, len(some)):.2f} us a read")
    plain, watched = (median_us(drain(w), len(some)) for w in (False, True))
    print(f"drained {plain:.3f} us a read, {watched:.3f} with a recorder")


if __name__ == "__main__":
    main()
