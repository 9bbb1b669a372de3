"""What became of prefetches corrects the probability of the next ones."""

from collections.abc import Sequence

import pytest

from hubspoke.core.features import NAMES, Rows
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import BLOCK_BYTES, ReadState
from hubspoke.core.outcomes import (
    ARMS_MAX,
    BLOCKS_MAX,
    EXPLORE,
    GRACE_S,
    HALF_LIFE_S,
    KNOWN_BYTES_MAX,
    PRIOR_BYTES,
    Arm,
    Outcomes,
)
from hubspoke.core.page_codes import PAGES_PER_BLOCK
from hubspoke.core.scoring import LATEST_MAX, Scoring
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from tests.core.virtual_wan import Names

ARM: Arm = ("sequential", "unknown", "b/")
OTHER: Arm = ("strided", "strided", "b/")


def outcomes(useful: int = 0, late: int = 0, wasted: int = 0, arm: Arm = ARM) -> Outcomes:
    found = Outcomes()
    found.queued(arm, 1, 0, PAGES_PER_BLOCK, 0.0)
    if useful:
        found.used(1, 0, useful, late=False)
    if late:
        found.used(1, 0, late, late=True)
    if wasted:
        found.wasted([(1, 3, wasted)])
    return found


def test_without_outcomes_the_probability_stays() -> None:
    assert Outcomes().adjusted(0.7, ARM, 0.4) == 0.7
    assert outcomes(wasted=1 << 20, arm=OTHER).adjusted(0.7, ARM, 0.4) == 0.7


def test_as_many_bytes_as_the_prior_count_half() -> None:
    assert outcomes(useful=PRIOR_BYTES).adjusted(0.5, ARM, 0.4) == pytest.approx(0.75)
    assert outcomes(late=PRIOR_BYTES).adjusted(0.5, ARM, 0.4) == pytest.approx(0.75)
    assert outcomes(wasted=PRIOR_BYTES).adjusted(0.9, ARM, 0.4) == pytest.approx(0.45)


