"""The object store over an S3-compatible bucket, or over the keys behind one prefix of it.

A version is the object's size and ETag: the same bytes written twice are the same version. Reads
are conditional on it. Staged bytes are an uncompleted multipart upload, so an object written by
HubSpoke has a multipart ETag (MD5-of-MD5s-N) unless it is empty. A listing does not tell an
object's headers: entries of a scan have none.
"""

import json
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hubspoke.adapters.etag import EMPTY_MD5, multipart_etag
from hubspoke.adapters.s3_client import S3Client, S3ClientTuning
from hubspoke.adapters.s3_keys import KeyProbe
from hubspoke.adapters.s3_objects import S3Objects, size_and_etag
from hubspoke.core.ids import ObjectEntry, ObjectName, StoredObject, Version
from hubspoke.core.names import Skipped, key_fault
from hubspoke.core.noticed import Part
from hubspoke.errors import (
    ConfigError,
    InvalidKey,
    InvalidPart,
    InvalidRequest,
    NoSuchBucket,
    NoSuchUpload,
    StoreUnavailable,
    VersionChanged,
)
from hubspoke.ports import MultipartUpload, Staged, UploadedPart

_COPY_BYTES_MAX = 5 << 30  # S3's limit of one UploadPartCopy
# 1,000 parts of 8 MiB and 9,000 of 64 MiB: objects up to 570 GiB, small ones in small memory.
_PART_BYTES, _PART_BYTES_LATE, _EARLY_PARTS = 8 << 20, 64 << 20, 1000


@dataclass(frozen=True, slots=True)
class _Token:
    """An upload to complete. upload_id: "" for an empty object, which is simply put.
    own: begun by `stage` and not by a client, so that `discard` aborts it."""

    upload_id: str
    parts: tuple[tuple[int, str], ...]
    own: bool

    def dump(self) -> str:
        return json.dumps([self.upload_id, self.parts, self.own])

    @classmethod
    def load(cls, token: str) -> "_Token":
        upload_id, parts, own = json.loads(token)
        return cls(upload_id, tuple((number, etag) for number, etag in parts), own)


