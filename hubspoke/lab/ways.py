"""The ways to run the reference job: beside the data, remote, and through a spoke.

Decides what each way starts fresh and how its WAN bytes are counted: by the emulator, from before
the spoke starts until an idle second after the last read, independently of the spoke's own report.
The report is read at some moment between two of these counts, because a living spoke is never
silent: it renews its lease every 500 ms, and what one end has sent the other counts a while later.
It never judges a figure (checks.py does).
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hubspoke.lab.dataset import load_index
from hubspoke.lab.job import JobConfig, run_job
from hubspoke.lab.measure import JobResult
from hubspoke.lab.orders import Order
from hubspoke.lab.stack import HUB_REGION, SPOKE_REGION, Stack
from hubspoke.lab.wan import Wan, WanCounters
from hubspoke.report.cost import PriceOverride, cost_of, prices_for, total

IDLE_S = 1.0
_QUIET_TRIES = 40

Source = Literal["local", "remote", "spoke"]
WayProgress = Callable[[str, int, int], None]  # (what is running, steps done, of how many)


@dataclass(frozen=True, slots=True)
class Way:
    """fresh: an empty cache folder; otherwise the one the way before left behind.

    steps: only the first ones, None for all. seconds_max: give up after this time, because an
    order that is not predicted takes nine times its compute.
    """

    name: str
    title: str
    source: Source
    order: Order = "sequential"
    fresh: bool = True
    prefetch: bool = True
    steps: int | None = None
    seconds_max: float | None = None


REMOTE_STEPS = 60
UNPREDICTED_STEPS = 100
SHUFFLED_SECONDS_MAX = 40.0

WAYS: tuple[Way, ...] = (
    Way("hub-local", "hub-local", "local"),
    Way("remote", "remote, no cache", "remote", steps=REMOTE_STEPS),
    Way("spoke-cold", "spoke, cold", "spoke"),
    Way("spoke-warm", "spoke, warm", "spoke", fresh=False),
    Way(
        "spoke-cold-no-prefetch",
        "cold, prefetch off",
        "spoke",
        prefetch=False,
        steps=UNPREDICTED_STEPS,
    ),
    Way(
        "shuffled-cold",
        "spoke, cold",
        "spoke",
        order="distributed",
        seconds_max=SHUFFLED_SECONDS_MAX,
    ),
    Way("shuffled-warm", "spoke, warm", "spoke", order="distributed", fresh=False),
)


@dataclass(frozen=True, slots=True)
class WanBytes:
    """TCP payload that the emulated WAN delivered while the way ran."""

    to_spoke_bytes: int
    to_hub_bytes: int

    @property
    def both(self) -> int:
        return self.to_spoke_bytes + self.to_hub_bytes


@dataclass(frozen=True, slots=True)
class WayResult:
    """wan: until after the report was read. wan_before_report: the same until just before it was.
    usd: what the WAN bytes cost, None without a price. report: the spoke's /v1/report.
    steps_whole: steps of the whole job, of which a way may run only the first."""

    way: Way
    job: JobResult
    wan: WanBytes | None
    usd: float | None
    report: dict[str, Any] | None
    wan_before_report: WanBytes | None = None
    steps_whole: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "way": asdict(self.way),
            "job": self.job.to_json(),
            "wan": asdict(self.wan) if self.wan else None,
            "usd": self.usd,
            "report": self.report,
            "steps_whole": self.steps_whole,
            "wan_before_report": asdict(self.wan_before_report) if self.wan_before_report else None,
        }


class Runner:
    """Runs ways one after another on one stack.

    job: the job's settings; name, source, order and steps are the way's. caches: a folder for the
    spokes' caches, on a disk with room for one data set.
    """

    def __init__(
        self,
        stack: Stack,
        job: JobConfig,
        *,
        caches: Path,
        price: PriceOverride | None,
        progress: WayProgress,
    ) -> None:
        self._stack = stack
        self._job = job
        self._cache = caches / "cache"
        self._bucket = job.dataset.name
        epoch = load_index(job.dataset).sequences // (job.ranks * job.per_rank)
        self._steps = min(job.steps or epoch, epoch)
        self._prices = prices_for(HUB_REGION, SPOKE_REGION, price)
        self._progress = progress

    def run(self, ways: Sequence[Way]) -> dict[str, WayResult]:
        """Results by the ways' names."""
        return {way.name: replace(self._run(way), steps_whole=self._steps) for way in ways}

    def _run(self, way: Way) -> WayResult:
        if way.source == "spoke":
            return self._through_spoke(way)
        if way.source == "local":
            return WayResult(way, self._train(way, None, None), None, None, None)
        before = quiet(self._stack.wan, self._stack.rtt_s)
        job = self._train(way, f"{self._stack.wan.spoke_url}/{self._bucket}", None)
        wan = between(before, quiet(self._stack.wan, self._stack.rtt_s))
        return WayResult(way, job, wan, self._usd(wan), None)

    def _through_spoke(self, way: Way) -> WayResult:
        if way.fresh:
            shutil.rmtree(self._cache, ignore_errors=True)
            self._cache.mkdir(parents=True)
        before = quiet(self._stack.wan, self._stack.rtt_s)
        with self._stack.spoke(way.name, self._cache, prefetch=way.prefetch) as spoke:
            job = self._train(way, f"http://{spoke.data}/{self._bucket}", f"http://{spoke.admin}")
            time.sleep(IDLE_S)
            first = quiet(self._stack.wan, self._stack.rtt_s)
            report: dict[str, Any] = spoke.ask("/v1/report")
            last = quiet(self._stack.wan, self._stack.rtt_s)
        wan = between(before, last)
        return WayResult(way, job, wan, self._usd(wan), report, between(before, first))

    def _train(self, way: Way, source: str | None, admin: str | None) -> JobResult:
        config = replace(
            self._job,
            name=way.name,
            source=source,
            admin=admin,
            order=way.order,
            steps=min(way.steps or self._steps, self._steps),
            seconds_max=way.seconds_max,
        )
        self._progress(way.name, 0, 1)
        return run_job(config, lambda done, steps: self._progress(way.name, done, steps))

    def _usd(self, wan: WanBytes) -> float | None:
        return total(
            cost_of(wan.to_spoke_bytes, self._prices.hub_to_spoke),
            cost_of(wan.to_hub_bytes, self._prices.spoke_to_hub),
        )


def between(before: WanCounters, after: WanCounters) -> WanBytes:
    """What passed from `before` to `after`."""
    return WanBytes(
        after.to_spoke_bytes - before.to_spoke_bytes, after.to_hub_bytes - before.to_hub_bytes
    )


def quiet(wan: Wan, rtt_s: float) -> WanCounters:
    """The counters at a moment when nothing is on its way.

    Bytes in flight are counted by one end and not yet by the other. Lease renewals leave such
    moments as long as the RTT is well below their 500 ms; otherwise, after a while, any is taken.
    """
    last = wan.counters()
    for _ in range(_QUIET_TRIES):
        time.sleep(rtt_s + 0.01)
        now = wan.counters()
        if (now.to_spoke_bytes, now.to_hub_bytes) == (last.to_spoke_bytes, last.to_hub_bytes):
            return now
        last = now
    return last
