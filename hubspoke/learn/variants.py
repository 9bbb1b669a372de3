"""Workloads made of families: which are trained on, and which are held out to be judged by.

Held-out runs have other seeds, round trips and rates that training never has, and their pairs of
jobs at one cache are other pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hubspoke.core.ids import BLOCK_BYTES
from hubspoke.learn.families import HELD_OUT, PATTERNS, Family
from hubspoke.sim.prediction.disk import DiskConfig
from hubspoke.sim.prediction.path import PathConfig
from hubspoke.sim.prediction.workload import Workload

RTTS_TRAINED, RTTS_HELD_OUT = (0.02, 0.06, 0.12), (0.04, 0.09)
RATES_TRAINED, RATES_HELD_OUT = (40e6, 125e6), (80e6, 200e6)
CACHE_SHARES = (0.3, 0.6, 1.2)


@dataclass(frozen=True, slots=True)
class Variant:
    """patterns: of the jobs at one cache; a run depends on nothing else."""

    patterns: tuple[str, ...]
    seed: int
    held_out: bool

    @property
    def name(self) -> str:
        return f"{'+'.join(self.patterns)} {'held out' if self.held_out else 'trained'} {self.seed}"


def trained(runs: int) -> list[Variant]:
    """`runs` of each pattern alone, and half as many of each with its neighbour."""
    names = list(PATTERNS)
    alone = [Variant((p,), seed, False) for p in names for seed in range(runs)]
    pairs = zip(names, names[1:] + names[:1], strict=True)
    return alone + [Variant(pair, s, False) for pair in pairs for s in range(runs // 2)]


def held_out(pattern: str, runs: int) -> list[Variant]:
    """Of one pattern: alone, and every third run with the pattern three places further on."""
    names = list(PATTERNS)
    if pattern not in PATTERNS:
        return [Variant((pattern,), seed, True) for seed in range(runs)]
    other = names[(names.index(pattern) + 3) % len(names)]
    return [
        Variant((pattern, other) if seed % 3 == 2 else (pattern,), seed, True)
        for seed in range(runs)
    ]


def build(variant: Variant) -> Workload:
    """The workload; objects of job i lie in data/<i>-<pattern>/."""
    places = list(PATTERNS) + list(HELD_OUT)
    words = [variant.seed, int(variant.held_out), *(places.index(p) for p in variant.patterns)]
    rng = np.random.default_rng(words)
    rtts = RTTS_HELD_OUT if variant.held_out else RTTS_TRAINED
    rates = RATES_HELD_OUT if variant.held_out else RATES_TRAINED
    path = PathConfig(rtt_s=float(rng.choice(rtts)), rate=float(rng.choice(rates)))
    names, sizes, jobs = list[str](), list[int](), []
    for i, pattern in enumerate(variant.patterns):
        demand = path.rate * float(rng.uniform(0.1, 0.8)) / len(variant.patterns)
        part = _family(rng, pattern)(rng, len(sizes), demand)
        names += [f"data/{i}-{pattern}/{n:06}.{part.suffix}" for n in range(len(part.sizes))]
        sizes += part.sizes
        jobs.append(part.job)
    capacity = int(sum(sizes) * float(rng.choice(CACHE_SHARES)))
    return Workload(
        name=variant.name,
        title="generated",
        names=names,
        sizes=sizes,
        capacity=max(capacity, 16 * BLOCK_BYTES),
        jobs=jobs,
        first_misses=sum(job.clients for job in jobs),
        path=path,
        disk=DiskConfig(rate=3 * path.rate),
    )


def _family(rng: np.random.Generator, pattern: str) -> Family:
    known: Sequence[Family] = (PATTERNS | HELD_OUT)[pattern]
    return known[int(rng.integers(len(known)))]


def pattern_of(key: str) -> str:
    """Of an object of a generated workload, by its folder."""
    return key.split("/", 1)[0].split("-", 1)[1]


def everything(runs: int) -> Iterator[tuple[str, list[Variant]]]:
    """All held-out runs, by pattern, the family that was never trained on last."""
    for pattern in (*PATTERNS, *HELD_OUT):
        yield pattern, held_out(pattern, runs)
