"""Orders found from the first reads of an epoch: what is found, and what must not be."""

from array import array
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.epochs.known import KnownOrder
from hubspoke.core.inference.alignment import passed
from hubspoke.core.inference.evidence import log_tail, places_of
from hubspoke.core.inference.inference import ASK_AT, Inference
from hubspoke.core.inference.question import (
    FOLLOW_PARTS,
    Build,
    Follow,
    Found,
    Question,
    Recipe,
)
from hubspoke.core.inference.search import LIKELY_SEEDS, search
from hubspoke.core.orders import mosaicml, torch_randperm
from hubspoke.core.orders.candidates import (
    BY_NAME,
    FAMILIES,
    LOADER,
    LOADER_KEPT,
    SAMPLER,
    SHARDS_MAX,
)
from hubspoke.core.orders.dlio import torch_loader
from hubspoke.core.orders.torch_samplers import loader_orders
from tests.core.loader_reads import through_workers
from tests.core.seed_kernel import NumpyKernel, outputs

KERNEL = NumpyKernel()


@pytest.fixture(autouse=True)
def few_whole_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are tried take minutes without compiled loops."""
    monkeypatch.setattr("hubspoke.core.inference.search.EPOCHS_THOROUGH", 3)
    monkeypatch.setattr("hubspoke.core.inference.search.EPOCHS_TRIED", 3)
    few = tuple(f for f in FAMILIES if f.most > SHARDS_MAX)
    monkeypatch.setattr("hubspoke.core.inference.search.FAMILIES", few)
    monkeypatch.setattr("hubspoke.core.inference.search.STREAM_COST", 10**6)
    monkeypatch.setattr("hubspoke.core.orders.candidates.SEEDS", (0, 42, 1234, 123, 1))
    monkeypatch.setattr("hubspoke.core.orders.candidates.WORLDS", (1, 4))


def legacy(n: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.RandomState(seed).permutation(n)


def generator(n: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(n)


def dlio_of_four(n: int, seed: int) -> npt.NDArray[np.int64]:
    return torch_loader(n, ranks=4, seed=seed).T.ravel()


def distinct(reads: list[int]) -> list[int]:
    return list(dict.fromkeys(reads))


def ask(reads: list[int], n: int, **more: object) -> Found | None:
    question = Question(1, n, np.array(reads, np.int32), **more)  # type: ignore[arg-type]
    found = [answer for answer in search(question, KERNEL) if answer is not None]
    assert all(isinstance(answer, Found) for answer in found)
    return found[-1] if found else None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("build", "family", "n", "seed", "workers", "batch"),
    [
        (torch_randperm, "torch shuffle", 20_000, 0, 4, 32),
        (torch_randperm, "torch shuffle", 200_000, 43, 4, 50),
        (torch_randperm, "torch shuffle", 100_000, 1234 + 17, 8, 64),
        (torch_randperm, "torch shuffle", 5_000, 7, 8, 8),
        (torch_randperm, "torch shuffle", 1_000, 3407, 4, 4),
        (legacy, "numpy RandomState", 168, 123, 4, 7),
        (legacy, "numpy RandomState", 1_000, 42, 4, 16),
        (legacy, "numpy RandomState", 400, 0, 8, 4),
        (legacy, "numpy RandomState", 5_000, 1234, 8, 16),
        (legacy, "numpy RandomState", 2_000, 123 + 2, 4, 10),
        (dlio_of_four, "DLIO", 1_000, 123, 4, 8),
        (generator, "numpy default_rng", 1_000, 0, 4, 8),
        (generator, "numpy default_rng", 5_000, 42, 8, 16),
        (generator, "numpy default_rng", 300, 1234, 4, 4),
        (generator, "numpy default_rng", 2_000, 1, 8, 8),
        (generator, "numpy default_rng", 4_000, 44, 4, 32),
    ],
)
def test_default_seed_is_found_from_the_first_reads_of_several_workers(
    build: Callable[[int, int], npt.NDArray[np.int64]],
    family: str,
    n: int,
    seed: int,
    workers: int,
    batch: int,
) -> None:
    rng = np.random.default_rng(5)
    order = build(n, seed)
    reads = distinct(through_workers(order.tolist(), workers=workers, batch=batch, rng=rng))
    found = ask(reads[: min(128, n // 4)], n)
    assert found is not None
    assert (found.recipe.family, found.recipe.seed) == (family, seed)
    assert np.array_equal(found.items, order)
    assert found.first == 0 and found.last < 128 + 2 * workers * batch
    assert found.log_p < np.log(1e-6)


def test_samples_of_equal_shards_are_found_in_mosaicml_s_order() -> None:
    order = mosaicml.shuffled_samples([64] * 32, canonical_nodes=2, epoch=1)
    merged = order.reshape(2, -1).T.ravel()
    rng = np.random.default_rng(6)
    reads = distinct(through_workers(merged.tolist(), workers=8, batch=4, rng=rng))
    found = ask(reads[:96], 2_048, shards=(64,) * 32)
    assert found is not None and found.recipe == Recipe("MosaicML py1e", 9176, 1, 2)
    assert np.array_equal(found.items, merged)
    assert ask(reads[:96], 2_048) is None


def test_default_seed_of_many_samples_is_found_before_all_seeds_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many samples only a few orders are built for each question."""

    class Kernel(NumpyKernel):
        def scan(self, first: int, count: int, *args: object, **more: object) -> list[int]:
            assert count <= LIKELY_SEEDS, "all seeds are tried"
            return []

    monkeypatch.setattr("hubspoke.core.inference.search.ITEMS_BUILT_MAX", 0)
    order = mosaicml.merged_samples([64] * 32, canonical_nodes=4)
    question = Question(1, 2_048, order[:96].astype(np.int32), shards=(64,) * 32)
    assert not any(search(question, Kernel()))
    found = next(filter(None, search(replace(question, thorough=True), Kernel())))
    assert isinstance(found, Found) and found.recipe == Recipe("MosaicML py1e", 9176, 0, 4)


