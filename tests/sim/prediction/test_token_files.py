"""Jobs that read token files at computed places, against the least that could have crossed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hubspoke.core import beliefs, orders
from hubspoke.core.ids import ReadState
from hubspoke.core.inference import documents, windows
from hubspoke.core.orders.nanogpt import windows as drawn
from hubspoke.core.tokens.samples import samples_of
from hubspoke.sim.prediction.job import Read
from hubspoke.sim.prediction.recorder import CODES
from hubspoke.sim.prediction.result import result
from hubspoke.sim.prediction.workload import Size, Workload
from hubspoke.sim.prediction.workloads import BY_NAME, w6
from hubspoke.sim.prediction.workloads.w8 import BLOCK, LENGTH, RANKS
from hubspoke.sim.prediction.world import World


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing ends."""
    monkeypatch.setattr(windows, "WORDS_MAX", 2**20)
    monkeypatch.setattr(windows, "WORDS_THOROUGH", 2**21)


def nanogpt(part: int, steps: int) -> Workload:
    found = BY_NAME["W8"](Size(part))
    (job,) = found.jobs
    return replace(found, jobs=[replace(job, steps=[steps])])


def waited(world: World) -> list[int]:
    """Steps of reads that were no hits."""
    reads = world.recorder.reads()
    found: list[int] = reads.batches[reads.states != CODES[ReadState.HIT]].tolist()
    return found


def test_a_stream_that_is_known_is_all_hits_at_beladys_price() -> None:
    """W8 with room for a half: what is drawn again soon is kept."""
    world = World(nanogpt(512, 1_500))
    world.run()
    (told,) = beliefs.token_files(world.spoke.core.prediction)
    assert told["source"] == "known_order" and "1337, 1338" in told["why"]
    assert max(waited(world)) < 24  # 64 reads until it is asked, 64 more to confirm
    document = result(world, 0.0)
    assert document["of_minimum"] <= 1.06
    assert document["waste"] <= 0.005


def test_a_stream_of_an_unknown_seed_costs_no_byte_more() -> None:
    """With inference as without it: the pages of each read, once while they are here."""
    found = nanogpt(512, 400)
    offsets = [
        drawn((found.sizes[0]) // 2, block=BLOCK, count=400, rank=rank, seed=777_777)
        for rank in range(RANKS)
    ]

    def reads(epoch: int, rank: int, step: int) -> Sequence[Read]:
        return [(0, int(offsets[rank][step]), LENGTH)]

    found = replace(found, jobs=[replace(found.jobs[0], reads=reads)])
    egress = []
    for search_s in (60.0, None):
        world = World(found, search_s=search_s)
        world.run()
        egress.append(world.path.delivered)
        assert result(world, 0.0)["waste"] == 0.0
    assert egress[0] == egress[1]


@pytest.mark.parametrize("unseen", [0, 3_000])
def test_a_rank_that_estimates_losses_is_followed_again(unseen: int) -> None:
    """Rank 0 draws 2,000 windows that nobody else does, and some of another file; then it goes on.
    The others wait for it."""
    found, steps, gap = nanogpt(512, 900), 900, 2_000
    tokens = found.sizes[0] // 2
    more = steps + gap + unseen
    offsets = [drawn(tokens, block=BLOCK, count=more, rank=rank) for rank in range(RANKS)]

    def reads(epoch: int, rank: int, step: int) -> Sequence[Read]:
        if rank == 0 and step == 300:
            return [(0, int(at), LENGTH) for at in offsets[0][300 : 301 + gap]]
        at = offsets[rank][step + (gap + unseen if rank == 0 and step > 300 else 0)]
        return [(0, int(at), LENGTH)]

    world = World(replace(found, jobs=[replace(found.jobs[0], reads=reads)]))
    world.run()
    (told,) = beliefs.token_files(world.spoke.core.prediction)
    assert told["source"] == "known_order"
    columns = world.recorder.reads()
    for rank in (0, 1):
        after = (columns.batches > 600) & (columns.clients == rank)
        assert (columns.states[after] == CODES[ReadState.HIT]).mean() > 0.98


def megatron(name: str, part: int, steps: int) -> Workload:
    found = BY_NAME[name](Size(part))
    (job,) = found.jobs
    return replace(found, jobs=[replace(job, steps=[min(steps, job.steps[0])])])


@pytest.mark.parametrize("name", ["W6", "W6H"])
def test_samples_of_packed_documents_are_hits(name: str) -> None:
    """W6 with its arrays in sight, and with none: the recipe says the same."""
    world = World(megatron(name, 128, 120))
    world.run()
    (told,) = [
        t for t in beliefs.token_files(world.spoke.core.prediction) if t["object"].endswith(".bin")
    ]
    assert told["source"] == "known_order" and told["order"]["family"] == "Megatron-LM"
    assert ("seed 1234, 4096 tokens" in told["why"]) == (name == "W6H")
    assert max(waited(world)) < 40
    document = result(world, 0.0)
    assert document["of_minimum"] <= 1.05
    assert document["waste"] <= 0.03


def test_samples_of_another_seed_cost_their_index_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hidden, and of a seed that nobody types: as without inference."""
    monkeypatch.setattr(documents, "SPLITS", (1.0,))
    monkeypatch.setattr(documents, "SEEDS", (1234, 42))
    corpus = w6._Corpus(Size(256))
    line = orders.megatron.line(corpus.index.lengths, sequence=w6.SEQUENCE, seed=31_415_927)
    samples = samples_of(corpus.index, line)
    found = megatron("W6H", 256, 60)

    def reads(epoch: int, rank: int, step: int) -> Sequence[Read]:
        _, offsets, lengths = samples.reads(step * 16 + rank, step * 16 + rank + 1)
        return [(0, int(o), int(n)) for o, n in zip(offsets, lengths, strict=True)]

    found = replace(found, jobs=[replace(found.jobs[0], reads=reads)])
    egress = []
    for search_s in (60.0, None):
        world = World(found, search_s=search_s)
        world.run()
        egress.append(world.path.delivered)
    # The index of the documents is brought to be looked at, and takes 3 % of this small cache.
    assert egress[0] <= 1.03 * egress[1] + found.sizes[1]
