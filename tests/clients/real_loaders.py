"""What training jobs read files with, through a mount: run by test_mount_loaders.py in an
environment of its own.

    python real_loaders.py make FOLDER            # the files that the others read
    python real_loaders.py LOADER MOUNTED TRUE    # read by both paths, and compare
"""

import hashlib
import io
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import safetensors
import safetensors.torch
import torch
import webdataset
from torch.utils.data import DataLoader, Dataset

IMAGES, IMAGE_BYTES = 60, 70_000
TOKENS, WINDOW = 2_000_000, 4096
ROWS = 30_000
SHARDS, SAMPLES = 3, 40
MIB = 1 << 20


def make(folder: Path) -> None:
    rng = np.random.default_rng(1)
    (folder / "images").mkdir()
    for i in range(IMAGES):
        (folder / "images" / f"{i:04}.jpg").write_bytes(rng.bytes(IMAGE_BYTES + i))
    rng.integers(0, 60_000, TOKENS, np.uint16).tofile(folder / "tokens.bin")
    rows = {
        "id": list(range(ROWS)),
        "text": [rng.bytes(int(n)).hex() for n in rng.integers(1, 200, ROWS)],
    }
    table = datasets.Dataset.from_dict(rows)
    table.save_to_disk(str(folder / "arrow"), num_shards=2)
    table.to_parquet(str(folder / "table.parquet"))
    (folder / "shards").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / "shards" / f"{shard:04}.tar", "w") as tar:
            for i in range(SAMPLES):
                for suffix, size in (("bin", 30_000 + i), ("txt", 50)):
                    member = tarfile.TarInfo(f"{shard:04}{i:04}.{suffix}")
                    member.size = size
                    tar.addfile(member, io.BytesIO(rng.bytes(size)))
    weights = {f"layer.{i}": torch.from_numpy(rng.standard_normal((512, 1024))) for i in range(8)}
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    torch.save(weights, folder / "model.pt")


class Images(Dataset):  # type: ignore[misc]  # torch is untyped where this is checked
    """Each item a file of its own, opened and read whole."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted((folder / "images").iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[int, str]:
        data = self.paths[i].read_bytes()
        return len(data), hashlib.sha256(data).hexdigest()


class Windows(Dataset):  # type: ignore[misc]  # as above
    """Each item a window of one large file, mapped by numpy in each worker."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.bin"

    def __len__(self) -> int:
        return TOKENS // WINDOW

    def __getitem__(self, i: int) -> torch.Tensor:
        tokens = np.memmap(self.path, np.uint16, "r")
        return torch.from_numpy(tokens[i * WINDOW : (i + 1) * WINDOW].astype(np.int32))


def _loaded(data: Any) -> list[Any]:
    """Two epochs of shuffled batches, by worker processes."""
    loader = DataLoader(
        data, batch_size=8, shuffle=True, num_workers=2,
        generator=torch.Generator().manual_seed(7),
    )  # fmt: skip
    return [batch for _ in range(2) for batch in loader]


def dataloader(folder: Path) -> list[Any]:
    images = [(sizes.tolist(), list(digests)) for sizes, digests in _loaded(Images(folder))]
    return [*images, *(batch.numpy().tobytes() for batch in _loaded(Windows(folder)))]


def hf_datasets(folder: Path) -> list[Any]:
    """From Arrow files, which are mapped; from Parquet, prepared in a cache elsewhere; streamed."""
    arrow = datasets.load_from_disk(str(folder / "arrow"))
    # In memory: it would else write the order beside the files, and no mount takes that.
    shuffled = arrow.shuffle(seed=3, keep_in_memory=True)
    read: list[Any] = [shuffled[i] for i in range(2000)]
    with tempfile.TemporaryDirectory() as cache:
        files = str(folder / "table.parquet")
        table = datasets.load_dataset("parquet", data_files=files, cache_dir=cache, split="train")
        read += [table[:]["id"], table[:]["text"]]
        streamed = datasets.load_dataset(
            "parquet", data_files=files, cache_dir=cache, split="train", streaming=True
        )
        return [*read, *streamed.take(3000)]


def web_dataset(folder: Path) -> list[Any]:
    urls = str(folder / "shards" / f"{{0000..{SHARDS - 1:04}}}.tar")
    data = webdataset.WebDataset(urls, shardshuffle=False).shuffle(20, seed=5)
    loader = DataLoader(data, batch_size=None, num_workers=2)
    found = [(s["__key__"], s["bin"], s["txt"]) for s in loader]
    assert len(found) == SHARDS * SAMPLES
    return sorted(found)


def safe_tensors(folder: Path) -> list[Any]:
    path = folder / "model.safetensors"
    whole = safetensors.torch.load_file(path)
    read = [(name, tensor.numpy().tobytes()) for name, tensor in sorted(whole.items())]
    with safetensors.safe_open(path, framework="pt") as file:
        slice_ = file.get_slice("layer.5")[100:200, 7:900]
    return [*read, slice_.contiguous().numpy().tobytes()]


def torch_load(folder: Path) -> list[Any]:
    """Mapped, last layer first; and read."""
    read: list[Any] = []
    for mapped in (True, False):
        weights = torch.load(folder / "model.pt", mmap=mapped, weights_only=True)
        read += [(name, weights[name].numpy().tobytes()) for name in sorted(weights, reverse=True)]
    return read


LOADERS: dict[str, Callable[[Path], list[Any]]] = {
    "dataloader": dataloader,
    "datasets": hf_datasets,
    "webdataset": web_dataset,
    "safetensors": safe_tensors,
    "torch-load": torch_load,
}


def main(what: str, *folders: str) -> None:
    if what == "make":
        make(Path(folders[0]))
        return
    mounted, true = (LOADERS[what](Path(folder)) for folder in folders)
    assert mounted
    assert mounted == true, f"{what}: not what the files have"
    print(f"{what}: {len(mounted)} items are the same")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
