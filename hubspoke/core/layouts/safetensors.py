"""safetensors: 8 bytes with the length of a JSON text that names every tensor, then the tensors.

8 B length | {"name": {"dtype": .., "shape": .., "data_offsets": [begin, end]}, ..} | tensors
"""

import json
from collections.abc import Generator

from hubspoke.core.layouts.layout import (
    INDEX_BYTES_MAX,
    PARTS_MAX,
    Layout,
    NoLayout,
    Span,
    layout_of,
    row,
)

LENGTH_BYTES = 8
TEXT_BYTES_MAX = 4 << 20  # json parses it in one go: 20 ms


def header(head: bytes, size: int) -> Span:
    """Where the text is, by the first 9 bytes. Raises NoLayout."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    if head[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{" or not 2 <= length <= size - LENGTH_BYTES:
        raise NoLayout("no safetensors header")
    return Span(LENGTH_BYTES, length)


def parse(data: bytes, size: int, index: Span) -> Generator[None, None, Layout]:
    """The layout by the header's text `data`. Raises NoLayout."""
    yield
    if len(data) > min(TEXT_BYTES_MAX, INDEX_BYTES_MAX):
        raise NoLayout("the header is too long")
    try:
        tensors = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise NoLayout("the header is no JSON") from e
    if not isinstance(tensors, dict) or len(tensors) > PARTS_MAX:
        raise NoLayout("the header names no tensors")
    base = index.offset + index.length
    found: list[tuple[int, int, str]] = []
    for name, tensor in tensors.items():
        if name == "__metadata__":
            continue
        begin, end = _offsets(tensor)
        found.append((base + begin, end - begin, name))
    found.sort()
    yield
    names = [name for _, _, name in found]
    offsets, lengths = row([o for o, _, _ in found]), row([n for _, n, _ in found])
    return layout_of("safetensors", size, names, [offsets], [lengths], index)


def _offsets(tensor: object) -> tuple[int, int]:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    match offsets:
        case [int(begin), int(end)] if 0 <= begin <= end:
            return begin, end
    raise NoLayout("a tensor is nowhere")
