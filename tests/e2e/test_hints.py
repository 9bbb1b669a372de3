"""`/v1/hints` of a real spoke: what is taken, what is refused and how, and what it brings."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.processes import Running, get, get_json, hub, running, spoke

FILES, FILE_BYTES = 600, 10_000
BIG_BYTES = 3_000_000


class Ends(NamedTuple):
    hub: Running
    spoke: Running
    bodies: dict[str, bytes]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    folder = tmp_path_factory.mktemp("hints")
    rng = random.Random(3)
    bodies = {f"img/{i:04}.jpg": rng.randbytes(FILE_BYTES) for i in range(FILES)}
    bodies["big.bin"] = rng.randbytes(BIG_BYTES)
    bodies["empty"] = b""
    for key, body in bodies.items():
        path = folder / "store" / "data" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    with running(*hub(folder / "store", folder / "state")) as a_hub:
        a_hub.ready()
        options = ["--cache-size", "64MiB", "--infer-order", "off"]
        with running(*spoke(a_hub.data, folder / "cache", *options)) as a_spoke:
            wait_until_serving(a_spoke)
            yield Ends(a_hub, a_spoke, bodies)


@pytest.fixture(autouse=True)
def no_plans(ends: Ends) -> Iterator[None]:
    yield
    ask("DELETE", ends.spoke.admin + "/v1/hints")


def wait_until_serving(a_spoke: Running) -> None:
    a_spoke.ready()
    deadline = time.monotonic() + 30
    while get_json(a_spoke.admin + "/readyz")[0] != 200:
        assert time.monotonic() < deadline, a_spoke.log
        time.sleep(0.05)


def ask(method: str, url: str, document: Any = None) -> tuple[int, Any, dict[str, str]]:
    data = None if document is None else json.dumps(document).encode()
    headers = {} if data is None else {"content-type": "application/json"}
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=30) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except HTTPError as e:
        with e:
            return e.code, json.loads(e.read()), {k.lower(): v for k, v in e.headers.items()}


def post(ends: Ends, document: Any) -> tuple[int, Any]:
    return ask("POST", ends.spoke.admin + "/v1/hints", document)[:2]


def held(ends: Ends) -> dict[str, Any]:
    document: dict[str, Any] = get_json(ends.spoke.admin + "/v1/hints")[1]
    return document


def cached_bytes(ends: Ends) -> int:
    """On the spoke's disk."""
    entries = get_json(ends.spoke.admin + "/v1/cache?prefix=data/")[1]["entries"]
    return sum(e["cached_bytes"] for e in entries)


def wait_for_cached(ends: Ends, least: int) -> None:
    deadline = time.monotonic() + 30
    while cached_bytes(ends) < least:
        assert time.monotonic() < deadline, (cached_bytes(ends), least, held(ends))
        time.sleep(0.02)


def test_a_plan_in_an_order_that_nobody_knows_is_read_from_the_cache(ends: Ends) -> None:
    order = [key for key in ends.bodies if key.startswith("img/")]
    random.Random(11).shuffle(order)
    order = order[:400]
    before = cached_bytes(ends)
    first = [f"data/{key}" for key in order[:200]]
    status, answer = post(ends, {"job": "train", "plan": first})
    assert (status, answer["items"], answer["unknown"]) == (200, 200, [])
    more = [{"object": f"data/{key}"} for key in order[200:]]
    status, answer = post(ends, {"job": "train", "plan": more, "append": True})
    assert (status, answer["items_left"]) == (200, 400)
    wait_for_cached(ends, before + 400 * FILE_BYTES)
    states = []
    for key in order:
        code, body, headers = get(f"{ends.spoke.data}/data/{key}")
        assert (code, body) == (200, ends.bodies[key])
        states.append(headers["x-hubspoke-cache"])
    assert [(i, s) for i, s in enumerate(states) if s != "hit"] == []
    deadline = time.monotonic() + 10
    while held(ends)["hints"][0]["items_left"]:
        assert time.monotonic() < deadline, held(ends)
        time.sleep(0.02)
    (plan,) = held(ends)["hints"]
    assert (plan["job"], plan["items"], plan["reads"], plan["hits"]) == ("train", 400, 400, 400)
    report = get_json(ends.spoke.admin + "/v1/report")[1]
    assert report["prefetch"]["wasted_bytes"] == 0
    shown = get_json(ends.spoke.admin + "/v1/streams")[1]
    assert shown["hints"][0]["hit_ratio"] == 1.0


