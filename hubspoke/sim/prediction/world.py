"""One run of a workload: everything that exists in it."""

from hubspoke.sim.prediction.disk import Disk
from hubspoke.sim.prediction.engine import Engine
from hubspoke.sim.prediction.job import Job
from hubspoke.sim.prediction.objects import Objects
from hubspoke.sim.prediction.path import Path
from hubspoke.sim.prediction.recorder import Recorder
from hubspoke.sim.prediction.sim_spoke import SimSpoke
from hubspoke.sim.prediction.workload import Workload
from hubspoke.spoke.tuning import SpokeTuning


class World:
    """Made of a workload; `run` reads all of it."""

    def __init__(self, workload: Workload, *, prefetch: bool = True) -> None:
        self.workload = workload
        self.engine = Engine()
        self.objects = Objects(workload.names, workload.sizes)
        self.path = Path(self.engine, workload.path)
        self.disk = Disk(workload.disk)
        self.recorder = Recorder()
        self.spoke = SimSpoke(
            self.engine,
            self.objects,
            self.path,
            self.disk,
            self.recorder,
            tuning=SpokeTuning(workload.capacity, "simulated", prefetch),
        )
        self.jobs: list[Job] = []
        client = 0
        for spec in workload.jobs:
            self.jobs.append(Job(self.engine, self.spoke, spec, client))
            client += spec.clients
        self.clients = client

    def run(self) -> None:
        if self.workload.happenings is not None:
            self.workload.happenings(self)
        for job in self.jobs:
            self.engine.at(0.0, job.start)
        self.engine.run()
