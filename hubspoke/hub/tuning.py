"""What can be set at a hub, with units and reasons."""

from dataclasses import dataclass, field

from hubspoke.core.hub import HubCoreConfig
from hubspoke.core.leases import LeaseConfig


@dataclass(frozen=True, slots=True)
class HubTuning:
    region: str = ""
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    core: HubCoreConfig = field(default_factory=HubCoreConfig)
    # Larger reads spend less on calls, smaller ones hold less memory per reader.
    read_chunk_bytes: int = 1 << 20
    # One call to the store: an S3 store may retry inside it.
    store_s: float = 60.0
    # A change waits for its name: the longest wait for leases, twice over, and slow stores.
    change_wait_s: float = 30.0
    # A reader waits for a change of its name: the longest wait for leases, and the store.
    read_wait_s: float = 10.0
    # Changes behind the hub's back that are looked at together.
    refreshes_max: int = 64
    # For so long a name that the store did not have is not asked for again, and so many such
    # names are remembered: a job that polls for a file, or a thousand workers that look for one.
    absent_s: float = 1.0
    absent_max: int = 4096
    index_batch: int = 2000
    # Recent changes a feed is served from without asking the log: a minute at 100 a second.
    tail_entries_max: int = 8192
    feed_batch: int = 1000
    snapshot_batch: int = 1000
    heartbeat_s: float = 1.0
