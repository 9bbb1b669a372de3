"""One run of a workload: everything that exists in it."""

from hubspoke.adapters.model_file import installed_score
from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.ranking import Score
from hubspoke.sim.prediction.compare import planned
from hubspoke.sim.prediction.disk import Disk
from hubspoke.sim.prediction.engine import Engine
from hubspoke.sim.prediction.job import Job
from hubspoke.sim.prediction.objects import Objects
from hubspoke.sim.prediction.order_answers import SEARCH_S
from hubspoke.sim.prediction.path import Path
from hubspoke.sim.prediction.peer_spoke import PeerSpoke
from hubspoke.sim.prediction.peers import make
from hubspoke.sim.prediction.recorder import Recorder
from hubspoke.sim.prediction.sim_spoke import SimSpoke
from hubspoke.sim.prediction.workload import Workload
from hubspoke.spoke.tuning import SpokeTuning


class World:
    """Made of a workload; `run` reads all of it."""

    def __init__(
        self,
        workload: Workload,
        *,
        prefetch: bool = True,
        search_s: float | None = SEARCH_S,
        runway_s: float = 0.0,
        policy: str | None = None,
        score: Score | None = None,
    ) -> None:
        """policy: of a peer (`peers.NAMES`) that takes the spoke's place; prefetch is the
        spoke's, and so are score: the installed ranker's if not given, and search_s: what it
        takes to try all seeds, None: orders are not inferred, and runway_s."""
        self.workload = workload
        self.engine = Engine()
        self.objects = Objects(workload.names, workload.sizes)
        self.path = Path(self.engine, workload.path)
        self.disk = Disk(workload.disk)
        self.recorder = Recorder()
        self.reader: SimSpoke | PeerSpoke = (
            self._spoke(prefetch, search_s, runway_s, score or installed_score())
            if policy is None
            else self._peer(policy)
        )
        self.jobs: list[Job] = []
        client = 0
        for spec in workload.jobs:
            self.jobs.append(Job(self.engine, self.reader, spec, client))
            client += spec.clients
        self.clients = client

    def _spoke(
        self, prefetch: bool, search_s: float | None, runway_s: float, score: Score
    ) -> SimSpoke:
        tuning = SpokeTuning(
            self.workload.capacity,
            "simulated",
            prefetch,
            search_s is not None,
            depth=DepthConfig(runway_s=runway_s),
        )
        return SimSpoke(
            self.engine,
            self.objects,
            self.path,
            self.disk,
            self.recorder,
            tuning=tuning,
            score=score,
            layouts=self.workload.layouts,
            planted=self.workload.seeds,
            search_s=search_s or 0.0,
        )

    def _peer(self, policy: str) -> PeerSpoke:
        future = planned(self.workload) if policy == "belady" else None
        subject = make(policy, self.workload.capacity, self.workload.sizes, trace=future)
        return PeerSpoke(self.engine, subject, self.path, self.disk, self.recorder)

    @property
    def spoke(self) -> SimSpoke:
        """For what happens to a spoke and not to a peer."""
        assert isinstance(self.reader, SimSpoke)
        return self.reader

    def run(self) -> None:
        if self.workload.happenings is not None:
            self.workload.happenings(self)
        for job in self.jobs:
            self.engine.at(0.0, job.start)
        self.engine.run()
