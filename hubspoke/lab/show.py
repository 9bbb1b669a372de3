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
from hubspoke.report.render import DASH, number, percent, render_report, seconds, size, usd

ORDER_TITLES = {
    "sequential": "Sequential order, dealt to the ranks in turn",
    "strided": "Strided order, one residue class per rank",
    "distributed": "DistributedSampler order (shuffled, seed 0, epoch 0)",
}
_PHASES = ("0-100", "100-150", "150-")


def _latency(at: Latency) -> str:
    return f"{at.p50:.2f} / {at.p99:.2f} ms"


def _steps(job: JobResult) -> str:
    of = f" of {job.steps_planned}" if job.steps < job.steps_planned else ""
    return f"{job.steps}{of}"


def _wan(share: Callable[[WayResult], str]) -> Callable[[WayResult], str]:
    return lambda result: DASH if result.wan is None else share(result)


def _of_unique(result: WayResult) -> str:
    assert result.wan is not None
    return number(result.wan.both / result.job.unique_bytes, 3)


_Row = tuple[str, Callable[[WayResult], str]]
_HEAD: tuple[_Row, ...] = (("steps", lambda r: _steps(r.job)),)
_BY_PHASE: tuple[tuple[str, Callable[[Span], str]], ...] = (
    ("utilisation", lambda s: percent(s.utilisation)),
    ("hit ratio", lambda s: percent(s.hit_ratio)),
    ("read, p50 / p99", lambda s: _latency(s.latency_ms)),
)
_ALL: tuple[_Row, ...] = (
    ("utilisation, all", lambda r: percent(r.job.utilisation)),
    ("hit ratio, all", lambda r: percent(r.job.hit_ratio)),
    ("read, p50 / p99, all", lambda r: _latency(r.job.latency_ms)),
    ("stalls", lambda r: seconds(r.job.wait_seconds)),
    ("  first batch", lambda r: seconds(r.job.first_wait_seconds)),
    ("samples/s", lambda r: number(r.job.samples_per_second)),
    ("unique bytes read", lambda r: size(r.job.unique_bytes)),
    ("WAN to spoke", _wan(lambda r: size(r.wan.to_spoke_bytes if r.wan else None))),
    ("WAN to hub", _wan(lambda r: size(r.wan.to_hub_bytes if r.wan else None))),
    ("WAN / unique", _wan(_of_unique)),
    ("WAN money", lambda r: usd(r.usd)),
    ("wrong bytes", lambda r: number(r.job.wrong_bytes)),
)


def compare(results: Sequence[WayResult]) -> Table:
    """The ways of one order side by side."""
    title = ORDER_TITLES[results[0].job.order]
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("", min_width=len("utilisation,"))
    for result in results:
        table.add_column(result.way.title, justify="right")

    def add(name: str, value: Callable[[WayResult], str], end: bool = False) -> None:
        table.add_row(name, *(value(result) for result in results), end_section=end)

    for name, value in _HEAD:
        add(name, value, end=True)
    for what, of in _BY_PHASE:
        for i, phase in enumerate(_PHASES):
            add(f"{what}, {phase}", lambda r, i=i, of=of: _phase(r, i, of), end=i == 2)  # type: ignore[misc]  # bound by default arguments
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
            parts += ["", compare(of_order)]
    shown = None if report_of is None else results.get(report_of)
    if shown is not None and (report := shown.report) is not None:
        parts += ["", Text(f"The spoke's report after {report_of}", style="bold")]
        parts.append(render_report(report))
    return Group(*parts, "", verdict(checks))


def picture(path: Path, title: str, results: Mapping[str, WayResult]) -> None:
    """Hit ratio and latency of every way over the steps; raises ConfigError (matplotlib)."""
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
    )
