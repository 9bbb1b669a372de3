"""pyarrow.fs.S3FileSystem: written at the hub, listed, opened and read at offsets at the spoke."""

import random
import textwrap
from pathlib import Path
from urllib.request import Request, urlopen

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment
from tests.core.test_layouts import GOLDEN, PARQUET, assert_told
from tests.processes import get_json

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
    python = environment("pyarrow", "pyarrow", "numpy") / "python"
    source = tmp_path / "source"
    source.write_bytes(random.Random(9).randbytes(12_345_678))
    lines = run(python, "-c", SCRIPT, ends.hub, ends.spoke, source).splitlines()
    assert lines[0] == "[('data/arrow/a/object ü+.bin', 12345678)]"
    assert lines[1].startswith("True"), lines[1]


TABLES = textwrap.dedent("""
    import sys
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    writer = fs.S3FileSystem(
        endpoint_override=sys.argv[1], access_key="any", secret_key="any", region="us-east-1",
        scheme="http",
    )
    for i in range(4):
        noise = np.random.default_rng(i)
        columns = {f"c{n}": noise.integers(0, 1 << 62, 160_000) for n in range(10)}
        options = {"row_group_size": 8_000, "use_dictionary": False, "compression": "none"}
        pq.write_table(pa.table(columns), f"data/wide/{i}.parquet", filesystem=writer, **options)
""")

TWO_COLUMNS = textwrap.dedent("""
    import json, sys, time, urllib.request
    import pyarrow.parquet as pq
    from pyarrow import fs

    spoke, admin = sys.argv[1:]
    reader = fs.S3FileSystem(
        endpoint_override=spoke, access_key="any", secret_key="any", region="us-east-1",
        scheme="http",
    )
    for i in range(4):
        rows = 0
        with reader.open_input_file(f"data/wide/{i}.parquet") as source:
            file = pq.ParquetFile(source)
            for group in range(file.num_row_groups):
                rows += file.read_row_group(group, columns=["c2", "c7"]).num_rows
                time.sleep(0.01)  # a step computes
        assert rows == 160_000, rows
        with urllib.request.urlopen(admin + "/v1/report") as answer:
            reads = json.load(answer)["reads"]
        print(reads["requests"], reads["miss_requests"])
""")


def test_two_of_ten_columns_are_fetched_and_little_else(ends: Ends, run: Run) -> None:
    python = environment("pyarrow", "pyarrow", "numpy") / "python"
    run(python, "-c", TABLES, ends.hub)
    with urlopen(Request(ends.admin + "/v1/reset-stats", method="POST"), timeout=30):
        pass
    lines = run(python, "-c", TWO_COLUMNS, ends.spoke, ends.admin).splitlines()
    counts = [tuple(map(int, line.split())) for line in lines]
    (first_reads, first_misses), (reads, misses) = counts[0], counts[-1]
    assert first_misses < 0.5 * first_reads, counts
    assert misses - first_misses <= 0.05 * (reads - first_reads), counts
    _, report = get_json(ends.admin + "/v1/report")
    assert report["wan"]["payload_bytes"] <= 1.05 * report["wan"]["unique_bytes"], report["wan"]
    _, streams = get_json(ends.admin + "/v1/streams")
    shown = {s["layout"] for s in streams["streams"] if s["object"].startswith("data/wide/")}
    assert "parquet, 2 of 10 columns" in shown, shown


def test_footers_written_today_are_read_as_pyarrow_reads_them(run: Run, tmp_path: Path) -> None:
    python = environment("pyarrow", "pyarrow", "numpy") / "python"
    run(python, GOLDEN / "make.py", tmp_path)
    names = [path.stem for path in tmp_path.glob("*.parquet")]
    assert sorted(names) == sorted(PARQUET)
    for name in names:
        assert_told(tmp_path, name)
