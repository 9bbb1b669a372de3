"""Writes the Parquet files beside it and, as JSON, where pyarrow says that their chunks lie.

In an environment that has pyarrow (these were made with 26.0): python tests/golden/layouts/make.py
[FOLDER]. `make test-clients` has today's pyarrow write into another folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-not-found]  # in an environment of its own
import pyarrow.parquet as pq  # type: ignore[import-not-found]

HERE = Path(__file__).parent
ROWS = 600


def tables() -> dict[str, tuple[pa.Table, dict[str, object]]]:
    """Name -> (table, how it is written)."""
    numbers = pa.table({f"column {i}": [n * (i + 1) for n in range(ROWS)] for i in range(10)})
    nested = pa.table(
        {
            "id": list(range(ROWS)),
            "word": [f"word {n % 7}" for n in range(ROWS)],
            "none": pa.nulls(ROWS, pa.float64()),
            "flag": [n % 3 == 0 for n in range(ROWS)],
            "list": [[n, n + 1] for n in range(ROWS)],
            "of": [{"a": n, "b": {"c": str(n), "ü": float(n)}} for n in range(ROWS)],
            "map": pa.array([[("k", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        }
    )
    return {
        "numbers": (numbers, {"row_group_size": 100, "use_dictionary": False}),
        "nested": (nested, {"row_group_size": 250, "compression": "zstd"}),
        "indexed": (
            nested,
            {"row_group_size": 600, "write_page_index": True, "data_page_version": "2.0"},
        ),
        "empty": (numbers.slice(0, 0), {}),
    }


def start(chunk: Any) -> Any:
    """As Arrow's reader has it: a dictionary page only if it lies before the data pages."""
    dictionary, data = chunk.dictionary_page_offset, chunk.data_page_offset
    return dictionary if dictionary is not None and 0 < dictionary < data else data


def chunks(path: Path) -> dict[str, object]:
    """Where pyarrow reads from."""
    metadata = pq.read_metadata(path)
    names: list[str] = []
    offsets, lengths = [], []
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        columns = [group.column(c) for c in range(metadata.num_columns)]
        names = [c.path_in_schema for c in columns]
        offsets.append([start(c) for c in columns])
        lengths.append([c.total_compressed_size for c in columns])
    return {
        "made_by": f"pyarrow {pa.__version__}",
        "footer_bytes": metadata.serialized_size,
        "names": names,
        "offsets": offsets,
        "lengths": lengths,
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, (table, options) in tables().items():
        path = folder / f"{name}.parquet"
        pq.write_table(table, path, **options)
        (folder / f"{name}.json").write_text(json.dumps(chunks(path), ensure_ascii=False) + "\n")
