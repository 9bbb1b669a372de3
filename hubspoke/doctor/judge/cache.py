"""Will a folder do for the cache, or for the state?

The cache is sparse files: bytes arrive in any order, and what is dropped is punched out. A file
system without holes would give every object its full size at the first byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hubspoke.doctor.judge.finding import Finding, note, ok, problem, size, warning

FREE_MIN, FREE_FEW = 1 << 30, 10 << 30
READ_SLOW, WRITE_SLOW = 500e6, 200e6  # bytes/s: below one consumer NVMe drive, and one training job
NETWORK_STATE = "an LMDB map on a network file system breaks when two hosts open it"


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes per second of direct I/O in pieces of 1 MiB, and how much was moved."""

    write: float
    read: float
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class Holes:
    """seen: SEEK_HOLE finds the gap between two writes. punched: FALLOC_FL_PUNCH_HOLE leaves
    zeros and gives the blocks back. error: of the attempt, None without one."""

    seen: bool
    punched: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One folder; looked at where it will be if it does not exist yet.

    error: why it cannot be written or lies wrong, None if it can. file_system: such as "ext4".
    kind: local, memory, overlay, network or unknown. device: number of the file system, of the
    drive under it where there is one. holder: process that holds it. speed_error: why it was not
    measured.
    """

    path: str
    error: str | None = None
    file_system: str = "ext4"
    kind: str = "local"
    device: str = ""
    free: int = 0
    files_free: int | None = None
    holder: str | None = None
    holes: Holes | None = None
    speed: Speed | None = None
    speed_error: str | None = None


def cache_folder(facts: FolderFacts) -> list[Finding]:
    """One folder of --cache."""
    path = facts.path
    if facts.error is not None:
        return [
            problem("cache", f"{path}: {facts.error}", "--cache with a folder on a local drive")
        ]
    findings = [_file_system(facts), _holes(facts), _room(facts), _speed(facts)]
    if facts.holder is not None:
        found = f"{path} is in use by {facts.holder}; a second spoke on it is refused"
        findings.append(note("cache", found, "a folder of its own for each spoke"))
    return findings


def _file_system(facts: FolderFacts) -> Finding:
    where = f"{facts.path} is on {facts.file_system}"
    remedy = "--cache with a folder on a local drive, ext4 or xfs"
    match facts.kind:
        case "memory":
            found = f"{where}: the cache takes memory, and is cold after each boot"
            return warning("cache", found, remedy)
        case "overlay":
            found = f"{where}: the container's own layer is slow and goes with the container"
            return warning("cache", found, "a volume of the host for --cache, ext4 or xfs")
        case "network":
            found = f"{where}: each hit crosses a network, and an outage of it stops reads"
            return problem("cache", found, remedy)
        case "unknown":
            return note("cache", f"{where}, which nobody has tried", remedy)
        case _:
            pass
    return ok("cache", where)


def _holes(facts: FolderFacts) -> Finding:
    holes = facts.holes
    if holes is None or holes.error is not None:
        why = "not tried" if holes is None else holes.error
        found = f"{facts.path}: holes cannot be punched: {why}"
        return problem("holes", found, "--cache with a folder on ext4, xfs or btrfs")
    if not (holes.punched and holes.seen):
        what = "are not seen by SEEK_HOLE" if holes.punched else "do not give their blocks back"
        found = f"{facts.path}: holes {what}: the cache would grow beyond --cache-size"
        return problem("holes", found, "--cache with a folder on ext4, xfs or btrfs")
    return ok("holes", f"{facts.path}: holes are seen, punched, and give their blocks back")


def _room(facts: FolderFacts) -> Finding:
    found = f"{facts.path} has {size(facts.free)} free"
    if facts.files_free is not None and facts.files_free < 10_000:
        found = f"{found} and {facts.files_free} inodes: each cached object takes one"
        return warning("room", found, "a file system with more inodes (mkfs.ext4 -N)")
    if facts.free < FREE_MIN:
        return problem("room", found, f"free at least {size(FREE_FEW)}, or another drive")
    if facts.free < FREE_FEW:
        return warning("room", found, f"free at least {size(FREE_FEW)}, or another drive")
    return ok("room", found)


def _speed(facts: FolderFacts) -> Finding:
    if facts.speed is None:
        return note("disk", f"{facts.path}: speed not measured: {facts.speed_error}")
    read, write = facts.speed.read, facts.speed.write
    found = (
        f"{facts.path} reads {read / 1e6:.0f} MB/s, writes {write / 1e6:.0f} MB/s "
        f"({size(facts.speed.bytes_moved)} of direct I/O)"
    )
    if read < READ_SLOW or write < WRITE_SLOW:
        return warning(
            "disk", found, "--cache with a folder on a local NVMe drive; repeat for more"
        )
    return ok("disk", found)


def together(caches: Sequence[FolderFacts], state: FolderFacts | None) -> list[Finding]:
    """Folders beside each other: caches on one drive, and the state beside them."""
    findings = []
    usable = [c for c in caches if c.error is None]
    for number, folder in enumerate(usable):
        twin = next((c for c in usable[:number] if c.device == folder.device), None)
        if twin is not None:
            found = f"{twin.path} and {folder.path} are on one drive: they gain nothing"
            findings.append(note("cache", found, "one --cache folder for each drive"))
    if state is None:
        return findings
    if state.error is not None:
        remedy = "--state with a folder on a local drive"
        return [*findings, problem("state", f"{state.path}: {state.error}", remedy)]
    if state.kind == "network":
        found = f"{state.path} is on {state.file_system}: {NETWORK_STATE}"
        findings.append(problem("state", found, "--state with a folder on a local drive"))
    elif any(c.device == state.device for c in usable):
        found = (
            f"{state.path} is on a drive of the cache: an I/O error there kills the spoke (SIGBUS)"
        )
        findings.append(note("state", found, "--state with a folder on another drive"))
    else:
        findings.append(ok("state", f"{state.path} is on {state.file_system}"))
    if state.free < FREE_MIN:
        found = f"{state.path} has {size(state.free)} free"
        findings.append(warning("state", found, f"at least {size(FREE_MIN)} for --state"))
    return findings
