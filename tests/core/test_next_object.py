"""Walks over a folder's objects: found at once in order, and cheap where there is none."""

import random

from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.generators.next_object import Walks
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState
from hubspoke.core.page_codes import IS_QUEUED
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from tests.core.virtual_wan import Names

SIZE, COUNT = 100_000, 10_000


class Counted(Names):
    """A listing that counts the names it gave."""

    listed = 0

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        at = int(name.key[-6:]) + 1
        found = self._order[at : at + limit]
        self.listed += len(found)
        return [(n, self.entries[n]) for n in found]


def names() -> Counted:
    return Counted({f"d/{i:06}": SIZE for i in range(COUNT)})


def opened(walks: Walks, listing: Counted, numbers: list[int]) -> list[Candidate]:
    found: list[Candidate] = []
    for i, n in enumerate(numbers):
        name = ObjectName("b", f"d/{n:06}")
        found += walks.opened(name, SIZE, listing, i * 0.01, 0.3, SIZE)
    return found


def test_a_walk_in_order_is_found_at_once() -> None:
    found = opened(Walks(), names(), list(range(500, 540)))
    assert found[0].name.key == "d/000504"
    assert {c.name.key for c in found} >= {f"d/{n:06}" for n in range(504, 545)}


def test_openings_at_random_propose_nothing_and_list_few_names() -> None:
    listing, order = names(), list(range(COUNT))
    random.Random(1).shuffle(order)
    assert not opened(Walks(), listing, order[:2_000])
    assert listing.listed <= 8 * 2_000


def test_a_walk_is_found_again_after_openings_at_random() -> None:
    listing, order, walks = names(), list(range(COUNT)), Walks()
    random.Random(1).shuffle(order)
    opened(walks, listing, order[:500])
    found = opened(walks, listing, list(range(3_000, 3_100)))
    assert "d/003099" in {c.name.key for c in found}


def test_first_files_of_several_workers_at_once_are_no_rate() -> None:
    walks, listing = Walks(), names()
    found = [
        walks.opened(ObjectName("b", f"d/{n:06}"), SIZE, listing, 0.0, 0.3, SIZE) for n in range(8)
    ]
    assert len({c.name for each in found for c in each}) <= 12


def test_a_long_walk_keeps_few_names() -> None:
    walks = Walks()
    opened(walks, names(), list(range(5_000)))
    (walk,) = walks._folders.values()
    assert len(walk.names) < 2_000


def test_a_walk_is_as_far_ahead_as_it_may_be() -> None:
    for room in (3 * SIZE, 30 * SIZE):
        walks, listing = Walks(), names()
        for i, n in enumerate(range(500, 540)):
            name = ObjectName("b", f"d/{n:06}")
            walks.opened(name, SIZE, listing, i * 0.001, 0.3, SIZE, room=room)
        (walk,) = walks._folders.values()
        assert walk.planned - walk.frontier == room // SIZE


def proposed(keys: list[str], read: list[str], size: int = SIZE) -> list[str]:
    """Keys proposed as these objects of a folder are opened in this order."""
    listing, walks, found = Names(dict.fromkeys(keys, size)), Walks(), list[str]()
    for i, key in enumerate(read):
        name = ObjectName("b", key)
        found += [c.name.key for c in walks.opened(name, size, listing, i * 0.01, 0.3, 4 * size)]
    return found


def test_a_kind_that_readers_pass_by_is_not_brought() -> None:
    data = [f"d/{i:03}.parquet" for i in range(100)]
    found = proposed(sorted([*data, *(f"d/{i:03}.json" for i in range(100))]), data)
    assert not [key for key in found if key.endswith("json")]
    assert set(found) >= set(data[5:])


def test_a_kind_comes_again_when_one_of_it_is_opened() -> None:
    keys = sorted(f"d/{i:03}.{kind}" for i in range(200) for kind in ("jpg", "json"))
    images = [key for key in keys if key.endswith("jpg")]
    found = proposed(keys, images[:50] + keys[100:200])
    assert not [key for key in found if key.endswith("json") and key < "d/050"]
    assert set(found) >= set(keys[104:200])


def test_names_that_differ_behind_the_dot_are_one_walk() -> None:
    for keys in ([f"d/x.{i:03}" for i in range(60)], [f"d.1/{i:03}" for i in range(60)]):
        assert set(proposed(keys, keys[:2] + keys[5:])) >= set(keys[10:])


def test_the_file_beside_a_large_one_is_not_read_over_into() -> None:
    sizes: dict[str, int] = {}
    for i in range(12):
        sizes |= {f"d/{i:02}.bin": 8 << 20, f"d/{i:02}.json": SIZE}
    listing = Names(sizes)
    core = SpokeCore(SpokeConfig(1 << 30), lambda of, _: [1.0] * len(of), listing, 0.0, 0)
    now, ahead = 0.0, list[set[str]]()
    for i in range(12):
        name = ObjectName("b", f"d/{i:02}.bin")
        for offset in range(0, 8 << 20, 256 << 10):
            obj, _ = core.open(name, listing.entries[name])
            core.access(obj, offset, 256 << 10, "a", ReadState.HIT, now)
            core.predict(now)
            now += 0.01
        found = [o for o in core.cache.objects.values() if o.name > name]
        queued = [o for o in found if o.pages.any(0, len(o.pages), IS_QUEUED)]
        ahead.append({o.name.key for o in queued})
    for i in range(5, 11):
        assert f"d/{i + 1:02}.bin" in ahead[i]
        assert not [key for key in ahead[i] if key.endswith("json")]


def test_what_no_drive_takes_is_proposed_again() -> None:
    listing = names()
    core = SpokeCore(SpokeConfig(1 << 30), lambda of, _: [1.0] * len(of), listing, 0.0, 0)
    fills = True
    core.fills = lambda number: fills

    def read(n: int) -> int:
        """Bytes that wait to be fetched after file `n` was read whole."""
        name = ObjectName("b", f"d/{n:06}")
        obj, _ = core.open(name, listing.entries[name])
        core.access(obj, 0, SIZE, "a", ReadState.HIT, n * 0.01)
        core.predict(n * 0.01)
        return core.scheduler.prefetch_bytes_queued

    before = [read(n) for n in range(20)][-1]
    assert before
    fills = False
    assert [read(n) for n in range(20, 30)][-1] == before
    fills = True
    read(30)
    reached = {o.name.key for o in core.cache.objects.values()}
    assert reached >= {f"d/{n:06}" for n in range(31, 50)}
