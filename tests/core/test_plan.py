"""Rules, plan and the model of the path."""

from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import ObjectName
from hubspoke.core.pacing import PathModel
from hubspoke.core.plan import PlanConfig, choose
from hubspoke.core.ranking import RULES, RuleRanker


def candidate(source: str, evidence: int, length: int = 100, use_in_s: float = 0.0) -> Candidate:
    return Candidate(source, 1, ObjectName("b", "k"), None, 0, length, use_in_s, evidence)


def test_more_evidence_is_never_less_likely() -> None:
    for source in RULES:
        scores = RuleRanker().score([candidate(source, n) for n in range(50)])
        assert scores == sorted(scores)
        assert 0 < scores[0] < scores[-1] < 1


def test_the_likeliest_are_kept_when_room_is_short() -> None:
    sure, guess = candidate("sequential", 50, 600), candidate("next_object", 0, 600)
    planned = choose(
        [guess, sure],
        RuleRanker().score,
        PlanConfig(share_of_cache=0.5),
        now=10.0,
        outstanding_bytes=0,
        capacity=2_000,
    )
    assert [p.candidate for p in planned] == [sure]


def test_a_candidate_that_does_not_fit_is_cut_to_whole_pages() -> None:
    (planned,) = choose(
        [candidate("sequential", 9, 100_000)],
        RuleRanker().score,
        PlanConfig(share_of_cache=0.5),
        now=0.0,
        outstanding_bytes=0,
        capacity=100_000,
    )
    assert planned.candidate.length == 50_000 // 4096 * 4096


def test_what_is_outstanding_takes_room() -> None:
    args = {"score": RuleRanker().score, "config": PlanConfig(share_of_cache=0.5), "now": 0.0}
    c = [candidate("sequential", 9, 400)]
    assert choose(c, outstanding_bytes=500, capacity=2_000, **args)  # type: ignore[arg-type]
    assert not choose(c, outstanding_bytes=700, capacity=2_000, **args)  # type: ignore[arg-type]


def test_unlikely_candidates_are_left_out_and_deadlines_follow_use() -> None:
    likely, unlikely = candidate("strided", 9, use_in_s=0.5), candidate("strided", 1)
    planned = choose(
        [likely, unlikely],
        lambda cs: [0.9, 0.1],
        PlanConfig(),
        now=10.0,
        outstanding_bytes=0,
        capacity=1 << 20,
    )
    assert [(p.candidate, p.deadline) for p in planned] == [(likely, 10.5)]


def test_the_path_keeps_its_smallest_round_trip_and_its_best_recent_rate() -> None:
    path = PathModel()
    assert path.rtt_s is None and path.rate(0.0) is None
    for s in (0.07, 0.06, 0.5):
        path.round_trip(s)
    assert path.rtt_s == 0.06
    now = 0.0
    for _ in range(20):
        path.delivered(10_000, now, more=True)
        now += 0.01
    first = path.rate(now)
    assert first is not None and 0.9e6 < first < 1.1e6
    for _ in range(50):
        path.delivered(1_000, now, more=True)
        now += 0.01
    assert path.rate(now) == first
    for _ in range(2_000):
        path.delivered(1_000, now, more=True)
        now += 0.01
    later = path.rate(now)
    assert later is not None and later < 0.2e6


def test_small_reads_with_pauses_say_nothing_about_the_path() -> None:
    path = PathModel()
    for i in range(40):
        path.delivered(1_000_000, i * 0.01, more=True)
    fast = path.rate(0.4)
    assert fast is not None and fast > 90e6
    for i in range(100):  # one byte each 0.2 s, long after the fast ones have left the window
        path.delivered(1, 20 + i * 0.2, more=False)
    assert path.rate(40.0) == fast
    for i in range(100):  # a path that is kept busy and has become slow
        path.delivered(10_000, 50 + i * 0.01, more=True)
    slow = path.rate(51.0)
    assert slow is not None and slow < 1.1e6