def test_few_bytes_change_little() -> None:
    assert outcomes(wasted=PRIOR_BYTES // 100).adjusted(0.9, ARM, 0.4) > 0.88


def test_a_refused_arm_is_tried_again_now_and_then() -> None:
    found = outcomes(wasted=100 * PRIOR_BYTES)
    tried = [found.adjusted(0.9, ARM, 0.4) == 0.9 for _ in range(10 * EXPLORE)]
    assert sum(tried) == 10


def test_what_the_ranker_refuses_is_not_tried() -> None:
    found = outcomes(wasted=100 * PRIOR_BYTES)
    assert all(found.adjusted(0.3, ARM, 0.4) < 0.3 for _ in range(2 * EXPLORE))


def test_outcomes_are_forgotten_with_time() -> None:
    found = outcomes(wasted=PRIOR_BYTES)
    found.look(10 * HALF_LIFE_S)
    assert found.adjusted(0.9, ARM, 0.4) > 0.89


def test_a_change_is_believed_after_as_many_bytes_as_were_kept() -> None:
    found = outcomes(useful=100 * KNOWN_BYTES_MAX)
    assert found.accuracy(ARM) == (1.0, KNOWN_BYTES_MAX)
    for _ in range(4):
        found.wasted([(1, 0, KNOWN_BYTES_MAX // 2)])
    assert found.adjusted(0.9, ARM, 0.4) < 0.4


def test_bytes_belong_to_what_was_queued_last_in_their_block() -> None:
    found = outcomes(useful=4096)
    found.queued(OTHER, 1, 2 * PAGES_PER_BLOCK - 1, 2 * PAGES_PER_BLOCK + 1, 0.0)
    found.used(1, PAGES_PER_BLOCK, 100, late=False)
    found.used(1, 2 * PAGES_PER_BLOCK, 100, late=False)
    found.used(1, 3 * PAGES_PER_BLOCK, 100, late=False)  # nobody's
    found.wasted([(7, 0, 100)])
    assert found.accuracy(ARM)[1] == 4096
    assert found.accuracy(OTHER)[1] == 200


def test_what_was_to_be_read_soon_and_is_not_counts_as_wasted_until_it_is() -> None:
    found = outcomes()
    for _ in range(16):
        found.issued(1, 0, PRIOR_BYTES // 8)
    found.look(GRACE_S - 0.1)
    assert found.adjusted(0.8, ARM, 0.4) == 0.8
    found.look(GRACE_S)
    assert found.adjusted(0.9, ARM, 0.1) == pytest.approx(0.3)
    found.used(1, 0, 2 * PRIOR_BYTES, late=False)
    assert found.accuracy(ARM) == (1.0, 2 * PRIOR_BYTES)


def test_a_pause_after_much_was_read_in_time_does_not_count() -> None:
    found, each = outcomes(), 50_000_000
    for tenth in range(200):
        now = tenth / 10
        found.look(now)
        found.issued(1, 0, each)
        found.used(1, 0, each, late=False)
    found.look(now + 2 * GRACE_S)
    assert found.accuracy(ARM)[0] == 1.0
    found.issued(1, 0, 20 * PRIOR_BYTES)
    found.look(now + 4 * GRACE_S)
    assert found.accuracy(ARM)[0] < 0.7


def test_what_is_proposed_for_later_is_given_time() -> None:
    found = Outcomes()
    found.queued(ARM, 1, 0, PAGES_PER_BLOCK, 60.0)
    found.issued(1, 0, PRIOR_BYTES)
    found.issued(2, 0, PRIOR_BYTES)  # nobody's
    found.look(100 * GRACE_S)
    assert found.adjusted(0.8, ARM, 0.4) == 0.8


def test_memory_has_a_bound() -> None:
    found = Outcomes()
    for i in range(2 * BLOCKS_MAX):
        found.queued(("s", "p", f"f{i % (2 * ARMS_MAX)}/"), i, 0, 1, 0.0)
        found.look(float(i) / BLOCKS_MAX)
        found.used(i, 0, 4096, late=False)
    assert len(found._blocks) == BLOCKS_MAX
    assert len(found.tallies) == ARMS_MAX


def test_what_was_learned_before_a_restart_counts_on() -> None:
    found = Outcomes()
    found.restore([(ARM, (0.0, 0.0, float(100 * PRIOR_BYTES), 0.0))], 50.0)
    assert found.adjusted(0.9, ARM, 0.4) < 0.1
    found.restore([(("s", "p", str(i)), (1.0, 0.0, 0.0, 0.0)) for i in range(2 * ARMS_MAX)], 50.0)
    assert len(found.tallies) == ARMS_MAX


# -- through the core ---------------------------------------------------------------------------


def half(candidates: Sequence[Candidate], rows: Rows) -> list[float]:
    assert rows(candidates).shape == (len(candidates), len(NAMES))
    return [0.5] * len(candidates)


def test_reads_and_drops_reach_the_tallies() -> None:
    names = Names({"d/k": 4 * BLOCK_BYTES})
    core = SpokeCore(SpokeConfig(1 << 26), half, names, 0.0, 0)
    ((name, entry),) = names.entries.items()
    obj, _ = core.open(name, entry)
    core.access(obj, 0, 4096, "c", ReadState.MISS, 0.0)
    core.predict(0.0)
    (arm,) = {arm for arm, _ in core.prediction.scoring.outcomes._blocks.values()}
    assert arm == ("sequential", "unknown", "b/d/")
    came = 0
    for fetch in core.dispatch(0.0)[0]:
        for i, r in enumerate(fetch.ranges):
            core.arrived(fetch, i, r.offset, r.length, r.length, 0.1)
            came += r.length
    core.access(obj, 8192, 4096, "c", ReadState.HIT, 0.2)
    core.cache.evict(obj, 0, PAGES_PER_BLOCK)
    core.dispatch(0.3)
    tally = core.prediction.scoring.outcomes.tallies[arm]
    assert tally.useful == 4096
    assert tally.wasted == came - 4096
    assert core.ledger.prefetch_wasted_bytes == came - 4096


def test_the_last_candidates_are_kept_to_be_explained() -> None:
    names = Names({"d/k": 4 * BLOCK_BYTES})
    core = SpokeCore(SpokeConfig(1 << 26), half, names, 0.0, 0)
    scoring: Scoring = core.prediction.scoring
    ((name, entry),) = names.entries.items()
    for i in range(2 * LATEST_MAX):
        scoring.score([Candidate("blind_fill", i, name, entry, 0, 4096, 60.0, 3)])
    assert len(scoring.latest) == LATEST_MAX
    assert scoring.score([]) == []
