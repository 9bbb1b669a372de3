"""pandas, pyarrow.dataset, datasets, zarr, dask and webdataset read through `hubspoke://`."""

import textwrap
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.clients.conftest import Ends, Run
from tests.clients.environments import environment
from tests.mounts import wait_for
from tests.processes import get_json, running, spoke

AHEAD_BYTES = 4 << 20
ROOT = Path(__file__).parent.parent.parent

MAKE = textwrap.dedent("""
    import io, pathlib, sys, tarfile
    import numpy as np, pandas as pd, zarr

    out = pathlib.Path(sys.argv[1])
    rng = np.random.default_rng(5)
    for part in range(4):
        frame = pd.DataFrame({
            "number": np.arange(200_000) + part * 200_000,
            "noise": rng.random(200_000),
            "text": [f"row {i} of part {part}" for i in range(200_000)],
        })
        (out / "tables").mkdir(parents=True, exist_ok=True)
        frame.to_parquet(out / "tables" / f"part-{part}.parquet", row_group_size=20_000)
    frame.head(100_000).to_csv(out / "table.csv", index=False)
    array = zarr.create_array(
        store=out / "array.zarr", shape=(2_000, 1_000), chunks=(200, 250), dtype="f4"
    )
    array[:] = rng.random((2_000, 1_000), dtype="f4")
    for shard in range(3):
        (out / "shards").mkdir(exist_ok=True)
        with tarfile.open(out / f"shards/{shard}.tar", "w") as tar:
            for i in range(50):
                for suffix, body in (("bin", rng.bytes(20_000)), ("cls", str(i).encode())):
                    info = tarfile.TarInfo(f"{shard:03}-{i:05}.{suffix}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))
""")

READ = {
    "pandas": """
        frame = pd.read_parquet(f"{url}/tables/part-1.parquet", storage_options=options)
        pd.testing.assert_frame_equal(frame, pd.read_parquet(made / "tables/part-1.parquet"))
        frame = pd.read_csv(f"{url}/table.csv", storage_options=options)
        pd.testing.assert_frame_equal(frame, pd.read_csv(made / "table.csv"))
    """,
    "pyarrow.dataset": """
        import pyarrow.dataset as ds
        found = ds.dataset("data/fs/tables", filesystem=fs, format="parquet")
        table = found.to_table(columns=["number"], filter=ds.field("number") >= 500_000)
        assert sorted(table["number"].to_pylist()) == list(range(500_000, 800_000))
    """,
    "datasets": """
        import datasets
        rows = datasets.load_dataset(
            "parquet", data_files={"train": f"{url}/tables/*.parquet"}, split="train",
            streaming=True, storage_options=options,
        )
        numbers = [row["number"] for row in rows]
        assert numbers == list(range(800_000)), len(numbers)
    """,
    "zarr": """
        import zarr
        array = zarr.open_array(f"{url}/array.zarr", mode="r", storage_options=options)
        assert (array[:] == zarr.open_array(made / "array.zarr", mode="r")[:]).all()
        assert array[700, 300] == zarr.open_array(made / "array.zarr", mode="r")[700, 300]
    """,
    "dask": """
        import dask.dataframe as dd
        frame = dd.read_parquet(f"{url}/tables/*.parquet", storage_options=options)
        assert int(frame["number"].sum().compute(scheduler="threads")) == sum(range(800_000))
        lazy = dd.read_csv(f"{url}/table.csv", storage_options=options)
        assert len(lazy.compute(scheduler="threads")) == 100_000
    """,
    "webdataset": """
        import webdataset as wds
        wds.gopen_schemes["hubspoke"] = lambda path, mode="rb", bufsize=8192, **_: fsspec.open(
            path, mode, **options
        ).open()
        shards = [f"{url}/shards/{i}.tar" for i in range(3)]
        samples = list(wds.WebDataset(shards, shardshuffle=False))
        import tarfile
        for shard in range(3):
            with tarfile.open(made / f"shards/{shard}.tar") as tar:
                for sample in samples[50 * shard : 50 * (shard + 1)]:
                    assert sample["bin"] == tar.extractfile(sample["__key__"] + ".bin").read()
        assert len(samples) == 150
    """,
}
HEAD = """
import os, pathlib, sys
import fsspec, pandas as pd

def main():
    endpoint, made = sys.argv[1], pathlib.Path(sys.argv[2])
    url, options = "hubspoke://data/fs", {"endpoint_url": endpoint}
    fs = fsspec.filesystem("hubspoke", **options)
%s
if __name__ == "__main__":
    main()
    # Arrow's threads read ahead in Python files, and one that waits for the interpreter while it
    # ends takes the process with it ("terminate called without an active exception").
    os._exit(0)
"""


def put_all(hub: str, made: Path) -> None:
    for path in sorted(p for p in made.rglob("*") if p.is_file()):
        key = quote(f"fs/{path.relative_to(made).as_posix()}")
        request = Request(f"{hub}/data/{key}", data=path.read_bytes(), method="PUT")
        with urlopen(request, timeout=60) as answer:
            assert answer.status == 200


def test_libraries_read_exact_bytes_and_no_more(ends: Ends, run: Run, tmp_path: Path) -> None:
    """Each at a spoke of its own, which has seen nothing."""
    packages = ("pandas", "pyarrow", "datasets", "zarr", "dask[array,dataframe]", "webdataset")
    python = environment("fsspec", "-e", f"{ROOT}[fsspec]", *packages) / "python"
    made = tmp_path / "made"
    run(python, "-c", MAKE, made)
    put_all(ends.hub, made)
    more = {}
    for name, body in READ.items():
        script = tmp_path / f"read_{name}.py"
        script.write_text(HEAD % textwrap.indent(textwrap.dedent(body), "    "))
        with running(*spoke(ends.hub, tmp_path / f"cache-{name}")) as a_spoke:
            a_spoke.ready()
            wait_for(lambda url=a_spoke.admin: get_json(f"{url}/readyz")[0] == 200, "ready")  # type: ignore[misc]
            run(python, script, a_spoke.data, made)
            wan = get_json(f"{a_spoke.admin}/v1/report")[1]["wan"]
        more[name] = wan["payload_bytes"] - 1.05 * wan["unique_bytes"]
    # Nothing but what a scan has ahead when it ends: at the speed of loopback a few MiB.
    assert max(more.values()) <= AHEAD_BYTES, more
    assert sum(extra > 0 for extra in more.values()) <= 2, more
