"""The bytes of a full copy: what counts, and that counting leaves the loop to others."""

import asyncio

import pytest

from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.namespace import Listed
from hubspoke.spoke import full_copy
from hubspoke.spoke.full_copy import FullCopy


class CountingNamespace(MemoryNamespace):
    """Counts the pages that were asked for."""

    pages = 0

    def listed(self, bucket: str, *, prefix: str = "", after: str = "", limit: int) -> list[Listed]:
        self.pages += 1
        return super().listed(bucket, prefix=prefix, after=after, limit=limit)


async def filled(*sizes: tuple[str, int]) -> CountingNamespace:
    namespace = CountingNamespace(keep_log=False)
    await namespace.begin_load()
    await namespace.adopt(Epoch("e"), LogSequence(0), buckets=["b"])
    for key, size in sizes:
        await put(namespace, key, size)
    return namespace


async def put(namespace: MemoryNamespace, key: str, size: int) -> None:
    entry = ObjectEntry(Version(f"v{size}"), size, "e", 0)
    await namespace.apply(
        [Change(LogSequence(namespace.sequence + 1), ObjectName("b", key), entry)]
    )


async def test_each_object_of_a_folder_that_was_read_counts_once() -> None:
    namespace = await filled(("a/1", 1), ("a/2", 10), ("a/b/3", 100), ("c/4", 1_000), ("5", 10_000))
    copy = FullCopy(namespace)
    assert await copy.added_up() is None
    copy.read(ObjectName("b", "a/b/3"))
    assert await copy.added_up() == 100
    copy.read(ObjectName("b", "a/1"))
    assert await copy.added_up() == 111
    await put(namespace, "a/2", 20)
    assert await copy.added_up() == 121
    copy.read(ObjectName("b", "c/4"))
    assert await copy.added_up() == 1_121
    copy.reset()
    assert await copy.added_up() is None
    copy.read(ObjectName("b", "c/4"))
    assert await copy.added_up() == 1_000


async def test_more_names_than_are_added_up_are_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_copy, "PAGE", 2)
    monkeypatch.setattr(full_copy, "ENTRIES_MAX", 4)
    namespace = await filled(*((f"a/{i}", 1) for i in range(4)))
    copy = FullCopy(namespace)
    copy.read(ObjectName("b", "a/0"))
    assert await copy.added_up() == 4
    await put(namespace, "a/4", 1)
    assert await copy.added_up() is None


async def test_other_work_has_a_turn_after_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_copy, "PAGE", 2)
    namespace = await filled(*((f"a/{i}", 1) for i in range(40)))
    copy = FullCopy(namespace)
    copy.read(ObjectName("b", "a/0"))
    adding = [asyncio.create_task(copy.added_up()) for _ in range(3)]
    turns = 0
    while not adding[0].done():
        before = namespace.pages
        await asyncio.sleep(0)
        assert namespace.pages <= before + 1
        turns += 1
    assert turns >= 20
    # The others were told the same sum without adding it up again.
    assert await asyncio.gather(*adding) == [40] * 3
    assert namespace.pages == 21
