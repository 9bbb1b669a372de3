"""The least Reader and Writer over an object store: what door tests serve from.

No log, no leases: a dictionary of entries. Tests may replace single methods.
"""

from collections.abc import AsyncIterator, Sequence

from hubspoke.core.ids import LogSequence, ObjectEntry, ObjectName, ReadState
from hubspoke.core.namespace import Listed
from hubspoke.errors import NoSuchBucket, NoSuchKey, PreconditionFailed
from hubspoke.ports import (
    MultipartUpload,
    NamespaceRecord,
    ObjectStore,
    ReadResult,
    Resolved,
    Staged,
    UploadedPart,
)


class StoreService:
    """streamed: bodies come as iterators of at most that many bytes; 0: as one buffer."""

    def __init__(
        self, store: ObjectStore, *, state: ReadState | None = None, streamed: int = 0
    ) -> None:
        self.store = store
        self.state = state
        self.streamed = streamed
        self.age_s: float | None = None
        self.entries: dict[ObjectName, ObjectEntry] = {}
        self.clients: list[str] = []

    async def buckets(self) -> list[str]:
        return await self.store.buckets()

    async def resolve(self, name: ObjectName) -> Resolved:
        entry = self.entries.get(name)
        if entry is None:
            if name.bucket not in await self.store.buckets():
                raise NoSuchBucket(f"{name.bucket}: no such bucket")
            raise NoSuchKey(f"{name}: no such object")
        return Resolved(name, entry, self.age_s)

    async def read(self, resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        self.clients.append(client)
        name, version = resolved.name, resolved.entry.version
        if self.streamed:
            body: bytes | AsyncIterator[bytes] = self.pieces(resolved, offset, length)
        else:
            body = await self.store.read(name, version, offset, length)
        return ReadResult(resolved, offset, length, body, self.state)

    async def pieces(self, resolved: Resolved, offset: int, length: int) -> AsyncIterator[bytes]:
        end = offset + length
        while offset < end:
            step = min(self.streamed, end - offset)
            yield await self.store.read(resolved.name, resolved.entry.version, offset, step)
            offset += step

    def staleness_s(self) -> float | None:
        return self.age_s

    async def list_page(self, bucket: str, *, prefix: str, after: str, limit: int) -> list[Listed]:
        names = sorted(
            n
            for n in self.entries
            if n.bucket == bucket and n.key.startswith(prefix) and n.key > after
        )
        return [NamespaceRecord(n, self.entries[n], LogSequence(1)).listed() for n in names[:limit]]

    async def put(
        self,
        name: ObjectName,
        headers: dict[str, str],
        chunks: AsyncIterator[bytes],
        *,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> ObjectEntry:
        staged = await self.store.stage(name, headers, chunks)
        current = self.entries.get(name)
        if (if_none_match and current is not None) or (
            if_match is not None and (current is None or current.etag != if_match)
        ):
            await self.store.discard(staged)
            raise PreconditionFailed(f"{name}: another version is there")
        return await self._complete(staged)

    async def _complete(self, staged: Staged) -> ObjectEntry:
        entry = self.entries[staged.name] = await self.store.complete(staged)
        return entry

    async def copy(
        self, source: Resolved, name: ObjectName, headers: dict[str, str]
    ) -> ObjectEntry:
        version = source.entry.version
        return await self._complete(
            await self.store.stage_copy(source.name, version, name, headers)
        )

    async def delete(self, name: ObjectName) -> None:
        await self.store.delete(name)
        self.entries.pop(name, None)

    async def create_bucket(self, bucket: str) -> None:
        await self.store.create_bucket(bucket)

    async def delete_bucket(self, bucket: str) -> None:
        await self.store.delete_bucket(bucket)

    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str:
        return await self.store.create_multipart(name, headers)

    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart:
        return await self.store.put_part(name, upload_id, number, chunks)

    async def complete_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> ObjectEntry:
        return await self._complete(await self.store.stage_multipart(name, upload_id, parts))

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None:
        await self.store.abort_multipart(name, upload_id)

    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]:
        return await self.store.list_parts(name, upload_id)

    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]:
        return await self.store.list_multiparts(bucket)
