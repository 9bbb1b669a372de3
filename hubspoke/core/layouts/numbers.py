"""Numbers that say what is read of a token file: Megatron's .idx, and its cached .npy arrays.

    corpus.idx                     where each document of corpus.bin is
    ...-document_index.npy         documents in the order in which samples are cut from them
    ...-sample_index.npy           where each sample begins: place in that order, token
    ...-shuffle_index.npy          the order of the samples

As for other indexes: bounded by the bytes given, and NoLayout for whatever is wrong.
"""

import re
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hubspoke.core.layouts.layout import NoLayout
from hubspoke.core.orders.megatron import Index, parse_index
from hubspoke.errors import FormatError

BYTES_MAX = 128 << 20  # of one file: 6.7 million documents
NPY, IDX = "npy", "megatron idx"
_MAGIC = b"\x93NUMPY"
_HEADER_MAX = 4_096
_HEADER = re.compile(
    rb"\{'descr': '(<[iu][48])', 'fortran_order': False, 'shape': \((\d+),(?: (\d+))?\), \}\s*"
)


class Numbers(NamedTuple):
    """What one file said: of an .idx its documents, of an .npy an array of one or two columns."""

    documents: Index | None = None
    array: npt.NDArray[np.int64] | npt.NDArray[np.int32] | None = None


def parse_npy(data: bytes) -> Generator[None, None, Numbers]:
    """Integers of 4 or 8 bytes. Raises NoLayout."""
    yield
    if data[:6] != _MAGIC or len(data) < 12:
        raise NoLayout("no .npy")
    wide = 2 if data[6] == 1 else 4
    start = 8 + wide
    length = int.from_bytes(data[8:start], "little")
    header = _HEADER.fullmatch(data[start : start + min(length, _HEADER_MAX)])
    if header is None:
        raise NoLayout("an .npy of something else than integers")
    descr, rows, columns = header[1].decode(), int(header[2]), int(header[3] or 1)
    if columns > 2 or len(data) != start + length + rows * columns * int(descr[2]):
        raise NoLayout("an .npy of another length than it says")
    found = np.frombuffer(data, descr, rows * columns, start + length)
    if descr == "<u4":
        found = found.astype(np.int64) if len(found) and found.max() >= 2**31 else found.view("<i4")
    elif descr == "<u8":
        found = found.view("<i8")
    yield
    return Numbers(array=found.reshape(rows, columns) if columns > 1 else found)


def parse_idx(data: bytes) -> Generator[None, None, Numbers]:
    """Documents of the .bin file beside it. Raises NoLayout."""
    yield
    try:
        found = parse_index(data)
    except FormatError as e:
        raise NoLayout(str(e)) from e
    yield
    if len(found.lengths) and (found.lengths.min() < 0 or found.pointers.min() < 0):
        raise NoLayout("a document is nowhere")
    return Numbers(documents=found)
