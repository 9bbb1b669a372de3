"""Chen and Baer's table, read by read."""

from hubspoke.sim.prediction.stride_table import ENTRIES, StrideTable


def after(table: StrideTable, first: int, client: int = 0) -> list[tuple[int, int]]:
    return table.after(client, 0, first, first + 4, 0, True)


def test_a_stride_seen_twice_is_fetched_along_to_the_window() -> None:
    table = StrideTable(12)
    assert [after(table, p) for p in (0, 100)] == [[], []]
    assert after(table, 200) == [(300, 304), (400, 404), (500, 504)]


def test_each_further_read_asks_for_one_more() -> None:
    table = StrideTable(12)
    for p in (0, 100, 200):
        after(table, p)
    assert after(table, 300) == [(600, 604)]
    assert after(table, 400) == [(700, 704)]


def test_random_reads_are_left_alone() -> None:
    table = StrideTable(12)
    assert [after(table, p) for p in (900, 100, 400, 50, 77, 3, 800)] == [[]] * 7


def test_one_step_aside_does_not_cost_a_steady_stride() -> None:
    table = StrideTable(12)
    for p in (0, 100, 200, 300):
        after(table, p)
    assert after(table, 57) == []
    assert after(table, 157) == [(257, 261), (357, 361), (457, 461)]


def test_workers_have_entries_of_their_own_in_bounded_memory() -> None:
    table = StrideTable(12)
    for p in (0, 100, 200):
        for client in (0, 1):
            after(table, p + client, client)
    assert after(table, 300, 0) == [(600, 604)]
    for client in range(2 * ENTRIES):
        after(table, 0, client)
    assert len(table._entries) == ENTRIES
