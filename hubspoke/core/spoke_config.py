"""Settings of a spoke's decisions; each part is explained beside the code that it tunes."""

from dataclasses import dataclass, field

from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.pacing import PacingConfig
from hubspoke.core.plan import PlanConfig


@dataclass(frozen=True, slots=True)
class SpokeConfig:
    capacity: int  # bytes of cache, a hard cap
    prefetch: bool = True
    infer_order: bool = False  # whether whoever drives the core answers `Inference.requests`
    pacing: PacingConfig = field(default_factory=PacingConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
