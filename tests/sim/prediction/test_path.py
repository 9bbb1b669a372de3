"""The simulated path: a round trip, slow start, one bottleneck, and an outage."""

from collections.abc import Callable

import pytest

from hubspoke.core.pacing import INITIAL_WINDOW_BYTES
from hubspoke.sim.prediction.engine import Engine
from hubspoke.sim.prediction.path import Path, PathConfig

RTT_S = 0.06


def path(rate: float = 1e9) -> tuple[Engine, Path, list[tuple[float, str]], Callable[[str], None]]:
    engine = Engine()
    there: list[tuple[float, str]] = []
    made = Path(engine, PathConfig(RTT_S, rate))
    return engine, made, there, lambda what: there.append((engine.now, what))


def test_what_fits_the_first_window_takes_a_round_trip() -> None:
    engine, wan, there, note = path()
    wan.ask(0, [(4_096, ("a",)), (4_096, ("b",))], note)
    engine.run()
    assert [what for _, what in there] == ["a", "b"]
    assert there[1][0] == pytest.approx(RTT_S + 8_192 / 1e9)


def test_the_window_doubles_once_a_round_trip() -> None:
    engine, wan, there, note = path()
    wan.ask(0, [(INITIAL_WINDOW_BYTES * 7, ("all",))], note)  # 1 + 2 + 4 windows
    engine.run()
    assert there[0][0] == pytest.approx(3 * RTT_S, rel=0.01)


def test_an_idle_lane_starts_over() -> None:
    engine, wan, there, note = path()
    whole = INITIAL_WINDOW_BYTES * 7
    wan.ask(0, [(whole, ("first",))], note)
    engine.at(0.3, wan.ask, 0, [(whole, ("warm",))], note)
    engine.at(2.0, wan.ask, 0, [(whole, ("idle",))], note)
    engine.run()
    took = {what: at - began for (at, what), began in zip(there, (0, 0.3, 2.0), strict=True)}
    assert took["warm"] < 1.5 * RTT_S
    assert took["idle"] == pytest.approx(took["first"], rel=0.01)


def test_lanes_share_the_bottleneck_and_keep_it_busy() -> None:
    engine, wan, there, note = path(rate=10e6)
    for lane in range(8):
        wan.ask(lane, [(256 << 10, (f"{lane}.{i}",)) for i in range(20)], note)
    engine.run()
    total = 8 * 20 * (256 << 10)
    assert wan.delivered == total
    assert there[-1][0] == pytest.approx(total / 10e6, rel=0.05)
    ends = {what: at for at, what in there}
    assert min(ends[f"{lane}.19"] for lane in range(8)) > 0.9 * there[-1][0]  # none was starved


def test_what_is_under_way_when_the_path_goes_down_never_comes() -> None:
    engine, wan, there, note = path()
    wan.ask(0, [(4_096, ("lost",))], note)
    engine.at(RTT_S / 2, wan.down)
    engine.at(0.1, wan.ask, 0, [(4_096, ("not sent",))], note)
    engine.at(0.2, wan.restore)
    engine.at(0.3, wan.ask, 0, [(4_096, ("sent",))], note)
    engine.run()
    assert [what for _, what in there] == ["sent"]
