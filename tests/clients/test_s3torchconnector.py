"""s3torchconnector (AWS CRT): map and iterable data sets and a range reader at the spoke.

Its environment has torch in it, some 5 GB on a first run.
"""

import random
import textwrap
from pathlib import Path

import pytest

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment

SCRIPT = textwrap.dedent("""
    import os
    import sys
    from s3torchconnector import S3ClientConfig, S3IterableDataset, S3MapDataset
    from s3torchconnector import S3Checkpoint, S3ReaderConstructor

    hub, spoke, folder = sys.argv[1:]
    config = S3ClientConfig(force_path_style=True)
    contents = {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}
    checkpoint = S3Checkpoint(region="us-east-1", endpoint=hub, s3client_config=config)
    for name, content in contents.items():
        with checkpoint.writer("s3://data/connector/" + name) as out:
            out.write(content)
    ask = dict(region="us-east-1", endpoint=spoke, s3client_config=config)
    found = {}
    for reader in S3IterableDataset.from_prefix("s3://data/connector/", **ask):
        found[reader.key.rsplit("/", 1)[1]] = reader.read()
    assert found == contents
    dataset = S3MapDataset.from_prefix("s3://data/connector/", **ask)
    print(len(dataset), sorted(found))
    ranged = S3MapDataset.from_prefix(
        "s3://data/connector/", reader_constructor=S3ReaderConstructor.range_based(), **ask
    )
    for reader in ranged:
        content = contents[reader.key.rsplit("/", 1)[1]]
        for offset in (0, 4095, 1_048_570, len(content) - 5):
            reader.seek(offset)
            assert reader.read(5000) == content[offset : offset + 5000], (reader.key, offset)
""")


@pytest.mark.timeout(1800)
def test_data_sets_and_ranges(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("s3torchconnector", "s3torchconnector") / "python"
    folder = tmp_path / "objects"
    folder.mkdir()
    rng = random.Random(14)
    for i in range(4):
        (folder / f"{i}.bin").write_bytes(rng.randbytes(3_000_000 + 1001 * i))
    out = run(python, "-W", "ignore", "-c", SCRIPT, ends.hub, ends.spoke, folder)
    assert out.split(None, 1)[0] == "4"
