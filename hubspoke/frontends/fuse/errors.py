"""Our errors -> errno: the mount's one table."""

import errno

from hubspoke import errors

_ERRNO: dict[type[errors.HubSpokeError], int] = {
    errors.NoSuchBucket: errno.ENOENT,
    errors.NoSuchKey: errno.ENOENT,
    errors.InvalidKey: errno.ENOENT,
    errors.InvalidRange: errno.EINVAL,
    # The handle stays on its version, which is not to be had any more.
    errors.VersionChanged: errno.ESTALE,
    # Cannot be told now. Never ENOENT: unreachable is not deleted. Not EAGAIN or ETIMEDOUT: what
    # reads files does not expect them.
    errors.HubUnavailable: errno.EIO,
    errors.StoreUnavailable: errno.EIO,
    errors.DeadlineExceeded: errno.EIO,
    errors.Overloaded: errno.EIO,
    errors.CorruptFrame: errno.EIO,
}


class Refused(errors.HubSpokeError):
    """An answer of this door that is an error of its own; number: the errno."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def errno_of(error: errors.HubSpokeError) -> int:
    """EIO for a class that has none, which is a bug."""
    if isinstance(error, Refused):
        return error.number
    return next((n for cls, n in _ERRNO.items() if isinstance(error, cls)), errno.EIO)
