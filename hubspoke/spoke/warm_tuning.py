"""What bounds warming, with units and reasons; the path's own bounds are in PacingConfig."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmTuning:
    jobs_max: int = 16  # at a time
    finished_max: int = 64  # remembered
    finished_s: float = 7 * 86_400.0  # for so long: who looks on Monday sees Friday's
    # Asked for and not there yet, of all jobs: 1 Gbit/s at 500 ms. Small objects are bounded by
    # their number: at 60 ms, 1,024 are 17,000 objects a second.
    window_bytes: int = 64 << 20
    pieces_max: int = 1_024
    piece_bytes: int = 4 << 20
    # Without anything of the job arriving while the hub fails; a restart of a hub takes seconds.
    retry_s: float = 120.0
    retry_pause_s: float = 0.2
    retry_pause_max_s: float = 5.0
    look_again_s: float = 2.0  # after pieces of which nothing was heard
    object_attempts: int = 5
    # Passes over the names: what changes or is dropped during one is brought by the next.
    passes_max: int = 4
    # Of the cache, for a forced job that means more than fits.
    forced_share: float = 0.95
