"""Object stores to run the contract against."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hubspoke.adapters.folder_store import FolderStore
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.ports import ObjectStore

BUCKET = "data"


def _memory(path: Path) -> ObjectStore:
    return MemoryObjectStore([BUCKET])


def _folder(path: Path) -> ObjectStore:
    (path / BUCKET).mkdir()
    return FolderStore(path)


def _folder_as_bucket(path: Path) -> ObjectStore:
    return FolderStore(path, BUCKET)


_STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": _memory,
    "folder": _folder,
    "folder-as-bucket": _folder_as_bucket,
}


@pytest.fixture(params=_STORES)
async def object_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[ObjectStore]:
    store = _STORES[request.param](tmp_path)
    await store.open()
    yield store
    await store.close()
