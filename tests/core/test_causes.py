"""Each cause of a read that was no hit, from a read that has it. `bypassed` is the shell's."""

import random
from collections import Counter

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.ids import ObjectEntry, ObjectName, ReadState, Version
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from tests.core.test_epoch_reads import RECORD, N, read_epoch, record, records, shuffled
from tests.core.virtual_wan import Lab, Names, Read

MIB = 1 << 20
NAME = ObjectName("b", "k")


def made(capacity: int = 64 * MIB) -> tuple[SpokeCore, CachedObject]:
    names = Names({"k": 8 * MIB, "other": 8 * MIB})
    core = SpokeCore(SpokeConfig(capacity), RuleRanker().score, names, 0.0, 0)
    return core, core.open(NAME, names.entries[NAME])[0]


def test_the_first_reads_of_all_are_a_cold_start() -> None:
    core, obj = made()
    assert core.arrive(obj, 0, 4096) == (ReadState.MISS, "cold_start")


def test_what_is_on_its_way_is_late_for_the_path() -> None:
    core, obj = made()
    core.demand(obj, 0, 4096)
    assert core.arrive(obj, 0, 4096) == (ReadState.LATE, "late_bandwidth")


def test_what_is_planned_for_later_is_late_for_its_deadline() -> None:
    core, obj = made()
    core.scheduler.prefetch(obj, 0, 16, deadline=9.0)
    assert core.arrive(obj, 0, 4096) == (ReadState.MISS, "late_deadline")


def brought(core: SpokeCore, obj: CachedObject, first: int, last: int) -> None:
    core.cache.fly(obj, first, last)
    core.cache.arrived(obj, first, last)


def test_what_was_read_and_dropped_is_evicted_by_the_page() -> None:
    core, obj = made()
    brought(core, obj, 0, 20)
    core.cache.asked(obj, 0, 10)
    core.lost(obj, 0, 20)
    assert core.arrive(obj, 0, 10 * 4096)[1] == "evicted"
    assert core.arrive(obj, 9 * 4096, 9 * 4096)[1] == "cold_start"  # one page was a neighbour's


def test_a_new_version_is_no_eviction() -> None:
    core, obj = made()
    brought(core, obj, 0, 20)
    core.cache.asked(obj, 0, 10)
    new, _ = core.open(NAME, ObjectEntry(Version("v2"), 8 * MIB, "e", 0))
    assert core.arrive(new, 0, 4096)[1] == "invalidated"


def causes(lab: Lab) -> set[str | None]:
    return set(lab.causes) - {None}


def test_random_reads_of_a_known_stream_were_not_predicted() -> None:
    rng = random.Random(1)
    lab = Lab(Names({"k": 4 << 30}))
    reads: list[Read] = [(NAME, rng.randrange(1 << 20) * 4096, 4096) for _ in range(400)]
    read_epoch(lab, reads)
    assert set(lab.causes[-200:]) == {"not_predicted"}


def test_files_of_a_data_set_in_an_unknown_order_were_not_predicted() -> None:
    """Each is opened for the first time, but the job is no news."""
    rng = random.Random(2)
    sizes = {f"set/{i:05}": RECORD for i in range(N)}
    lab = Lab(Names(sizes))
    names = [ObjectName("b", key) for key in sizes]
    # With replacement: no epoch is believed.
    read_epoch(lab, [(rng.choice(names), 0, RECORD) for _ in range(600)])
    assert lab.causes[0] == "cold_start"
    late = Counter(lab.causes[-200:])
    assert late["not_predicted"] > 100
    assert not late["cold_start"]


def test_an_item_whose_turn_in_the_blind_fill_has_not_come_is_late_for_the_path() -> None:
    lab = Lab(records())
    read_epoch(lab, [record(n) for n in shuffled(0)])
    filling = Counter(lab.causes[100:200])  # the first hundred reads show that it is an epoch
    assert filling["late_bandwidth"] > 2 * filling["not_predicted"]
    assert not filling["cold_start"] and not filling["evicted"]


def test_an_item_that_was_dropped_after_its_use_is_evicted() -> None:
    lab = Lab(records(), capacity=N * RECORD // 4)
    read_epoch(lab, [record(n) for n in shuffled(0)])
    first = len(lab.causes)
    read_epoch(lab, [record(n) for n in shuffled(1)])
    seen = Counter(lab.causes[first:])
    assert seen["evicted"] > 10 * seen["not_predicted"]
    assert seen["cold_start"] == seen["invalidated"] == 0
