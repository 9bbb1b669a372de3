"""An object store in a dictionary: the port's meaning in its shortest form, for tests.

Durability is the life of the object; otherwise it promises what the others promise.
"""

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

from hubspoke.adapters.etag import multipart_etag
from hubspoke.core.ids import ObjectEntry, ObjectName, StoredObject, Version
from hubspoke.core.names import Skipped, bucket_fault, key_fault
from hubspoke.core.noticed import Part
from hubspoke.errors import (
    BucketNotEmpty,
    InvalidKey,
    InvalidPart,
    InvalidRequest,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    VersionChanged,
)
from hubspoke.ports import MultipartUpload, Staged, UploadedPart

_SCAN_BATCH = 1000


@dataclass(slots=True)
class _Upload:
    name: ObjectName
    headers: dict[str, str]
    initiated_ns: int
    parts: dict[int, tuple[UploadedPart, bytes]] = field(default_factory=dict)


class MemoryObjectStore:
    """ports.ObjectStore. Any legal S3 key is held under exactly its name."""

    def __init__(self, buckets: Sequence[str] = ()) -> None:
        self.skipped = Skipped()
        self.list_requests = 0
        self._objects: dict[str, dict[str, tuple[ObjectEntry, bytes]]] = {b: {} for b in buckets}
        self._staged: dict[str, bytes] = {}
        self._staged_uploads: dict[str, str] = {}
        self._completed: dict[str, ObjectEntry] = {}
        self._uploads: dict[str, _Upload] = {}
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def mounts(self) -> list[str]:
        return []

    async def expect_mounts(self, buckets: Sequence[str]) -> None:
        """Nothing is mounted here."""

    async def buckets(self) -> list[str]:
        return sorted(self._objects)

    async def create_bucket(self, bucket: str) -> None:
        if fault := bucket_fault(bucket):
            raise InvalidRequest(f"bucket {bucket}: {fault}")
        self._objects.setdefault(bucket, {})

    async def delete_bucket(self, bucket: str) -> None:
        if self._bucket(bucket):
            raise BucketNotEmpty(f"bucket {bucket}: {len(self._objects[bucket])} objects")
        del self._objects[bucket]

    async def scan(self, part: Part | None = None) -> AsyncIterator[list[StoredObject]]:
        everything = [
            (ObjectName(bucket, key), entry)
            for bucket, objects in self._objects.items()
            for key, (entry, _) in objects.items()
            if part is None or part.covers(ObjectName(bucket, key))
        ]
        for i in range(0, len(everything), _SCAN_BATCH):
            yield everything[i : i + _SCAN_BATCH]
            await asyncio.sleep(0)

    async def head(self, name: ObjectName) -> ObjectEntry | None:
        found = self._objects.get(name.bucket, {}).get(name.key)
        return None if found is None else found[0]

    def read_now(
        self, name: ObjectName, version: Version, offset: int, length: int
    ) -> memoryview | None:
        """See ports.ObjectStore."""
        return None

    async def read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        found = self._bucket(name.bucket).get(name.key)
        if found is None:
            raise NoSuchKey(f"{name}: no such object")
        entry, data = found
        if entry.version != version:
            raise VersionChanged(f"{name}: version {version} asked, {entry.version} found")
        return data[offset : offset + length]

    async def stage(
        self, name: ObjectName, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> Staged:
        self._check(name)
        data = b"".join([chunk async for chunk in chunks])
        return self._stage(name, headers, data, hashlib.md5(data).hexdigest())

    async def stage_copy(
        self, source: ObjectName, version: Version, name: ObjectName, headers: dict[str, str]
    ) -> Staged:
        self._check(name)
        data = await self.read(source, version, 0, 1 << 62)
        return self._stage(name, headers, data, hashlib.md5(data).hexdigest())

    async def complete(self, staged: Staged) -> ObjectEntry:
        if staged.token in self._completed:
            return self._completed[staged.token]
        bucket = self._bucket(staged.name.bucket)
        data = self._staged.pop(staged.token, None)
        if data is None:
            raise NoSuchUpload(f"{staged.name}: the staged bytes are gone")
        version = Version(f"m{next(self._numbers)}")
        entry = ObjectEntry(version, len(data), staged.etag, time.time_ns(), staged.headers)
        bucket[staged.name.key] = (entry, data)
        self._completed[staged.token] = entry
        self._uploads.pop(self._staged_uploads.pop(staged.token, ""), None)
        return entry

    async def discard(self, staged: Staged) -> None:
        self._staged.pop(staged.token, None)
        self._staged_uploads.pop(staged.token, None)

    async def sweep(self, keep: Collection[str]) -> None:
        for token in self._staged.keys() - set(keep):
            del self._staged[token]

    async def delete(self, name: ObjectName) -> None:
        self._bucket(name.bucket).pop(name.key, None)

    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str:
        self._check(name)
        upload_id = f"upload{next(self._numbers)}"
        self._uploads[upload_id] = _Upload(name, dict(headers), time.time_ns())
        return upload_id

    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart:
        self._upload(name, upload_id)
        data = b"".join([chunk async for chunk in chunks])
        part = UploadedPart(number, len(data), hashlib.md5(data).hexdigest(), time.time_ns())
        self._upload(name, upload_id).parts[number] = (part, data)
        return part

    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]:
        parts = self._upload(name, upload_id).parts
        return [parts[number][0] for number in sorted(parts)]

    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]:
        self._bucket(bucket)
        return [
            MultipartUpload(upload.name, upload_id, upload.initiated_ns)
            for upload_id, upload in self._uploads.items()
            if upload.name.bucket == bucket
        ]

    async def stage_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> Staged:
        upload = self._upload(name, upload_id)
        pieces = []
        for number, etag in parts:
            part, data = upload.parts.get(number, (None, b""))
            if part is None or part.etag != etag:
                raise InvalidPart(f"{name}: part {number} with ETag {etag} was not uploaded")
            pieces.append(data)
        etag = multipart_etag([etag for _, etag in parts])
        staged = self._stage(name, upload.headers, b"".join(pieces), etag)
        self._staged_uploads[staged.token] = upload_id
        return staged

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None:
        self._upload(name, upload_id)
        del self._uploads[upload_id]

    def _stage(self, name: ObjectName, headers: dict[str, str], data: bytes, etag: str) -> Staged:
        token = f"staged{next(self._numbers)}"
        self._staged[token] = data
        return Staged(name, token, len(data), etag, dict(headers))

    def _check(self, name: ObjectName) -> None:
        self._bucket(name.bucket)
        if fault := key_fault(name.key):
            raise InvalidKey(f"{name}: {fault}")

    def _bucket(self, bucket: str) -> dict[str, tuple[ObjectEntry, bytes]]:
        try:
            return self._objects[bucket]
        except KeyError:
            raise NoSuchBucket(f"bucket {bucket}: no such bucket") from None

    def _upload(self, name: ObjectName, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.name != name:
            raise NoSuchUpload(f"{name}: no multipart upload {upload_id:.100}")
        return upload
