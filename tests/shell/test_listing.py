"""The objects of a folder, whatever lies in folders between them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.core.ids import Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.namespace import NamespaceRecord
from hubspoke.spoke.listing import NAMES_MAX, FolderListing

INNER = NAMES_MAX + 100  # more than one page of the replica
KEYS = [
    "set/a.tar",
    *(f"set/checkpoints/{i:05}" for i in range(INNER)),
    "set/checkpoints0",
    f"set/{'c' * 1019}/",
    "set/d",
    "set/d/x/y",
    "set/e\U0010ffff/z",
    "set/f.tar",
    "settle/g",
]
OBJECTS = ["set/a.tar", "set/checkpoints0", "set/d", "set/f.tar"]


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[LmdbNamespace]:
    store = LmdbNamespace.open(tmp_path / "replica", keep_log=False)
    entry = ObjectEntry(Version("v"), 1, "etag", 0, {})
    records = [NamespaceRecord(ObjectName("b", key), entry, LogSequence(1)) for key in KEYS]
    await store.begin_load()
    await store.load(records)
    await store.adopt(Epoch("e"), LogSequence(1), buckets=["b"])
    yield store
    await store.close()


@pytest.mark.parametrize("limit", [1, 2, NAMES_MAX])
async def test_folders_between_objects_are_stepped_over(
    namespace: LmdbNamespace, limit: int
) -> None:
    listing, found, last = FolderListing(namespace), list[str](), ObjectName("b", "set/")
    while more := listing.following(last, limit):
        assert len(more) <= limit
        found += [name.key for name, _ in more]
        last = more[-1][0]
    assert found == OBJECTS
