"""Which S3 operation a request is: its name, from method, target and subresource.

A table of facts. Every request gets a name, so that what is not implemented can say what it was.
"""

from collections.abc import Mapping

from hubspoke.frontends.s3.errors import S3Error

# Subresource -> (name at a bucket, name at an object), behind the verb. "" does not exist there.
_SUBRESOURCES = {
    "abac": ("BucketAbac", ""),
    "accelerate": ("BucketAccelerateConfiguration", ""),
    "acl": ("BucketAcl", "ObjectAcl"),
    "analytics": ("BucketAnalyticsConfiguration", ""),
    "attributes": ("", "ObjectAttributes"),
    "cors": ("BucketCors", ""),
    "encryption": ("BucketEncryption", "ObjectEncryption"),
    "intelligent-tiering": ("BucketIntelligentTieringConfiguration", ""),
    "inventory": ("BucketInventoryConfiguration", ""),
    "legal-hold": ("", "ObjectLegalHold"),
    "lifecycle": ("BucketLifecycleConfiguration", ""),
    "logging": ("BucketLogging", ""),
    "metadataConfiguration": ("BucketMetadataConfiguration", ""),
    "metadataTable": ("BucketMetadataTableConfiguration", ""),
    "metrics": ("BucketMetricsConfiguration", ""),
    "notification": ("BucketNotificationConfiguration", ""),
    "object-lock": ("ObjectLockConfiguration", ""),
    "ownershipControls": ("BucketOwnershipControls", ""),
    "policy": ("BucketPolicy", ""),
    "policyStatus": ("BucketPolicyStatus", ""),
    "publicAccessBlock": ("PublicAccessBlock", ""),
    "replication": ("BucketReplication", ""),
    "requestPayment": ("BucketRequestPayment", ""),
    "retention": ("", "ObjectRetention"),
    "tagging": ("BucketTagging", "ObjectTagging"),
    "torrent": ("", "ObjectTorrent"),
    "versioning": ("BucketVersioning", ""),
    "website": ("BucketWebsite", ""),
}
# Operations that do not follow the pattern verb + name: (method, level, subresource).
_NAMED = {
    ("GET", "bucket", "location"): "GetBucketLocation",
    ("GET", "bucket", "session"): "CreateSession",
    ("GET", "bucket", "uploads"): "ListMultipartUploads",
    ("GET", "bucket", "versions"): "ListObjectVersions",
    ("POST", "bucket", "delete"): "DeleteObjects",
    ("GET", "object", "uploadId"): "ListParts",
    ("PUT", "object", "renameObject"): "RenameObject",
    ("POST", "object", "uploads"): "CreateMultipartUpload",
    ("POST", "object", "uploadId"): "CompleteMultipartUpload",
    ("POST", "object", "restore"): "RestoreObject",
    ("POST", "object", "select"): "SelectObjectContent",
    ("DELETE", "object", "uploadId"): "AbortMultipartUpload",
}
_PLAIN = {
    ("GET", "service"): "ListBuckets",
    ("HEAD", "bucket"): "HeadBucket",
    ("PUT", "bucket"): "CreateBucket",
    ("DELETE", "bucket"): "DeleteBucket",
    ("POST", "bucket"): "PostObject",
    ("GET", "object"): "GetObject",
    ("HEAD", "object"): "HeadObject",
    ("DELETE", "object"): "DeleteObject",
}
_VERBS = {"GET": "Get", "PUT": "Put", "DELETE": "Delete", "HEAD": "Head", "POST": "Post"}

WRITES = frozenset(
    {
        "CreateBucket",
        "DeleteBucket",
        "PutObject",
        "CopyObject",
        "DeleteObject",
        "DeleteObjects",
        "CreateMultipartUpload",
        "UploadPart",
        "UploadPartCopy",
        "CompleteMultipartUpload",
        "AbortMultipartUpload",
        "ListParts",
        "ListMultipartUploads",
    }
)


def operation(
    method: str, bucket: str, key: str, query: Mapping[str, str], headers: Mapping[bytes, bytes]
) -> str:
    """The S3 name of the request. Raises S3Error MethodNotAllowed for what S3 has no name for."""
    level = "object" if key else "bucket" if bucket else "service"
    for name in query:
        if (method, level, name) in _NAMED:
            return _NAMED[method, level, name]
        if name in _SUBRESOURCES and method in _VERBS:
            suffix = _SUBRESOURCES[name][level == "object"]
            if suffix and bucket:
                return _VERBS[method] + suffix
    if method == "PUT" and level == "object":
        copy = b"x-amz-copy-source" in headers
        if "uploadId" in query or "partNumber" in query:
            return "UploadPartCopy" if copy else "UploadPart"
        return "CopyObject" if copy else "PutObject"
    if method == "GET" and level == "bucket":
        return "ListObjectsV2" if query.get("list-type") == "2" else "ListObjects"
    try:
        return _PLAIN[method, level]
    except KeyError:
        raise S3Error(
            "MethodNotAllowed",
            f"The method {method} is not allowed against this resource",
            extra={"Method": method, "ResourceType": level.upper()},
        ) from None
