"""What of a prefetch counts as used: all that a reader asked for, also before it was there."""

from hubspoke.core.cached_object import CachedObject
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import PAGE_BYTES, ReadState
from hubspoke.core.ranking import RuleRanker
from hubspoke.core.spoke import SpokeCore
from hubspoke.core.spoke_config import SpokeConfig
from tests.core.virtual_wan import Names

PAGES = 3  # of one request, also to a path that is not known yet
SIZE = PAGES * PAGE_BYTES - 100


def made() -> tuple[SpokeCore, CachedObject]:
    names = Names({"k": SIZE})
    core = SpokeCore(SpokeConfig(1 << 26), RuleRanker().score, names, 0.0, 0)
    ((name, entry),) = names.entries.items()
    return core, core.open(name, entry)[0]


def sent(core: SpokeCore, obj: CachedObject) -> Fetch:
    """The whole object, asked of the hub in advance."""
    core.scheduler.prefetch(obj, 0, PAGES, deadline=1.0)
    (fetch,), _ = core.dispatch(0.0)
    assert core.ledger.prefetch_issued_bytes == SIZE
    return fetch


def ask(core: SpokeCore, obj: CachedObject, first: int, last: int) -> None:
    length = obj.range_bytes(first, last)
    core.access(obj, first * PAGE_BYTES, length, "c", ReadState.LATE, 0.0)


def arrive(core: SpokeCore, fetch: Fetch) -> None:
    core.arrived(fetch, 0, 0, SIZE, SIZE, 1.0)


def test_what_is_read_while_it_is_in_flight_is_used() -> None:
    core, obj = made()
    fetch = sent(core, obj)
    ask(core, obj, 0, 2)
    assert core.ledger.prefetch_used_bytes == 0  # it may still fail
    arrive(core, fetch)
    assert core.ledger.prefetch_used_bytes == 2 * PAGE_BYTES
    ask(core, obj, 0, PAGES)
    ask(core, obj, 0, PAGES)
    assert core.ledger.prefetch_used_bytes == SIZE


def test_a_page_is_used_once_however_often_it_is_asked_for_in_flight() -> None:
    core, obj = made()
    fetch = sent(core, obj)
    ask(core, obj, PAGES - 1, PAGES)
    ask(core, obj, PAGES - 1, PAGES)
    arrive(core, fetch)
    ask(core, obj, PAGES - 1, PAGES)
    assert core.ledger.prefetch_used_bytes == PAGE_BYTES - 100


def test_what_never_came_was_of_no_use() -> None:
    core, obj = made()
    fetch = sent(core, obj)
    ask(core, obj, 0, 2)
    core.finished(fetch, 0, 1.0)
    assert core.ledger.prefetch_used_bytes == 0


def test_what_goes_to_its_reader_past_the_disk_is_used() -> None:
    core, obj = made()
    fetch = sent(core, obj)
    ask(core, obj, 0, 2)
    core.passed(fetch, 0, 0, SIZE, SIZE, 1.0)
    assert core.ledger.prefetch_used_bytes == 2 * PAGE_BYTES


def test_what_is_written_late_is_used_once() -> None:
    core, obj = made()
    fetch = sent(core, obj)
    core.delivered(fetch, SIZE, SIZE, 1.0)
    ask(core, obj, 0, 2)
    core.settled(fetch, 0, 0, SIZE, good=True)
    assert core.ledger.prefetch_used_bytes == 2 * PAGE_BYTES
    ask(core, obj, 0, PAGES)
    assert core.ledger.prefetch_used_bytes == SIZE


def test_a_demand_for_what_was_only_queued_is_no_prefetch() -> None:
    core, obj = made()
    core.scheduler.prefetch(obj, 0, PAGES, deadline=1.0)
    core.demand(obj, 0, SIZE)
    (fetch,), _ = core.dispatch(0.0)
    arrive(core, fetch)
    ask(core, obj, 0, PAGES)
    assert core.ledger.prefetch_issued_bytes == core.ledger.prefetch_used_bytes == 0


def test_what_was_read_in_an_earlier_epoch_is_used_when_it_is_read_again() -> None:
    core, obj = made()
    arrive(core, sent(core, obj))
    ask(core, obj, 0, PAGES)
    core.cache.failed(obj, 0, PAGES)
    core.scheduler.prefetch(obj, 0, PAGES, deadline=1.0)
    (fetch,), _ = core.dispatch(2.0)
    arrive(core, fetch)
    assert core.ledger.prefetch_used_bytes == SIZE
    ask(core, obj, 0, PAGES)
    assert core.ledger.prefetch_used_bytes == core.ledger.prefetch_issued_bytes == 2 * SIZE