class S3Store:
    """ports.ObjectStore. prefix: objects are the keys behind `prefix/`, under the bucket's own
    name. Region and endpoint: what the AWS variables and configuration say unless given."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        tuning: S3ClientTuning | None = None,
    ) -> None:
        self.skipped = Skipped()  # a key of S3 can always be an object
        self.list_requests = 0  # each of up to 1,000 keys, and each is paid for
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._client = S3Client(bucket, endpoint_url, region, tuning or S3ClientTuning())
        self._objects = S3Objects(self._client)
        self._probe = KeyProbe(self._objects)

    async def open(self) -> None:
        """Raises ConfigError saying why the bucket cannot be used."""
        await self._client.open()
        try:
            answer = await self._client.request("HEAD")
        except StoreUnavailable as e:
            await self.close()
            raise ConfigError(f"--store {self._client.place}: cannot be reached: {e}") from e
        if answer.status == 200:
            return
        await self.close()
        why = f"status {answer.status}"
        region = answer.headers.get("x-amz-bucket-region")
        if answer.status == 404:
            why = "no such bucket"
        elif answer.status in (301, 400) and region:
            why = f"the bucket is in region {region}: set AWS_REGION"
        elif answer.status in (401, 403):
            why = (
                "access refused with the credentials found"
                if self._client.has_credentials
                else "access refused, and no AWS credentials were found"
            )
        raise ConfigError(f"--store {self._client.place}: {why}")

    async def close(self) -> None:
        await self._client.close()

    def mounts(self) -> list[str]:
        return []

    async def expect_mounts(self, buckets: Sequence[str]) -> None:
        """A bucket that is unreachable answers with an error."""

    async def buckets(self) -> list[str]:
        return [self._bucket]

    async def create_bucket(self, bucket: str) -> None:
        if bucket != self._bucket:
            raise InvalidRequest(f"bucket {bucket}: this store is the one bucket {self._bucket}")

    async def delete_bucket(self, bucket: str) -> None:
        raise InvalidRequest(f"bucket {bucket}: the store itself is this bucket")

    async def scan(self, part: Part | None = None) -> AsyncIterator[list[StoredObject]]:
        if part is not None and part.bucket != self._bucket:
            return
        within = self._prefix + part.prefix if part is not None else self._prefix
        async for page in self._objects.pages(within):
            self.list_requests += 1
            named = [
                (ObjectName(self._bucket, key.removeprefix(self._prefix)), entry)
                for key, entry in page
                if key != self._prefix
            ]
            yield [found for found in named if part is None or part.covers(found[0])]

    async def head(self, name: ObjectName) -> ObjectEntry | None:
        try:
            key = self._key(name)
        except (InvalidKey, NoSuchBucket):
            return None
        found = await self._objects.head(key)
        if found is None or not key.endswith("/"):
            return found
        # SeaweedFS answers a HEAD of any "folder" there is; a listing shows objects only.
        async for page in self._objects.pages(key):
            return found if any(listed == key for listed, _ in page) else None
        return None

    def read_now(
        self, name: ObjectName, version: Version, offset: int, length: int
    ) -> memoryview | None:
        """See ports.ObjectStore."""
        return None

    async def read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        return await self._objects.read(self._key(name), version, offset, length)

    async def stage(
        self, name: ObjectName, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> Staged:
        key = self._key(name)
        await self._probe.check(key, with_bytes=False)
        upload_id = ""
        parts: list[tuple[int, str]] = []
        size = 0
        try:
            async for block in _blocks(chunks):
                if not upload_id:
                    await self._probe.check(key, with_bytes=True)
                    upload_id = await self._objects.create_upload(key, headers)
                number = len(parts) + 1
                etag = await self._objects.upload_part(key, upload_id, number, block)
                parts.append((number, etag))
                size += len(block)
        except BaseException:
            await self._give_up(key, upload_id)
            raise
        return _staged(name, _Token(upload_id, tuple(parts), True), size, headers)

    async def stage_copy(
        self, source: ObjectName, version: Version, name: ObjectName, headers: dict[str, str]
    ) -> Staged:
        size, _ = size_and_etag(version)
        key, source_key = self._key(name), self._key(source)
        await self._probe.check(key, with_bytes=size > 0)
        if size == 0:
            return _staged(name, _Token("", (), True), 0, headers)
        upload_id = await self._objects.create_upload(key, headers)
        parts: list[tuple[int, str]] = []
        try:
            for offset in range(0, size, _COPY_BYTES_MAX):
                etag = await self._objects.copy_part(
                    source_key,
                    version,
                    offset,
                    min(_COPY_BYTES_MAX, size - offset),
                    key=key,
                    upload_id=upload_id,
                    number=len(parts) + 1,
                )
                parts.append((len(parts) + 1, etag))
        except BaseException:
            await self._give_up(key, upload_id)
            raise
        return _staged(name, _Token(upload_id, tuple(parts), True), size, headers)

    async def complete(self, staged: Staged) -> ObjectEntry:
        """An upload that is gone may have been completed before a crash: the object says so."""
        name, token = staged.name, _Token.load(staged.token)
        key, etag, is_gone = self._key(name), staged.etag, False
        if token.upload_id:
            try:
                etag = await self._objects.complete(key, token.upload_id, token.parts) or etag
            except NoSuchUpload:
                is_gone = True
        else:
            await self._objects.put_empty(key, staged.headers)
        found = await self._objects.head(key)
        if found is None or found.size != staged.size or (etag and found.etag != etag):
            if is_gone:
                raise NoSuchUpload(f"{name}: the staged bytes are gone")
            raise VersionChanged(f"{name}: overwritten by others as soon as it was written")
        headers = staged.headers if token.own else found.headers
        return ObjectEntry(found.version, found.size, found.etag, found.modified_ns, headers)

    async def discard(self, staged: Staged) -> None:
        token = _Token.load(staged.token)
        if token.own and token.upload_id:
            await self._objects.abort(self._key(staged.name), token.upload_id)

    async def sweep(self, keep: Collection[str]) -> None:
        """Nothing to do that is safe: an upload does not tell whether a crashed `stage` or a
        client began it. A lifecycle rule of the bucket removes old uncompleted uploads."""

    async def delete(self, name: ObjectName) -> None:
        try:
            key = self._key(name)
            await self._probe.check(key, with_bytes=False)
        except InvalidKey:
            return  # it never was here under that name
        await self._objects.delete(key)

    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str:
        key = self._key(name)
        await self._probe.check(key, with_bytes=True)
        return await self._objects.create_upload(key, headers)

    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart:
        etag, size = await self._objects.upload_part_stream(
            self._key(name), upload_id, number, chunks
        )
        # S3 tells a part's time only in a listing; the request's own end is as good.
        return UploadedPart(number, size, etag, time.time_ns())

    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]:
        if not upload_id:
            raise NoSuchUpload(f"{name}: an upload without an id")
        return await self._objects.parts(self._key(name), upload_id)

    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]:
        if bucket != self._bucket:
            raise NoSuchBucket(f"bucket {bucket}: this store is the one bucket {self._bucket}")
        return [
            MultipartUpload(ObjectName(bucket, key.removeprefix(self._prefix)), upload_id, begun)
            for key, upload_id, begun in await self._objects.uploads(self._prefix)
        ]

    async def stage_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> Staged:
        """The headers given at its creation are known again only when it is complete."""
        # Keyed by both: SeaweedFS still lists a part that was replaced.
        sizes = {(p.number, p.etag): p.size for p in await self.list_parts(name, upload_id)}
        size = 0
        for number, etag in parts:
            if (number, etag) not in sizes:
                raise InvalidPart(f"{name}: part {number} with ETag {etag} was not uploaded")
            size += sizes[number, etag]
        return _staged(name, _Token(upload_id, tuple(parts), False), size, {})

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None:
        await self.list_parts(name, upload_id)  # an abort says 204 to an id that never was
        await self._objects.abort(self._key(name), upload_id)

    def _key(self, name: ObjectName) -> str:
        """Upstream key. Raises NoSuchBucket or InvalidKey."""
        if name.bucket != self._bucket:
            raise NoSuchBucket(f"bucket {name.bucket}: this store is the one bucket {self._bucket}")
        if fault := key_fault(name.key) or key_fault(self._prefix + name.key):
            raise InvalidKey(f"{name!s:.200}: {fault}, the prefix {self._prefix!r} included")
        return self._prefix + name.key

    async def _give_up(self, key: str, upload_id: str) -> None:
        if upload_id:
            with suppress(StoreUnavailable):  # the failure that led here is what counts
                await self._objects.abort(key, upload_id)


def _staged(name: ObjectName, token: _Token, size: int, headers: dict[str, str]) -> Staged:
    try:
        etag = multipart_etag([etag for _, etag in token.parts]) if token.parts else EMPTY_MD5
    except ValueError:  # encrypted with a customer's key, an ETag is no MD5: completion tells
        etag = ""
    return Staged(name, token.dump(), size, etag, dict(headers))


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes in parts of the size S3 wants; nothing if there are none."""
    held: list[bytes] = []
    size = made = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= (_PART_BYTES if made < _EARLY_PARTS else _PART_BYTES_LATE):
            yield b"".join(held)
            held, size, made = [], 0, made + 1
    if size:
        yield b"".join(held)
