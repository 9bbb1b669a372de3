"""Memory for bytes on their way to readers: one budget, fair across handles.

It decides who may hold how much; it holds nothing itself and never waits. A handle may have as
much as is still free, so one alone gets half, two get a third each, and something is always left
for one that comes new. A reader that stops taking its bytes keeps its share and stops there.

Source: dynamic thresholds (Choudhury & Hahne, IEEE/ACM ToN 1998), with factor 1.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    # 16 lanes that bring a window of 4 MiB each fill 64 MiB in one round trip; four times that
    # keeps them busy while readers take what has come. A small host has 1 GiB and more.
    total_bytes: int = 256 << 20


class FairBudget:
    """Bytes by handle. A handle is one connection or open file."""

    def __init__(self, config: BudgetConfig) -> None:
        assert config.total_bytes > 0, config
        self.total = config.total_bytes
        self.used = 0
        self._held: dict[str, int] = {}

    def held(self, handle: str) -> int:
        """Bytes of one handle."""
        return self._held.get(handle, 0)

    def fits(self, handle: str, bytes_: int) -> bool:
        """Whether the handle may take so many more now.

        A request larger than the whole budget fits when nothing else is held: it has to be
        served some time.
        """
        free = self.total - self.used
        held = self.held(handle)
        if held == 0:
            return bytes_ <= free or self.used == 0
        return held + bytes_ <= free

    def take(self, handle: str, bytes_: int) -> None:
        """Count the bytes; `fits` has said yes."""
        assert self.fits(handle, bytes_), (handle, bytes_)
        self.used += bytes_
        self._held[handle] = self.held(handle) + bytes_

    def give(self, handle: str, bytes_: int) -> None:
        """The handle no longer holds these bytes."""
        left = self.held(handle) - bytes_
        assert left >= 0, (handle, bytes_)
        self.used -= bytes_
        if left:
            self._held[handle] = left
        else:
            self._held.pop(handle, None)
