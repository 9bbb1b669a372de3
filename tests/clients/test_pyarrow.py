"""pyarrow.fs.S3FileSystem: written at the hub, listed, opened and read at offsets at the spoke."""

import random
import textwrap
from pathlib import Path

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment

SCRIPT = textwrap.dedent("""
    import sys
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    hub, spoke, source = sys.argv[1:]
    content = open(source, "rb").read()

    def connect(url):
        return fs.S3FileSystem(
            endpoint_override=url, access_key="any", secret_key="any", region="us-east-1",
            scheme="http",
        )

    writer, reader = connect(hub), connect(spoke)
    with writer.open_output_stream("data/arrow/a/object ü+.bin") as out:
        out.write(content)
    infos = reader.get_file_info(fs.FileSelector("data/arrow", recursive=True))
    print(sorted((i.path, i.size) for i in infos if i.is_file))
    with reader.open_input_stream("data/arrow/a/object ü+.bin") as whole:
        assert whole.read() == content
    with reader.open_input_file("data/arrow/a/object ü+.bin") as file:
        assert file.size() == len(content)
        for offset, count in ((0, 1), (4095, 2), (5_000_000, 2_000_000), (len(content) - 3, 10)):
            assert file.read_at(count, offset) == content[offset : offset + count], offset
    table = pa.table({"token": list(range(100_000)), "text": [str(i) for i in range(100_000)]})
    pq.write_table(table, "data/arrow/table.parquet", filesystem=writer, row_group_size=10_000)
    column = pq.read_table("data/arrow/table.parquet", columns=["token"], filesystem=reader)
    assert column["token"].to_pylist() == list(range(100_000))
    try:
        with reader.open_output_stream("data/arrow/no") as out:
            out.write(b"x")
    except OSError as e:
        print("NotImplemented" in str(e) or "NOT_IMPLEMENTED" in str(e) or "501" in str(e), e)
""")


def test_streams_and_random_access_files(ends: Ends, run: Run, tmp_path: Path) -> None:
    python = environment("pyarrow", "pyarrow") / "python"
    source = tmp_path / "source"
    source.write_bytes(random.Random(9).randbytes(12_345_678))
    lines = run(python, "-c", SCRIPT, ends.hub, ends.spoke, source).splitlines()
    assert lines[0] == "[('data/arrow/a/object ü+.bin', 12345678)]"
    assert lines[1].startswith("True"), lines[1]
