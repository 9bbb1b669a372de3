"""s3fs at the spoke: lists, whole reads and seeks, in its own blocks."""

import hashlib
import random
import textwrap
from pathlib import Path
from urllib.request import Request, urlopen

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment
from tests.e2e.test_readme_loop import printed_loop

SCRIPT = textwrap.dedent("""
    import hashlib
    import sys
    import s3fs

    hub, spoke, source = sys.argv[1:]
    content = open(source, "rb").read()
    s3fs.S3FileSystem(client_kwargs={"endpoint_url": hub}).pipe("data/s3fs/a/tokens.bin", content)
    fs = s3fs.S3FileSystem(client_kwargs={"endpoint_url": spoke})
    print(fs.find("data/s3fs"))
    with fs.open("data/s3fs/a/tokens.bin", "rb") as f:
        print(hashlib.sha256(f.read()).hexdigest())
        f.seek(6_000_000)
        assert f.read(4096) == content[6_000_000:6_004_096]
    assert fs.cat_file("data/s3fs/a/tokens.bin", start=5, end=105) == content[5:105]
    print(fs.info("data/s3fs/a/tokens.bin")["size"])
""")


def test_files_are_listed_and_read(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("s3fs", "s3fs", "numpy") / "python"
    content = random.Random(3).randbytes(12_345_678)
    source = tmp_path / "source"
    source.write_bytes(content)
    lines = run(python, "-c", SCRIPT, ends.hub, ends.spoke, source).splitlines()
    assert lines == [
        "['data/s3fs/a/tokens.bin']",
        hashlib.sha256(content).hexdigest(),
        str(len(content)),
    ]


def test_the_readmes_loop_reads_by_s3(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("s3fs", "s3fs", "numpy") / "python"
    bodies = {f"{i}.bin": random.Random(i).randbytes(4_000) for i in range(3)}
    for name, body in bodies.items():
        url = f"{ends.hub}/data/loop/{name}"
        with urlopen(Request(url, data=body, method="PUT"), timeout=30) as answer:
            assert answer.status == 200
    loop = "import os\n" + f"os.environ['AWS_ENDPOINT_URL'] = {ends.spoke!r}\n" + printed_loop()
    lines = run(python, "-c", loop, "s3://data/loop").splitlines()
    assert sorted(line.split()[1] for line in lines) == sorted(bodies)
