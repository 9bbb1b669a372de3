"""What can be set at a hub, with units and reasons."""

from dataclasses import dataclass, field

from hubspoke.core.hub import HubCoreConfig
from hubspoke.core.leases import LeaseConfig
from hubspoke.core.noticed import NoticedConfig


@dataclass(frozen=True, slots=True)
class HubTuning:
    region: str = ""
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    # The longest lease that another hub may have granted on a store which this one has no log of;
    # None: the longest that any may. 0 where it is known that nobody served the store.
    stranger_term_s: float | None = None
    core: HubCoreConfig = field(default_factory=HubCoreConfig)
    # Larger reads spend less on calls, smaller ones hold less memory per reader.
    read_chunk_bytes: int = 1 << 20
    # One call to the store: an S3 store may retry inside it.
    store_s: float = 60.0
    # A change waits for its name: the longest wait for leases, twice over, and slow stores.
    change_wait_s: float = 30.0
    # A reader waits for a change of its name: the longest wait for leases, and the store.
    read_wait_s: float = 10.0
    # Changes behind the hub's back: names that are looked at together, one by one ...
    refreshes_max: int = 64
    # ... and in a comparison of many, where each waits a round trip for the leases: 3,000 a
    # second over 60 ms.
    reconcile_max: int = 256
    noticed: NoticedConfig = field(default_factory=NoticedConfig)
    # From one comparison of the whole store with the log to the next where the store does not
    # tell its changes, or always; None: never.
    rescan_s: float | None = None
    rescan_always: bool = False
    # After one that failed, and after changes were lost.
    reconcile_retry_s: float = 10.0
    reconcile_rest_s: float = 1.0
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
