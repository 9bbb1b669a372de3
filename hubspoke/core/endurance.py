"""What the cache's writes do to flash: a rate, its share of what the drives stand, the life left.

It decides the arithmetic; where the figures come from is the adapters' business. A figure that
is not known makes what depends on it None.

A rating of 1 DWPD means: the drive may be written once in full every day of its warranty, which
is five years for drives that are rated so.
"""

from dataclasses import dataclass

DAY_S = 86_400.0
YEAR_DAYS = 365.25
WARRANTY_YEARS = 5.0
# A rate per day from a shorter time would be a guess.
OBSERVED_MIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Wear:
    """written_bytes_per_day: by this cache, to all its folders. drive_writes_per_day: the same
    in sizes of the drives. dwpd_share: of the rated ones; above 1 the drives end before their
    warranty. expected_life_years: from now, at this rate; of new drives if it is not known how
    much of theirs is used."""

    written_bytes_per_day: float | None
    drive_writes_per_day: float | None
    dwpd_rated: float | None
    dwpd_share: float | None
    expected_life_years: float | None


def wear(
    written_bytes: int,
    seconds: float,
    drives_bytes: int | None,
    dwpd_rated: float | None,
    used_share: float | None,
) -> Wear:
    """written_bytes: in `seconds`. drives_bytes: size of all drives under the cache. used_share:
    of the drives' rated life, 0 when new; the most used one's."""
    per_day = written_bytes / seconds * DAY_S if seconds >= OBSERVED_MIN_S else None
    if per_day is None or not drives_bytes:
        return Wear(per_day, None, dwpd_rated, None, None)
    writes = per_day / drives_bytes
    if not dwpd_rated:
        return Wear(per_day, writes, dwpd_rated, None, None)
    share = writes / dwpd_rated
    left_years = WARRANTY_YEARS * max(0.0, 1.0 - (used_share or 0.0))
    return Wear(per_day, writes, dwpd_rated, share, left_years / share if share else None)
