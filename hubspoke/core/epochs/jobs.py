"""Which clients of a data set are one job.

Clients of one job never read the same item twice within an epoch, those of two jobs do: two that
read a and b of n items at random share ab / n. So clients are grouped such that what they would
share at random exceeds what they do share: each client joins the group where that is most, until
none moves. Looked at when the repeats inside of a job have doubled, so that it costs little and
an early mistake is mended.

Loaders open connections anew. A client nobody knows joins the job whose order has its first item
next; where the orders of all jobs are known and go on elsewhere it is a job of its own, or a scan
through what two jobs read would spoil the order of one of them; else it joins the job that was
read last and is grouped when it repeats an item of it. Beyond CLIENTS_MAX clients the rest count
as one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hubspoke.core.epochs.job import Job

CLIENTS_MAX = 256
JOBS_MAX = 8
CONFLICTS_MIN = 16
INSIDE_MIN, INSIDE_PART = 20.0, 8

Numbers = npt.NDArray[np.int32]


class Jobs:
    """The jobs on one data set of n items."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.all: list[Job] = []
        self._clients: dict[str, int] = {}
        self._job_of: list[Job] = []  # by client
        self._made = 0
        self._next_look: dict[Job, int] = {}

    def take(self, items: Numbers, clients: Sequence[str], now: float) -> list[Job]:
        """Reads in order of time. Returns the jobs of which an epoch began."""
        if not len(items):
            return []
        known = self._clients
        who = [
            known[c] if c in known else self._client(c, int(items[i]), now)
            for i, c in enumerate(clients)
        ]
        began = []
        if len(self.all) == 1:
            job = self.all[0]
            if job.take(items, who, now):
                began.append(job)
        else:
            jobs = [self._job_of[c].number for c in who]
            for job in list(self.all):
                mine = [i for i, number in enumerate(jobs) if number == job.number]
                if mine and job.take(items[mine], [who[i] for i in mine], now):
                    began.append(job)
        for job in began:
            self._next_look[job] = CONFLICTS_MIN
        for job in list(self.all):
            if len(job.conflicts) >= self._next_look[job]:
                self._next_look[job] = 2 * len(job.conflicts)
                self._group()
                break
        return began

    def follows(self, client: str) -> bool:
        """Whether the order is known in which the client reads; not of those that count as one."""
        found = self._clients.get(client, CLIENTS_MAX - 1)
        return found < CLIENTS_MAX - 1 and self._job_of[found].follower is not None

    def _client(self, client: str, item: int, now: float) -> int:
        found = self._clients.get(client)
        if found is None:
            found = min(len(self._clients), CLIENTS_MAX - 1)
            self._clients[client] = found
            if found == len(self._job_of):
                self._job_of.append(self._home(item, now))
            if len(self._clients) > 64 * CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]
        return found

    def _home(self, item: int, now: float) -> Job:
        """Whose a client is that begins with this item."""
        latest = sorted(self.all, key=lambda j: j.last_at, reverse=True)
        for job in latest:
            if job.follower is not None and job.follower.awaits(item):
                return job
        for job in latest:
            # At its end come other clients for the next epoch, and so they do after a restart.
            f = job.follower
            if f is None or f.ends or now - job.last_at > job.patience_s:
                return job
        return self._add() if len(latest) < JOBS_MAX else latest[0]

    def _add(self) -> Job:
        self._made += 1
        job = Job(self._made, self.n)
        self.all.append(job)
        self._next_look[job] = CONFLICTS_MIN
        return job

    # -- grouping -----------------------------------------------------------------------------

    def _group(self) -> None:
        clients = len(self._job_of)
        reads, shared = self._counts(clients)
        chance = np.outer(reads, reads) / self.n
        gain = chance - 2.0 * shared
        np.fill_diagonal(gain, 0.0)
        groups = np.array([self.all.index(job) for job in self._job_of])
        active = [int(c) for c in np.argsort(-reads, kind="stable") if reads[c]]
        for _ in range(8):
            moved = False
            for c in active:
                scores = np.bincount(groups, weights=gain[c], minlength=JOBS_MAX)[:JOBS_MAX]
                # Alone it gains nothing and loses nothing: an empty group is better than a loss.
                best = int(np.argmax(scores))
                if scores[best] > scores[groups[c]] + 1e-9:
                    groups[c], moved = best, True
            if not moved:
                break
        # Any draws can be grouped so that they share less inside than by chance, if they are few;
        # jobs share next to nothing, and of a size where chance would share a lot.
        inside = groups[:, None] == groups[None, :]
        expected, found = float(chance[inside].sum()) / 2, float(shared[inside].sum()) / 2
        if expected >= INSIDE_MIN and found * INSIDE_PART <= expected:
            self._regroup(groups)

    def _counts(self, clients: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Items each client read in its job's present epoch, and how many two of them share."""
        reads = np.zeros(clients)
        shared = np.zeros((clients, clients))
        for job in self.all:
            reads += np.bincount(job.by[job.read], minlength=clients)
            for c, item, _ in job.conflicts:
                reads[c] += 1
                shared[c, job.by[item]] += 1
                shared[job.by[item], c] += 1
        for i, a in enumerate(self.all):
            for b in self.all[i + 1 :]:
                both = a.read & b.read
                pairs = a.by[both].astype(np.int64) * clients + b.by[both]
                found = np.bincount(pairs, minlength=clients * clients).reshape(clients, clients)
                shared += found + found.T
        return reads, shared

    def _regroup(self, groups: npt.NDArray[np.int64]) -> None:
        """Deal the reads of this epoch to the jobs anew; a job keeps its place in `all`."""
        old = list(self.all)
        same = all(
            g < len(old) and old[g] is job for g, job in zip(groups, self._job_of, strict=True)
        )
        if same:
            return
        while len(self.all) <= groups.max(initial=0):
            self._add()
        moves = []
        for job in old:
            items, clients, repeats = _in_time(job)
            moves.append((job, items, clients, groups[clients]))
            job.leave(items[~repeats])
        for job, items, clients, home in moves:
            for place in sorted(set(home.tolist())):
                self.all[place].join(items[home == place], clients[home == place], job)
        for client, place in enumerate(groups.tolist()):
            self._job_of[client] = self.all[place]
        for job in [j for j in self.all if j not in self._job_of]:
            self.all.remove(job)
            del self._next_look[job]


def _in_time(job: Job) -> tuple[Numbers, npt.NDArray[np.uint16], npt.NDArray[np.bool_]]:
    """All reads of a job's epoch, as (item, client, whether it is a repeat)."""
    order = np.array(job.order, np.int32)
    again = np.array([(item, c, at) for c, item, at in job.conflicts], np.int64).reshape(-1, 3)
    at = np.concatenate((np.arange(len(order)), again[:, 2] - 0.5))
    items = np.concatenate((order, again[:, 0].astype(np.int32)))
    clients = np.concatenate((job.by[order], again[:, 1].astype(np.uint16)))
    repeats = np.arange(len(at)) >= len(order)
    sort = np.argsort(at, kind="stable")
    return items[sort], clients[sort], repeats[sort]
