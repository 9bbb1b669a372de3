"""What a workload is: objects, a cache, a path and a drive, and the jobs that read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hubspoke.core.layouts.probe import Look, Seen
from hubspoke.sim.prediction.disk import DiskConfig
from hubspoke.sim.prediction.job import JobSpec
from hubspoke.sim.prediction.path import PathConfig
from hubspoke.traces.trace import Trace

if TYPE_CHECKING:
    from hubspoke.sim.prediction.world import World

MIB = 1 << 20
READ_BYTES = 128 << 10  # what a buffered sequential read becomes: the kernel's read-ahead


@dataclass(frozen=True, slots=True)
class Workload:
    """At its full size or a part of it.

    names: "bucket/key" of each object; sizes: bytes. capacity: of the cache, bytes. first_misses:
    of an oracle that learns the job at its first read, one for each worker (the ceiling).
    happenings: told the world before the jobs start. recorded: what it reads instead of by jobs.
    layouts: what an object's bytes would say where they are looked at.
    seeds: that it drew and nobody could guess (`order_answers`).
    """

    name: str
    title: str
    names: Sequence[str]
    sizes: Sequence[int]
    capacity: int
    jobs: Sequence[JobSpec]
    first_misses: int
    path: PathConfig = field(default_factory=PathConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    happenings: "Callable[[World], None] | None" = None
    recorded: Trace | None = None
    layouts: Callable[[str, Look], Seen | None] | None = None
    seeds: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """1/n of a workload: object counts, cache, demand and the path's rate divided by n; round
    trip, order rules, interleaving and the drive kept: a read is as long as at full size, so a
    slower drive would make each of them slower. seed: added to the workload's own seeds."""

    part: int = 1
    seed: int = 0

    def of(self, count: int) -> int:
        """So many things, at least one."""
        return max(1, -(-count // self.part))

    def dealt(self, count: int, hands: int) -> int:
        """So many things that are dealt to so many hands, all of which get as many."""
        return max(1, self.of(count) // hands) * hands

    def cut(self, power_of_two: int) -> int:
        """A part that is a power of two as well, and so divides what the whole divides."""
        return 1 << max(1, power_of_two // self.part).bit_length() - 1

    def path(self) -> PathConfig:
        return PathConfig(rate=PathConfig().rate / self.part)


def pieces(number: int, start: int, end: int, step: int = READ_BYTES) -> list[tuple[int, int, int]]:
    """Reads of bytes [start, end) of an object one after the other, cut at multiples of `step`
    from the object's start."""
    found, at = [], start
    while at < end:
        cut = min(end, (at // step + 1) * step)
        found.append((number, at, cut - at))
        at = cut
    return found
