"""The workloads of the table, by name."""

from collections.abc import Callable

from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.workloads import w1

BY_NAME: dict[str, Callable[[Size], Workload]] = {
    "W1": w1.build,
}
