"""The path's arithmetic on a virtual clock: exact, no sockets, no waiting."""

import math

import pytest

from hubspoke.lab.path_model import (
    INITIAL_WINDOW_BYTES,
    SEGMENT_BYTES,
    End,
    PathConfig,
    SharedLink,
    Way,
    next_retry,
)

RTT = 0.0625  # a binary fraction, so that sums of it are exact
MIB = 1 << 20


def open_way(config: PathConfig, link: SharedLink | None = None) -> Way:
    return Way(config, link, opens_at=0.0)


def push(way: Way, now: float, wanted: int = 1 << 40) -> int:
    """A sender that always has bytes: send what is let in."""
    sent = 0
    while sent < wanted and (room := way.may_send(now)):
        count = min(room, wanted - sent)
        way.send(count, now)
        sent += count
    return sent


def pull(way: Way, now: float) -> int:
    """A receiver that takes everything, and the acknowledgements that are back."""
    arrived = way.arrive(now)
    if arrived:
        way.deliver(arrived, now)
    way.acknowledge(now)
    return arrived


def greedy_rounds(config: PathConfig, rounds: int) -> list[int]:
    """Bytes sent in each round trip by a sender that always has more."""
    way, sent = open_way(config), []
    for i in range(rounds):
        now = i * RTT
        way.acknowledge(now)
        sent.append(push(way, now))
        pull(way, now + RTT / 2)
    return sent


def test_slow_start_doubles_every_round_trip_up_to_the_window() -> None:
    config = PathConfig(rtt_s=RTT, window_bytes=100_000)
    assert greedy_rounds(config, 6) == [14_600, 29_200, 58_400, 100_000, 100_000, 100_000]


def test_without_slow_start_the_first_round_trip_fills_the_window() -> None:
    config = PathConfig(rtt_s=RTT, window_bytes=100_000, slow_start=False)
    assert greedy_rounds(config, 3) == [100_000] * 3


def test_first_four_mebibytes_take_nine_round_trips() -> None:
    # 14,600 x (2^9 - 1) is the first sum to reach 4 MiB.
    sent = greedy_rounds(PathConfig(rtt_s=RTT), 12)
    assert sum(sent[:8]) < 4 * MIB <= sum(sent[:9])


def test_bytes_arrive_after_half_a_round_trip_and_not_before() -> None:
    way = open_way(PathConfig(rtt_s=RTT))
    way.send(100, 1.0)
    assert way.arrive(1.0 + RTT / 2 - 1e-6) == 0
    assert way.next_time(1.0) == pytest.approx(1.0 + RTT / 2)
    assert way.arrive(1.0 + RTT / 2) == 100


def test_a_sender_that_sends_little_does_not_open_its_window() -> None:
    way = open_way(PathConfig(rtt_s=RTT))
    for i in range(100):
        now = i * RTT
        way.acknowledge(now)
        push(way, now, wanted=1000)
        pull(way, now + RTT / 2)
    assert way.window.congestion_bytes == INITIAL_WINDOW_BYTES


@pytest.mark.parametrize(("idle_reset", "first"), [(True, INITIAL_WINDOW_BYTES), (False, 4 * MIB)])
def test_an_idle_rto_starts_the_window_over(idle_reset: bool, first: int) -> None:
    config = PathConfig(rtt_s=RTT, idle_reset=idle_reset)
    way, now = open_way(config), 0.0
    for _ in range(20):
        way.acknowledge(now)
        push(way, now)
        pull(way, now + RTT / 2)
        now += RTT
    way.acknowledge(now)
    assert way.window.in_flight_bytes == 0
    just_before = now - RTT + config.rto_s  # the last byte was sent one round trip ago
    assert way.may_send(just_before) == 4 * MIB
    assert way.may_send(just_before + 1e-3) == first


def test_a_receiver_that_does_not_read_stops_the_sender_at_the_window() -> None:
    way, now = open_way(PathConfig(rtt_s=RTT, window_bytes=100_000, slow_start=False)), 0.0
    for _ in range(50):
        push(way, now)
        way.arrive(now)
        now += RTT
    assert way.accepted_bytes == way.undelivered_bytes == way.held_bytes == 100_000


def test_crumbs_of_window_are_saved_up() -> None:
    way = open_way(PathConfig(rtt_s=RTT, window_bytes=100_000, slow_start=False))
    push(way, 0.0, wanted=99_000)
    assert way.may_send(0.0) == 0


def test_nothing_passes_before_the_handshake() -> None:
    way = Way(PathConfig(rtt_s=RTT), None, opens_at=5.0)
    assert way.may_send(4.999) == 0
    assert way.next_time(4.999) == 5.0
    assert way.may_send(5.0) == INITIAL_WINDOW_BYTES


