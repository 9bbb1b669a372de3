"""The cache drive: a rate that reads and writes share, and the latency of one call."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """rate: bytes per second."""

    rate: float = 3e9
    latency_s: float = 100e-6  # a 4 KiB read of a data-centre drive, and the call


class Disk:
    """Serves in the order of asking. A write is over when the page cache would have to wait for
    the drive no longer, so it has no latency of its own."""

    def __init__(self, config: DiskConfig) -> None:
        self.config = config
        self.read_bytes = 0
        self.written_bytes = 0
        self._free_at = 0.0

    def read(self, bytes_: int, now: float) -> float:
        """When the bytes are there."""
        self.read_bytes += bytes_
        return self._take(bytes_, now) + self.config.latency_s

    def write(self, bytes_: int, now: float) -> float:
        """When the bytes can be read."""
        self.written_bytes += bytes_
        return self._take(bytes_, now)

    def _take(self, bytes_: int, now: float) -> float:
        self._free_at = max(self._free_at, now) + bytes_ / self.config.rate
        return self._free_at