def test_job_joined_in_mid_epoch_is_aligned() -> None:
    rng = np.random.default_rng(6)
    order = torch_randperm(5_000, 44).tolist()
    reads = distinct(through_workers(order[2_000:], workers=4, batch=16, rng=rng))
    found = ask(reads[:128], 5_000)
    assert found is not None and found.recipe.seed == 44
    assert 1_990 <= found.first <= 2_010


def test_seed_of_no_default_is_found_by_a_thorough_search_only() -> None:
    kernel = NumpyKernel((2_953_112_805,))
    rng = np.random.default_rng(7)
    order = torch_randperm(1_500, 2_953_112_805)
    reads = distinct(through_workers(order.tolist(), workers=4, batch=8, rng=rng))
    asked = np.array(reads[:96], np.int32)
    assert not [a for a in search(Question(1, 1_500, asked), kernel) if a is not None]
    found = [a for a in search(Question(1, 1_500, asked, thorough=True), kernel) if a is not None]
    assert len(found) == 1 and isinstance(found[0], Found)
    assert found[0].recipe.seed == 2_953_112_805 and np.array_equal(found[0].items, order)


def test_seed_that_is_expected_is_tried_first() -> None:
    order = torch_randperm(2_000, 987_654_321)
    found = ask(order[:32].tolist(), 2_000, likely=(Recipe("torch shuffle", 987_654_321),))
    assert found is not None and found.recipe.seed == 987_654_321


def test_nothing_is_found_where_items_are_numbered_otherwise() -> None:
    other = np.random.default_rng(10**9 + 1).permutation(20_000)
    assert ask(other[torch_randperm(20_000, 42)[:128]].tolist(), 20_000) is None


def test_walk_in_listing_order_is_no_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubspoke.core.inference.search.FAMILIES", FAMILIES)
    assert ask(list(range(300, 428)), 2_000) is None


def test_few_reads_that_begin_a_known_order_are_no_evidence_among_many_others() -> None:
    reads = torch_randperm(20_000, 42)[:32].tolist()
    others = np.random.default_rng(10**9 + 2).permutation(20_000)
    reads += [i for i in others.tolist() if i not in set(reads)][:96]
    assert ask(reads, 20_000) is None


