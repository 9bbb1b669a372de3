"""A real DataLoader whose order nobody could guess, behind the lab's WAN, inference off."""

import json
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubspoke.lab.wan import RelayWan
from tests.clients.conftest import Run
from tests.clients.environments import environment
from tests.processes import get_json, hub, running, spoke

ROOT = Path(__file__).parent.parent.parent
FILES, FILE_BYTES, BATCH = 3_000, 20_000, 32

SCRIPT = """
import http.client, json, random, sys, time
from urllib.parse import urlsplit
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
sys.path.append(sys.argv[1])
data, admin, kind = sys.argv[2:5]
files, batch = map(int, sys.argv[5:7])

class Files(Dataset):
    connection = None

    def __len__(self):
        return files

    def locate(self, index):
        return f"data/img/{index:05}.jpg"

    def __getitem__(self, index):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(urlsplit(data).netloc, timeout=60)
        self.connection.request("GET", "/" + self.locate(index))
        answer = self.connection.getresponse()
        body = answer.read()
        return index, len(body), body[0], answer.headers["x-hubspoke-cache"] == "hit"

class Curriculum(Sampler):
    def __iter__(self):
        order = list(range(files))
        random.SystemRandom().shuffle(order)
        return iter(order)

    def __len__(self):
        return files

dataset, sampler = Files(), Curriculum()
meter = None
if kind != "plain":
    import hubspoke.torch
    meter = hubspoke.torch.Meter("curriculum", spoke=admin)
if kind == "sampler":
    sampler = hubspoke.torch.hinted(sampler, locate=dataset.locate, spoke=admin)
if kind == "batches":
    sampler = BatchSampler(sampler, batch, False)
    sampler = hubspoke.torch.hinted(sampler, locate=dataset.locate, spoke=admin)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
else:
    loader = DataLoader(dataset, batch_size=batch, sampler=sampler, num_workers=4)
found = []
for indices, lengths, first, hits in (loader if meter is None else meter(loader)):
    found.append([indices.tolist(), lengths.tolist(), first.tolist(), hits.tolist()])
    time.sleep(0.1)
print(json.dumps(found))
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sampler", "batches", "plain"])
def test_an_order_that_nobody_could_guess(tmp_path: Path, run: Run, kind: str) -> None:
    python = environment("torch", "torch==2.13.0", "numpy") / "python"
    rng = random.Random(1)
    bodies = [rng.randbytes(FILE_BYTES) for _ in range(FILES)]
    folder = tmp_path / "store" / "data" / "img"
    folder.mkdir(parents=True)
    for i, body in enumerate(bodies):
        (folder / f"{i:05}.jpg").write_bytes(body)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with running(*hub(tmp_path / "store", tmp_path / "state")) as a_hub:
        a_hub.ready()
        port = urlsplit(a_hub.data).port
        assert port is not None
        options = ["--cache-size", "32MiB", "--infer-order", "off"]
        with (
            RelayWan.start(port, rtt_ms=60.0, rate_mbit=1_000.0) as wan,
            running(*spoke(wan.spoke_url, tmp_path / "cache", *options)) as a_spoke,
        ):
            a_spoke.ready()
            deadline = time.monotonic() + 30
            while get_json(a_spoke.admin + "/readyz")[0] != 200:
                assert time.monotonic() < deadline, a_spoke.log
                time.sleep(0.05)
            sizes = [str(n) for n in (FILES, BATCH)]
            out = run(python, script, ROOT, a_spoke.data, a_spoke.admin, kind, *sizes)
            report = get_json(a_spoke.admin + "/v1/report")[1]
            plans = get_json(a_spoke.admin + "/v1/hints")[1]
    batches = json.loads(out.splitlines()[-1])
    read = [i for indices, *_ in batches for i in indices]
    assert sorted(read) == list(range(FILES))
    for indices, lengths, first, _ in batches:
        assert lengths == [FILE_BYTES] * len(indices)
        assert first == [bodies[i][0] for i in indices]
    hits = [hit for _, _, _, batch in batches[1:] for hit in batch]
    ratio = sum(hits) / len(hits)
    print(kind, "hits from the second batch", ratio, file=sys.stderr)
    if kind == "plain":
        assert (report["jobs"], plans["hints"]) == ([], [])
        return
    assert ratio >= 0.99, [sum(b[3]) for b in batches]
    assert report["prefetch"]["wasted_bytes"] == 0
    (plan,) = plans["hints"]
    # What the workers took at once, before anything could be sent, is left out.
    assert FILES - 8 * BATCH <= plan["items"] <= FILES
    assert plan["items_left"] == 0
    (job,) = report["jobs"]
    assert job["name"] == "curriculum"
    assert job["samples_per_second"] > 0
