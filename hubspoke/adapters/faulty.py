"""Ports with seeded faults: what real ones do on a bad day, repeatably.

The faults are those a port's contract allows. A seed and an order of calls give the same faults
again; nothing here reads a clock.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from hubspoke.core.ids import ObjectEntry, ObjectName, StoredObject, Version
from hubspoke.core.names import Skipped
from hubspoke.core.noticed import Part
from hubspoke.errors import StoreUnavailable, VersionChanged
from hubspoke.ports import MultipartUpload, ObjectStore, Staged, UploadedPart


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities, 0 to 1, per call.

    fail_before: StoreUnavailable and nothing was done. fail_after: it was done, and
    StoreUnavailable is all the caller hears of it. changed: a read finds another version.
    delay: the call first waits for what the wrapper was given to wait with.
    """

    fail_before: float = 0.0
    fail_after: float = 0.0
    changed: float = 0.0
    delay: float = 0.0


async def _no_pause() -> None:
    pass


class FaultyObjectStore:
    """ports.ObjectStore around another one. pause: awaited when a call is to be delayed."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        seed: int = 0,
        faults: Faults = Faults(),
        pause: Callable[[], Awaitable[None]] = _no_pause,
    ) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._pause = pause
        self.faults = faults  # may be exchanged between calls
        self.injected = 0  # faults so far

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    @property
    def skipped(self) -> Skipped:
        return self._store.skipped

    @property
    def list_requests(self) -> int:
        return self._store.list_requests

    def mounts(self) -> list[str]:
        return self._store.mounts()

    async def expect_mounts(self, buckets: Sequence[str]) -> None:
        await self._store.expect_mounts(buckets)

    async def buckets(self) -> list[str]:
        await self._before("buckets")
        return await self._store.buckets()

    async def create_bucket(self, bucket: str) -> None:
        await self._before(f"create bucket {bucket}")
        await self._store.create_bucket(bucket)
        self._after(f"create bucket {bucket}")

    async def delete_bucket(self, bucket: str) -> None:
        await self._before(f"delete bucket {bucket}")
        await self._store.delete_bucket(bucket)
        self._after(f"delete bucket {bucket}")

    async def scan(self, part: Part | None = None) -> AsyncIterator[list[StoredObject]]:
        async for batch in self._store.scan(part):
            await self._before("scan")
            yield batch

    async def head(self, name: ObjectName) -> ObjectEntry | None:
        await self._before(f"head {name}")
        return await self._store.head(name)

    def read_now(
        self, name: ObjectName, version: Version, offset: int, length: int
    ) -> memoryview | None:
        """See ports.ObjectStore."""
        return None

    async def read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        await self._before(f"read {name}")
        if self._happens(self.faults.changed):
            raise VersionChanged(f"{name}: changed, by injection")
        return await self._store.read(name, version, offset, length)

    async def stage(
        self, name: ObjectName, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> Staged:
        await self._before(f"stage {name}")
        staged = await self._store.stage(name, headers, chunks)
        self._after(f"stage {name}")
        return staged

    async def stage_copy(
        self, source: ObjectName, version: Version, name: ObjectName, headers: dict[str, str]
    ) -> Staged:
        await self._before(f"copy {source}")
        staged = await self._store.stage_copy(source, version, name, headers)
        self._after(f"copy {source}")
        return staged

    async def complete(self, staged: Staged) -> ObjectEntry:
        await self._before(f"complete {staged.name}")
        entry = await self._store.complete(staged)
        self._after(f"complete {staged.name}")
        return entry

    async def discard(self, staged: Staged) -> None:
        await self._before(f"discard {staged.name}")
        await self._store.discard(staged)
        self._after(f"discard {staged.name}")

    async def sweep(self, keep: Collection[str]) -> None:
        await self._before("sweep")
        await self._store.sweep(keep)

    async def delete(self, name: ObjectName) -> None:
        await self._before(f"delete {name}")
        await self._store.delete(name)
        self._after(f"delete {name}")

    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str:
        await self._before(f"create upload {name}")
        upload_id = await self._store.create_multipart(name, headers)
        self._after(f"create upload {name}")
        return upload_id

    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart:
        await self._before(f"part {number} of {name}")
        part = await self._store.put_part(name, upload_id, number, chunks)
        self._after(f"part {number} of {name}")
        return part

    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]:
        await self._before(f"parts of {name}")
        return await self._store.list_parts(name, upload_id)

    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]:
        await self._before(f"uploads of {bucket}")
        return await self._store.list_multiparts(bucket)

    async def stage_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> Staged:
        await self._before(f"stage upload {name}")
        staged = await self._store.stage_multipart(name, upload_id, parts)
        self._after(f"stage upload {name}")
        return staged

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None:
        await self._before(f"abort upload {name}")
        await self._store.abort_multipart(name, upload_id)
        self._after(f"abort upload {name}")

    def _happens(self, probability: float) -> bool:
        happens = self._random.random() < probability
        self.injected += happens
        return happens

    async def _before(self, what: str) -> None:
        if self._happens(self.faults.delay):
            await self._pause()
        if self._happens(self.faults.fail_before):
            raise StoreUnavailable(f"{what}: refused, by injection")

    def _after(self, what: str) -> None:
        if self._happens(self.faults.fail_after):
            raise StoreUnavailable(f"{what}: done but not answered, by injection")
