"""What a mount has told the kernel, kept beyond the process that told it.

    memfd: length, record, length, record, ...     written before the kernel is answered

The file lies in memory and is kept open by the parent (adapters/keeper), so it lives exactly as
long as the mount. A record that a kill cut short is the last one and is ignored. The log is written
anew, into another memfd, by whoever takes it over and when it has grown to several times what it
says.
"""

import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from hubspoke.frontends.fuse.nodes import NodeRecord
from hubspoke.frontends.fuse.protocol import Agreed, Init

GROWN_BYTES, GROWN_TIMES = 32 << 20, 4
_LENGTH = struct.Struct("=I")
_AGREED, _ADDED, _FORGOTTEN, _BACKED, _HIGHEST = range(5)


@dataclass(slots=True)
class Told:
    """What a log says. highest: of all node ids there were. backed: node -> (backing id,
    handles)."""

    agreed: Agreed | None = None
    highest: int = 0
    nodes: dict[int, NodeRecord] = field(default_factory=dict)
    backed: dict[int, tuple[int, int]] = field(default_factory=dict)


class MemoryJournal:
    """nodes.NodeJournal on a memfd. keep: called with each descriptor that is to be kept."""

    def __init__(self, told: Told, keep: Callable[[int], None]) -> None:
        self._told = told
        self._keep = keep
        self._descriptor = -1
        self._bytes = self._limit = 0
        self._rewrite()

    @property
    def agreed(self) -> Agreed | None:
        return self._told.agreed

    @property
    def backed(self) -> dict[int, tuple[int, int]]:
        """As Told."""
        return self._told.backed

    @property
    def highest(self) -> int:
        """As Told."""
        return self._told.highest

    def records(self) -> Iterable[NodeRecord]:
        """Of all nodes that are not forgotten."""
        return self._told.nodes.values()

    def agree(self, agreed: Agreed) -> None:
        """INIT was answered."""
        self._told.agreed = agreed
        self._append(_agreed(agreed))

    def added(self, record: NodeRecord) -> None:
        """See NodeJournal."""
        self._told.nodes[record.id] = record
        self._told.highest = max(self._told.highest, record.id)
        self._append((_ADDED, *_fields(record)))

    def forgotten(self, node_id: int) -> None:
        """See NodeJournal."""
        self._told.nodes.pop(node_id, None)
        self._told.backed.pop(node_id, None)
        self._append((_FORGOTTEN, node_id))

    def passed(self, node_id: int, backing: int, handles: int) -> None:
        """So many handles of the node are read by the kernel alone; 0: none."""
        if handles:
            self._told.backed[node_id] = (backing, handles)
        else:
            self._told.backed.pop(node_id, None)
        self._append((_BACKED, node_id, backing, handles))

    def close(self) -> None:
        """What is kept elsewhere stays there."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, record: tuple[object, ...]) -> None:
        data = _packed(record)
        os.write(self._descriptor, data)
        self._bytes += len(data)
        if self._bytes > self._limit:
            self._rewrite()

    def _rewrite(self) -> None:
        descriptor = os.memfd_create("hubspoke-nodes", os.MFD_CLOEXEC)
        told, size = self._told, 0
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            if told.agreed is not None:
                size += file.write(_packed(_agreed(told.agreed)))
            size += file.write(_packed((_HIGHEST, told.highest)))
            for record in told.nodes.values():
                size += file.write(_packed((_ADDED, *_fields(record))))
            for node_id, (backing, handles) in told.backed.items():
                size += file.write(_packed((_BACKED, node_id, backing, handles)))
        self._keep(descriptor)
        self.close()
        self._descriptor, self._bytes = descriptor, size
        self._limit = max(GROWN_BYTES, GROWN_TIMES * size)


def read(descriptor: int) -> Told:
    """What a log says, up to its last whole record."""
    told = Told()
    data = memoryview(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    at = 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + _LENGTH.size + length
        if end > len(data):
            break
        kind, *values = msgspec.msgpack.decode(data[at + _LENGTH.size : end])
        at = end
        if kind == _AGREED:
            minor, flags, read_ahead = values
            told.agreed = Agreed(minor, Init(flags), read_ahead)
        elif kind == _ADDED:
            told.nodes[values[0]] = NodeRecord(*values)
            told.highest = max(told.highest, values[0])
        elif kind == _HIGHEST:
            told.highest = values[0]
        elif kind == _FORGOTTEN:
            told.nodes.pop(values[0], None)
            told.backed.pop(values[0], None)
        elif values[2]:
            told.backed[values[0]] = (values[1], values[2])
        else:
            told.backed.pop(values[0], None)
    return told


def _agreed(agreed: Agreed) -> tuple[object, ...]:
    return _AGREED, agreed.minor, int(agreed.flags), agreed.read_ahead


def _fields(r: NodeRecord) -> tuple[object, ...]:
    return r.id, r.bucket, r.key, r.version, r.size, r.etag, r.modified_ns, r.complete


def _packed(record: tuple[object, ...]) -> bytes:
    data = msgspec.msgpack.encode(record)
    return _LENGTH.pack(len(data)) + data
