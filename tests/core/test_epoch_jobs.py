"""Jobs: what is believed of them, when their epochs begin, and which clients belong together."""

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.jobs import CLIENTS_MAX, JOBS_MAX, Jobs
from hubspoke.core.epochs.known import KnownOrder

N = 10_000
WORKERS = 8


def shuffled(seed: int, n: int = N) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).permutation(n).astype(np.int32)


def take(job: Job, items: npt.NDArray[np.int32], batch: int = 50) -> int:
    """Reads them; returns how many epochs began."""
    began = 0
    for at in range(0, len(items), batch):
        part = items[at : at + batch]
        began += job.take(part, [i % WORKERS for i in range(len(part))], at / 1_000)
    return began


def known(items: npt.NDArray[np.int32], *following: npt.NDArray[np.int32]) -> KnownOrder:
    after = following[1:]
    return KnownOrder(
        items, 16, "planted", "", lambda: known(following[0], *after) if following else None
    )


def test_an_epoch_is_believed_once_replacement_is_excluded() -> None:
    job, order = Job(1, N), shuffled(0)
    take(job, order[:200])
    assert not job.believed
    take(job, order[200:400])
    assert job.believed


def test_draws_with_replacement_are_never_believed() -> None:
    rng = np.random.default_rng(1)
    for seed in range(5):
        job, believed = Job(seed, N), 0
        for _ in range(400):
            take(job, rng.integers(N, size=50).astype(np.int32))
            believed += job.believed
        assert believed <= 8, seed


def test_an_epoch_ends_when_all_was_read() -> None:
    job = Job(1, N)
    assert take(job, np.concatenate([shuffled(0), shuffled(1)])) == 1
    assert job.epoch == 1 and job.count == N and job.repeats == 0
    assert job.former is not None and sorted(job.former.tolist()) == list(range(N))
    assert take(job, shuffled(2)[:10]) == 1, "any repeat is the next one"
    assert job.count == 10 and job.believed


def test_padding_is_no_epoch() -> None:
    job, order = Job(1, N), shuffled(0)
    take(job, np.concatenate([order[:-1], order[:2]]))
    assert job.epoch == 0
    take(job, shuffled(1)[:100])
    assert job.epoch == 1


