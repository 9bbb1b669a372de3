"""Every error HubSpoke raises on purpose, under one root.

An error says what was asked, what was found, and of which object. `retryable` tells the caller
whether the same request may succeed later without anybody changing it. The doors (frontends/)
map these classes to HTTP status codes; nothing below a door knows about status codes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class HubSpokeError(Exception):
    """Root of all expected errors."""

    retryable = False


class NoSuchBucket(HubSpokeError):
    """The bucket does not exist in the namespace."""


class NoSuchKey(HubSpokeError):
    """The object does not exist in the namespace (never raised for "cannot be reached")."""


class NoSuchUpload(HubSpokeError):
    """The multipart upload id is unknown, completed or aborted."""


class InvalidKey(HubSpokeError):
    """The key cannot be stored here under exactly this name; the message says why."""


class InvalidRange(HubSpokeError):
    """A byte range that lies outside the object."""


class InvalidRequest(HubSpokeError):
    """A malformed or unacceptable argument, header or body."""


class InvalidField(InvalidRequest):
    """One part of what was sent is wrong; `field` is its path: `plan.3.ranges.0`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class BadDigest(HubSpokeError):
    """The bytes received do not match the checksum that came with them."""


class InvalidPart(HubSpokeError):
    """CompleteMultipartUpload names a part that was not uploaded, or with another ETag."""


class PreconditionFailed(HubSpokeError):
    """An If-Match style condition does not hold."""


class BucketNotEmpty(HubSpokeError):
    """DeleteBucket on a bucket that still has objects."""


class VersionChanged(HubSpokeError):
    """The object no longer has the version that was asked for; resolve the name again."""

    retryable = True


class HubUnavailable(HubSpokeError):
    """The hub cannot be reached, or no lease covers a strict read."""

    retryable = True


class StoreUnavailable(HubSpokeError):
    """The object store behind the hub failed or refused."""

    retryable = True


class DeadlineExceeded(HubSpokeError):
    """A wait reached its deadline."""

    retryable = True


class HubBusy(HubUnavailable):
    """The hub is there and takes no more now (503): it may soon."""


class Overloaded(HubSpokeError):
    """A bounded queue or budget is full."""

    retryable = True


class PlansFull(Overloaded):
    """No more hints are held now; `retry_after_s`: until some of them were read."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLarge(HubSpokeError):
    """What was sent is more than is ever taken."""


class PrefetchOff(HubSpokeError):
    """Nothing is fetched in advance here, so that what was sent would have no effect."""


class CorruptFrame(HubSpokeError):
    """Bytes whose digest does not match: counted as a miss, never served."""

    retryable = True


class FormatError(HubSpokeError):
    """Bytes that do not decode as the format they claim to be."""


class ConfigError(HubSpokeError):
    """A wrong setting: names the flag, the value given and what would be right."""


class FolderInUse(HubSpokeError):
    """A state or cache folder is held by another process; the message names its process id."""


@contextmanager
def map_errors(table: Mapping[type[Exception], type[HubSpokeError]], what: str) -> Iterator[None]:
    """Turn foreign exceptions into ours at an adapter's border, keeping `__cause__`.

    table: foreign class -> our class; the first match by `isinstance` in order wins.
    what: what was asked, of which object; becomes the head of the message.
    """
    try:
        yield
    except HubSpokeError:
        raise
    except tuple(table) as e:
        for foreign, ours in table.items():
            if isinstance(e, foreign):
                raise ours(f"{what}: {type(e).__name__}: {e}") from e
        raise
