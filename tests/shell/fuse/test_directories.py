"""Listing folders in slices, from a replica in memory: against all keys at once."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubspoke.core.ids import LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.names import hidden_on_mount, mount_fault
from hubspoke.core.namespace import NamespaceRecord
from hubspoke.frontends.fuse.directories import Place, Shown, entries_after, key_before
from hubspoke.spoke.tree import Page, Tree


class Keys(Tree):
    """A tree over sorted keys, without a replica; tells how much was read of it."""

    def __init__(self, keys: dict[str, int]) -> None:
        self.keys = keys
        self.read = 0

    async def page(self, bucket: str, *, prefix: str, after: str, limit: int) -> Page:
        found = [k for k in sorted(self.keys) if k.startswith(prefix) and k > after][:limit]
        self.read += len(found)
        return Page([self._record(bucket, k) for k in found], 1.0)

    def paths_below(self, bucket: str, prefix: str, most: int) -> int:
        below = [k for k, n in self.keys.items() if k.startswith(prefix) and not mount_fault(k, n)]
        return min(len(below), most)

    def _record(self, bucket: str, key: str) -> NamespaceRecord:
        entry = ObjectEntry(Version("v"), self.keys[key], "e", 0)
        return NamespaceRecord(ObjectName(bucket, key), entry, LogSequence(1))


async def listed(tree: Tree, prefix: str, wanted: int) -> list[Shown]:
    """All entries, by as many answers as it takes."""
    found: list[Shown] = []
    after = ""
    while True:
        part = await entries_after(tree, "b", prefix, after, wanted)
        found += part.entries
        if part.ended:
            return found
        assert part.entries
        after = part.entries[-1].behind


def true_entries(keys: dict[str, int], prefix: str) -> Iterator[tuple[str, bool]]:
    """(name, is a folder) by looking at every key."""
    hidden = {key for key, _ in hidden_on_mount(sorted(keys.items()))}
    names = dict[str, bool]()
    for key in keys.keys() - hidden:
        if key.startswith(prefix) and key != prefix:
            name, slash, _ = key[len(prefix) :].partition("/")
            names[name] = bool(slash) or names.get(name, False)
    return iter(sorted(names.items()))


PARTS = st.sampled_from(["", ".", "..", "a", "a-", "a0", "b", "a!", "é", "x" * 255, "x" * 256])
KEYS = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=4).map("/".join).filter(bool), st.sampled_from([0, 5])
)


@settings(max_examples=300, deadline=None)
@given(KEYS, st.integers(1, 40))
async def test_a_listing_is_what_can_be_shown_and_nothing_twice(
    keys: dict[str, int], wanted: int
) -> None:
    for prefix in ("", "a/", "a/b/"):
        found = await listed(Keys(keys), prefix, wanted)
        shown = [(e.name, e.entry is None) for e in found]
        assert sorted(shown) == list(true_entries(keys, prefix))


async def test_large_folders_are_passed_by_in_small_steps() -> None:
    keys = {f"f{i:02}/{j:04}": 1 for i in range(30) for j in range(500)}
    tree = Keys(keys)
    assert len(await listed(tree, "", 500)) == 30
    assert tree.read < 30 * 40


async def test_many_hidden_keys_are_passed_by() -> None:
    tree = Keys({f"a//{i:05}": 1 for i in range(3000)} | {"b": 1})
    assert [e.name for e in await listed(tree, "", 500)] == ["b"]
    assert tree.read < 2000


async def read_at(tree: Tree, place: Place, ordinal: int, count: int) -> list[str]:
    """As READDIR does: `count` entries from a place on."""
    after = await key_before(tree, "b", "", place, ordinal)
    found = await entries_after(tree, "b", "", after, count)
    taken = found.entries[:count]
    place.read(ordinal, after, taken)
    return [e.name for e in taken]


@pytest.mark.parametrize("seed", range(20))
async def test_what_stays_is_met_once_while_names_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    stays = {f"s{rng.randrange(10**6):06}": 1 for _ in range(200)}
    tree = Keys(stays | {f"t{rng.randrange(10**6):06}": 1 for _ in range(200)})
    place, met, ordinal = Place(), list[str](), 0
    while page := await read_at(tree, place, ordinal, rng.randrange(1, 40)):
        # A reader may use only some of a page and come back in its middle.
        used = page[: rng.randrange(1, len(page) + 1)]
        met += used
        ordinal += len(used)
        for _ in range(5):
            tree.keys[f"t{rng.randrange(10**6):06}"] = 1
        for key in rng.sample(sorted(k for k in tree.keys if k not in stays), 4):
            del tree.keys[key]
    assert [k for k in met if k in stays] == sorted(stays)


async def test_a_handle_that_is_not_known_counts_from_the_beginning() -> None:
    tree = Keys({f"{i:05}": 1 for i in range(2000)})
    assert (await read_at(tree, Place(), 1700, 20))[:2] == ["01700", "01701"]
    assert await read_at(tree, Place(), 2000, 20) == []
    assert await read_at(tree, Place(), 99_999, 20) == []


async def test_a_place_that_was_left_is_found_again() -> None:
    tree = Keys({f"{i:05}": 1 for i in range(600)})
    place = Place()
    for ordinal in range(0, 600, 50):
        await read_at(tree, place, ordinal, 50)
    tree.read = 0
    assert (await read_at(tree, place, 325, 10))[0] == "00325"
    assert tree.read < 600
    place.rewind()
    assert (await read_at(tree, place, 0, 10))[0] == "00000"