def test_only_the_ranges_of_a_plan_are_fetched(ends: Ends) -> None:
    before = cached_bytes(ends)
    ranges = [[4096 * i, 4096] for i in (7, 300, 120)]
    status, answer = post(
        ends, {"job": "r", "plan": [{"object": "data/big.bin", "ranges": ranges}]}
    )
    assert (status, answer["items"]) == (200, 3)
    wait_for_cached(ends, before + 3 * 4096)
    for offset, length in ranges:
        wanted = {"range": f"bytes={offset}-{offset + length - 1}"}
        code, body, headers = get(f"{ends.spoke.data}/data/big.bin", wanted)
        assert (code, body) == (206, ends.bodies["big.bin"][offset : offset + length])
        assert headers["x-hubspoke-cache"] == "hit"
    assert cached_bytes(ends) == before + 3 * 4096


def test_a_sampler_is_described_instead_of_listed(ends: Ends) -> None:
    sampler = {"kind": "torch.DistributedSampler", "n": FILES, "seed": 5, "prefix": "data/img/"}
    status, answer = post(ends, {"job": "s", "sampler": sampler})
    assert (status, answer["items"]) == (200, FILES)
    records = {"kind": "sequential", "n": 30, "seed": 0, "object": "data/big.bin"}
    status, answer = post(ends, {"job": "t", "sampler": {**records, "record": 100_000}})
    assert (status, answer["items"]) == (200, 30)
    wait_for_cached(ends, FILES * FILE_BYTES + BIG_BYTES)
    status, answer = post(ends, {"job": "s", "sampler": {**sampler, "n": 10}})
    assert status == 422
    assert answer["detail"] == [
        {"field": "sampler.n", "message": "10: data/img/ has 600 objects"},
    ]
    status, answer = post(ends, {"job": "s", "sampler": {**sampler, "rank": 3}})
    assert "rank 3: below world, which is 1" in answer["detail"][0]["message"]
    status, answer = post(ends, {"job": "s", "sampler": {**sampler, "batch": 8}})
    assert "batch 8: torch.DistributedSampler goes by" in answer["detail"][0]["message"]


@pytest.mark.parametrize(
    ("item", "field", "message"),
    [
        ("nothing", "plan.1.object", "'nothing': BUCKET/KEY"),
        ({"object": "data/big.bin", "ranges": [[0, 10], [-1, 5]]}, "plan.1.ranges.1", "from 0"),
        ({"object": "data/big.bin", "ranges": [[0, 0]]}, "plan.1.ranges.0", "at least 1 byte"),
        (
            {"object": "data/big.bin", "ranges": [[BIG_BYTES - 1, 2]]},
            "plan.1.ranges.0",
            "ends at 3,000,001, the object at 3,000,000",
        ),
        (
            {"object": "data/big.bin", "ranges": [[100, 50], [0, 101]]},
            "plan.1.ranges.0",
            "[100, 50] of data/big.bin: overlaps [0, 101]",
        ),
    ],
)
def test_a_wrong_item_is_named_and_nothing_is_held(
    ends: Ends, item: object, field: str, message: str
) -> None:
    status, answer = post(ends, {"job": "wrong", "plan": ["data/img/0000.jpg", item]})
    assert status == 422
    assert answer["detail"][0]["field"] == field
    assert message in answer["detail"][0]["message"]
    assert held(ends)["hints"] == []


