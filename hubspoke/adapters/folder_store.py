"""The object store over a folder: a file is an object, a first-level folder a bucket.

It must never show, read or write an object under another name than its own, never give bytes of
two versions, and never acknowledge what is not on the disk. A file's headers and MD5 are not
kept here: the hub's log keeps them; a file that was found has an ETag made of its version.
All file access runs in threads of its own, so a slow disk delays no other work of the process.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from hubspoke.adapters import folder_reads, folder_scan, folder_staging, folder_uploads
from hubspoke.adapters.etag import multipart_etag
from hubspoke.adapters.folder_layout import (
    FolderLayout,
    is_marker,
    version_size,
)
from hubspoke.adapters.folder_reads import OpenFiles, file_entry, marker_entry
from hubspoke.adapters.folder_staging import StagingFile, Token
from hubspoke.core.ids import ObjectEntry, ObjectName, StoredObject, Version
from hubspoke.core.names import Skipped, bucket_fault
from hubspoke.core.noticed import Part
from hubspoke.errors import (
    BucketNotEmpty,
    ConfigError,
    InvalidKey,
    InvalidRequest,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    StoreUnavailable,
)
from hubspoke.ports import MultipartUpload, Staged, UploadedPart

P = ParamSpec("P")
T = TypeVar("T")
_MARKER_BYTES = "a key that ends in '/' is a folder here and holds no bytes"


@dataclass(frozen=True, slots=True)
class FolderStoreTuning:
    # Reads of a cold disk wait side by side; more threads than this only add switches.
    threads: int = 16
    # Token files are few; 256 leaves most of a 1,024-descriptor limit to sockets.
    open_files_max: int = 256
    copy_bytes: int = 8 << 20  # read at a time while an object is copied


class FolderStore:
    """ports.ObjectStore. bucket: the whole folder is that one bucket, which always exists."""

    def __init__(
        self, root: Path, bucket: str | None = None, *, tuning: FolderStoreTuning | None = None
    ) -> None:
        self._given = root
        self._bucket = bucket
        self._tuning = tuning or FolderStoreTuning()
        self._layout = FolderLayout(os.fsencode(os.path.abspath(root)), bucket)
        self._identity: tuple[int, int] | None = None  # of the root, from `open` on
        self._mounted: set[str] = set()  # buckets seen on a file system of their own
        self._files = OpenFiles(self._tuning.open_files_max)
        self._pool = ThreadPoolExecutor(self._tuning.threads, thread_name_prefix="folder-store")
        self.list_requests = 0  # a folder is listed for nothing
        self.skipped = Skipped()  # what the last finished scan left out

    async def open(self) -> None:
        """Raises ConfigError naming the folder and what is wrong with it."""
        await self._run(self._open)

    def _open(self) -> None:
        if self._bucket is not None and (fault := bucket_fault(self._bucket)):
            raise ConfigError(f"--bucket {self._bucket!r} is no bucket name: {fault}")
        root = os.path.realpath(os.fsencode(self._given))
        try:
            os.listdir(root)
        except OSError as e:
            raise ConfigError(
                f"--store {self._given}: {e.strerror}; a readable folder is needed"
            ) from e
        if not os.access(root, os.X_OK):
            raise ConfigError(f"--store {self._given}: its files cannot be reached (no x right)")
        self._layout = FolderLayout(root, self._bucket)
        self._identity = self._root_identity()

    def _root_identity(self) -> tuple[int, int]:
        st = os.stat(self._layout.root)
        return st.st_dev, st.st_ino

    def _check_there(self, bucket: str | None = None) -> None:
        """A folder that was unmounted or exchanged shows no objects, but has not lost them: the
        root, and the bucket's folder (None: all of them). Raises StoreUnavailable."""
        try:
            root = self._root_identity()
        except OSError as e:
            raise StoreUnavailable(f"the store's folder {self._given}: {e.strerror}") from e
        if self._identity not in (None, root):
            raise StoreUnavailable(f"the store's folder {self._given} is not the one it was")
        for each in sorted(self._mounted if bucket is None else self._mounted & {bucket}):
            path = self._layout.bucket_path(each)
            try:
                lost = os.stat(path).st_dev == root[0]
            except FileNotFoundError:
                self._mounted.discard(each)  # unmounted and then removed, on purpose
                continue
            except OSError as e:
                raise StoreUnavailable(f"{os.fsdecode(path)}: {e.strerror}") from e
            if lost:
                raise StoreUnavailable(f"{os.fsdecode(path)}: its file system is not mounted")

    def _buckets(self) -> list[str]:
        buckets = folder_scan.bucket_names(self._layout)
        self._check_there()
        for bucket in buckets if self._bucket is None else ():
            with suppress(OSError):  # gone meanwhile
                if os.stat(self._layout.bucket_path(bucket)).st_dev != self._root_identity()[0]:
                    self._mounted.add(bucket)
        return buckets

    def mounts(self) -> list[str]:
        """See ports.ObjectStore."""
        return sorted(self._mounted)

    async def expect_mounts(self, buckets: Sequence[str]) -> None:
        """See ports.ObjectStore. What has files where it is now was moved there."""
        await self._run(self._expect_mounts, buckets)

    def _expect_mounts(self, buckets: Sequence[str]) -> None:
        for bucket in buckets:
            with suppress(OSError):  # not there any more
                if not os.listdir(self._layout.bucket_path(bucket)):
                    self._mounted.add(bucket)

    async def close(self) -> None:
        self._files.clear()
        await asyncio.to_thread(self._pool.shutdown)

    async def buckets(self) -> list[str]:
        return await self._run(self._buckets)

    async def create_bucket(self, bucket: str) -> None:
        if self._bucket is not None and bucket != self._bucket:
            raise InvalidRequest(f"bucket {bucket}: this store is the one bucket {self._bucket}")
        if fault := bucket_fault(bucket):
            raise InvalidRequest(f"bucket {bucket}: {fault}")
        await self._run(self._create_bucket, bucket)

    def _create_bucket(self, bucket: str) -> None:
        with _writing(f"bucket {bucket}"), suppress(FileExistsError):
            path = self._layout.bucket_path(bucket)
            if not os.path.isdir(path):
                os.mkdir(path)
                folder_staging.sync_folder(self._layout.root)

    async def delete_bucket(self, bucket: str) -> None:
        if self._bucket is not None:
            raise InvalidRequest(f"bucket {bucket}: the store's folder itself is this bucket")
        await self._run(self._delete_bucket, bucket)

    def _delete_bucket(self, bucket: str) -> None:
        path = self._layout.bucket_path(bucket)
        if not os.path.isdir(path) or os.path.islink(path):
            raise NoSuchBucket(f"bucket {bucket}: no such bucket")
        with _writing(f"bucket {bucket}"):
            if not folder_staging.remove_bucket(path):
                raise BucketNotEmpty(f"bucket {bucket}: it still has objects")

    async def scan(self, part: Part | None = None) -> AsyncIterator[list[StoredObject]]:
        """`skipped` is replaced when a walk of everything has ended."""
        skipped = Skipped()
        batches = folder_scan.walk(self._layout, skipped, part)
        while (batch := await self._run(next, batches, None)) is not None:
            yield batch
        await self._run(self._check_there, None if part is None else part.bucket)
        if part is None:
            self.skipped = skipped

    async def head(self, name: ObjectName) -> ObjectEntry | None:
        return await self._run(self._head, name)

    def _head(self, name: ObjectName) -> ObjectEntry | None:
        found = folder_reads.head(self._layout, name)
        if found is None:
            self._check_there(name.bucket)
        return found

    async def read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        return await self._run(self._read, name, version, offset, length)

    def _read(self, name: ObjectName, version: Version, offset: int, length: int) -> bytes:
        try:
            return folder_reads.read_range(self._layout, self._files, name, version, offset, length)
        except NoSuchKey:
            self._check_there(name.bucket)
            raise

    def read_now(
        self, name: ObjectName, version: Version, offset: int, length: int
    ) -> memoryview | None:
        """See ports.ObjectStore: from the page cache, where a thread would cost more."""
        return folder_reads.read_now(self._files, name, version, offset, length)

    async def stage(
        self, name: ObjectName, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> Staged:
        await self._run(self._guarded, name, self._prepare, name)
        file, token = await self._write(name, self._layout.staging, chunks)
        return Staged(name, token.dump(), file.size, file.md5, dict(headers))

    def _prepare(self, name: ObjectName) -> None:
        folder_staging.check_place(self._layout, name)
        os.makedirs(self._layout.staging, exist_ok=True)
        os.makedirs(self._layout.uploads, exist_ok=True)

    async def stage_copy(
        self, source: ObjectName, version: Version, name: ObjectName, headers: dict[str, str]
    ) -> Staged:
        return await self.stage(name, headers, self._source(source, version))

    async def _source(self, name: ObjectName, version: Version) -> AsyncIterator[bytes]:
        size, step = version_size(version), self._tuning.copy_bytes
        for offset in range(0, size, step):
            yield await self.read(name, version, offset, min(step, size - offset))

    async def _write(
        self, name: ObjectName, folder: bytes, chunks: AsyncIterator[bytes]
    ) -> tuple[StagingFile, Token]:
        """Write chunks to a new file in `folder`; the next is received while one is written."""
        async with self._staging_file(name, folder) as file:
            writing: asyncio.Task[None] | None = None
            try:
                async for chunk in chunks:
                    if writing is not None:
                        await writing
                    if is_marker(name.key) and chunk:
                        raise InvalidKey(f"{name!s:.300}: {_MARKER_BYTES}")
                    step = self._to_end(self._guarded, name, file.write, chunk)
                    writing = asyncio.create_task(step)
                if writing is not None:
                    await writing
            finally:
                if writing is not None and not writing.done():
                    await asyncio.wait({writing})
            return file, await self._to_end(self._guarded, name, file.finish)

    @asynccontextmanager
    async def _staging_file(self, name: ObjectName, folder: bytes) -> AsyncIterator[StagingFile]:
        """An open staging file; removed if the block fails. No thread uses it afterwards."""
        file = StagingFile(folder)
        try:
            await self._to_end(self._guarded, name, file.open)
            yield file
        except BaseException:
            await self._run(partial(file.close, keep=False))
            raise
        await self._run(partial(file.close, keep=True))

    async def complete(self, staged: Staged) -> ObjectEntry:
        return await self._run(self._complete, staged)

    def _complete(self, staged: Staged) -> ObjectEntry:
        name, token = staged.name, Token.load(staged.token)
        path = os.path.join(self._layout.staging, token.file.encode())
        with _writing(str(name)):
            if is_marker(name.key):
                marker = folder_staging.make_marker(self._layout, name)
                entry = marker_entry(os.stat(marker))
                with suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                entry = file_entry(self._rename(name, token, path))
            if token.upload_id:
                with suppress(NoSuchUpload):
                    folder_staging.drop_upload(self._layout, token.upload_id)
        return ObjectEntry(
            entry.version, entry.size, staged.etag, entry.modified_ns, staged.headers
        )

    def _rename(self, name: ObjectName, token: Token, path: bytes) -> os.stat_result:
        """The completed file's stat, taken through a descriptor: of these bytes and no others."""
        try:
            file = folder_reads.OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            folder_staging.rename_in(self._layout, name, path)
        except FileNotFoundError:
            with suppress(OSError):  # did a former attempt get this far?
                st = os.stat(self._layout.path(name))
                if token.is_of(st):
                    return st
            raise NoSuchUpload(f"{name!s:.300}: the staged bytes are gone") from None
        self._files.drop(name)
        return os.fstat(file.fd)

    async def discard(self, staged: Staged) -> None:
        path = os.path.join(self._layout.staging, Token.load(staged.token).file.encode())
        with suppress(FileNotFoundError):
            await self._run(self._guarded, staged.name, os.unlink, path)

    async def sweep(self, keep: Collection[str]) -> None:
        await self._run(folder_staging.sweep, self._layout, set(keep))

    async def delete(self, name: ObjectName) -> None:
        await self._run(self._guarded, name, folder_staging.remove, self._layout, name)
        self._files.drop(name)

    async def create_multipart(self, name: ObjectName, headers: dict[str, str]) -> str:
        await self._run(self._guarded, name, self._prepare, name)
        if is_marker(name.key):
            raise InvalidKey(f"{name!s:.300}: {_MARKER_BYTES}")
        create = folder_uploads.create_upload
        return await self._run(self._guarded, name, create, self._layout, name, headers)

    async def put_part(
        self, name: ObjectName, upload_id: str, number: int, chunks: AsyncIterator[bytes]
    ) -> UploadedPart:
        upload = await self._run(folder_uploads.find_upload, self._layout, name, upload_id)
        try:
            file, _ = await self._write(name, upload.path, chunks)
        except FileNotFoundError as e:
            raise NoSuchUpload(f"{name!s:.300}: multipart upload aborted meanwhile") from e
        return await self._run(self._guarded, name, folder_uploads.add_part, upload, number, file)

    async def list_parts(self, name: ObjectName, upload_id: str) -> list[UploadedPart]:
        upload = await self._run(folder_uploads.find_upload, self._layout, name, upload_id)
        parts = await self._run(folder_uploads.parts_of, upload)
        return [parts[number][1] for number in sorted(parts)]

    async def list_multiparts(self, bucket: str) -> list[MultipartUpload]:
        return await self._run(folder_uploads.list_uploads, self._layout, bucket)

    async def stage_multipart(
        self, name: ObjectName, upload_id: str, parts: Sequence[tuple[int, str]]
    ) -> Staged:
        """Joins the parts in a new file: they stay until `complete`, so it can be repeated."""
        upload = await self._run(folder_uploads.find_upload, self._layout, name, upload_id)
        paths = await self._run(folder_uploads.chosen_parts, upload, parts)
        async with self._staging_file(name, self._layout.staging) as file:
            for path in paths:
                await self._to_end(self._guarded, name, file.append_file, path)
            token = await self._to_end(self._guarded, name, file.finish, upload_id)
        etag = multipart_etag([etag for _, etag in parts])
        return Staged(name, token.dump(), file.size, etag, upload.headers)

    async def abort_multipart(self, name: ObjectName, upload_id: str) -> None:
        await self._run(folder_uploads.find_upload, self._layout, name, upload_id)
        await self._run(folder_staging.drop_upload, self._layout, upload_id)

    def _guarded(
        self, name: ObjectName, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with _writing(str(name)):
            return work(*args, **kwargs)

    async def _to_end(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `_run`, but a cancelled caller waits until the thread is through with its file."""
        thread = asyncio.ensure_future(self._run(work, *args, **kwargs))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait({thread})
            raise

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs, "run_in_executor takes positional arguments"
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Errors of the file system in our terms; a name it refuses is the key's fault."""
    try:
        yield
    except FileNotFoundError:
        raise  # what is missing is the caller's to say
    except OSError as e:
        if e.errno in (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL):
            raise InvalidKey(f"{what:.300}: the file system refuses this name: {e}") from e
        raise StoreUnavailable(f"{what:.300}: the store's folder fails: {e.strerror}") from e