@pytest.mark.parametrize(("hits", "tries", "p"), [(8, 8, 0.1), (90, 100, 0.3), (5, 64, 0.01)])
def test_bound_of_the_tail_is_never_too_small(hits: int, tries: int, p: float) -> None:
    drawn = np.random.default_rng(3).binomial(tries, p, 1_000_000)
    assert np.exp(log_tail(hits, tries, p)) >= (drawn >= hits).mean()
    assert log_tail(tries // 100, tries, p) == 0.0


# -- jobs --------------------------------------------------------------------------------------


class Job:
    """core.epochs.job.Job, as far as inference knows it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.epoch = 0
        self.order: array[int] = array("i")
        self.last_at = 0.0
        self.known: KnownOrder | None = None
        self.guesses: tuple[KnownOrder, ...] = ()

    @property
    def guessing(self) -> bool:
        return bool(self.guesses)

    def adopt(self, order: KnownOrder, now: float) -> None:
        self.known = order

    def reads(self, items: list[int]) -> None:
        self.order.extend(i for i in dict.fromkeys(items) if i not in set(self.order))

    def next_epoch(self) -> None:
        self.epoch += 1
        self.order = array("i")
        before, self.known = self.known, self.known and self.known.following()
        self.guesses = () if before is None or self.known else tuple(before.guesses())

    def decide(self, order: npt.NDArray[np.int64]) -> None:
        """The first reads of the epoch were those of `order`."""
        same = [g for g in self.guesses if np.array_equal(g.items, order)]
        self.known, self.guesses = (same[0] if same else None), ()


def answer(inference: Inference, kernel: NumpyKernel = KERNEL) -> list[object]:
    """Answer all requests; returns them."""
    requests = inference.requests()
    for request in requests:
        found = [a for a in search(request, kernel) if a is not None]
        inference.answered(request.number, found[-1] if found else None, 0.0)
    return list(requests)


def read(inference: Inference, job: Job, items: list[int], kernel: NumpyKernel = KERNEL) -> None:
    for i in range(0, len(items), 16):
        job.reads(items[i : i + 16])
        inference.look(job, job.adopt, 0.0)
        answer(inference, kernel)


def test_order_is_confirmed_by_later_reads_before_it_is_believed() -> None:
    inference, job = Inference(), Job(20_000)
    order = torch_randperm(20_000, 42).tolist()
    read(inference, job, order[:16])
    assert job.known is None and "to be confirmed" in inference.describe(job)
    read(inference, job, order[16:112])
    assert job.known is not None
    assert job.known.items.tolist() == order
    assert "seed 42" in job.known.why and "confirmed by 64 reads" in job.known.why


def test_files_that_the_loader_numbers_otherwise_are_recognised_and_go_on() -> None:
    n = 2_001
    files = np.random.default_rng(12).permutation(n)[:2_000].astype(np.int32)
    inference, job = Inference(), Job(n)

    def read_on(items: npt.NDArray[np.int32]) -> None:
        for i in range(0, len(items), 16):
            job.reads(items[i : i + 16].tolist())
            inference.look(job, job.adopt, 0.0, (), files)
            answer(inference)

    read_on(files[torch_randperm(2_000, 42)[:128]])
    assert job.known is not None
    assert np.array_equal(job.known.items, files[torch_randperm(2_000, 42)])
    second = files[torch_randperm(2_000, 43)]
    job.next_epoch()
    assert any(np.array_equal(guess.items, second) for guess in job.guesses)
    job.decide(second.astype(np.int64))
    read_on(second[:64])
    job.next_epoch()
    assert job.known is not None
    assert np.array_equal(job.known.items, files[torch_randperm(2_000, 44)])


@pytest.mark.parametrize("why", ["known", "epoch", "gone", "others"])
def test_search_that_is_not_needed_is_cancelled(why: str) -> None:
    """The order is known otherwise, the epoch is over, the data set is not read any more, or its
    reads were another job's."""
    inference, job = Inference(), Job(20_000)
    job.reads(np.random.default_rng(10**9).permutation(20_000)[:128].tolist())
    inference.look(job, job.adopt, 0.0)
    answer(inference)
    (search_,) = inference.requests()
    assert isinstance(search_, Question) and search_.thorough and not inference.needless()
    job.reads(np.random.default_rng(10**9).permutation(20_000)[:256].tolist())
    inference.look(job, job.adopt, 0.0)  # asked, and not told yet
    match why:
        case "known":
            job.adopt(KnownOrder(np.arange(20_000, dtype=np.int32), 9, "", "", lambda: None), 0.0)
        case "epoch":
            job.next_epoch()
        case "others":
            job.order = job.order[::2]
    if why == "gone":
        inference.gone(job)
    else:
        inference.look(job, job.adopt, 0.0)
    assert inference.needless() == [search_.number] and not inference.needless()
    told = [r for r in inference.requests() if isinstance(r, Question)]
    assert all(len(q.reads) == 128 and not q.thorough for q in told), "nor is the other one told"
    inference.answered(search_.number, None, 0.0)


def test_likely_seeds_are_tried_again_while_all_are_searched() -> None:
    """And whichever is answered last is confirmed by what came after its own reads."""
    seed = 2_953_112_805
    kernel = NumpyKernel((seed,))
    order = torch_randperm(20_000, seed).tolist()
    inference, job = Inference(), Job(20_000)
    job.reads(order[:128])
    inference.look(job, job.adopt, 0.0)
    answer(inference, kernel)
    (search_,) = inference.requests()
    assert isinstance(search_, Question) and search_.thorough
    assert inference.describe(job) == "all seeds are tried"
    for read in (256, 512, 1_024, 1_600):
        job.reads(order[:read])
        inference.look(job, job.adopt, 0.0)
        quick = answer(inference, kernel)
        assert not any(isinstance(q, Question) and q.thorough for q in quick)
        assert len(quick) == (read <= ASK_AT[-1])
    found = [a for a in search(search_, kernel) if a is not None]
    inference.answered(search_.number, found[-1], 0.0)
    assert job.known is not None and job.known.items.tolist() == order


def test_window_is_how_far_workers_are_apart_however_many_reads_were_asked_about() -> None:
    rng = np.random.default_rng(11)
    order = torch_randperm(20_000, 42).tolist()
    reads = distinct(through_workers(order[:3_000], workers=4, batch=32, rng=rng))
    inference, job = Inference(), Job(20_000)
    read(inference, job, reads[:160])
    early = job.known
    late_inference, late = Inference(), Job(20_000)
    late.reads(reads[:2_000])
    read(late_inference, late, reads[2_000:2_100])
    assert early is not None and late.known is not None
    # Eight batches are handed out at a time.
    assert 96 <= early.window <= 2 * 8 * 32 and 96 <= late.known.window <= 2 * 8 * 32


def test_next_epoch_follows_with_set_epoch() -> None:
    inference, job = Inference(), Job(20_000)
    read(inference, job, torch_randperm(20_000, 42)[:256].tolist())
    for epoch in (1, 2, 3):
        order = torch_randperm(20_000, 42 + epoch)
        job.next_epoch()
        if epoch == 1:
            assert job.known is None, "the seed may stay"
            job.decide(order)
        assert job.known is not None
        assert np.array_equal(job.known.items, order)
        read(inference, job, job.known.items[:64].tolist())


def test_order_without_set_epoch_is_learned_once() -> None:
    inference, job = Inference(), Job(20_000)
    order = torch_randperm(20_000, 42)
    read(inference, job, order[:256].tolist())
    job.next_epoch()
    job.decide(order)
    read(inference, job, order[:64].tolist())
    job.next_epoch()
    assert job.known is not None and np.array_equal(job.known.items, order)


@pytest.mark.parametrize(
    "epochs",
    [
        lambda rng: [np.random.default_rng(s).permutation(1_000) for s in (0, 1, 2)],
        lambda rng: [np.random.default_rng([0, e]).permutation(1_000) for e in range(3)],
        lambda rng: [rng.permutation(1_000) for _ in range(3)],
        lambda rng: [np.random.default_rng(0).permutation(1_000)] * 3,
    ],
    ids=["seed and epoch added", "seed and epoch listed", "one generator", "one seed"],
)
def test_rules_that_draw_the_same_first_epoch_are_told_apart_by_the_second(
    epochs: Callable[[np.random.Generator], list[npt.NDArray[np.int64]]],
) -> None:
    inference, job = Inference(), Job(1_000)
    first, second, third = epochs(np.random.default_rng(0))
    read(inference, job, first[:128].tolist())
    assert job.known is not None and "default_rng, seed 0" in job.known.why
    job.next_epoch()
    assert job.known is None and len(job.guesses) == 4
    inference.look(job, job.adopt, 0.0)
    job.decide(second)
    assert job.known is not None
    read(inference, job, second[:16].tolist())
    job.next_epoch()
    assert job.known is not None and np.array_equal(job.known.items, third)


def test_guesses_that_are_all_wrong_are_searched_on_from() -> None:
    inference, job = Inference(), Job(20_000)
    read(inference, job, torch_randperm(20_000, 42)[:256].tolist())
    job.next_epoch()
    order = torch_randperm(20_000, 1234)
    read(inference, job, order[:64].tolist())
    assert job.known is None
    job.decide(order)
    read(inference, job, order[64:256].tolist())
    assert job.known is not None and np.array_equal(job.known.items, order)
    job.next_epoch()
    assert job.known is None and len(job.guesses) == 3


def test_job_that_changes_its_seed_is_recognised_again() -> None:
    inference, job = Inference(), Job(20_000)
    read(inference, job, torch_randperm(20_000, 1234)[:256].tolist())
    job.next_epoch()
    order = torch_randperm(20_000, 7)
    job.decide(order)
    read(inference, job, order[:112].tolist())
    assert job.known is not None and np.array_equal(job.known.items, order)


def test_beginning_of_a_known_order_is_not_confirmed_when_it_goes_on_otherwise() -> None:
    inference, job = Inference(), Job(2_000)
    rest = np.random.default_rng(10**9 + 4).permutation(2_000).tolist()
    read(inference, job, torch_randperm(2_000, 42)[:16].tolist() + rest[:1_000])
    assert job.known is None


def test_order_that_was_left_in_its_middle_is_not_believed_again() -> None:
    inference, job = Inference(), Job(2_000)
    order = torch_randperm(2_000, 42)
    read(inference, job, order[:1_000].tolist())
    assert job.known is not None
    job.known = None
    rest = np.random.default_rng(10**9 + 5).permutation(order[1_000:])
    read(inference, job, rest[:320].tolist())
    assert job.known is None


def test_known_order_in_permuted_blocks_is_not_believed() -> None:
    inference, job = Inference(), Job(20_000)
    blocks = np.split(torch_randperm(20_000, 42)[:19_968], 312)
    np.random.default_rng(8).shuffle(blocks)
    read(inference, job, np.concatenate(blocks)[:1_024].tolist())
    assert job.known is None


def test_known_order_with_a_tenth_exchanged_is_not_believed() -> None:
    rng = np.random.default_rng(9)
    inference, job = Inference(), Job(20_000)
    order = torch_randperm(20_000, 42)
    tenth = np.arange(3, 20_000, 10)
    order[tenth] = order[rng.permutation(tenth)]
    read(inference, job, order[:1_024].tolist())
    assert job.known is None


def test_shuffle_of_fewer_items_is_another_order() -> None:
    inference, job = Inference(), Job(2_000)
    read(inference, job, torch_randperm(1_900, 42)[:1_024].tolist())
    assert job.known is None and "no seed fits" in inference.describe(job)


def test_job_of_no_known_order_is_asked_about_a_few_times_and_searched_for_once_a_day() -> None:
    inference, job = Inference(), Job(20_000)
    requests: list[object] = []
    for epoch in range(3):
        rest = np.random.default_rng(10**9 + epoch).permutation(20_000)[:2_048].tolist()
        for i in range(0, len(rest), 16):
            job.reads(rest[i : i + 16])
            inference.look(job, job.adopt, 0.0)
            requests += answer(inference)
        job.next_epoch()
    questions = [r for r in requests if isinstance(r, Question)]
    assert len(questions) == len(requests) <= 3 * len(ASK_AT) + 1
    assert sum(q.thorough for q in questions) == 1
    assert "no seed fits" in inference.describe(job) or "too few" in inference.describe(job)


def process_and_another() -> tuple[int, int, NumpyKernel]:
    """Two processes whose loaders drew the same seed for their first epoch, as far as a kernel
    says: of all 2^32 that happens to every second one."""
    process, other = 3_141_592_653, 2_718_281_828
    drawn = outputs(process, 8)

    class Kernel(NumpyKernel):
        def streams(self, first: int, count: int, value: int) -> list[int]:
            if value != drawn[3]:
                return []
            return [s for s in (other, process) if first <= s < first + count]

    return process, other, Kernel((process, *drawn))


def test_loader_without_a_seed_is_followed_by_its_process_stream() -> None:
    n = 1_500
    process, other, kernel = process_and_another()
    drawn = [outputs(process, 4 * epoch + 4)[-1] for epoch in range(4)]
    inference, job = Inference(), Job(n)
    read(inference, job, torch_randperm(n, drawn[0])[:256].tolist(), kernel)
    assert job.known is not None and str(drawn[0]) in job.known.why
    while answer(inference, kernel):
        pass
    job.next_epoch()
    # Which of the two it is cannot be known yet.
    guesses = {guess.items.tobytes() for guess in job.guesses}
    for seed in (process, other):
        assert torch_randperm(n, outputs(seed, 8)[7]).astype(np.int32).tobytes() in guesses
    job.decide(torch_randperm(n, drawn[1]))
    for epoch in (2, 3):
        assert job.known is not None and f"seed {process}, epoch {epoch - 1}" in job.known.why
        read(inference, job, job.known.items[:16].tolist(), kernel)
        job.next_epoch()
        assert job.known is not None
        assert np.array_equal(job.known.items, torch_randperm(n, drawn[epoch]))


@pytest.mark.parametrize("known", [False, True])
def test_process_that_is_found_in_the_next_epoch_only_is_followed_then(known: bool) -> None:
    """Whether that one's own seed is found before, by another search, or not."""
    n = 1_500
    process, _, kernel = process_and_another()
    drawn = [outputs(process, 4 * epoch + 4)[-1] for epoch in range(3)]
    inference, job = Inference(), Job(n)
    order = torch_randperm(n, drawn[0])[:256].tolist()
    late: list[Follow] = []

    def read_on(items: list[int]) -> None:
        for i in range(0, len(items), 16):
            job.reads(items[i : i + 16])
            inference.look(job, job.adopt, 0.0)
            for request in inference.requests():
                if isinstance(request, Follow):
                    late.append(request)
                elif known or not getattr(request, "thorough", False) or not late:
                    found = [a for a in search(request, kernel) if a is not None]
                    inference.answered(request.number, found[-1] if found else None, 0.0)

    read_on(order)
    assert job.known is not None and len(late) == 1
    job.next_epoch()
    job.guesses = ()
    read_on(torch_randperm(n, drawn[1])[:512].tolist())
    assert (job.known is not None) == known and len(late) == 1
    for part in late:
        found = [a for a in search(part, kernel) if a is not None]
        inference.answered(part.number, found[-1], 0.0)
        while requests := inference.requests():
            for request in requests:
                if isinstance(request, Follow):
                    late.append(request)
                    continue
                found = [a for a in search(request, kernel) if a is not None]
                inference.answered(request.number, found[-1] if found else None, 0.0)
    assert len(late) == FOLLOW_PARTS
    if not known:
        read(inference, job, torch_randperm(n, drawn[1])[512:640].tolist(), kernel)
    assert job.known is not None
    third = torch_randperm(n, drawn[2])
    job.next_epoch()
    nexts = [job.known] if job.known else job.guesses
    assert any(np.array_equal(order.items, third) for order in nexts)


def test_process_that_drew_something_else_is_searched_for_a_few_times_only() -> None:
    n = 1_500
    seeds = [2_953_112_805 + 7 * i for i in range(6)]
    kernel = NumpyKernel(tuple(seeds))
    inference, job = Inference(), Job(n)
    follows = 0
    for seed in seeds:
        order = torch_randperm(n, seed)[:256].tolist()
        for i in range(0, len(order), 16):
            job.reads(order[i : i + 16])
            inference.look(job, job.adopt, 0.0)
            follows += sum(isinstance(r, Follow) for r in answer(inference, kernel))
        while requests := answer(inference, kernel):
            follows += sum(isinstance(r, Follow) for r in requests)
        assert job.known is not None and str(seed) in job.known.why
        job.next_epoch()
        job.guesses = ()
        assert job.known is None
    assert follows == 3 * FOLLOW_PARTS


@pytest.mark.parametrize("family", [SAMPLER.name, LOADER.name, LOADER_KEPT.name])
def test_generator_that_goes_on_from_epoch_to_epoch_is_followed(family: str) -> None:
    n, seed = 1_500, 77
    orders = [BY_NAME[family].build(n, seed, epoch, 1) for epoch in range(4)]
    if "DataLoader" in family:
        kept = "persistent" in family
        expected = loader_orders(n, seed, 4, persistent_workers=kept)
        assert all(map(np.array_equal, orders, expected))
    inference, job = Inference(), Job(n)
    read(inference, job, orders[0][:256].tolist())
    job.next_epoch()
    job.decide(orders[1])
    for epoch in (2, 3):
        assert job.known is not None and family in job.known.why
        read(inference, job, job.known.items[:16].tolist())
        job.next_epoch()
        assert job.known is not None and np.array_equal(job.known.items, orders[epoch])


def test_one_rank_of_several_is_told_and_not_followed() -> None:
    inference, job = Inference(), Job(20_000)
    rank = torch_randperm(20_000, 42)[3::8].tolist()
    read(inference, job, rank[:1_100])
    assert job.known is None
    says = inference.describe(job)
    assert says == (
        "torch shuffle, seed 42, of which one place in 8 is read here: the other ranks "
        "read elsewhere, so what comes next is not told"
    )


@pytest.mark.parametrize("lockstep", [True, False])
def test_workers_with_large_batches_are_not_one_rank_of_several(lockstep: bool) -> None:
    """Eight are up to 1,800 places apart, and all that is between them will be read."""
    order = torch_randperm(20_000, 42).astype(np.int32)
    places = places_of(order, len(order))
    if lockstep:
        rounds = order[: 2 * 8 * 256].reshape(2, 8, 256)
        reads = rounds.transpose(0, 2, 1).ravel().tolist()
    else:
        rng = np.random.default_rng(1)
        reads = distinct(through_workers(order[:6_000], workers=8, batch=256, rng=rng))
    for k in range(150, len(reads), 50):
        assert passed(places, array("i", reads[:k])) == 0, k


def test_a_rank_that_takes_whole_batches_is_one_of_several() -> None:
    order = torch_randperm(20_000, 42).astype(np.int32)
    places = places_of(order, len(order))
    rank = order[: 20_000 // 256 * 256].reshape(-1, 8, 32)[:, 3].ravel()
    rng = np.random.default_rng(1)
    reads = distinct(through_workers(rank, workers=4, batch=32, rng=rng))
    for k in (600, 1_024, 2_000):
        assert passed(places, array("i", reads[:k])) > 0, k


def test_answers_that_come_too_late_change_nothing() -> None:
    inference, job = Inference(), Job(20_000)
    order = torch_randperm(20_000, 42).tolist()
    job.reads(order[:128])
    inference.look(job, job.adopt, 0.0)
    (question,) = inference.requests()
    job.next_epoch()
    inference.look(job, job.adopt, 0.0)
    found = [a for a in search(question, KERNEL) if a is not None]
    inference.answered(question.number, found[-1], 0.0)
    assert job.known is None and not inference.requests()
    inference.answered(99, None, 0.0)


def test_requests_of_other_kinds_name_what_is_to_be_done() -> None:
    inference, job = Inference(), Job(20_000)
    order = torch_randperm(20_000, 42).tolist()
    job.reads(order[:128])
    inference.look(job, job.adopt, 0.0)
    (question,) = inference.requests()
    assert isinstance(question, Question) and not question.thorough
    found = [a for a in search(question, KERNEL) if a is not None]
    job.reads(order[128:256])
    inference.answered(question.number, found[-1], 0.0)
    assert inference.requests() == [
        Build(2, 20_000, Recipe("torch shuffle", 43)),
        Build(3, 20_000, Recipe(SAMPLER.name, 42, 1)),
    ]
    assert not isinstance(question, Follow)
