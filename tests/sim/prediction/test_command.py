"""`hubspoke simulate`: what it says, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubspoke.cli import app
from hubspoke.sim.prediction.peers import NAMES


def simulate(*args: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["simulate", *args])
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["W99"], "W99: no such workload; one of W1"),
        (["--scale", "0"], "--scale 0: 1 (full size) to 1024"),
        (["--prefetch", "maybe"], "--prefetch maybe: on or off"),
        (["--seed", "-1"], "--seed -1: 0 to"),
        (["--policy", "arc"], "--policy arc: no such policy; one of hubspoke, none, lru"),
        (["--policy", "lru", "--prefetch", "off"], "--prefetch: of the spoke; the policy lru"),
        (["W1", "W12", "--policy", "lru"], "--policy lru: not for W12, where the hub fails"),
        (["--trace", "t", "W1", "--scale", "4"], "--trace and WORKLOAD, --scale: a trace is as"),
        (["--trace", "t", "--cache-size", "many"], "--cache-size many: a size such as 10GiB"),
        (["W1", "--cache-size", "1GiB"], "--cache-size: of a --trace"),
    ],
)
def test_what_makes_no_sense_is_named(args: list[str], said: str) -> None:
    status, out, errors = simulate(*args)
    assert (status, out) == (2, "")
    assert errors.startswith("hubspoke simulate: ")
    assert said in errors


def test_a_run_is_one_json_document_and_a_picture(tmp_path: Path) -> None:
    plots = tmp_path / "plots"
    status, out, _ = simulate("w1", "--scale", "16", "--json", "--plot", str(plots))
    assert status == 0
    (w1,) = json.loads(out)["workloads"]
    assert w1["reads"] == 999 * 16 * 2 * 2
    assert w1["of_ceiling"] > 0.98
    # All of it fits: the least is each page once, and reads are of whole pages.
    assert w1["minimum_bytes"] == w1["exact_minimum_bytes"] == w1["unique_bytes"]
    assert w1["of_minimum"] == w1["egress_bytes"] / w1["minimum_bytes"] < 1.05
    assert (plots / "W1.png").read_bytes().startswith(b"\x89PNG")


def test_each_policy_is_a_run_of_the_same_reads(tmp_path: Path) -> None:
    args = ["w2", "--scale", "256", "--policy", "hubspoke", "--policy", "readahead"]
    status, out, _ = simulate(*args, "--policy", "none", "--json", "--plot", str(tmp_path))
    assert status == 0
    runs = json.loads(out)["workloads"]
    assert [r["policy"] for r in runs] == ["hubspoke", "readahead", "none"]
    assert len({r["reads"] for r in runs}) == 1
    assert runs[1]["hit_ratio"] > 0.5 > runs[2]["hit_ratio"] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "W2-none.png",
        "W2-readahead.png",
        "W2.png",
    ]


def test_every_policy_is_named_in_the_help() -> None:
    text = CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "200"}).stdout
    for name in NAMES:
        assert name in text