@pytest.mark.parametrize(
    "document",
    [
        {"plan": ["data/a"], "ttl": 0},
        {"plan": ["data/a"], "window": 0},
        {"plan": ["data/a"], "job": "a/b"},
        {"plan": [{"object": "data/a", "deadline": -1}]},
        {"plan": [{"object": "data/a", "ranges": []}]},
        {"plan": [{"object": "data/a", "range": [0, 1]}]},
        {},
        {"plan": ["data/a"], "sampler": {"kind": "sequential", "n": 1, "seed": 0, "prefix": "a"}},
        {"sampler": {"kind": "magic", "n": 1, "seed": 0, "prefix": "data/"}},
        {"sampler": {"kind": "sequential", "n": 1, "seed": 0}},
        {"sampler": {"kind": "sequential", "n": 1, "seed": 0, "object": "data/big.bin"}},
    ],
)
def test_a_wrong_post_is_refused(ends: Ends, document: Any) -> None:
    status, answer = post(ends, document)
    assert status == 422
    assert answer["detail"][0]["message"]
    assert held(ends)["hints"] == []


def test_objects_that_do_not_exist_are_named(ends: Ends) -> None:
    plan = ["data/img/0001.jpg", "data/img/none.jpg", "other/x", "data/empty"]
    status, answer = post(ends, {"job": "u", "plan": plan})
    assert (status, answer["items"], answer["unknown_items"]) == (200, 1, 2)
    assert [(u["index"], u["object"]) for u in answer["unknown"]] == [
        (1, "data/img/none.jpg"),
        (2, "other/x"),
    ]
    status, answer = post(ends, {"job": "v", "plan": ["data/none"]})
    assert (status, answer["detail"]) == (
        404,
        "data/none: no such object, nor is any of the plan's",
    )


def test_more_than_is_taken_is_said_to_be_too_much(ends: Ends) -> None:
    status, answer = post(ends, {"job": "m", "plan": ["data/img/0000.jpg"] * 16_385})
    assert status == 413
    assert "16,385 reads: at most 16,384 in one post" in answer["detail"]
    for i in range(64):
        assert post(ends, {"job": f"m{i}", "plan": ["data/img/0000.jpg"]})[0] == 200
    url = ends.spoke.admin + "/v1/hints"
    status, answer, headers = ask("POST", url, {"job": "m64", "plan": ["data/img/0000.jpg"]})
    assert (status, headers["retry-after"]) == (429, "60")
    assert "64 jobs have plans" in answer["detail"]


def test_a_plan_is_replaced_dropped_and_expires(ends: Ends) -> None:
    url = ends.spoke.admin + "/v1/hints"
    post(ends, {"job": "a", "plan": ["data/img/0000.jpg", "data/img/0001.jpg"]})
    post(ends, {"job": "a", "plan": ["data/img/0002.jpg"]})
    assert [h["items"] for h in held(ends)["hints"]] == [1]
    assert ask("DELETE", url + "/a")[:2] == (200, {"dropped": 1})
    assert ask("DELETE", url + "/a")[:2] == (404, {"detail": "a: no plan of this job"})
    post(ends, {"job": "b", "plan": ["data/img/0003.jpg"], "ttl": 0.2})
    deadline = time.monotonic() + 10
    while held(ends)["hints"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert held(ends)["dropped"][0]["why"] == "not read and not posted to for 0.2 s"


def test_a_spoke_that_fetches_nothing_in_advance_says_so(ends: Ends, tmp_path: Path) -> None:
    with running(*spoke(ends.hub.data, tmp_path / "cache", "--prefetch", "off")) as other:
        wait_until_serving(other)
        status, answer, _ = ask("POST", other.admin + "/v1/hints", {"plan": ["data/big.bin"]})
    assert status == 409
    assert "--prefetch off" in answer["detail"]
