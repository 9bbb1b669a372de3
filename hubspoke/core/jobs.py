"""A training job's own meter: what only the job can know, next to the cache's numbers.

A job posts what it did since its last post: samples, seconds of compute, seconds of waiting for
data. Several ranks may post under one name; their seconds add up. Never reads a clock.
"""

from dataclasses import dataclass

from hubspoke.errors import Overloaded

JOBS_MAX = 256  # a name typed by a script must not grow the report without bound
AMOUNT_MAX = 1e12  # of one post: more than any job does between two; a wrong unit, or a bug
SUM_MAX = 1e15  # sums stay there: every rate made of them is a finite number
ELAPSED_MIN_S = 1e-3  # a rate over less says nothing


@dataclass(slots=True)
class Job:
    """Sums over all posts; times on the spoke's clock.

    started_at: the first post less the seconds that it reported, so that a job which posts once
    already has a rate. The two counts are the spoke's reads when the first and last post came.
    """

    name: str
    started_at: float
    posted_at: float
    reads_first: tuple[int, int]  # (hits, requests)
    reads_last: tuple[int, int]
    samples: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0

    def utilisation(self) -> float | None:
        """compute / (compute + wait), None before the job has reported any second."""
        busy = self.compute_s + self.wait_s
        return self.compute_s / busy if busy > 0 else None

    def samples_per_second(self) -> float | None:
        """Samples over the time from the start to the last post."""
        elapsed = self.posted_at - self.started_at
        return self.samples / elapsed if elapsed >= ELAPSED_MIN_S else None

    def hit_ratio(self) -> float | None:
        """Share of hits of all reads at this spoke between the first and the last post.

        Reads are not attributed to jobs: with two jobs at once both see the sum.
        """
        hits = self.reads_last[0] - self.reads_first[0]
        requests = self.reads_last[1] - self.reads_first[1]
        return hits / requests if requests > 0 else None


class JobMeters:
    """The jobs that have posted, at most JOBS_MAX; the one silent for longest makes room."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def post(
        self,
        name: str,
        *,
        samples: float,
        compute_s: float,
        wait_s: float,
        now: float,
        reads: tuple[int, int],
        idle_max_s: float = 3600.0,
    ) -> Job:
        """Add one post; amounts are from 0 to AMOUNT_MAX. reads: the spoke's (hits, requests).

        Raises Overloaded when JOBS_MAX others have posted within `idle_max_s`.
        """
        job = self._jobs.pop(name, None)
        if job is None:
            self._make_room(now, idle_max_s)
            job = Job(name, now - compute_s - wait_s, now, reads, reads)
        job.samples = min(job.samples + samples, SUM_MAX)
        job.compute_s = min(job.compute_s + compute_s, SUM_MAX)
        job.wait_s = min(job.wait_s + wait_s, SUM_MAX)
        job.posted_at = now
        job.reads_last = reads
        self._jobs[name] = job  # at the end: the dict is in order of the last post
        return job

    def jobs(self) -> list[Job]:
        """By name."""
        return sorted(self._jobs.values(), key=lambda job: job.name)

    def reset(self) -> None:
        self._jobs.clear()

    def _make_room(self, now: float, idle_max_s: float) -> None:
        if len(self._jobs) < JOBS_MAX:
            return
        oldest = next(iter(self._jobs.values()))
        if now - oldest.posted_at < idle_max_s:
            raise Overloaded(f"{JOBS_MAX} jobs have posted within {idle_max_s:.0f} s already")
        del self._jobs[oldest.name]
