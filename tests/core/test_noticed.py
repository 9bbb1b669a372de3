"""What was noticed of the store: when it is looked at, and that nothing is dropped in a burst."""

from itertools import pairwise

import pytest

from hubspoke.core.ids import ObjectName
from hubspoke.core.noticed import Noticed, NoticedConfig, Part

CONFIG = NoticedConfig(names_max=50, names_per_folder_max=20, parts_max=10)


def name(key: str, bucket: str = "bkt") -> ObjectName:
    return ObjectName(bucket, key)


def test_notices_of_one_name_become_one_look_when_it_is_quiet() -> None:
    noticed = Noticed(CONFIG)
    for at in (0.0, 0.02, 0.04):
        noticed.name(name("a"), writing=False, now=at)
    assert noticed.next_name() == pytest.approx(0.04 + CONFIG.quiet_s)
    assert noticed.due_names(0.08, 9) == []
    assert noticed.due_names(0.1, 9) == [name("a")]
    assert noticed.due_names(9.0, 9) == []
    assert noticed.next_name() is None


def test_a_writer_without_a_pause_delays_a_look_to_the_bound_and_no_longer() -> None:
    noticed = Noticed(CONFIG)
    looks = []
    for tick in range(500):
        at = tick * 0.05
        noticed.name(name("a"), writing=True, now=at)
        looks += [at for _ in noticed.due_names(at, 9)]
    assert looks == pytest.approx([10.0, 20.05], abs=0.06)


def test_the_end_of_writing_is_looked_at_soon() -> None:
    noticed = Noticed(CONFIG)
    noticed.name(name("a"), writing=True, now=0.0)
    noticed.name(name("a"), writing=True, now=3.0)
    noticed.name(name("a"), writing=False, now=3.01)
    assert noticed.next_name() == pytest.approx(3.01 + CONFIG.quiet_s)


def test_a_name_that_changes_all_the_time_is_looked_at_twice_a_second() -> None:
    noticed = Noticed(CONFIG)
    looks = 0
    for tick in range(1000):
        at = tick * 0.01
        noticed.name(name("a"), writing=False, now=at)
        looks += len(noticed.due_names(at, 9))
    assert 15 <= looks <= 20


def test_a_burst_in_one_folder_becomes_a_look_at_the_folder() -> None:
    noticed = Noticed(CONFIG)
    for i in range(100):
        noticed.name(name(f"d/{i}"), writing=False, now=0.0)
    noticed.name(name("other"), writing=False, now=0.0)
    assert len(noticed) == 2
    assert noticed.due_names(1.0, 99) == [name("other")]
    assert noticed.due_part(1.0) == Part("bkt", "d/", deep=False)
    assert noticed.due_part(1.0) is None


def test_a_burst_over_many_folders_becomes_one_look_below_what_they_share() -> None:
    noticed = Noticed(CONFIG)
    for i in range(30):
        for j in range(10):
            noticed.name(name(f"data/run/d{i}/{j}"), writing=False, now=0.0)
    assert len(noticed) <= CONFIG.names_max
    found: list[Part] = []
    while (part := noticed.due_part(1.0)) is not None:
        found.append(part)
    left = noticed.due_names(1.0, 999)
    assert Part("bkt", "data/run/", deep=True) in found
    for i in range(30):
        for j in range(10):
            key = name(f"data/run/d{i}/{j}")
            assert key in left or any(p.covers(key) for p in found)


def test_a_burst_over_many_buckets_becomes_a_look_at_everything() -> None:
    noticed = Noticed(CONFIG)
    for i in range(100):
        noticed.part(Part(f"bucket{i}", "", deep=True), now=0.0)
    assert noticed.everything is not None
    assert len(noticed) < 100
    noticed.begin_all()
    assert noticed.everything is None


def test_whatever_comes_memory_has_a_bound_and_nothing_is_dropped() -> None:
    noticed = Noticed(CONFIG)
    keys = [
        name(f"{'/'.join(str(i)[:d])}/f{i}", f"bucket{i % 3}") for i in range(3000) for d in (2,)
    ]
    for key in keys:
        noticed.name(key, writing=False, now=0.0)
        assert len(noticed) <= CONFIG.names_max + CONFIG.parts_max
    parts: list[Part] = []
    while (part := noticed.due_part(1.0)) is not None:
        parts.append(part)
    names = set(noticed.due_names(1.0, 10_000))
    assert noticed.everything is None
    assert all(key in names or any(p.covers(key) for p in parts) for key in keys)


def test_a_folder_that_is_looked_at_takes_along_what_waits_in_it() -> None:
    noticed = Noticed(CONFIG)
    noticed.name(name("a/b/c"), writing=False, now=0.0)
    noticed.name(name("ab"), writing=False, now=0.0)
    noticed.part(Part("bkt", "a/b/", deep=False), now=0.0)
    noticed.part(Part("bkt", "a/", deep=True), now=0.0)
    noticed.name(name("a/b/d"), writing=False, now=0.0)
    noticed.part(Part("bkt", "a/b/", deep=True), now=0.0)
    assert noticed.due_names(1.0, 9) == [name("ab")]
    assert noticed.due_part(1.0) == Part("bkt", "a/", deep=True)
    assert noticed.due_part(1.0) is None


def test_a_shallow_look_does_not_take_along_what_lies_deeper() -> None:
    noticed = Noticed(CONFIG)
    noticed.part(Part("bkt", "a/", deep=False), now=0.0)
    noticed.name(name("a/b/c"), writing=False, now=0.0)
    noticed.part(Part("bkt", "a/b/", deep=True), now=0.0)
    found = {noticed.due_part(1.0), noticed.due_part(1.0)}
    assert found == {Part("bkt", "a/", deep=False), Part("bkt", "a/b/", deep=True)}


def test_a_listing_that_takes_long_has_its_rest() -> None:
    noticed = Noticed(CONFIG)
    part = Part("bkt", "a/", deep=False)
    noticed.part(part, now=0.0)
    assert noticed.due_part(1.0) == part
    noticed.part(part, now=2.0)  # while it is looked at
    noticed.part_done(part, now=4.0, took_s=3.0)
    assert noticed.due_part(9.9) is None
    assert noticed.due_part(10.0) == part


def test_what_fails_is_tried_again_at_growing_intervals_and_not_for_ever() -> None:
    noticed = Noticed(CONFIG)
    at = [0.0]
    for tries in range(1, CONFIG.tries):
        assert noticed.failed(name("a"), tries=tries, now=at[-1])
        due = noticed.next_name()
        assert due is not None
        at.append(due)
        assert noticed.due_names(due, 9) == [name("a")]
    assert [round(b - a) for a, b in pairwise(at)] == [1, 2, 4, 8, 16, 32, 64]
    assert not noticed.failed(name("a"), tries=CONFIG.tries, now=at[-1])
    assert len(noticed) == 0


def test_a_part_covers_its_folder_and_its_marker() -> None:
    deep, shallow = Part("bkt", "a/", deep=True), Part("bkt", "a/", deep=False)
    for key, in_deep, in_shallow in (
        ("a/", True, True),
        ("a/x", True, True),
        ("a/b/", True, False),
        ("a/b/x", True, False),
        ("ab", False, False),
        ("a", False, False),
    ):
        assert (deep.covers(name(key)), shallow.covers(name(key))) == (in_deep, in_shallow), key
    assert not deep.covers(name("a/x", "other"))
