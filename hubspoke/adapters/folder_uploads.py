"""Multipart uploads of the folder store: a folder each, with its name and parts.

    .hubspoke/uploads/ID/info        JSON: bucket, key, headers, when it began
    .hubspoke/uploads/ID/00001-MD5   a part; the file's name carries its ETag

Blocking; runs in the store's threads. A part is there when its rename is durable.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hubspoke.adapters.folder_layout import FolderLayout
from hubspoke.adapters.folder_staging import StagingFile, sync_folder
from hubspoke.core.ids import ObjectName
from hubspoke.errors import InvalidPart, NoSuchUpload
from hubspoke.ports import MultipartUpload, UploadedPart

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}\Z")
_PART_FILE = re.compile(rb"(\d{5})-([0-9a-f]{32})\Z")


@dataclass(frozen=True, slots=True)
class Upload:
    name: ObjectName
    upload_id: str
    path: bytes
    headers: dict[str, str]
    initiated_ns: int


def create_upload(layout: FolderLayout, name: ObjectName, headers: dict[str, str]) -> str:
    upload_id = secrets.token_hex(16)
    path = os.path.join(layout.uploads, upload_id.encode())
    os.makedirs(path)
    info = json.dumps([name.bucket, name.key, headers, time.time_ns()])
    with open(os.path.join(path, b"info"), "x", encoding="utf-8") as file:
        file.write(info)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path)
    sync_folder(layout.uploads)
    return upload_id


def find_upload(layout: FolderLayout, name: ObjectName, upload_id: str) -> Upload:
    """Raises NoSuchUpload if there is none of that id for that name."""
    upload = _load(layout, upload_id) if _UPLOAD_ID.match(upload_id) else None
    if upload is None or upload.name != name:
        raise NoSuchUpload(f"{name!s:.300}: no multipart upload {upload_id:.100}")
    return upload


def _load(layout: FolderLayout, upload_id: str) -> Upload | None:
    path = os.path.join(layout.uploads, upload_id.encode())
    try:
        with open(os.path.join(path, b"info"), encoding="utf-8") as file:
            bucket, key, headers, initiated_ns = json.load(file)
    except (FileNotFoundError, ValueError):  # aborted, or cut short by a crash
        return None
    return Upload(ObjectName(bucket, key), upload_id, path, headers, initiated_ns)


def add_part(upload: Upload, number: int, staged: StagingFile) -> UploadedPart:
    """Turn a finished staging file in the upload's folder into its part."""
    file = b"%05d-%s" % (number, staged.md5.encode())
    path = os.path.join(upload.path, file)
    try:
        os.rename(staged.path, path)
        sync_folder(upload.path)
        modified_ns = os.stat(path).st_mtime_ns
        for old, _ in _part_files(upload, number):
            if old != path:
                os.unlink(old)
    except FileNotFoundError as e:
        raise NoSuchUpload(f"{upload.name}: multipart upload aborted meanwhile") from e
    return UploadedPart(number, staged.size, staged.md5, modified_ns)


def _part_files(upload: Upload, number: int | None = None) -> list[tuple[bytes, UploadedPart]]:
    found = []
    with os.scandir(upload.path) as entries:
        for entry in entries:
            match = _PART_FILE.match(entry.name)
            if match is None or (number is not None and int(match[1]) != number):
                continue
            st = entry.stat()
            part = UploadedPart(int(match[1]), st.st_size, match[2].decode(), st.st_mtime_ns)
            found.append((entry.path, part))
    return found


def parts_of(upload: Upload) -> dict[int, tuple[bytes, UploadedPart]]:
    """The parts by number; of two that a crash left with one number, the later one."""
    parts: dict[int, tuple[bytes, UploadedPart]] = {}
    try:
        for path, part in _part_files(upload):
            other = parts.get(part.number)
            if other is None or other[1].modified_ns < part.modified_ns:
                parts[part.number] = (path, part)
    except FileNotFoundError as e:
        raise NoSuchUpload(f"{upload.name}: multipart upload aborted meanwhile") from e
    return parts


def chosen_parts(upload: Upload, asked: Sequence[tuple[int, str]]) -> list[bytes]:
    """Paths of the parts asked for. Raises InvalidPart."""
    parts = parts_of(upload)
    paths = []
    for number, etag in asked:
        path, part = parts.get(number, (b"", None))
        if part is None or part.etag != etag:
            raise InvalidPart(f"{upload.name}: part {number} with ETag {etag} was not uploaded")
        paths.append(path)
    return paths


def list_uploads(layout: FolderLayout, bucket: str) -> list[MultipartUpload]:
    try:
        ids = os.listdir(os.fsdecode(layout.uploads))
    except FileNotFoundError:
        return []
    loaded = [_load(layout, upload_id) for upload_id in ids if _UPLOAD_ID.match(upload_id)]
    return [
        MultipartUpload(upload.name, upload.upload_id, upload.initiated_ns)
        for upload in loaded
        if upload is not None and upload.name.bucket == bucket
    ]
