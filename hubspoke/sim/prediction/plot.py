"""A picture of each simulated run: hit ratio, latency and utilisation over its steps."""

from pathlib import Path
from typing import Any

from hubspoke.report.plots import Series, plot_run, require_matplotlib
from hubspoke.sim.prediction.run import OURS


def check_plot(folder: Path) -> None:
    """Raises ConfigError without matplotlib, OSError where the folder cannot be made."""
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)


def plot(document: dict[str, Any], folder: Path) -> Path:
    """Write WORKLOAD.png of a result, a peer's as WORKLOAD-POLICY.png; a series for each job.
    Returns its path."""
    series = [
        Series("steps", f"job {i}", **job["curve"])
        for i, job in enumerate(document["jobs"], 1)
        if job["curve"]["steps"]
    ]
    ours = document["policy"] == OURS
    name = document["workload"] if ours else f"{document['workload']}-{document['policy']}"
    path = folder / f"{name}.png"
    plot_run(path, f"{name}: {document['title']}", series)
    return path
