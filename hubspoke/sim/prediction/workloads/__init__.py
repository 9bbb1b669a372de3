"""The workloads of the table, by name."""

from collections.abc import Callable

from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.workloads import w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w12

BY_NAME: dict[str, Callable[[Size], Workload]] = {
    "W1": w1.build,
    "W2": w2.build,
    "W3": w3.build,
    "W4": w4.build,
    "W5": w5.build,
    "W6": w6.build,
    "W6H": w6.build_hidden,
    "W7": w7.build,
    "W8": w8.build,
    "W9": w9.build,
    "W10": w10.build,
    "W12": w12.build,
}
