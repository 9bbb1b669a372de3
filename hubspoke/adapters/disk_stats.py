"""What the kernel knows of the drives under the cache: /sys/block, /proc/pressure/io, SMART.

Everything may be missing (tmpfs, network file systems, containers, old kernels): then it is None.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hubspoke.adapters import nvme_smart

SECTOR_BYTES = 512  # /sys/block counts in these, whatever the drive's are


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """One block device, counted since it was attached. busy_seconds: with a request under way."""

    device: str
    capacity_bytes: int
    read_bytes: int
    written_bytes: int
    in_flight: int
    busy_seconds: float
    smart: nvme_smart.Smart | None


@dataclass(frozen=True, slots=True)
class Pressure:
    """Share of the time in which some, or all, tasks of this host waited for I/O."""

    some_10s: float
    some_60s: float
    full_10s: float
    full_60s: float
    some_seconds: float
    full_seconds: float


def device_of(folder: Path, sys: Path = Path("/sys")) -> str | None:
    """The whole drive under a folder, e.g. "nvme0n1"; None if it lies on none."""
    try:
        number = os.stat(folder).st_dev
        found = (sys / "dev/block" / f"{os.major(number)}:{os.minor(number)}").resolve(strict=True)
    except OSError:
        return None
    return found.parent.name if (found / "partition").exists() else found.name


def drive(device: str, sys: Path = Path("/sys")) -> BlockDevice | None:
    """May block as long as `nvme_smart.read`."""
    block = sys / "block" / device
    try:
        fields = [int(n) for n in (block / "stat").read_text().split()]
        capacity = int((block / "size").read_text()) * SECTOR_BYTES
    except (OSError, ValueError):
        return None
    if len(fields) < 11:
        return None
    return BlockDevice(
        device=device,
        capacity_bytes=capacity,
        read_bytes=fields[2] * SECTOR_BYTES,
        written_bytes=fields[6] * SECTOR_BYTES,
        in_flight=fields[8],
        busy_seconds=fields[9] / 1e3,
        smart=nvme_smart.read(device),
    )


def drives(folders: Iterable[Path]) -> list[BlockDevice]:
    """The drives under the folders, each once."""
    names = {device_of(folder) for folder in folders}
    found = [drive(name) for name in sorted(name for name in names if name is not None)]
    return [device for device in found if device is not None]


def io_pressure(path: Path = Path("/proc/pressure/io")) -> Pressure | None:
    """None where the kernel has no pressure stall information."""
    try:
        lines = path.read_text().splitlines()
        rows = {
            word: dict(pair.split("=") for pair in pairs)
            for word, *pairs in (line.split() for line in lines)
        }
        some, full = rows["some"], rows["full"]
        return Pressure(
            some_10s=float(some["avg10"]) / 100,
            some_60s=float(some["avg60"]) / 100,
            full_10s=float(full["avg10"]) / 100,
            full_60s=float(full["avg60"]) / 100,
            some_seconds=int(some["total"]) / 1e6,
            full_seconds=int(full["total"]) / 1e6,
        )
    except (OSError, ValueError, KeyError):
        return None
