"""A folder's health: what makes it ill, what is shed first, how it comes back."""

import pytest

from hubspoke.core.health import Call, DiskState, FolderHealth, HealthConfig

CONFIG = HealthConfig()


def ill(call: Call, errors: int, start: float = 0.0) -> FolderHealth:
    health = FolderHealth(CONFIG, start)
    for i in range(errors):
        health.failed(call, start + i * 0.01, "EIO")
    return health


def probe_until_healthy(health: FolderHealth, now: float, limit_s: float = 60.0) -> float:
    """Good probes as they fall due; returns when it was healthy."""
    end = now + limit_s
    while now < end:
        now += 0.05
        if health.probe_due(now) and health.probed(now, good=True):
            return now
    raise AssertionError(health.state)


def test_one_failure_is_no_sick_disk() -> None:
    health = ill(Call.READ, CONFIG.suspect_errors - 1)
    assert health.state is DiskState.HEALTHY and health.writable and health.readable
    assert health.errors == {Call.READ: 2, Call.WRITE: 0} and health.last_error == "EIO"


def test_errors_far_apart_are_no_sick_disk() -> None:
    health = FolderHealth(CONFIG, 0.0)
    assert not any(health.failed(Call.READ, i * 40.0, "EIO") for i in range(100))
    assert health.state is DiskState.HEALTHY


def test_fills_are_shed_first() -> None:
    health = ill(Call.READ, CONFIG.suspect_errors)
    assert health.state is DiskState.SUSPECT
    assert not health.writable and health.readable


def test_a_full_disk_is_still_read() -> None:
    health = ill(Call.WRITE, 1_000)
    assert health.state is DiskState.SUSPECT


def test_failing_reads_bypass_it() -> None:
    health = ill(Call.READ, CONFIG.bypass_errors)
    assert health.state is DiskState.BYPASSED
    assert not health.writable and not health.readable
    assert not health.failed(Call.READ, 1.0, "EIO")  # it cannot fall any further


def test_slow_writes_shed_fills_and_never_bypass() -> None:
    health = FolderHealth(CONFIG, 0.0)
    for i in range(100):
        health.slow(Call.WRITE, i * 0.01)
    assert health.state is DiskState.SUSPECT and health.slow_calls == 100


def test_reads_that_hang_bypass_it() -> None:
    health = FolderHealth(CONFIG, 0.0)
    for _ in range(CONFIG.bypass_slow):
        health.slow(Call.READ, 0.3)
    assert health.state is DiskState.BYPASSED


def test_a_few_slow_reads_among_many_do_not_bypass_it() -> None:
    health = FolderHealth(CONFIG, 0.0)
    for i in range(100):
        health.succeeded(Call.READ, i * 0.01)
        health.succeeded(Call.WRITE, i * 0.01)
    for _ in range(10):
        health.slow(Call.READ, 1.0)
    assert health.state is DiskState.SUSPECT


def test_old_reads_do_not_hide_that_it_hangs_now() -> None:
    health = FolderHealth(CONFIG, 0.0)
    for _ in range(CONFIG.calls_kept):
        health.succeeded(Call.READ, 0.0)
    for _ in range(CONFIG.bypass_slow):
        health.slow(Call.READ, CONFIG.slow_window_s + 1)
    assert health.state is DiskState.BYPASSED


def test_it_recovers_by_itself_after_several_good_probes() -> None:
    health = ill(Call.READ, CONFIG.bypass_errors)
    assert not health.probe_due(0.5)
    assert health.probe_due(1.2) and health.state is DiskState.PROBING
    assert not health.readable
    assert not health.probed(1.2, good=True)
    assert not health.probe_due(1.25)
    well = probe_until_healthy(health, 1.25)
    assert well < 1.25 + CONFIG.probe_rounds * CONFIG.probe_interval_s * 2
    assert health.writable and health.readable and health.since == well
    assert not health.probe_due(well + 100) and not health.probed(well + 100, good=True)


def test_a_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    health = ill(Call.READ, CONFIG.bypass_errors)
    now, pauses = 0.1, []
    for _ in range(6):
        due = now
        while not health.probe_due(due):
            due += 0.01
        pauses.append(due - now)
        health.probed(due, good=False)
        assert health.state is DiskState.BYPASSED
        now = due
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0], abs=0.1)


def test_a_suspect_disk_stays_readable_while_it_is_probed() -> None:
    health = ill(Call.WRITE, CONFIG.suspect_errors)
    assert health.probe_due(2.0) and health.state is DiskState.SUSPECT
    health.probed(2.0, good=False)
    assert health.state is DiskState.SUSPECT and health.readable
    probe_until_healthy(health, 2.0)


def test_a_suspect_disk_whose_reads_fail_is_bypassed() -> None:
    health = ill(Call.WRITE, CONFIG.suspect_errors)
    for _ in range(CONFIG.bypass_errors):
        health.failed(Call.READ, 1.0, "EIO")
    assert health.state is DiskState.BYPASSED
    assert not health.probed(1.0, good=True)  # of a probe begun before


def first_pause(health: FolderHealth, now: float) -> float:
    for _ in range(CONFIG.bypass_errors):
        health.failed(Call.READ, now, "EIO")
    due = now
    while not health.probe_due(due):
        due += 0.01
    return due - now


def test_a_relapse_waits_longer_and_a_long_recovery_forgets() -> None:
    health = FolderHealth(CONFIG, 0.0)
    assert first_pause(health, 0.0) == pytest.approx(1.0, abs=0.1)
    well = probe_until_healthy(health, 1.0)
    assert first_pause(health, well + 1) == pytest.approx(2.0, abs=0.1)
    well = probe_until_healthy(health, well + 3)
    assert first_pause(health, well + 2 * CONFIG.relapse_s) == pytest.approx(1.0, abs=0.1)
