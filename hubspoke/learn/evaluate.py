"""What the model is worth on workloads it never saw, beside rules and simpler predictors.

Every held-out run is made once for each contender, with the same reads, path and cache. Model and
rules are compared run by run: the mean difference, and a band of two standard errors around it,
which is what other seeds would move it by. Where the model does not win by more than its band it
is off for that pattern.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from hubspoke.core.learned import LearnedRanker, Model
from hubspoke.core.ranking import RuleRanker, Score
from hubspoke.learn.examples import gather
from hubspoke.learn.families import PATTERNS
from hubspoke.learn.train import quality
from hubspoke.learn.variants import Variant, build, everything
from hubspoke.sim.prediction.compare import against_minimum, trace_of
from hubspoke.sim.prediction.workload import Workload
from hubspoke.sim.prediction.world import World

RULES, MODEL, SHIPPED = "rules", "model", "as shipped"
PEERS = {"readahead": "next-N read-ahead", "leap": "Leap", "stride": "stride table"}

# Differences below these are nothing anybody would notice, whatever the band.
HITS_NOTICED = 0.002
EGRESS_NOTICED = 0.01
# Means that are worse by more than this are too dear even where the band is wider.
HITS_LOST = 0.01
EGRESS_LOST = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """hits: share of reads. egress: in units of the least possible. waste: share of the egress
    that was fetched ahead and not read."""

    hits: float
    egress: float
    waste: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Model less rules: the mean over runs, and two standard errors of it."""

    mean: float
    band: float

    @property
    def clear(self) -> bool:
        return abs(self.mean) > self.band


@dataclass(frozen=True, slots=True)
class Judged:
    """One pattern's runs. means: by contender. hits, egress: model against rules."""

    pattern: str
    runs: int
    means: dict[str, Run]
    hits: Difference
    egress: Difference

    @property
    def wins(self) -> bool:
        """More hits or fewer bytes, beyond the band; and nothing lost in the other, neither
        beyond the band nor so much that it would have to be found out."""
        more = self.hits.clear and self.hits.mean > HITS_NOTICED
        fewer = self.egress.clear and self.egress.mean < -EGRESS_NOTICED
        hits = self.hits.mean < -(HITS_NOTICED if self.hits.clear else HITS_LOST)
        bytes_ = self.egress.mean > (EGRESS_NOTICED if self.egress.clear else EGRESS_LOST)
        return (more or fewer) and not hits and not bytes_


def measure(workload: Workload, *, policy: str | None = None, score: Score | None = None) -> Run:
    """One run by a peer, or by the spoke with this score."""
    world = World(workload, search_s=None, policy=policy, score=score)
    world.run()
    reads = world.recorder.reads()
    egress = world.path.delivered
    trace = trace_of(workload.names, workload.sizes, reads)
    found = against_minimum(trace, workload.capacity, egress)
    unused = world.reader.outcome(world.engine.now).unused_bytes
    hits = float(np.count_nonzero(reads.states == 0)) / len(reads.at)
    return Run(hits, float(found["of_minimum"]), unused / max(1, egress))


def contenders(model: Model) -> dict[str, Callable[[Workload], Run]]:
    """Name -> a run by it."""

    def peer(policy: str) -> Callable[[Workload], Run]:
        return lambda w: measure(w, policy=policy)

    def ranked(score: Score) -> Callable[[Workload], Run]:
        return lambda w: measure(w, score=score)

    found = {name: peer(policy) for policy, name in PEERS.items()}
    found[RULES] = ranked(RuleRanker().score)
    found[MODEL] = ranked(LearnedRanker(model.forced()).score)
    return found


def difference(model: Sequence[float], rules: Sequence[float]) -> Difference:
    """By pairs of the same run."""
    d = np.array(model) - np.array(rules)
    error = float(d.std(ddof=1)) / sqrt(len(d)) if len(d) > 1 else float("inf")
    return Difference(float(d.mean()), 2 * error)


def _mean(runs: Sequence[Run]) -> Run:
    return Run(
        float(np.mean([r.hits for r in runs])),
        float(np.mean([r.egress for r in runs])),
        float(np.mean([r.waste for r in runs])),
    )


def judge(pattern: str, found: dict[str, list[Run]], against: str = MODEL) -> Judged:
    """found: by contender, the same runs in the same order."""
    mine, rules = found[against], found[RULES]
    return Judged(
        pattern,
        len(mine),
        {name: _mean(runs) for name, runs in found.items()},
        difference([r.hits for r in mine], [r.hits for r in rules]),
        difference([r.egress for r in mine], [r.egress for r in rules]),
    )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """forced: the model decides everywhere, by which `on` is found. shipped: it decides where it
    is on. quality: of the ensembles on held-out examples."""

    forced: list[Judged]
    shipped: list[Judged]
    quality: dict[str, float]

    @property
    def on(self) -> dict[str, bool]:
        won = {j.pattern: j.wins for j in self.forced}
        return {p: won.get(p, False) for p in PATTERNS}


def evaluate(model: Model, runs: int, told: Callable[[str], None]) -> Evaluation:
    """All held-out runs; takes a minute for each 10 of a pattern. told: of each pattern done."""
    found: dict[str, dict[str, list[Run]]] = {}
    workloads: dict[str, list[Variant]] = dict(everything(runs))
    ways = contenders(model)
    for pattern, variants in workloads.items():
        found[pattern] = {n: [way(build(v)) for v in variants] for n, way in ways.items()}
        told(pattern)
    forced = [judge(pattern, of) for pattern, of in found.items()]
    on = Evaluation(forced, [], {}).on
    as_shipped = Model(model.patterns, model.pattern, model.use, on, model.sha256)
    score = LearnedRanker(as_shipped).score
    for pattern, variants in workloads.items():
        found[pattern][SHIPPED] = [measure(build(v), score=score) for v in variants]
    told(SHIPPED)
    fresh = gather([v for p in PATTERNS for v in workloads[p]])
    return Evaluation(
        forced,
        [judge(p, of, SHIPPED) for p, of in found.items()],
        quality(fresh, model.pattern, model.use),
    )
