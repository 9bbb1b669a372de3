"""Parquet files of any shape whose footer is real and whose chunks are noise."""

import random
from collections.abc import Sequence

from hubspoke.core.layouts.parquet import MAGIC


def varint(n: int) -> bytes:
    """As Thrift's compact protocol has it."""
    found = bytearray()
    while n > 0x7F:
        found.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*found, n])


def _integer(n: int) -> bytes:
    return varint(n << 1)


def _items(kind: int, items: Sequence[bytes]) -> bytes:
    """A list."""
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind])
    return head + (varint(len(items)) if len(items) >= 15 else b"") + b"".join(items)


def _chunk(name: str, offset: int, length: int) -> bytes:
    path = name.encode()
    metadata = (
        b"\x39" + _items(8, [varint(len(path)) + path])  # field 3, path_in_schema
        + b"\x46" + _integer(length)  # 7, total_compressed_size
        + b"\x26" + _integer(offset)  # 9, data_page_offset
        + b"\0"
    )  # fmt: skip
    return b"\x26" + _integer(offset) + b"\x1c" + metadata + b"\0"  # 2, 3


def footer(groups: int, columns: int, length: int) -> bytes:
    """FileMetaData of chunks of one length, one behind the other from byte 4 on."""
    found = []
    for g in range(groups):
        at = 4 + g * columns * length
        chunks = [_chunk(f"c{i}", at + i * length, length) for i in range(columns)]
        found.append(b"\x19" + _items(12, chunks) + b"\0")
    return b"\x15\x02" + b"\x39" + _items(12, found) + b"\0"  # 1, version; 4, row_groups


def parquet(groups: int, columns: int, length: int, seed: int = 0) -> bytes:
    """A file."""
    body = random.Random(seed).randbytes(groups * columns * length)
    foot = footer(groups, columns, length)
    return MAGIC + body + foot + len(foot).to_bytes(4, "little") + MAGIC