@pytest.mark.parametrize("end", list(End))
def test_an_end_comes_after_the_bytes_before_it(end: End) -> None:
    way = open_way(PathConfig(rtt_s=RTT))
    way.send(100, 0.0)
    way.finish(end, 0.0)
    assert way.may_send(0.0) == 0
    assert not way.end_arrived(RTT / 2 - 1e-3)
    assert way.arrive(RTT / 2) == 100
    assert not way.end_arrived(RTT / 2)
    way.deliver(100, RTT / 2)
    assert way.end_arrived(RTT / 2)


def test_a_reset_after_a_fin_takes_its_place_and_not_the_reverse() -> None:
    way = open_way(PathConfig(rtt_s=RTT))
    way.finish(End.FIN, 0.0)
    way.finish(End.RST, 0.010)
    way.finish(End.FIN, 0.020)
    assert way.end is End.RST
    assert way.end_arrived(0.010 + RTT / 2) and not way.end_arrived(0.009 + RTT / 2)


def test_a_shorter_path_does_not_reorder() -> None:
    way = open_way(PathConfig(rtt_s=1.0))
    way.send(1, 0.0)
    way.config = PathConfig(rtt_s=0.010)
    way.send(2, 0.1)
    assert way.arrive(0.499) == 0
    assert way.arrive(0.5) == 3


def test_connections_share_the_rate() -> None:
    rate = 10e6
    config = PathConfig(rtt_s=RTT, rate_bytes_per_s=rate, slow_start=False)
    link = SharedLink(rate, queue_s=0.050)
    ways = [open_way(config, link) for _ in range(4)]
    now, step, end = 0.0, 0.0005, 2.0
    while now < end:
        for way in ways:  # always in the same order, which must not favour the first
            pull(way, now)
            push(way, now)
        now += step
    passed = [way.delivered_bytes for way in ways]
    assert sum(passed) == pytest.approx(rate * (end - RTT / 2), rel=0.02)
    assert max(passed) - min(passed) <= rate * 0.050, "only the first filling of the queue"


def test_a_full_queue_pushes_back_and_says_when_to_ask_again() -> None:
    link = SharedLink(1e6, queue_s=0.050)
    way = open_way(PathConfig(rtt_s=RTT, rate_bytes_per_s=1e6, slow_start=False), link)
    queued = push(way, 0.0)
    assert 0.9 * 50_000 < queued <= 50_000
    again = way.next_time(0.0)
    assert 0.0 < again < 0.010
    assert way.may_send(again - 2e-4) == 0
    assert way.may_send(again) == link.quantum_bytes


def test_a_sender_that_rests_does_not_hold_up_those_behind_it() -> None:
    config, link = PathConfig(rtt_s=RTT, slow_start=False), SharedLink(1e6, queue_s=0.050)
    first, second = open_way(config, link), open_way(config, link)
    push(first, 0.0)
    assert second.may_send(0.0) == 0
    assert second.may_send(1.0) == 0, "the first is in line before it"
    first.rest()
    assert second.may_send(1.0) == link.quantum_bytes


def test_retries_double() -> None:
    assert next_retry(10.0, 0.25, 10.1) == 10.25
    assert next_retry(10.0, 0.25, 10.3) == pytest.approx(10.75)
    assert next_retry(10.0, 0.25, 10.8) == pytest.approx(11.75)


def test_after_an_outage_unacknowledged_bytes_wait_for_their_retry_out_of_one_segment() -> None:
    config = PathConfig(rtt_s=RTT)
    way = open_way(config)
    way.send(1000, 0.0)
    assert way.outage_over(0.0, 1.0) == pytest.approx(7 * config.rto_s)  # 1 + 2 + 4 RTO
    assert way.window.congestion_bytes == SEGMENT_BYTES


def test_an_outage_without_bytes_under_way_costs_nothing() -> None:
    way = open_way(PathConfig(rtt_s=RTT))
    assert way.outage_over(0.0, 1.0) == 1.0
    assert way.window.congestion_bytes == INITIAL_WINDOW_BYTES


def test_discarded_bytes_leave_the_count_of_accepted_ones_right() -> None:
    way = open_way(PathConfig(rtt_s=RTT))
    way.send(1000, 0.0)
    way.arrive(RTT)
    way.deliver(400, RTT)
    assert way.discard() == 600
    assert way.accepted_bytes == way.delivered_bytes == 400
    assert way.next_time(RTT) < math.inf  # the acknowledgement is still on its way


def test_the_name_says_what_the_path_is() -> None:
    assert PathConfig().name() == "60 ms, slow start, 4 MiB window"
    bare = PathConfig(window_bytes=None, slow_start=False, rate_bytes_per_s=125e6)
    assert bare.name() == "60 ms, no window, 1000 Mbit/s"
