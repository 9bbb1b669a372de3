"""A job that stops reading: what is not in flight soon is not fetched for it any more."""

import random
from collections.abc import Callable

import pytest

from hubspoke.core.ids import ObjectName
from tests.core.virtual_wan import Job, Lab, Names, Read

PART = 64 << 10
SOON_S = 2.0
RECORD, FILES, PER_FILE = 120_000, 400, 200


def sequential() -> tuple[Names, list[Read]]:
    name = ObjectName("b", "k")
    return Names({"k": 8 << 30}), [(name, i * PART, PART) for i in range(2_000)]


def an_epoch() -> tuple[Names, list[Read]]:
    """Of a data set that fits and would take far longer than two seconds to come."""
    names = Names({f"set/{i:03}.rec": PER_FILE * RECORD for i in range(FILES)})
    order = random.Random(0).sample(range(FILES * PER_FILE), 800)
    reads = [(n // PER_FILE, n % PER_FILE * RECORD) for n in order]
    return names, [(ObjectName("b", f"set/{i:03}.rec"), at, RECORD) for i, at in reads]


@pytest.mark.parametrize("job", [sequential, an_epoch])
def test_nothing_is_asked_for_soon_after_the_last_read(
    job: Callable[[], tuple[Names, list[Read]]],
) -> None:
    names, reads = job()
    lab = Lab(names, capacity=64 << 30)
    j = Job(lab, [[reads[i : i + 5]] for i in range(0, len(reads), 5)], workers=4, compute_s=0.01)
    issued: list[tuple[float, int]] = []
    ended: list[float] = []

    def tick() -> None:
        ledger = lab.core.ledger
        # The shell asks for predictions while requests come back, too.
        lab.core.predict(lab.now)
        lab._dispatch()
        issued.append((lab.now, ledger.prefetch_issued_bytes))
        if len(lab.states) == len(reads) and not ended:
            ended.append(lab.now)
        if not ended or lab.now < ended[0] + 8.0:
            lab.at(lab.now + 0.05, tick)

    lab.at(0.0, j.start)
    lab.at(0.05, tick)
    lab.run()
    soon = next(n for at, n in issued if at >= ended[0] + SOON_S)
    assert issued[-1][1] == soon
    assert soon > 0
