"""Wear: rates, the share of a rating, the life that is left; what is not known stays so."""

import pytest

from hubspoke.core.endurance import DAY_S, wear

TB = 10**12


def test_a_drive_written_once_a_day_at_one_dwpd_lasts_its_warranty() -> None:
    worn = wear(2 * TB, DAY_S, 2 * TB, 1.0, None)
    assert worn.written_bytes_per_day == 2 * TB
    assert worn.drive_writes_per_day == worn.dwpd_share == 1.0
    assert worn.expected_life_years == pytest.approx(5.0)


def test_a_used_drive_lasts_shorter() -> None:
    worn = wear(TB, DAY_S / 2, 2 * TB, 0.5, 0.5)
    assert worn.dwpd_share == pytest.approx(2.0)
    assert worn.expected_life_years == pytest.approx(1.25)
    assert wear(TB, DAY_S, TB, 1.0, 1.3).expected_life_years == 0.0


def test_what_is_not_known_makes_what_depends_on_it_none() -> None:
    assert wear(TB, 5.0, TB, 1.0, 0.0).written_bytes_per_day is None
    no_size = wear(TB, DAY_S, None, 1.0, 0.0)
    assert no_size.written_bytes_per_day == TB and no_size.drive_writes_per_day is None
    no_rating = wear(TB, DAY_S, TB, None, 0.0)
    assert no_rating.drive_writes_per_day == 1.0 and no_rating.expected_life_years is None
    assert wear(0, DAY_S, TB, 1.0, 0.0).expected_life_years is None
