"""Files opened in an order nobody knows: their heads are there when they are."""

import random

from hubspoke.core.eviction.pinned_set import RANKS, rank
from hubspoke.core.generators.heads import OPENINGS_MIN
from hubspoke.core.ids import ObjectName, ReadState
from tests.core.virtual_wan import Lab, Names, Read

MIB = 1 << 20
FILES, FILE_BYTES, READ_BYTES, READERS = 32, 16 * MIB, 256 << 10, 4
PAUSE_S = 0.02  # 12.5 MB/s a reader


def files(count: int = FILES, size: int = FILE_BYTES) -> Names:
    return Names({f"data/f{i:03}": size for i in range(count)})


class Interleave:
    """As tf.data's: several readers, each reads a file to its end and opens the next one."""

    def __init__(
        self,
        lab: Lab,
        order: list[int],
        *,
        a_client_each: bool = False,
        start: int = 0,
        pause_s: float = PAUSE_S,
        reads: int = FILE_BYTES // READ_BYTES,
    ) -> None:
        self.lab = lab
        self.left = iter(order)
        self.a_client_each = a_client_each
        self.start, self.reads = start // READ_BYTES, reads
        self.opened: list[int] = []  # place among all reads of each opening
        for reader in range(READERS):
            self.open(f"r{reader}")
        lab.run()

    def open(self, client: str) -> None:
        number = next(self.left, None)
        if number is not None:
            if self.a_client_each:
                client = f"{client[:2]}{len(self.opened)}"
            self.opened.append(len(self.lab.states))
            self.read(client, number, self.start)

    def read(self, client: str, number: int, at: int) -> None:
        if at == self.reads:
            self.open(client)
            return
        read: Read = (ObjectName("b", f"data/f{number:03}"), at * READ_BYTES, READ_BYTES)

        def then() -> None:
            self.lab.at(self.lab.now + PAUSE_S, lambda: self.read(client, number, at + 1))

        self.lab.read(read, client, then)


def shuffled(seed: int) -> list[int]:
    order = list(range(FILES))
    random.Random(seed).shuffle(order)
    return order


def misses(lab: Lab, first: int = 0) -> int:
    return sum(s is not ReadState.HIT for s in lab.states[first:])


def untouched(lab: Lab, numbers: list[int]) -> bool:
    """Whether nothing of these files was brought."""
    found = [lab.core.cache.current(ObjectName("b", f"data/f{n:03}")) for n in numbers]
    return not any(obj is not None and obj.resident for obj in found)


def test_files_opened_at_random_are_hits_from_their_first_byte() -> None:
    lab = Lab(files())
    job = Interleave(lab, shuffled(1))
    assert all(lab.states[i] is ReadState.HIT for i in job.opened[READERS:])
    assert misses(lab, job.opened[READERS]) <= 0.015 * FILES * FILE_BYTES / READ_BYTES
    assert lab.amplification == 1.0


def test_a_cache_of_half_the_files_keeps_the_heads_for_the_next_epoch() -> None:
    lab = Lab(files(), capacity=FILES * FILE_BYTES // 2)
    Interleave(lab, shuffled(1))
    first, received = len(lab.states), lab.received
    job = Interleave(lab, shuffled(2))
    assert all(lab.states[i] is ReadState.HIT for i in job.opened)
    assert misses(lab, first) <= 32  # a head is an eighth of the cache over all files: four reads
    assert lab.received - received <= 1.15 * FILES * FILE_BYTES / 2


def test_of_files_that_are_left_no_more_than_was_read_of_others_comes() -> None:
    lab = Lab(files(count=64))
    order = list(range(64))
    random.Random(5).shuffle(order)
    Interleave(lab, order, reads=4)
    for number in order[16:]:
        obj = lab.core.cache.current(ObjectName("b", f"data/f{number:03}"))
        assert obj is not None and obj.resident * 4096 == 4 * READ_BYTES


def test_readers_with_a_connection_for_each_file_are_followed_too() -> None:
    lab = Lab(files())
    job = Interleave(lab, shuffled(3), a_client_each=True)
    assert misses(lab, job.opened[READERS]) <= 0.015 * FILES * FILE_BYTES / READ_BYTES


def test_files_read_in_listing_order_get_no_heads() -> None:
    lab = Lab(files())
    Interleave(lab, list(range(FILES // 2)))
    assert untouched(lab, list(range(FILES // 2 + 8, FILES)))


def test_a_few_files_opened_at_random_are_no_evidence() -> None:
    lab = Lab(files())
    Interleave(lab, [17, 3, 10][: OPENINGS_MIN - 1])
    assert untouched(lab, [1, 2, 25, 30])


def test_files_that_are_opened_again_and_again_get_no_heads() -> None:
    lab = Lab(files())
    Interleave(lab, [17, 3] * 8)
    assert untouched(lab, [1, 2, 25, 30])


def test_files_of_which_only_the_middle_is_read_get_no_heads() -> None:
    lab = Lab(files())
    Interleave(lab, [17, 3, 10, 6], start=8 * MIB)
    assert untouched(lab, [1, 2, 25, 30])


def whole(lab: Lab) -> int:
    """Files that are here as a whole."""
    found = [lab.core.cache.current(name) for name in lab.names.entries]
    return sum(obj is not None and obj.resident == len(obj.pages) for obj in found)


def test_files_not_opened_yet_wait_while_the_path_is_faster_than_the_readers() -> None:
    lab = Lab(files())
    Interleave(lab, shuffled(4)[: FILES // 2])
    assert whole(lab) == FILES // 2


def test_an_order_that_repeats_costs_what_the_cache_cannot_hold() -> None:
    lab = Lab(files(), capacity=FILES * FILE_BYTES // 2)
    for _ in range(3):
        Interleave(lab, shuffled(6))
    first, received = len(lab.states), lab.received
    job = Interleave(lab, shuffled(6))
    assert all(lab.states[i] is ReadState.HIT for i in job.opened)
    assert misses(lab, first) <= 20  # of 2,048
    assert lab.received - received <= 1.2 * FILES * FILE_BYTES / 2


def test_an_order_that_changes_after_it_repeated_is_followed_no_more() -> None:
    lab = Lab(files(), capacity=FILES * FILE_BYTES // 2)
    for seed in (6, 6, 6, 7, 8):
        first, received = len(lab.states), lab.received
        Interleave(lab, shuffled(seed))
    assert misses(lab, first) <= 64
    assert lab.received - received <= 1.3 * FILES * FILE_BYTES / 2


def test_the_head_of_a_large_object_goes_last() -> None:
    assert [rank(block, 64) for block in range(4)] == [0] * 4
    assert max(rank(block, 64) for block in range(4, 64)) > RANKS // 2
