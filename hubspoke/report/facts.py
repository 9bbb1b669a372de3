"""What a spoke knows of itself at one moment: the input of the report and of the metrics.

Plain values, read once, so that the report never sees a counter move while it is computed. A
value that is not known is None; the report shows it as null and never as a made-up 0.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WanFacts:
    """The hub connections since the counters were last reset.

    received_bytes, sent_bytes: read from and written to the sockets, headers and feed included.
    retransmitted_bytes: what the kernel sent again on these connections (TCP_INFO), None where
    it cannot be asked. payload_bytes: object bytes after decoding; encoded_bytes: the same as
    they travelled. received_by_class: by TrafficClass value, sums up to received_bytes.
    """

    received_bytes: int
    sent_bytes: int
    retransmitted_bytes: int | None
    payload_bytes: int
    received_by_class: dict[str, int]
    rtt_ms: float | None
    bandwidth_bytes_per_second: float | None
    encoded_bytes: int


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """One cache folder. state: "healthy", "suspect" (read, not written), "bypassed" or "probing"
    (neither). Errors and slow calls are counted since the start."""

    path: str | None
    state: str
    state_seconds: float
    objects: int
    read_errors: int
    write_errors: int
    slow_calls: int
    state_changes: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class EnduranceFacts:
    """Wear of the drives under the cache; what is not known is None. drives: as the kernel and
    their SMART logs tell."""

    written_bytes_per_day: float | None
    drive_writes_per_day: float | None
    dwpd_rated: float | None
    dwpd_share: float | None
    expected_life_years: float | None
    io_pressure: dict[str, Any] | None
    drives: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """objects: versions with at least one page present. evicted, written and corrupt are counts
    since the last reset, the rest is what lies there now."""

    bytes: int
    capacity_bytes: int
    objects: int
    blocks: int
    evicted_bytes: int
    flash_written_bytes: int
    corrupt_blocks: int
    memory_bytes: int = 0  # on their way to readers, in no file
    folders: list[FolderFacts] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What is answered below a prefix without the hub. bounded_seconds: None is strict."""

    prefix: str
    bounded_seconds: float | None


@dataclass(frozen=True, slots=True)
class MetadataFacts:
    """The replica against the hub. lease: "valid", "expired" or "none"."""

    sequence: int
    hub_sequence: int | None
    entries: int
    lag_seconds: float | None
    lease: str
    staleness_seconds: float | None
    policy: list[PolicyFacts] = field(default_factory=list)


@dataclass(slots=True)
class KernelCounters:
    """Opens on the mount after which the kernel may answer reads by itself, unseen by the spoke.

    cached_opens: of a version that had been opened before, so that its pages may be there.
    """

    passthrough_opens: int = 0
    passthrough_bytes_opened: int = 0
    cached_opens: int = 0

    def reset(self) -> None:
        """Count anew."""
        self.passthrough_opens = self.passthrough_bytes_opened = self.cached_opens = 0


@dataclass(frozen=True, slots=True)
class SpokeFacts:
    """region, hub_region: "" when not said. full_copy_bytes: size of all objects under every
    prefix that was read, None when it is not known. kernel: None without a mount. warm: jobs
    as `/v1/warm` shows them."""

    spoke: str
    region: str
    hub_region: str
    model: str
    wan: WanFacts
    cache: CacheFacts
    metadata: MetadataFacts
    prefetch_in_flight_bytes: int
    runway_seconds: float | None
    full_copy_bytes: int | None
    endurance: EnduranceFacts | None = None
    kernel: KernelCounters | None = None
    warm: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WatchFacts:
    """How changes that are not made through the hub are found. mode: "starting", "notifications",
    "rescan" (everything is compared every `rescan_seconds`) or "off". reason: why not
    notifications. Counts are since the start."""

    mode: str = "starting"
    reason: str | None = None
    rescan_seconds: float | None = None
    folders: int = 0  # watched now
    events: int = 0  # from the kernel, since the watch was set up
    waiting: int = 0  # names and parts of the store, to be looked at
    changes: int = 0  # that became log entries
    lost: int = 0  # times that changes were not told
    rescans: int = 0  # comparisons of everything, with that of the start
    last_rescan_seconds: float | None = None
    list_requests: int = 0  # to an S3 store, 1,000 keys each

    def text(self) -> str:
        """As /readyz tells it."""
        what = self.mode
        if self.rescan_seconds is not None:
            what = "rescan" if what == "rescan" else f"{what} and rescan"
            what += f" every {self.rescan_seconds:g} s"
        return f"{what}: {self.reason}" if self.reason else what


@dataclass(frozen=True, slots=True)
class HubFacts:
    """What the hub's admin port shows. requests: by operation; bytes: object bytes to spokes
    and S3 clients, and from writers, since the start. limits: what it cannot do while it serves.
    skipped: names the last scan of the store left out, and examples, by reason."""

    region: str
    epoch: str
    sequence: int
    objects: int
    spokes: list[str]
    requests: dict[str, int]
    sent_bytes: int
    received_bytes: int
    limits: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    skipped_examples: dict[str, list[str]] = field(default_factory=dict)
    watch: WatchFacts = field(default_factory=WatchFacts)

    def document(self) -> dict[str, Any]:
        """As `/v1/status` shows it."""
        return asdict(self)
