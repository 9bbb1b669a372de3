"""ETags as S3 computes them, and one for files whose MD5 is not known."""

import hashlib
from collections.abc import Iterable

EMPTY_MD5 = hashlib.md5(usedforsecurity=False).hexdigest()


def multipart_etag(part_etags: Iterable[str]) -> str:
    """MD5 of the parts' binary MD5s, a dash and their number: what S3 gives multipart objects."""
    digests = [bytes.fromhex(etag) for etag in part_etags]
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def version_etag(version: str) -> str:
    """ETag of an object that is known by its version only.

    No client may take it for a digest of the content: it is no 32 hex digits (which rclone, s3cmd
    and SDKs compare with an MD5), it has a dash (which the AWS SDK for Java reads as "not an
    MD5"), and no number follows the dash (tools that recompute multipart ETags would report a
    corrupt object).
    """
    return f"{hashlib.md5(version.encode(), usedforsecurity=False).hexdigest()}-v"
