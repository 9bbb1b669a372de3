"""What the mount needs of the spoke behind it."""

from typing import Protocol

from hubspoke.ports import DirectReader, Reader, Resolved


class MountReader(Reader, DirectReader, Protocol):
    """The spoke's reader, for handles that stay on one version."""

    def copy_now(self, resolved: Resolved, offset: int, buffer: memoryview, client: str) -> bool:
        """`read_now` into a buffer of that length; False where it gives None."""

    def serves(self, resolved: Resolved) -> bool:
        """Whether `read` of this version may be asked for: it is cached, or the name's own."""

    def cached_bytes(self, resolved: Resolved) -> int:
        """How many bytes of this version are on the local drives."""
