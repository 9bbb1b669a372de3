"""The results of the reference job for people: tables side by side, checks, and the picture.

Only presentation: nothing is computed here that is not in the results.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hubspoke.lab.checks import Check
from hubspoke.lab.measure import JobResult, Latency, Span
from hubspoke.lab.ways import WayResult
from hubspoke.report.plots import Series, plot_run
from hubspoke.report.render import (
    DASH,
    UNKNOWN,
    number,
    percent,
    render_report,
    seconds,
    size,
    usd,
)

ORDER_TITLES = {
    "sequential": "Sequential order, dealt to the ranks in turn",
    "strided": "Strided order, one residue class per rank",
    "distributed": "DistributedSampler order (shuffled, seed 0, epoch 0)",
}
# What a table cannot say in a cell; shown below the ways of that order.
NOTES = {
    "distributed": "Single shuffled reads cannot be foretold. The spoke watches until it is clear "
    "that every sequence is read once, then brings the rest of the epoch ahead of the job."
}
COMPRESSED = "WAN bytes are counted as they travel: through a spoke compressed, remote as they are."
_PHASES = ("0-100", "100-150", "150-")


def _latency(at: Latency) -> str:
    return f"{_short(at.p50)} / {_short(at.p99)}"


def _short(value: float) -> str:
    """Three digits where they matter: a column for every way has to fit 100 columns."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _steps(result: WayResult) -> str:
    steps, whole = result.job.steps, result.steps_whole
    return f"{steps} of {whole}" if whole is not None and steps < whole else str(steps)


def _cut_short(result: WayResult) -> str | None:
    """Why not all steps were run."""
    job, whole = result.job, result.steps_whole
    if whole is None or job.steps >= whole:
        return None
    minutes = job.seconds / job.steps * whole / 60
    return (
        f"{result.way.title}: only the first {job.steps} of {whole} steps, since all of them would "
        f"take {minutes:.1f} minutes."
    )


def _wan(share: Callable[[WayResult], str]) -> Callable[[WayResult], str]:
    return lambda result: DASH if result.wan is None else share(result)


def _of_unique(result: WayResult) -> str:
    assert result.wan is not None
    return number(result.wan.both / result.job.unique_bytes, 3)


def _money(result: WayResult) -> str:
    return DASH if result.wan is None else UNKNOWN if result.usd is None else usd(result.usd)


_Row = tuple[str, Callable[[WayResult], str]]
_BY_PHASE: tuple[tuple[str, Callable[[Span], str], Callable[[JobResult], str]], ...] = (
    ("utilisation", lambda s: percent(s.utilisation), lambda j: percent(j.utilisation)),
    ("hit ratio", lambda s: percent(s.hit_ratio), lambda j: percent(j.hit_ratio)),
    (
        "ms at client, p50 / p99",
        lambda s: _latency(s.latency_ms),
        lambda j: _latency(j.latency_ms),
    ),
)
_ALL: tuple[_Row, ...] = (
    ("stalls", lambda r: seconds(r.job.wait_seconds)),
    ("  first batch", lambda r: seconds(r.job.first_wait_seconds)),
    ("samples/s", lambda r: number(r.job.samples_per_second)),
    ("unique bytes read", lambda r: size(r.job.unique_bytes)),
    ("WAN to spoke", _wan(lambda r: size(r.wan.to_spoke_bytes if r.wan else None))),
    ("WAN to hub", _wan(lambda r: size(r.wan.to_hub_bytes if r.wan else None))),
    ("WAN / unique", _wan(_of_unique)),
    ("WAN money", _money),
    ("wrong bytes", lambda r: number(r.job.wrong_bytes)),
)


def compare(results: Sequence[WayResult]) -> Table:
    """The ways of one order side by side."""
    title = ORDER_TITLES[results[0].job.order]
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("", no_wrap=True)
    for result in results:
        table.add_column(result.way.title, justify="right")

    def add(name: str, value: Callable[[WayResult], str], end: bool = False) -> None:
        table.add_row(name, *(value(result) for result in results), end_section=end)

    add("steps", _steps, end=True)
    for what, of, of_all in _BY_PHASE:
        table.add_row(what)
        for i, phase in enumerate(_PHASES):
            add(f"  steps {phase}", lambda r, i=i, of=of: _phase(r, i, of))  # type: ignore[misc]  # bound by default arguments
        add("  all", lambda r, of_all=of_all: of_all(r.job), end=True)  # type: ignore[misc]  # bound by default arguments
    for name, value in _ALL:
        add(name, value)
    return table


def _phase(result: WayResult, index: int, of: Callable[[Span], str]) -> str:
    phases = result.job.phases
    return of(phases[index]) if index < len(phases) else DASH


def verdict(checks: Sequence[Check]) -> Table:
    """Every check with its figure and its bound."""
    failed = sum(not check.passed for check in checks)
    summary = f"Checks: {len(checks) - failed} passed, {failed} failed"
    table = Table(title=summary, title_justify="left", pad_edge=False)
    for name in ("", "check", "found", "asked"):
        table.add_column(name)
    for check in checks:
        mark = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        table.add_row(mark, check.name, check.figure, check.bound)
    return table


def whole(
    results: Mapping[str, WayResult], checks: Sequence[Check], report_of: str | None
) -> Group:
    """Tables, the report of one way, and the checks."""
    parts: list[Any] = []
    for order in ORDER_TITLES:
        of_order = [r for r in results.values() if r.job.order == order]
        if of_order:
            parts += ["", compare(of_order), *_notes(order, of_order)]
    shown = None if report_of is None else results.get(report_of)
    if shown is not None and (report := shown.report) is not None:
        parts += ["", Text(f"The spoke's report after {report_of}", style="bold")]
        parts.append(render_report(report))
    return Group(*parts, "", verdict(checks))


def _notes(order: str, results: Sequence[WayResult]) -> list[Text]:
    notes = [note for result in results if (note := _cut_short(result)) is not None]
    notes += [NOTES[order]] if order in NOTES else []
    notes += [COMPRESSED] if any(result.report is not None for result in results) else []
    return [Text(note, style="dim") for note in notes]


def picture(path: Path, title: str, results: Mapping[str, WayResult]) -> None:
    """Hit ratio, latency and utilisation of every way; raises ConfigError (matplotlib)."""
    plot_run(path, title, [_series(result) for result in results.values()])


def _series(result: WayResult) -> Series:
    windows = result.job.windows
    return Series(
        panel=ORDER_TITLES[result.job.order],
        label=result.way.title,
        steps=[(w.first_step + w.end_step) / 2 for w in windows],
        hit_ratio=[w.hit_ratio for w in windows],
        p50_ms=[w.latency_ms.p50 for w in windows],
        p99_ms=[w.latency_ms.p99 for w in windows],
        utilisation=[w.utilisation for w in windows],
    )
