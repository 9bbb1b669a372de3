"""Many seeds on several processes."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from hubspoke.sim import scenario
from hubspoke.sim.scenario import STORM, Profile

SEEDS_AT_ONCE = 10


def run(
    seeds: Iterable[int], profile: Profile = STORM, *, processes: int
) -> tuple[list[str], Counter[str]]:
    """Returns what was violated, each with its seed, and the sums of what was counted."""
    wanted = list(seeds)
    chunks = [wanted[i : i + SEEDS_AT_ONCE] for i in range(0, len(wanted), SEEDS_AT_ONCE)]
    violations: list[str] = []
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(max_workers=processes) as pool:
        for failed, counted in pool.map(partial(_run, profile), chunks):
            violations += failed
            counts += counted
    return violations, counts


def _run(profile: Profile, seeds: list[int]) -> tuple[list[str], Counter[str]]:
    violations: list[str] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        outcome = scenario.run(seed, profile)
        violations += [f"seed {seed}: {violation}" for violation in outcome.violations]
        counts += outcome.counts
    return violations, counts
