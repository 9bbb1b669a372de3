"""The model's card, written from its evaluation: what it was made of, what it is worth, where it
is off, and what it is not good for."""

from collections.abc import Iterable
from typing import Any

from hubspoke.core.features import COLUMNS, SOURCES
from hubspoke.core.learned import SURE, Model
from hubspoke.learn.evaluate import (
    EGRESS_LOST,
    EGRESS_NOTICED,
    HITS_LOST,
    HITS_NOTICED,
    MODEL,
    PEERS,
    RULES,
    SHIPPED,
    Difference,
    Evaluation,
    Judged,
    Run,
)
from hubspoke.learn.families import HELD_OUT, PATTERNS
from hubspoke.learn.variants import (
    RATES_HELD_OUT,
    RATES_TRAINED,
    RTTS_HELD_OUT,
    RTTS_TRAINED,
)

ORDER = (*PEERS.values(), RULES, MODEL)


def card(model: Model, trained: dict[str, Any], e: Evaluation) -> str:
    """Markdown."""
    parts = [
        _head(model, trained, e),
        _data(trained),
        _metrics(trained, e.quality),
        _held_out(e),
        _limits(),
    ]
    return "\n".join(parts)


def _head(model: Model, trained: dict[str, Any], e: Evaluation) -> str:
    on = [p for p, decides in e.on.items() if decides]
    off = [p for p in PATTERNS if p not in on]
    versions = ", ".join(f"{k} {v}" for k, v in trained["versions"].items())
    return f"""# access-pattern-v1

Written by `hubspoke model evaluate`; do not edit. Two ensembles of boosted trees over
{len(COLUMNS)} features of a candidate and its stream: which way of reading it looks like, and how
likely the candidate is read before it would be evicted. Plain arrays, no pickle; a spoke evaluates
them with numpy.

- sha256 of `access-pattern-v1.npz`: `{model.sha256}`
- rebuild it: `hubspoke model train --examples models/access-pattern-v1.examples.npz --out DIR`
  gives the same sha256 (with {versions});
  `hubspoke model train --runs {trained["runs"]} --out DIR` makes the examples anew first, by the
  generators of the version it runs in: the same only as long as they are.
- decides for: {_list(on)}
- off, the rules decide: {_list(off)}; and all candidates of sources that it was not trained on
  (trained on: {_list(SOURCES)}).
"""


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _data(trained: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {p} | {n} | {'-' if share is None else f'{share:.0%}'} |"
        for p, (n, share) in trained["examples_by_pattern"].items()
    )
    return f"""## Data

Generated workloads in the simulator, by the core that production runs, with every candidate
fetched whatever its probability: {trained["runs"]} runs of each pattern alone, half as many of
pairs of patterns at one cache, round trips of {_numbers(RTTS_TRAINED, 1e3)} ms, paths of
{_numbers(RATES_TRAINED, 1e-6)} MB/s. A candidate is *used* if half of its pages or more were read
before they were dropped or the run ended.

| pattern | examples | used |
|---|---|---|
{rows}
"""


def _numbers(values: Iterable[float], unit: float) -> str:
    return ", ".join(f"{v * unit:g}" for v in values)


def _metrics(trained: dict[str, Any], fresh: dict[str, float]) -> str:
    lines = ["## Of the ensembles themselves", "", "| | trained on | held out |", "|---|---|---|"]
    names = {
        "examples": "examples",
        "used_share": "used",
        "pattern_accuracy": "pattern right",
        "use_accuracy": "use right",
        "use_log_loss": "log loss of use",
    }
    fitted = trained["quality"]
    for key, name in names.items():
        form = "{:.0f}" if key == "examples" else "{:.3f}"
        lines.append(f"| {name} | {form.format(fitted[key])} | {form.format(fresh[key])} |")
    return "\n".join(lines) + "\n"


def _held_out(e: Evaluation) -> str:
    names = " | ".join(ORDER)
    rows = "\n".join(
        f"| {j.pattern} | {j.runs} | " + " | ".join(_run(j.means[n]) for n in ORDER) + " |"
        for j in e.forced
    )
    judged = "\n".join(_judged(j, e.on.get(j.pattern)) for j in e.forced)
    shipped = "\n".join(
        f"| {j.pattern} | {_run(j.means[RULES])} | {_run(j.means[SHIPPED])} | "
        f"{_points(j.hits)} | {_units(j.egress)} |"
        for j in e.shipped
    )
    return f"""## On held-out workloads

Other seeds, round trips of {_numbers(RTTS_HELD_OUT, 1e3)} ms, paths of
{_numbers(RATES_HELD_OUT, 1e-6)} MB/s, other pairs at one cache; {_list(HELD_OUT)} is a family that
training has none of. Hits (share of reads) / waste (share of the egress fetched ahead in vain) /
egress (in units of the least possible, Belady over 4 KiB pages). Read-ahead, Leap and the stride
table each run over an LRU cache with windows of 8 MiB. *{RULES}*: our generators with the rules'
probabilities and their correction by outcomes; *{MODEL}*: the same with the model's for every
pattern.

| pattern | runs | {names} |
|---|---|---|---|---|---|---|
{rows}

Model less rules, run by run: the mean, and a band of two standard errors over the seeds. It is on
where it brings more hits or fewer bytes by more than the band (and than {HITS_NOTICED:.1%} of the
reads, {EGRESS_NOTICED:g} of the least egress), and the other is not worse: not by more than its
band, and whatever the band not by {HITS_LOST:.0%} of the reads or {EGRESS_LOST:g} of the least
egress.

| pattern | hits, points | egress | on |
|---|---|---|---|
{judged}

As shipped, the model deciding only where it is on (a run's pattern is what the model takes each
candidate for, if it is {SURE:.0%} sure, so a row may move where its own pattern is off):

| pattern | {RULES} | {SHIPPED} | hits, points | egress |
|---|---|---|---|---|
{shipped}
"""


def _run(run: Run) -> str:
    return f"{run.hits:.3f} / {run.waste:.3f} / {run.egress:.3f}"


def _points(d: Difference) -> str:
    return f"{100 * d.mean:+.2f} ± {100 * d.band:.2f}"


def _units(d: Difference) -> str:
    return f"{d.mean:+.3f} ± {d.band:.3f}"


def _judged(j: Judged, on: bool | None) -> str:
    decides = "never trained on" if on is None else "yes" if on else "no"
    return f"| {j.pattern} | {_points(j.hits)} | {_units(j.egress)} | {decides} |"


def _limits() -> str:
    return """## Limits

- Made of generated workloads of some thousand reads each; real jobs differ, and outcomes at the
  spoke correct it (`core/outcomes.py`) within some tens of MiB.
- It ranks what generators propose and proposes nothing itself: it can save waste and order what
  does not fit, and cannot bring hits that no generator thinks of.
- No time to use: the generators' own is what deadlines are made of. A third ensemble for it was
  not tried.
- A change of a generator changes what its candidates are worth: train and evaluate anew.
"""
