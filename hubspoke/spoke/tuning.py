"""What can be set at a spoke, with units and reasons."""

from dataclasses import dataclass, field

from hubspoke.core.budget import BudgetConfig
from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.health import HealthConfig
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.spoke_config import SpokeConfig
from hubspoke.spoke.recording import RecordingTuning
from hubspoke.spoke.renewal import FollowerTuning
from hubspoke.spoke.warm_tuning import WarmTuning


@dataclass(frozen=True, slots=True)
class SpokeTuning:
    capacity: int
    spoke_id: str
    prefetch: bool = True
    infer_order: bool = True  # where there is somebody to search
    region: str = ""
    # A read is given up after this long; loaders retry a 503, they do not survive a hang.
    read_deadline_s: float = 30.0
    fetch_attempts: int = 3
    # What one long GET may ask for ahead of what its reader has taken: two round trips of 60 ms
    # at 500 MB/s, and as much for lanes that deliver later than others.
    window_bytes: int = 128 << 20
    # Reads up to this size are answered as one buffer.
    whole_bytes_max: int = 1 << 20
    # Accesses are looked at together at most this often, so that hits do not pay for it each.
    predict_interval_s: float = 0.002
    # Full writes of its drives per day that the drives are rated for; None: not known.
    dwpd: float | None = None
    memory: BudgetConfig = field(default_factory=BudgetConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    # Cells lose charge over months, so once a week is often: 8 MiB/s is 5 TB a week, and less
    # than one per cent of what a drive reads.
    scrub_bytes_per_second: float = 8 << 20
    upkeep_interval_s: float = 1.0
    pacing: PacingConfig = field(default_factory=PacingConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    follower: FollowerTuning = field(default_factory=FollowerTuning)
    warm: WarmTuning = field(default_factory=WarmTuning)
    recording: RecordingTuning = field(default_factory=RecordingTuning)

    def core_config(self, *, searching: bool) -> SpokeConfig:
        """searching: whether somebody searches for orders."""
        return SpokeConfig(
            self.capacity,
            self.prefetch,
            self.infer_order and searching,
            pacing=self.pacing,
            depth=self.depth,
        )
