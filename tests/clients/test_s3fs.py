"""s3fs at the spoke: lists, whole reads and seeks, in its own blocks."""

import hashlib
import random
import textwrap
from pathlib import Path

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment

SCRIPT = textwrap.dedent("""
    import hashlib
    import sys
    import s3fs

    hub, spoke, source = sys.argv[1:]
    content = open(source, "rb").read()
    s3fs.S3FileSystem(client_kwargs={"endpoint_url": hub}).pipe("data/fs/a/tokens.bin", content)
    fs = s3fs.S3FileSystem(client_kwargs={"endpoint_url": spoke})
    print(fs.find("data/fs"))
    with fs.open("data/fs/a/tokens.bin", "rb") as f:
        print(hashlib.sha256(f.read()).hexdigest())
        f.seek(6_000_000)
        assert f.read(4096) == content[6_000_000:6_004_096]
    assert fs.cat_file("data/fs/a/tokens.bin", start=5, end=105) == content[5:105]
    print(fs.info("data/fs/a/tokens.bin")["size"])
""")


def test_files_are_listed_and_read(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("s3fs", "s3fs") / "python"
    content = random.Random(3).randbytes(12_345_678)
    source = tmp_path / "source"
    source.write_bytes(content)
    lines = run(python, "-c", SCRIPT, ends.hub, ends.spoke, source).splitlines()
    assert lines == [
        "['data/fs/a/tokens.bin']",
        hashlib.sha256(content).hexdigest(),
        str(len(content)),
    ]
