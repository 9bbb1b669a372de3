"""`aws s3` cp, sync, ls and rm: up at the hub, down at the spoke."""

import os
import random
import subprocess
from pathlib import Path

from tests.clients.conftest import CREDENTIALS, Ends, Run
from tests.clients.environments import environment


def test_cp_up_at_the_hub_and_down_at_the_spoke(ends: Ends, run: Run, tmp_path: Path) -> None:
    aws = environment("awscli", "awscli") / "aws"
    for size in (0, 1, 5_000_000, 20 << 20):  # the last one as multipart
        source = tmp_path / f"source-{size}"
        source.write_bytes(random.Random(size).randbytes(size))
        url = f"s3://data/cli/{size}.bin"
        run(aws, "--endpoint-url", ends.hub, "s3", "cp", "--no-progress", source, url)
        for name, endpoint in (("hub", ends.hub), ("spoke", ends.spoke)):
            target = tmp_path / f"{name}-{size}"
            run(aws, "--endpoint-url", endpoint, "s3", "cp", "--no-progress", url, target)
            assert target.read_bytes() == source.read_bytes(), (name, size)
    listing = run(aws, "--endpoint-url", ends.spoke, "s3", "ls", "s3://data/cli/")
    assert [line.split()[-1] for line in listing.splitlines()] == [
        "0.bin",
        "1.bin",
        "20971520.bin",
        "5000000.bin",
    ]


def test_rm_at_the_hub_is_gone_at_the_spoke(ends: Ends, run: Run, tmp_path: Path) -> None:
    aws = environment("awscli", "awscli") / "aws"
    source = tmp_path / "source"
    source.write_bytes(b"short-lived")
    run(aws, "--endpoint-url", ends.hub, "s3", "cp", source, "s3://data/gone/a")
    assert "a" in run(aws, "--endpoint-url", ends.spoke, "s3", "ls", "s3://data/gone/")
    run(aws, "--endpoint-url", ends.hub, "s3", "rm", "--recursive", "s3://data/gone/")
    listing = run(aws, "--endpoint-url", ends.spoke, "s3", "ls", "s3://data/")
    assert "gone" not in listing


def test_sync_up_at_the_hub_and_down_at_the_spoke(ends: Ends, run: Run, tmp_path: Path) -> None:
    aws = environment("awscli", "awscli") / "aws"
    source, target = tmp_path / "source", tmp_path / "target"
    sizes = {"a/empty": 0, "a/b/page": 4096, "c ü+%&=": 70_001, "large": 9 << 20}
    for name, size in sizes.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(random.Random(size).randbytes(size))
    url = "s3://data/sync"
    run(aws, "--endpoint-url", ends.hub, "s3", "sync", "--no-progress", source, url)
    run(aws, "--endpoint-url", ends.spoke, "s3", "sync", "--no-progress", url, target)
    for name in sizes:
        assert (target / name).read_bytes() == (source / name).read_bytes(), name
    again = run(aws, "--endpoint-url", ends.spoke, "s3", "sync", "--no-progress", url, target)
    assert again == ""
    listing = run(aws, "--endpoint-url", ends.spoke, "s3", "ls", "--recursive", url)
    assert len(listing.splitlines()) == len(sizes)
    part = tmp_path / "part"
    get = ["s3api", "get-object", "--bucket", "data", "--key", "sync/large"]
    run(aws, "--endpoint-url", ends.spoke, *get, "--range", "bytes=1048570-1048585", part)
    assert part.read_bytes() == (source / "large").read_bytes()[1048570:1048586]


def test_a_write_at_the_spoke_is_refused_by_name(ends: Ends, tmp_path: Path) -> None:
    aws = environment("awscli", "awscli") / "aws"
    (tmp_path / "a").write_bytes(b"x")
    command = [str(aws), "--endpoint-url", ends.spoke, "s3", "cp", str(tmp_path / "a")]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    done = subprocess.run(
        [*command, "s3://data/no"],
        env={**kept, **CREDENTIALS, "AWS_MAX_ATTEMPTS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "NotImplemented" in done.stderr and "read-only" in done.stderr
