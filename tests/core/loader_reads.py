"""What a door sees of a loader that reads in a given order."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def through_workers(
    order: Sequence[int] | npt.NDArray[np.int32],
    *,
    workers: int,
    batch: int,
    rng: np.random.Generator,
    missing: float = 0.05,
    twice: float = 0.05,
) -> list[int]:
    """Batches dealt to workers in turns, two ahead at most; workers run at random speeds, some
    reads are answered by a page cache before they come, and some come twice."""
    batches = [list(order[i : i + batch]) for i in range(0, len(order), batch)]
    queues: list[list[list[int]]] = [[] for _ in range(workers)]
    handed = done = 0
    seen: list[int] = []
    while done < len(batches):
        while handed < min(len(batches), done + 2 * workers):
            queues[handed % workers].append(batches[handed])
            handed += 1
        busy = [q for q in queues if q]
        queue = busy[int(rng.integers(len(busy)))]
        item = int(queue[0].pop(0))
        if not queue[0]:
            queue.pop(0)
            done += 1
        if rng.random() >= missing:
            seen.append(item)
        if rng.random() < twice:
            seen.append(item)
    return seen
