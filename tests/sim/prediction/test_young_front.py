"""A job's first reads, from many workers at once, are no shuffle of a file's records."""

from dataclasses import replace

from hubspoke.sim.prediction.workload import Size
from hubspoke.sim.prediction.workloads import w1
from hubspoke.sim.prediction.world import World


def test_a_front_of_64_workers_is_not_filled_as_a_shuffled_epoch() -> None:
    whole = w1.build(Size())
    world = World(replace(whole, jobs=[replace(whole.jobs[0], steps=[20])]), search_s=None)
    world.run()
    read = int(world.recorder.reads().lengths.sum())
    assert world.path.delivered <= read + (32 << 20)
