"""Opening the folder of one namespace: what it holds, and setting one aside that holds nothing
this version can read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from hubspoke.adapters.lmdb_records import unpack_buckets, unpack_intent
from hubspoke.adapters.lmdb_tree import Txn
from hubspoke.core.ids import Epoch
from hubspoke.errors import FormatError, StoreUnavailable
from hubspoke.ports import Intent

FORMAT = 2
_UPGRADED = b"1"  # had one pair of name tables, which is the first of two now


class WrongKind(FormatError):
    """The state of a hub where a replica was expected, or the other way round: not ours to drop."""


def open_env(path: Path, keep_log: bool, map_bytes: int) -> lmdb.Environment:
    """Raises FormatError when it is none of ours, StoreUnavailable when it cannot be used."""
    what = f"namespace in {path}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        return lmdb.open(
            str(path),
            map_size=map_bytes,
            max_dbs=8,
            metasync=keep_log,
            meminit=False,
            max_readers=16,
        )
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as e:
        raise FormatError(f"{what}: not an LMDB environment this version can read: {e}") from e
    except (lmdb.Error, OSError) as e:
        raise StoreUnavailable(f"{what}: {e}") from e


def of_disk(error: Exception) -> bool:
    """Something that time may mend, and that says nothing about what the folder holds: the disk
    is full or fails (LMDB has no class for EIO), memory is short, LMDB refuses after such."""
    mendable = (lmdb.DiskError, lmdb.MemoryError, lmdb.PanicError, OSError, MemoryError)
    return isinstance(error, mendable) or type(error) is lmdb.Error


def free_name(path: Path) -> Path:
    """A path beside it that nothing has."""
    number = 1
    while path.with_name(f"{path.name}.set-aside-{number}").exists():
        number += 1
    return path.with_name(f"{path.name}.set-aside-{number}")


@dataclass(frozen=True, slots=True)
class State:
    """What is kept in memory. epoch: None when filling it was cut short."""

    epoch: Epoch | None
    live: int
    sequence: int
    count: int
    buckets: list[str]
    intents: dict[int, Intent]
    facts: dict[str, str]


def load_state(txn: Txn, meta: Any, intents: Any, path: Path, keep_log: bool) -> State:
    """meta, intents: the tables. A new environment gets its format and kind.

    Raises FormatError, WrongKind.
    """
    kind = b"hub" if keep_log else b"replica"
    found = txn.get(b"format", db=meta)
    if found is None:
        txn.put(b"format", str(FORMAT).encode(), db=meta)
        txn.put(b"kind", kind, db=meta)
    elif found == _UPGRADED:
        txn.put(b"format", str(FORMAT).encode(), db=meta)
    elif found != str(FORMAT).encode():
        raise FormatError(f"namespace in {path}: format {found!r}, this version knows {FORMAT}")
    if txn.get(b"kind", db=meta) != kind:
        other = (txn.get(b"kind", default=b"?", db=meta) or b"").decode()
        raise WrongKind(f"{path} holds the state of a {other}, not of a {kind.decode()}")
    epoch = txn.get(b"epoch", default=b"", db=meta)
    return State(
        epoch=Epoch(epoch.decode()) if epoch else None,
        live=int(txn.get(b"live", default=b"0", db=meta)),
        sequence=int(txn.get(b"sequence", default=b"0", db=meta)),
        count=int(txn.get(b"count", default=b"0", db=meta)),
        buckets=unpack_buckets(txn.get(b"buckets", default=b"\x90", db=meta)),
        intents={int.from_bytes(k, "big"): unpack_intent(k, v) for k, v in txn.cursor(intents)},
        facts={k[5:].decode(): v.decode() for k, v in txn.cursor(meta) if k.startswith(b"fact:")},
    )
