"""One picture of a run: hit ratio, latency and utilisation over the job's steps.

Pure drawing: plain numbers in, a PNG out, no window and no global state of matplotlib. A series
without a hit ratio (no cache in between) shows its latency only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubspoke.errors import ConfigError

# How to get what only the demo and the bench need.
INSTALL_LAB = "pip install '.[lab]' in a checkout (make demo does it), or 'hubspoke[lab]'"


@dataclass(frozen=True, slots=True)
class Series:
    """One way of running the job, one number per window of steps.

    panel: series of one panel share a column. steps: the middle of each window. utilisation:
    compute / (compute + wait).
    """

    panel: str
    label: str
    steps: Sequence[float]
    hit_ratio: Sequence[float | None]
    p50_ms: Sequence[float]
    p99_ms: Sequence[float]
    utilisation: Sequence[float]


def require_matplotlib() -> None:
    """Raises ConfigError, with the remedy, where no picture could be drawn."""
    try:
        import matplotlib.figure  # noqa: F401 - only whether it is there
    except ImportError as e:
        raise ConfigError(f"the picture needs matplotlib: {INSTALL_LAB}") from e


def plot_run(path: Path, title: str, series: Sequence[Series]) -> None:
    """Write the picture to `path` (PNG). Raises ConfigError without matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = list(dict.fromkeys(s.panel for s in series))
    labels = list(dict.fromkeys(s.label for s in series))  # one colour for each, in all panels
    figure = Figure(figsize=(7 * len(panels), 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        3, len(panels), squeeze=False, sharex="col", sharey="row", height_ratios=(3, 3, 1.4)
    )
    for column, panel in enumerate(panels):
        hits, latency, busy = axes[:, column]
        for one in (s for s in series if s.panel == panel):
            _draw(hits, latency, busy, one, f"C{labels.index(one.label)}")
        hits.set_title(panel)
        latency.set_yscale("log")
        busy.set_xlabel("step of the job")
        for axis in (hits, busy):
            axis.set_ylim(-0.03, 1.03)
        for axis in (hits, latency, busy):
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("hit ratio of requests")
    axes[1][0].set_ylabel("read latency at the client, ms\n(line: median, dots: 99 %)")
    axes[2][0].set_ylabel("utilisation")
    figure.suptitle(title, fontsize="medium")
    # One legend for all, below the data: inside, it hid the first steps, which matter most.
    lines = [Line2D([], [], color=f"C{i}", label=label) for i, label in enumerate(labels)]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(labels), fontsize="small")
    figure.savefig(path, dpi=110)


def _draw(hits: Any, latency: Any, busy: Any, s: Series, colour: str) -> None:
    """One series in the axes of its column (Any: matplotlib's axes are untyped here)."""
    known = [(x, y) for x, y in zip(s.steps, s.hit_ratio, strict=True) if y is not None]
    if known:
        hits.plot(*zip(*known, strict=True), color=colour)
    latency.plot(s.steps, s.p50_ms, color=colour)
    latency.plot(s.steps, s.p99_ms, color=colour, linestyle="", marker=".", markersize=3)
    busy.plot(s.steps, s.utilisation, color=colour)
