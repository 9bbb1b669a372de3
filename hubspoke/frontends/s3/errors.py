"""Our errors -> S3 error codes -> HTTP status: the door's one table.

Nothing below the door knows these codes. Retryable errors become 503, which every S3 client
retries; InternalError (500) is only for bugs.
"""

from hubspoke import errors
from hubspoke.frontends.s3.xml import escape

STATUS = {
    "AccessDenied": 403,
    "BadDigest": 400,
    "BadRequest": 400,
    "BucketNotEmpty": 409,
    "EntityTooLarge": 400,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedTrailerError": 400,
    "MalformedXML": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestTimeout": 408,
    "ServiceUnavailable": 503,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}

_CODES: dict[type[errors.HubSpokeError], str] = {
    errors.NoSuchBucket: "NoSuchBucket",
    errors.NoSuchKey: "NoSuchKey",
    errors.NoSuchUpload: "NoSuchUpload",
    errors.InvalidKey: "InvalidArgument",
    errors.InvalidRange: "InvalidRange",
    errors.InvalidRequest: "InvalidRequest",
    errors.BadDigest: "BadDigest",
    errors.InvalidPart: "InvalidPart",
    errors.PreconditionFailed: "PreconditionFailed",
    errors.BucketNotEmpty: "BucketNotEmpty",
    errors.VersionChanged: "SlowDown",
    errors.HubUnavailable: "SlowDown",
    errors.DeadlineExceeded: "SlowDown",
    errors.Overloaded: "SlowDown",
    errors.CorruptFrame: "SlowDown",
    errors.StoreUnavailable: "ServiceUnavailable",
}


class S3Error(errors.HubSpokeError):
    """An answer of this door that is an error.

    extra: further elements of the XML document. headers: further response headers.
    close: the connection cannot be used any more.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        extra: dict[str, str] | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.extra = extra or {}
        self.headers = headers or []
        self.close = close

    @property
    def status(self) -> int:
        return STATUS[self.code]


def as_s3_error(error: errors.HubSpokeError) -> S3Error:
    """The S3 form of an expected error; a class that has none is a bug and InternalError."""
    if isinstance(error, S3Error):
        return error
    for cls, code in _CODES.items():
        if isinstance(error, cls):
            return S3Error(code, str(error) or code)
    return S3Error("InternalError", f"{type(error).__name__}: {error}")


def not_implemented(operation: str, why: str = "") -> S3Error:
    message = f"{operation} is not implemented here"
    return S3Error(
        "NotImplemented", f"{message}: {why}" if why else message, extra={"Operation": operation}
    )


def error_document(error: S3Error, resource: str, request_id: str) -> bytes:
    """The XML body S3 clients parse the code from."""
    fields = {
        "Code": error.code,
        "Message": error.message,
        **error.extra,
        "Resource": resource,
        "RequestId": request_id,
    }
    inner = "".join(f"<{k}>{escape(v)}</{k}>" for k, v in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'.encode()
