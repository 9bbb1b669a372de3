"""The readers of bench/mount.py: plain calls on paths, timed, cut when they take too long."""

import mmap
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
_OTHER_FILES: Final = 200  # that this process may have open
_TURN_BYTES: Final = 256 << 10  # that each open file is read at a time


def touch_memory(size: int) -> None:
    """Take and give back so much memory, at most half of what is free: the next to ask gets it,
    and it is the machine's already, not to be asked for of the hypervisor page by page."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    with mmap.mmap(-1, max(MIB, min(size, free // 2) // MIB * MIB)) as memory:
        for at in range(0, len(memory), MIB):
            memory[at : at + MIB] = bytes(MIB)


def read_start(path: Path, size: int) -> None:
    """The first `size` bytes, to nowhere."""
    buffer = bytearray(MIB)
    with path.open("rb", buffering=0) as file:
        while size > 0 and (n := file.readinto(memoryview(buffer)[: min(size, MIB)])):
            size -= n


def read_records(path: Path, order: Sequence[int], record: int, cut_s: float) -> tuple[float, int]:
    """Seconds and bytes of whole records in this order, cut after `cut_s`."""
    fd = os.open(path, os.O_RDONLY)
    size, started = 0, time.perf_counter()
    try:
        for number in order:
            got = len(os.pread(fd, record, number * record))
            if got != record:
                raise ConnectionError(f"{path} record {number}: {got} of {record} bytes")
            size += got
            if time.perf_counter() - started > cut_s:
                break
        return time.perf_counter() - started, size
    finally:
        os.close(fd)


def read_strided(path: Path, record: int, processes: int, cut_s: float) -> tuple[float, int]:
    """Seconds until the last process has ended, and bytes of all."""
    context = multiprocessing.get_context("fork")
    records = path.stat().st_size // record
    with context.Pool(processes) as pool:
        pool.map(abs, range(processes))  # they are there before the clock starts
        started = time.perf_counter()
        orders = [range(first, records, processes) for first in range(processes)]
        done = pool.starmap(
            read_records, [(path, order, record, cut_s) for order in orders], chunksize=1
        )
        return time.perf_counter() - started, sum(size for _, size in done)


def read_files(paths: Sequence[Path], size: int, cut_s: float) -> tuple[float, int]:
    """Files per second, and how many of `size` bytes: each opened, read whole and closed; cut after
    `cut_s`."""
    done, started = 0, time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            if len(file.read()) != size:
                raise ConnectionError(f"{path}: not {size} bytes")
        done += 1
        if time.perf_counter() - started > cut_s:
            break
    return done / (time.perf_counter() - started), done


@dataclass(slots=True)
class OpenFiles:
    """longest_s: that one file had to wait between two of its reads, or for its first one."""

    seconds: float = 0.0
    size: int = 0
    longest_s: float = 0.0


def read_open_files(paths: Sequence[Path], threads: int, cut_s: float) -> OpenFiles:
    """Open all; one thread reads each whole in order, several read their share in turns, a piece
    of each file after the other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < len(paths) + _OTHER_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, len(paths) + _OTHER_FILES), hard))
    result, lock = OpenFiles(), threading.Lock()
    files = [os.open(path, os.O_RDONLY) for path in paths]
    started = time.perf_counter()

    def in_turns(mine: Sequence[int]) -> None:
        offsets, last = dict.fromkeys(mine, 0), dict.fromkeys(mine, time.perf_counter())
        longest, size = 0.0, 0
        while offsets and time.perf_counter() - started < cut_s:
            for fd in list(offsets):
                got = len(os.pread(fd, _TURN_BYTES, offsets[fd]))
                now = time.perf_counter()
                # Its own turn comes after one read of each of the others.
                longest, last[fd] = max(longest, now - last[fd]), now
                offsets[fd] += got
                size += got
                if not got:
                    del offsets[fd]
        with lock:
            result.size += size
            result.longest_s = max(result.longest_s, longest)

    try:
        if threads == 1:
            for fd in files:
                in_turns([fd])
        else:
            shares = [files[first::threads] for first in range(threads)]
            workers = [threading.Thread(target=in_turns, args=(share,)) for share in shares]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        result.seconds = time.perf_counter() - started
        return result
    finally:
        for fd in files:
            os.close(fd)
