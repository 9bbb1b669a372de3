"""What nanoGPT reads: the cases of nanogpt.json. Run by make.py.

nanoGPT is a script that cannot be imported: torch draws here as its get_batch does, from a file
(which has no bytes on the disk) through numpy's memmap.
"""

import json
import tempfile
from typing import Any

import numpy as np
import torch

from tests.golden.told import Case, told

SETTINGS = [  # tokens, block, batch, batches, seed, rank, parameters of a model
    (1_003_854, 256, 64, 3, 1337, 0, 0),
    (301_966, 1024, 12, 5, 1337, 0, 1000),
    (2**28 + 1024, 1024, 12, 5, 1337, 0, 0),
    (2**28 + 1023, 1024, 12, 5, 1337, 1, 0),
    (9_035_582_198, 1024, 12, 5, 1337, 3, 777),
]


class Told(np.memmap[Any, Any]):
    """Tells where it is read."""

    starts: list[int]

    def __getitem__(self, index: Any) -> Any:
        self.starts.append(index.start * 2)
        return np.zeros(index.stop - index.start, dtype=np.uint16)


def case(
    tokens: int, block: int, batch: int, batches: int, seed: int, rank: int, parameters: int
) -> Case:
    torch.manual_seed(seed + rank)
    torch.randint(100, (parameters,))
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(2 * tokens)
        data = Told(file.name, dtype=np.uint16, mode="r")
        data.starts = []
        for _ in range(batches):
            places = torch.randint(len(data) - block, (batch,))
            torch.stack([torch.from_numpy(data[i : i + block].astype(np.int64)) for i in places])
    given = {"tokens": tokens, "block": block, "count": batch * batches, "seed": seed}
    given |= {"rank": rank, "words_before": parameters}
    return {"what": "offsets", "with": given, "read": told(map(int, data.starts))}


if __name__ == "__main__":
    version = torch.__version__.split("+")[0]
    print(json.dumps({"torch": version, "cases": [case(*setting) for setting in SETTINGS]}))
