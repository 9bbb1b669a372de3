"""Index files of token files: bytes of anybody's files in, arrays or nothing out."""

import io
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pytest

from hubspoke.core.layouts import probe
from hubspoke.core.layouts.layout import NoLayout, Span, finish
from hubspoke.core.layouts.numbers import IDX, NPY, Numbers
from hubspoke.core.layouts.probe import Look
from hubspoke.core.orders import megatron


def seen(data: bytes, format: str) -> Numbers:
    found = finish(probe.read(Look(len(data), Span(0, len(data)), format), data))
    assert isinstance(found, Numbers)
    return found


def npy(array: npt.NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def idx(lengths: list[int], *, dtype: int = 8) -> bytes:
    head = megatron.MAGIC + (1).to_bytes(8, "little") + bytes((dtype,))
    head += len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little")
    pointers = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype("<i8") * 2
    of_documents = np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    return head + np.array(lengths, "<i4").tobytes() + pointers.tobytes() + of_documents


@pytest.mark.parametrize("dtype", ["<i4", "<i8", "<u4", "<u8"])
@pytest.mark.parametrize("shape", [(12,), (6, 2), (0,)])
def test_arrays_as_numpy_saves_them(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    found = seen(npy(array), NPY).array
    assert found is not None and found.dtype.kind == "i"
    assert np.array_equal(found, array)


def test_large_unsigned_numbers_stay_what_they_are() -> None:
    found = seen(npy(np.array([1, 2**32 - 1], np.uint32)), NPY).array
    assert found is not None and found.tolist() == [1, 2**32 - 1]


def test_documents_of_an_index() -> None:
    found = seen(idx([5, 0, 7]), IDX).documents
    assert found is not None
    assert (found.token_bytes, found.lengths.tolist()) == (2, [5, 0, 7])
    assert found.pointers.tolist() == [0, 10, 10]


def test_what_is_no_index_says_nothing() -> None:
    good = npy(np.arange(100))
    wrong = [good[:-1], good + b"x", b"\x93NUMPY", b"", npy(np.arange(3.0)), good[:20]]
    wrong += [npy(np.zeros((4, 3), np.int32)), npy(np.asfortranarray(np.zeros((4, 2), np.int32)))]
    for data in wrong:
        with pytest.raises(NoLayout):
            seen(data, NPY)
    good = idx([5, 6])
    for data in (good[:40], good[1:], b"", idx([5], dtype=99), idx([5, -1])):
        with pytest.raises(NoLayout):
            seen(data, IDX)


def test_damaged_bytes_never_raise_anything_else() -> None:
    rng = np.random.default_rng(1)
    for data, format in ((npy(np.arange(40)), NPY), (idx(list(range(20))), IDX)):
        for _ in range(500):
            damaged = bytearray(data)
            for at in rng.integers(0, len(data), 3):
                damaged[at] = rng.integers(0, 256)
            with suppress(NoLayout):
                seen(bytes(damaged), format)
