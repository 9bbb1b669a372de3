"""How much farther ahead a stream is fetched than its rate and the round trip ask for.

Reads that had to wait although their stream is known raise it: the path is worse or the consumer
faster than believed. When none has waited for a while it falls again, or one bad minute would keep
more ahead for good. What had to rise again falls later the next time.
"""

STEP = 1.5
PATIENCE_S, PATIENCE_MAX_S = 30.0, 600.0


class Boost:
    """Of one stream and those that carry it on. Times are seconds."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._at = float("-inf")  # when it changed
        self._patience_s = PATIENCE_S
        self._fell = False

    def waited(self, now: float, hide_s: float, most: float) -> None:
        """Reads had to wait. Rises once in what hides latency: before, it has had no effect."""
        if now - self._at <= hide_s:
            return
        if self._fell:
            self._patience_s = min(2 * self._patience_s, PATIENCE_MAX_S)
        self.factor, self._at, self._fell = min(self.factor * STEP, most), now, False

    def calm(self, now: float) -> None:
        """None had to wait."""
        if self.factor > 1.0 and now - self._at > self._patience_s:
            self.factor, self._at, self._fell = max(self.factor / STEP, 1.0), now, True
