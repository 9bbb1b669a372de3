"""Names of any length in LMDB, in the order of their UTF-8 bytes.

LMDB keys end at 511 bytes, S3 names do not: bucket, NUL and key are up to 1,088. A name longer
than SEGMENT_BYTES continues in a child node: the parent holds, in place of the name, a pointer
behind all names equal to its segment and before all others, so order survives:

    names   segment (<= 500)            -> record
            segment (500) + NUL (501)   -> id of a child node
    deep    id + segment (<= 508)       -> record
            id + segment (500) + NUL    -> id of a child node

No record's key is 501 bytes behind its node id, so a pointer cannot be taken for one. Rejected:
cutting keys and keeping a list of all names that share the cut, because a million names under
one long folder would be one value of hundreds of megabytes, rewritten with each change.

Never: hold a transaction; each call gets one and leaves it open.
"""

from collections.abc import Iterator
from typing import TypeAlias

import lmdb

from hubspoke.core.ids import ObjectName

SEGMENT_BYTES = 500
_POINTER_BYTES = SEGMENT_BYTES + 1
_NODE_BYTES = 8
_NEXT_NODE = b"next-node"

Txn: TypeAlias = "lmdb.Transaction[bytes]"


def encode_name(name: ObjectName) -> bytes:
    return name.bucket.encode() + b"\0" + name.key.encode()


def decode_name(full: bytes) -> ObjectName:
    bucket, key = full.split(b"\0", 1)
    return ObjectName(bucket.decode(), key.decode())


def next_name(name: ObjectName) -> bytes:
    """The least name behind it."""
    return encode_name(name) + b"\0"


class NameTree:
    """name -> value. `meta` lends one key for the counter of nodes. suffix: of the tables."""

    def __init__(self, env: lmdb.Environment, meta: "lmdb._Database", suffix: bytes) -> None:
        self._names = env.open_db(b"names" + suffix)
        self._deep = env.open_db(b"deep" + suffix)
        self._meta = meta

    def get(self, txn: Txn, full: bytes) -> bytes | None:
        if len(full) <= SEGMENT_BYTES:
            return txn.get(full, db=self._names)
        place = self._find(txn, full)
        return None if place is None else txn.get(place, db=self._deep)

    def put(self, txn: Txn, full: bytes, value: bytes, *, overwrite: bool = True) -> bool:
        """Returns False if the name was there and `overwrite` is not set."""
        if len(full) <= SEGMENT_BYTES:
            return txn.put(full, value, overwrite=overwrite, db=self._names)
        return txn.put(self._make(txn, full), value, overwrite=overwrite, db=self._deep)

    def delete(self, txn: Txn, full: bytes) -> bool:
        """Returns whether the name was there. Nodes left empty stay: they cost one entry."""
        if len(full) <= SEGMENT_BYTES:
            return txn.delete(full, db=self._names)
        place = self._find(txn, full)
        return place is not None and txn.delete(place, db=self._deep)

    def clear(self, txn: Txn) -> None:
        txn.drop(self._names, delete=False)
        txn.drop(self._deep, delete=False)

    def walk(self, txn: Txn, low: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Names >= `low` that start with `prefix`, in order. low >= prefix."""
        return self._walk(txn, b"", b"", low, prefix)

    def _walk(
        self, txn: Txn, node: bytes, base: bytes, low: bytes, prefix: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        cursor = txn.cursor(self._deep if node else self._names)
        # At the node's top the rest of `low` may be longer than a segment: seek to the segment,
        # the pointer behind it leads on.
        if not cursor.set_range(node + low[len(base) : len(base) + SEGMENT_BYTES]):
            return
        for key, value in cursor.iternext():
            if not key.startswith(node):
                return
            segment = key[len(node) :]
            if len(segment) == _POINTER_BYTES:
                below = base + segment[:SEGMENT_BYTES]
                if not (below.startswith(prefix) or prefix.startswith(below)):
                    return
                yield from self._walk(txn, value, below, max(low, below), prefix)
                continue
            full = base + segment
            if full < low:
                continue
            if not full.startswith(prefix):
                return
            yield full, value

    def _find(self, txn: Txn, full: bytes) -> bytes | None:
        """Key in `deep` where a long name is, or would be; None if a node is missing."""
        node = b""
        while len(full) > SEGMENT_BYTES:
            child = txn.get(self._pointer(node, full), db=self._deep if node else self._names)
            if child is None:
                return None
            node, full = child, full[SEGMENT_BYTES:]
        return node + full

    def _make(self, txn: Txn, full: bytes) -> bytes:
        """Like `_find`, but adds the nodes that are missing."""
        node = b""
        while len(full) > SEGMENT_BYTES:
            db = self._deep if node else self._names
            pointer = self._pointer(node, full)
            child = txn.get(pointer, db=db)
            if child is None:
                number = int.from_bytes(txn.get(_NEXT_NODE, default=b"\1", db=self._meta), "big")
                child = number.to_bytes(_NODE_BYTES, "big")
                txn.put(_NEXT_NODE, (number + 1).to_bytes(_NODE_BYTES, "big"), db=self._meta)
                txn.put(pointer, child, db=db)
            node, full = child, full[SEGMENT_BYTES:]
        return node + full

    @staticmethod
    def _pointer(node: bytes, full: bytes) -> bytes:
        return node + full[:SEGMENT_BYTES] + b"\0"
