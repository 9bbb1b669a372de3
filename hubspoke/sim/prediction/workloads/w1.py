"""W1, LLM pre-training in order: 16 ranks x 4 workers read one token file from its start.

Step s, rank r reads sequences 384 s + 24 r to + 23, each of 8,192 bytes as two direct reads of
4 KiB. A part of it has fewer sequences a rank (two at least, so 1/12 is the smallest demand).
"""

from hubspoke.sim.prediction.job import JobSpec, Read
from hubspoke.sim.prediction.workload import Size, Workload

RANKS, WORKERS, PER_RANK = 16, 4, 24
SEQUENCE, READ = 8_192, 4_096
STEPS, STEP_S = 999, 1.11


def build(size: Size) -> Workload:
    """The workload at this size; nothing of it is random."""
    per_rank = max(2, size.of(PER_RANK))
    token_bytes = (4 << 30) // size.part
    token_bytes = max(token_bytes, STEPS * RANKS * per_rank * SEQUENCE)

    def reads(epoch: int, rank: int, step: int) -> list[Read]:
        start = (step * RANKS + rank) * per_rank * SEQUENCE
        return [(0, at, READ) for at in range(start, start + per_rank * SEQUENCE, READ)]

    job = JobSpec(RANKS, WORKERS, STEP_S, [STEPS], reads)
    return Workload(
        name="W1",
        title="LLM pre-training, sequential",
        names=["data/tokens.bin"],
        sizes=[token_bytes],
        capacity=token_bytes,
        jobs=[job],
        first_misses=job.clients,
        path=size.path(),
    )
