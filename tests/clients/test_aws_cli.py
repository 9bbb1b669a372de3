"""`aws s3 cp` both ways: up at the hub, down at the spoke."""

import random
from pathlib import Path

from tests.clients.conftest import Ends, Run, environment


def test_cp_up_at_the_hub_and_down_at_the_spoke(ends: Ends, run: Run, tmp_path: Path) -> None:
    aws = environment("awscli", "awscli") / "aws"
    for size in (0, 1, 5_000_000, 20 << 20):  # the last one as multipart
        source = tmp_path / f"source-{size}"
        source.write_bytes(random.Random(size).randbytes(size))
        url = f"s3://data/cli/{size}.bin"
        run(aws, "--endpoint-url", ends.hub, "s3", "cp", "--no-progress", source, url)
        for name, endpoint in zip(("hub", "spoke"), ends, strict=True):
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
