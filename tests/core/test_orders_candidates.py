"""The dictionary of orders worth trying."""

from itertools import islice

import numpy as np

from hubspoke.core.orders import huggingface, litdata, webdataset
from hubspoke.core.orders.candidates import FAMILIES, TORCH, candidates
from hubspoke.core.orders.torch_samplers import distributed_sampler, torch_randperm


def test_defaults_come_first_and_no_order_twice() -> None:
    all_ = list(candidates(epochs=3))
    first = [(c.family.name, c.seed, c.epoch) for c in all_[:3]]
    assert first == [(family.name, 0, 0) for family in FAMILIES[:3]]
    orders = {c.order(64).tobytes() for c in candidates(epochs=3, families=(TORCH,))}
    assert len(orders) == len(list(candidates(epochs=3, families=(TORCH,))))
    assert len({(c.family.name, c.seed, c.epoch, c.world) for c in all_}) == len(all_)


def test_every_candidate_reads_each_item_once() -> None:
    for candidate in islice(candidates(epochs=2), 200):
        assert candidate.fits(64)
        assert sorted(candidate.order(64).tolist()) == list(range(64))


def test_a_rank_gets_as_many_samples_as_another_at_dlio() -> None:
    unfit = {(c.family.name, c.world) for c in candidates(epochs=1) if not c.fits(63)}
    assert unfit == {("DLIO", world) for world in (2, 4, 8, 16, 32, 64)}


def test_merged_orders_are_those_of_all_ranks_in_turn() -> None:
    by = {(c.family.name, c.seed, c.epoch, c.world): c for c in candidates(epochs=4)}
    dealt = distributed_sampler(1000, ranks=4, seed=0, epoch=2)
    assert by["torch shuffle", 2, 0, 1].order(1000).tolist() == dealt.T.ravel().tolist()
    trained = huggingface.trainer_sampler(1024, ranks=4, batch=8, epoch=3)
    rounds = np.stack([rank.reshape(-1, 8) for rank in trained], axis=1)
    assert torch_randperm(1024, 45).tolist() == rounds.ravel().tolist()
    sizes, world = [256] * 101, litdata.World(workers=4)
    workers = litdata.full_shuffle(sizes, world, seed=42, epoch=2)
    chunks = [list(dict.fromkeys((items // 256).tolist())) for items in workers]
    by_turns = [int(part[t]) for t in range(26) for part in chunks if t < len(part)]
    assert by["LitData", 42, 1, 4].order(101).tolist() == by_turns
    shards = webdataset.shard_orders(10, buffer=100, seed=7, ranks=2, workers=2)
    merged = by["WebDataset, buffer 100", 7, 0, 4].order(10).tolist()
    assert merged == [
        int(part[turn])
        for turn in range(3)
        for part in webdataset.shard_orders(10, buffer=100, seed=7, workers=4)
        if turn < len(part)
    ]
    assert sorted(p.tobytes() for p in shards) == sorted(
        p.tobytes() for p in webdataset.shard_orders(10, buffer=100, seed=7, workers=4)
    )