def test_an_epoch_of_a_part_ends_when_only_repeats_come() -> None:
    job, part = Job(1, N), shuffled(0)[: N // 4]
    assert take(job, np.concatenate([part, part[::-1], part])) == 2
    assert job.former is not None and len(job.former) == N // 4
    assert job.believed


@pytest.mark.parametrize("joined_at", [0.1, 0.3, 0.5, 0.7])
def test_a_job_joined_in_the_middle_finds_its_next_epoch(joined_at: float) -> None:
    job = Job(1, N)
    take(job, shuffled(0)[int(joined_at * N) :])
    assert job.epoch == 0
    second = shuffled(1)
    take(job, second[:300])
    assert job.epoch == 1
    assert len(set(job.order) - set(second[:300].tolist())) <= 16
    take(job, np.concatenate([second[300:], shuffled(2)]))
    assert job.epoch == 2 and job.believed


def test_items_in_listing_order_are_left_to_other_generators() -> None:
    job = Job(1, N)
    take(job, np.arange(1_000, dtype=np.int32))
    assert not job.believed


# -- an order that is known -------------------------------------------------------------------


def test_an_order_is_followed_into_the_next_epoch() -> None:
    job, first, second = Job(1, N), shuffled(0), shuffled(1)
    take(job, first[:500])
    job.adopt(known(first, second))
    assert job.follower is not None and job.follower.front == 500
    swapped = first[500:].reshape(-1, 10)[:, ::-1].ravel()
    take(job, swapped)
    assert job.lost is None and job.follower.front == N
    take(job, second[:300])
    assert job.follower is not None and job.follower.order.items is second
    assert job.follower.front == 300


def test_an_order_is_dropped_when_reads_leave_it() -> None:
    job, first = Job(1, N), shuffled(0)
    take(job, first[:500])
    job.adopt(known(first))
    take(job, first[500:1_000])
    assert job.follower is not None
    others = np.setdiff1d(shuffled(7), first[:1_000], assume_unique=True).astype(np.int32)
    take(job, np.random.default_rng(0).permutation(others)[:50], batch=5)
    assert job.follower is None and job.lost == "planted"


def test_missing_reads_and_duplicates_do_not_stop_an_order() -> None:
    job, first = Job(1, N), shuffled(0)
    take(job, first[:500])
    job.adopt(known(first))
    for at in range(500, 5_000, 50):
        take(job, np.concatenate([first[at : at + 45], first[at : at + 2]]))
    assert job.follower is not None
    assert job.follower.base >= 4_900


def test_an_order_joined_in_its_middle() -> None:
    job, first = Job(1, N), shuffled(0)
    take(job, first[5_000:5_400])
    job.adopt(known(first))
    assert job.follower is not None
    assert job.follower.front == 5_400 and job.follower.base >= 5_000


def test_a_front_reaches_as_far_as_its_reads_lead() -> None:
    """The order leaves room for more: what lies in it is brought long before it is read."""
    job, first = Job(1, N), shuffled(0)
    take(job, first[:500])
    job.adopt(KnownOrder(first, 300, "planted", "", lambda: None))
    assert job.follower is not None and job.follower.reach == 300
    take(job, first[500:2_000])
    assert job.follower.reach <= 2
    batches = first[2_000:6_000].reshape(-1, 4, 10)  # four workers with a batch each, in turns
    take(job, batches.transpose(0, 2, 1).ravel()[:2_000])
    assert 10 <= job.follower.reach <= 2 * 31
    take(job, first[4_000:6_000])
    assert job.follower.reach <= 2


@pytest.mark.parametrize("joined", [False, True])
def test_a_walk_that_pauses_goes_on_at_its_pace(joined: bool) -> None:
    """100 items every 50 s, also while it stands still, and also in its second epoch."""
    job, walk = Job(1, N), np.arange(N, dtype=np.int32)
    job.take(walk[:100], [0] * 100, 0.0)
    if joined:
        before, job = job, Job(2, N)
        job.join(walk[:100], np.zeros(100, np.uint16), before)
    for burst in range(1, 150):
        now, at = burst * 50.0, burst * 100 % N
        due = job.reaches_in_s(walk[[at, (at + 1_000) % N]], now)
        assert job.scans(now) and due.tolist() == [0.0, pytest.approx(500.0)], burst
        job.take(walk[at : at + 100], [0] * 100, now)


# -- several jobs -----------------------------------------------------------------------------


def run(jobs: Jobs, orders: list[npt.NDArray[np.int32]], until: int, batch: int = 5) -> None:
    """Job i reads orders[i], with clients of its own, in turns."""
    for at in range(0, until, batch):
        for i, order in enumerate(orders):
            part = order[at : at + batch]
            clients = [f"{i}/{at // batch % WORKERS}" for _ in part]
            jobs.take(part, clients, at / 1_000)


def test_one_job_stays_one() -> None:
    jobs = Jobs(N)
    run(jobs, [np.concatenate([shuffled(0), shuffled(1)])], 2 * N)
    assert len(jobs.all) == 1 and jobs.all[0].epoch == 1


def test_two_jobs_are_told_apart() -> None:
    jobs, orders = Jobs(N), [shuffled(0), shuffled(1)]
    run(jobs, orders, 1_500)
    assert len(jobs.all) == 2
    assert all(job.believed for job in jobs.all)
    read = [set(job.order) for job in jobs.all]
    assert sorted(map(len, read)) == [1_500, 1_500]
    assert {frozenset(r) for r in read} == {frozenset(o[:1_500].tolist()) for o in orders}


def test_two_jobs_whose_clients_ask_twice_for_some_items_are_told_apart_as_soon() -> None:
    jobs = Jobs(2_000)
    orders = [np.random.default_rng(i).permutation(2_000).astype(np.int32) for i in range(2)]
    for at in range(0, 300, 5):
        for i, order in enumerate(orders):
            part = order[at : at + 5].repeat([2, 1, 1, 1, 1] if at % 25 == 0 else 1)
            jobs.take(part, [f"{i}/{at // 5 % 4}"] * len(part), at / 1_000)
    assert sorted(len(job.order) for job in jobs.all) == [300, 300]
    assert not any(job.repeats for job in jobs.all)


def test_jobs_that_are_told_apart_keep_the_order_of_their_reads() -> None:
    jobs, orders = Jobs(N), [shuffled(0), shuffled(1)]
    run(jobs, orders, 1_500)
    read = sorted(list(job.order) for job in jobs.all)
    assert read == sorted(order[:1_500].tolist() for order in orders)


def test_a_walk_in_listing_order_is_one_from_the_first_reads_of_its_next_epoch() -> None:
    job = Job(1, N)
    take(job, np.arange(N, dtype=np.int32))
    assert job.walks and not job.believed
    take(job, np.arange(4, dtype=np.int32), batch=1)
    assert job.epoch == 1 and job.walks and not job.believed


def test_three_jobs_are_told_apart() -> None:
    jobs = Jobs(N)
    run(jobs, [shuffled(i) for i in range(3)], 2_500)
    assert len(jobs.all) == 3
    assert all(job.believed for job in jobs.all)


def test_two_jobs_of_one_client_each_are_told_apart() -> None:
    jobs = Jobs(N)
    for at in range(0, 1_500, 5):
        for i in range(2):
            jobs.take(shuffled(i)[at : at + 5], [str(i)] * 5, at / 1_000)
    assert len(jobs.all) == 2


def test_draws_with_replacement_are_not_explained_by_many_jobs() -> None:
    for seed in range(5):
        jobs = Jobs(N)
        rng = np.random.default_rng(seed)
        run(jobs, [rng.integers(N, size=5_000).astype(np.int32)], 5_000)
        assert len(jobs.all) == 1, seed
        assert not jobs.all[0].believed


def test_connections_may_change() -> None:
    jobs, order = Jobs(N), np.concatenate([shuffled(0), shuffled(1)])
    for at in range(0, 2 * N, 5):
        jobs.take(order[at : at + 5], [f"connection {at}"] * 5, at / 1_000)
    assert len(jobs.all) == 1 and jobs.all[0].epoch == 1 and jobs.all[0].believed


# -- a client nobody knows ----------------------------------------------------------------------


def followed(*orders: npt.NDArray[np.int32], until: int) -> Jobs:
    """Jobs that have read so far in orders that are known."""
    jobs = Jobs(N)
    run(jobs, list(orders), until)
    by_first = {job.order[0]: job for job in jobs.all}
    for order in orders:
        by_first[int(order[0])].adopt(known(order))
    return jobs


def test_a_scan_through_what_a_job_reads_is_a_job_of_its_own_and_spoils_no_order() -> None:
    """One read of it among sixteen is less than what would make the order be dropped at once."""
    order, walk = shuffled(0), np.arange(N, dtype=np.int32)
    jobs = followed(order, until=1_000)
    for at in range(1_000, 5_000, 16):
        jobs.take(order[at : at + 16], [f"0/{i % WORKERS}" for i in range(16)], at / 1_000)
        step = (at - 1_000) // 16
        jobs.take(walk[step : step + 1], ["scan"], at / 1_000)
    reads, scan = jobs.all
    assert reads.follower is not None and reads.count == 5_000 and not reads.repeats
    assert scan.walks and list(scan.order) == list(range(250))
    assert jobs.follows("0/0") and not jobs.follows("scan") and not jobs.follows("nobody")


def test_a_new_client_joins_the_job_whose_order_it_reads() -> None:
    orders = shuffled(0), shuffled(1)
    jobs = followed(*orders, until=1_500)
    first, second = (next(j for j in jobs.all if j.order[0] == o[0]) for o in orders)
    for at in range(1_500, 2_500, 5):
        for i, order in enumerate(orders):
            jobs.take(order[at : at + 5], [f"{i}/new {at // 20}"] * 5, at / 1_000)
    assert len(jobs.all) == 2
    assert list(first.order) == orders[0][:2_500].tolist()
    assert list(second.order) == orders[1][:2_500].tolist()


def test_new_clients_at_the_end_of_an_order_begin_the_next_epoch_of_its_job() -> None:
    """Workers are started anew for each epoch, which begins before the last has ended."""
    order, following = shuffled(0), shuffled(5)
    jobs = followed(order, until=1_000)
    run(jobs, [np.concatenate([order[:-8], order[-8:]])[1_000:]], N - 1_000)
    for at in range(0, 200, 5):
        jobs.take(following[at : at + 5], [f"0/next {at}"] * 5, (N + at) / 1_000)
    assert len(jobs.all) == 1 and jobs.all[0].epoch == 1 and jobs.all[0].count == 200


def test_new_clients_of_a_job_that_stopped_in_the_middle_of_its_order_are_its_own() -> None:
    """It was started again."""
    order, following = shuffled(0), shuffled(5)
    jobs = followed(order, until=4_000)
    now = jobs.all[0].last_at + jobs.all[0].patience_s
    strangers = following[jobs.all[0].follower.place[following] > 5_000][:2]  # type: ignore[union-attr]
    jobs.take(strangers[:1], ["1/0"], now + 0.1)
    assert len(jobs.all) == 1
    jobs.take(strangers[1:], ["1/1"], now + 0.2)  # it goes on, and this is another
    assert len(jobs.all) == 2


def test_of_clients_that_count_as_one_it_is_not_known_in_which_order_they_read() -> None:
    """A scan may be among them, and would not be seen as one."""
    order = shuffled(0)
    jobs = followed(order, until=1_000)
    for i in range(CLIENTS_MAX + 8):
        jobs.take(order[1_000 + i : 1_001 + i], [f"new {i}"], 1.0)
    assert jobs.follows("new 8")
    assert not any(jobs.follows(f"new {i}") for i in range(CLIENTS_MAX, CLIENTS_MAX + 8))


def test_there_are_never_more_than_so_many_jobs() -> None:
    order = shuffled(0)
    jobs = followed(order, until=2_000)
    for i in range(JOBS_MAX + 4):
        far = order[8_000 + i : 8_001 + i]
        jobs.take(far, [f"stranger {i}"], 2.0)
        for job in jobs.all[1:]:
            job.adopt(known(far))
    assert len(jobs.all) <= JOBS_MAX
