"""The writing half of the hub (ports.Writer): what is staged and checked for each operation.

Bytes are staged before the change asks for its name, so that a slow upload keeps nobody waiting;
conditions are checked when the name is the change's own, so that of two conditional writes one
wins.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from hubspoke.core.hub import differs
from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.core.namespace import bucket_name
from hubspoke.errors import BucketNotEmpty, HubUnavailable, NoSuchBucket, PreconditionFailed
from hubspoke.hub.changes import Changes, Check, Work
from hubspoke.ports import (
    MultipartUpload,
    NamespaceStore,
    ObjectStore,
    Resolved,
    Staged,
    UploadedPart,
)


class HubWrites(ABC):
    """What reading and writing share, and the writing."""

    _changes: Changes  # from `start` on

    def __init__(self, store: ObjectStore, namespace: NamespaceStore) -> None:
        self._store = store
        self._namespace = namespace
        self._not_ready = "starting"  # reason; empty when serving
        self._requests: Counter[str] = Counter()
        self._received_bytes = 0

    @abstractmethod
    async def refresh(self, name: ObjectName) -> bool:
        """Bring the log level with the store for one name. Returns whether it had changed."""

    async def put(
        self,
        name: ObjectName,
        headers: dict[str, str],
        chunks: AsyncIterator[bytes],
        *,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> ObjectEntry:
        """if_match: ETag without quotes, "*" for any. Raises PreconditionFailed, InvalidKey,
        NoSuchBucket, DeadlineExceeded, StoreUnavailable, and what `chunks` raises."""
        self._begin("put", name)
        self._changes.need_log(name)  # before a long upload is received in vain
        if if_match is None and not if_none_match:
            staged = await self._store.stage(name, headers, self._counted(chunks))
            return await self._complete(staged)
        # Early, to spare a long upload; what counts is the check when the name is ours.
        await self.refresh(name)
        record = self._namespace.get(name)
        _check(name, record.entry if record else None, if_match, if_none_match)
        staged = await self._store.stage(name, headers, self._counted(chunks))

        async def check(known: ObjectEntry | None) -> bool:
            # The store has the last word: somebody may have written behind the hub's back. A
            # HEAD may know less of the version than the log, so the log's entry goes before.
            found = await self._store.head(name)
            now = found if differs(known, found) else known
            _check(name, now, if_match, if_none_match)
            return True

        return await self._complete(staged, check)

    async def copy(
        self, source: Resolved, name: ObjectName, headers: dict[str, str]
    ) -> ObjectEntry:
        self._begin("copy", name)
        self._changes.need_log(name)
        staged = await self._store.stage_copy(source.name, source.entry.version, name, headers)
        return await self._complete(staged)

    async def delete(self, name: ObjectName) -> None:
        """Idempotent. Raises NoSuchBucket, DeadlineExceeded, StoreUnavailable."""
        self._begin("delete", name)

        async def check(known: ObjectEntry | None) -> bool:
            return known is not None or await self._store.head(name) is not None

        async def act() -> None:
            await self._store.delete(name)

        await self._changes.run(Work(name, act=act, check=check))

    async def create_bucket(self, bucket: str) -> None:
        """Idempotent, as S3 is for the owner. Raises InvalidRequest for an illegal name."""
        self._serving("create_bucket")

        async def check(_: ObjectEntry | None) -> bool:
            return bucket not in self._namespace.buckets()

        async def act() -> None:
            await self._store.create_bucket(bucket)
            await self._namespace.set_buckets([*self._namespace.buckets(), bucket])

        await self._changes.run(Work(bucket_name(bucket), act=act, check=check, intent=False))

    async def delete_bucket(self, bucket: str) -> None:
        """Raises NoSuchBucket, BucketNotEmpty."""
        self._serving("delete_bucket")

        async def check(_: ObjectEntry | None) -> bool:
            self._need_bucket(bucket)
            if self._namespace.scan(bucket, limit=1):
                raise BucketNotEmpty(f"{bucket}: has objects")
            return True

        async def act() -> None:
            await self._store.delete_bucket(bucket)
            left = [b for b in self._namespace.buckets() if b != bucket]
            await self._namespace.set_buckets(left)

        await self._changes.run(Work(bucket_name(bucket), act=act, check=check, intent=False))

    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str:
        self._begin("create_multipart", name)
        return await self._store.create_multipart(name, headers)

    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart:
        self._begin("put_part", name)
        return await self._store.put_part(name, upload_id, number, self._counted(chunks))

    async def complete_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> ObjectEntry:
        self._begin("complete_multipart", name)
        return await self._complete(await self._store.stage_multipart(name, upload_id, parts))

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None:
        self._begin("abort_multipart", name)
        await self._store.abort_multipart(name, upload_id)

    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]:
        self._begin("list_parts", name)
        return await self._store.list_parts(name, upload_id)

    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]:
        self._begin("list_multiparts", bucket_name(bucket))
        return await self._store.list_multiparts(bucket)

    async def _complete(self, staged: Staged, check: Check | None = None) -> ObjectEntry:
        async def act() -> ObjectEntry:
            return await self._store.complete(staged)

        entry = await self._changes.run(
            Work(staged.name, act=act, check=check or _always, staged=staged)
        )
        assert entry is not None, staged.name
        return entry

    def _begin(self, operation: str, name: ObjectName) -> None:
        self._serving(operation)
        self._need_bucket(name.bucket)

    def _serving(self, operation: str) -> None:
        if self._not_ready:
            raise HubUnavailable(f"{operation}: the hub is not serving: {self._not_ready}")
        self._requests[operation] += 1

    def _need_bucket(self, bucket: str) -> None:
        if bucket not in self._namespace.buckets():
            raise NoSuchBucket(f"{bucket}: no such bucket")

    async def _counted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self._received_bytes += len(chunk)
            yield chunk


async def _always(_: ObjectEntry | None) -> bool:
    return True


def _check(
    name: ObjectName, known: ObjectEntry | None, if_match: str | None, if_none_match: bool
) -> None:
    if if_none_match and known is not None:
        raise PreconditionFailed(f"{name}: exists, with ETag {known.etag}")
    if if_match is None:
        return
    if known is None:
        raise PreconditionFailed(f"{name}: does not exist, ETag {if_match} expected")
    if if_match not in ("*", known.etag):
        raise PreconditionFailed(f"{name}: ETag {known.etag}, {if_match} expected")
