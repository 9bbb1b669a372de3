"""ports.NamespaceStore on LMDB: the hub's log and names, or a spoke's replica of the names.

At the hub (`keep_log`) the log is kept and an awaited change has been synced; a state of unknown
format is refused. At a spoke only the names are kept; data pages are synced before the page that
points at them, so a power loss costs the last commits but never tears the replica, and a killed
process loses nothing that was awaited. A replica of unknown format is set aside and rebuilt.

Every change goes to an overlay in memory first, where `get` and `scan` find it at once; the
overlay is dropped as commits catch up. A read opens a transaction, finishes, closes it, and
never awaits in between. Never: commit on the event loop.

    meta    format, kind, epoch, sequence, count, buckets, live, loaded, fact:*
    names, deep, names.1, deep.1   see lmdb_tree. One pair is live, as meta says; the other is
            filled beside it, and exchanged for it in one commit
    log     sequence (8 bytes, big-endian) -> change
    intents id (8 bytes) -> intent
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import lmdb

from hubspoke.adapters.lmdb_env import WrongKind, free_name, load_state, of_disk, open_env
from hubspoke.adapters.lmdb_log import LOG_BYTES_MAX, LOG_ENTRIES_MAX, entries_after, trim
from hubspoke.adapters.lmdb_records import (
    LISTED,
    RECORDS,
    Shape,
    add_newest,
    merge_page,
    number_key,
    overlaid,
    pack_buckets,
    pack_change,
    pack_intent,
    pack_state,
    unpack_record,
)
from hubspoke.adapters.lmdb_tree import NameTree, Txn, encode_name, next_name
from hubspoke.adapters.lmdb_writer import LmdbWriter, Write
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectName
from hubspoke.core.namespace import Listed, supersedes
from hubspoke.errors import FormatError, StoreUnavailable
from hubspoke.ports import Intent, NamespaceRecord

T = TypeVar("T")

log = logging.getLogger(__name__)

MAP_BYTES = 1 << 30  # sparse: costs address space only, and grows by doubling


class LmdbNamespace:
    """Open with `LmdbNamespace.open`. The folder belongs to one process at a time (the caller
    holds a lock on it)."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        keep_log: bool,
        log_entries_max: int = LOG_ENTRIES_MAX,
        log_bytes_max: int = LOG_BYTES_MAX,
        map_bytes: int = MAP_BYTES,
    ) -> "LmdbNamespace":
        """keep_log: True at the hub, False at a spoke.

        Raises FormatError (hub: unknown format; both: the other's folder), StoreUnavailable
        when the folder cannot be used.
        """
        path = Path(path)
        try:
            return cls(path, keep_log, log_entries_max, log_bytes_max, map_bytes)
        except FormatError as e:
            if keep_log or isinstance(e, WrongKind):
                raise
            aside = free_name(path)
            log.warning("replica set aside path=%s to=%s reason=%s", path, aside, e)
            os.rename(path, aside)
            return cls(path, keep_log, log_entries_max, log_bytes_max, map_bytes)

    def __init__(
        self, path: Path, keep_log: bool, log_entries_max: int, log_bytes_max: int, map_bytes: int
    ) -> None:
        self._path = path
        self._keep_log = keep_log
        self._log_entries_max, self._log_bytes_max = log_entries_max, log_bytes_max
        self._map_bytes = map_bytes
        self._env = open_env(path, keep_log, map_bytes)
        try:
            self._open_tables()
            self._load_state()
        except lmdb.Error as e:
            self._env.close()
            if of_disk(e):
                raise StoreUnavailable(f"namespace in {path}: {e}") from e
            raise FormatError(f"namespace in {path}: {e}") from e
        except BaseException:
            self._env.close()
            raise
        # full name -> (number of the write, record or None for a deletion)
        self._overlay: dict[bytes, tuple[int, NamespaceRecord | None]] = {}
        self._overlay_order: deque[tuple[int, bytes]] = deque()
        self._tail: deque[tuple[int, Change]] = deque()  # changes that are not committed yet
        self._adopted_by = 0  # number of an `adopt` that is not committed yet: hides the old log
        self._writer = LmdbWriter(
            self._env,
            finish=self._finish_group,
            committed=self._committed,
            reopen=self._reopen,
            what=str(path),
        )

    def _open_tables(self) -> None:
        self._meta = self._env.open_db(b"meta")
        self._log = self._env.open_db(b"log")
        self._intents = self._env.open_db(b"intents")
        self._trees = [NameTree(self._env, self._meta, suffix) for suffix in (b"", b".1")]

    def _reopen(self) -> lmdb.Environment:
        """In the writer's thread, with `remap` held. Raises FormatError, StoreUnavailable."""
        with suppress(lmdb.Error):
            self._map_bytes = self._env.info()["map_size"]
        self._env.close()
        self._env = open_env(self._path, self._keep_log, self._map_bytes)
        try:
            self._open_tables()
        except lmdb.Error as e:
            raise StoreUnavailable(f"namespace in {self._path}: {e}") from e
        log.info("opened again path=%s", self._path)
        return self._env

    def _load_state(self) -> None:
        with self._env.begin(write=True) as txn:
            kept = load_state(txn, self._meta, self._intents, self._path, self._keep_log)
        self._epoch, self._sequence = kept.epoch, kept.sequence
        self._live = kept.live
        self._count, self._buckets = kept.count, kept.buckets
        self._intent_map, self._facts = kept.intents, kept.facts

    # Reading -----------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch | None:
        return self._epoch

    @property
    def sequence(self) -> LogSequence:
        return LogSequence(self._sequence)

    def __len__(self) -> int:
        """Objects as of the last commit."""
        return self._count

    def buckets(self) -> list[str]:
        return list(self._buckets)

    def fact(self, key: str) -> str | None:
        return self._facts.get(key)

    def intents(self) -> list[Intent]:
        return list(self._intent_map.values())

    def get(self, name: ObjectName) -> NamespaceRecord | None:
        full = encode_name(name)
        held = self._overlay.get(full)
        if held is not None:
            return held[1]
        with self._reading() as txn:
            value = self._trees[self._live].get(txn, full)
        return None if value is None else unpack_record(name, value)

    def scan(
        self, bucket: str, *, prefix: str = "", after: str = "", limit: int
    ) -> list[NamespaceRecord]:
        return self._page(RECORDS, bucket, prefix, after, limit)

    def listed(self, bucket: str, *, prefix: str = "", after: str = "", limit: int) -> list[Listed]:
        return self._page(LISTED, bucket, prefix, after, limit)

    def _page(self, shape: Shape[T], bucket: str, prefix: str, after: str, limit: int) -> list[T]:
        assert limit > 0, limit
        start = encode_name(ObjectName(bucket, prefix))
        low = max(start, next_name(ObjectName(bucket, after))) if after else start
        fresh = overlaid(self._overlay, low, start)
        with self._reading() as txn:
            return merge_page(self._trees[self._live].walk(txn, low, start), fresh, limit, shape)

    def changes_after(self, sequence: LogSequence, limit: int) -> list[Change] | None:
        if sequence >= self._sequence:
            return []
        if not self._keep_log:
            return None
        changes: list[Change] = []
        if not self._adopted_by:
            with self._reading() as txn:
                changes = entries_after(txn, self._log, sequence, limit)
        at = changes[-1].sequence if changes else sequence
        for _, change in self._tail:
            if change.sequence > at and len(changes) < limit:
                changes.append(change)
        if not changes or changes[0].sequence != sequence + 1:
            return None
        return changes

    # Changing ----------------------------------------------------------------------------------

    async def apply(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        at = self._sequence
        for change in changes:
            assert change.sequence == at + 1, (change.sequence, at)
            at += 1
        kept = [c for c in changes if c.name.key and self._is_news(c)]
        packed = [(encode_name(c.name), pack_state(c)) for c in kept]
        logged = (
            [(number_key(c.sequence), pack_change(c)) for c in changes] if self._keep_log else []
        )

        live = self._live

        def write(txn: Txn) -> None:
            if int(txn.get(b"sequence", default=b"0", db=self._meta)) >= at:
                return  # repeated, and the first time came about all the same
            gained, tree = 0, self._trees[live]
            for full, value in packed:
                if value is None:
                    gained -= tree.delete(txn, full)
                elif tree.put(txn, full, value, overwrite=False):
                    gained += 1
                else:
                    tree.put(txn, full, value)
            for key, value in logged:
                txn.put(key, value, append=True, db=self._log)
            self._bump(txn, b"count", gained)
            txn.put(b"sequence", str(at).encode(), db=self._meta)

        # The hub's store is ahead of its log already: the log must take it.
        number, done = self._writer.submit(write, must=self._keep_log)
        self._sequence = at
        for (full, _), c in zip(packed, kept, strict=True):
            record = NamespaceRecord(c.name, c.entry, c.sequence) if c.entry is not None else None
            self._overlay[full] = (number, record)
            self._overlay_order.append((number, full))
        if self._keep_log:
            self._tail.extend((number, c) for c in changes)
        await done

    async def begin_load(self) -> None:
        side = 1 - self._live

        def write(txn: Txn) -> None:
            self._trees[side].clear(txn)
            txn.put(b"loaded", b"0", db=self._meta)

        await self._submit(write)

    async def load(self, records: Sequence[NamespaceRecord]) -> None:
        side = 1 - self._live

        def write(txn: Txn) -> None:
            self._bump(txn, b"loaded", add_newest(txn, self._trees[side], records))

        await self._submit(write)

    async def adopt(
        self,
        epoch: Epoch,
        sequence: LogSequence,
        *,
        buckets: Sequence[str],
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert epoch, sequence
        old, new = self._live, 1 - self._live
        meta = {b"epoch": epoch.encode(), b"sequence": str(sequence).encode()}
        meta |= {b"live": str(new).encode(), b"buckets": pack_buckets(sorted(buckets))}
        meta |= {b"fact:" + k.encode(): v.encode() for k, v in facts.items()}

        def write(txn: Txn) -> None:
            if txn.get(b"live", default=b"0", db=self._meta) == meta[b"live"]:
                return  # repeated, and the first time came about all the same
            txn.drop(self._log, delete=False)
            # Whole, and not in slices: LMDB gives up a table's pages without reading its leaves.
            self._trees[old].clear(txn)
            loaded = txn.get(b"loaded", default=b"0", db=self._meta)
            for key, value in (meta | {b"count": loaded}).items():
                txn.put(key, value, db=self._meta)

        number, done = self._writer.submit(write)
        self._overlay.clear()
        self._overlay_order.clear()
        self._tail.clear()
        self._adopted_by = number
        self._live = new
        self._epoch, self._sequence = epoch, int(sequence)
        self._buckets = sorted(buckets)
        self._facts |= facts
        await done

    async def set_buckets(self, buckets: Sequence[str]) -> None:
        names = sorted(buckets)
        done = self._put_meta(b"buckets", pack_buckets(names))
        self._buckets = names
        await done

    async def put_fact(self, key: str, value: str) -> None:
        done = self._put_meta(b"fact:" + key.encode(), value.encode())
        self._facts[key] = value
        await done

    async def put_intent(self, intent: Intent) -> None:
        key, value = number_key(intent.intent_id), pack_intent(intent)
        done = self._submit(lambda txn: txn.put(key, value, db=self._intents))
        self._intent_map[intent.intent_id] = intent
        try:
            await done
        except StoreUnavailable:
            # It will be written yet, and stands for a change that nobody goes on with.
            self._drop_intent(intent.intent_id)
            raise

    async def drop_intent(self, intent_id: int) -> None:
        await self._drop_intent(intent_id)

    def _drop_intent(self, intent_id: int) -> asyncio.Future[None]:
        self._intent_map.pop(intent_id, None)
        key = number_key(intent_id)
        return self._writer.submit(
            lambda txn: txn.delete(key, db=self._intents), must=True, patient=True
        )[1]

    def trouble(self) -> str | None:
        return self._writer.trouble

    async def written(self) -> None:
        await self._writer.submit(lambda _: None, must=True, patient=True)[1]

    async def close(self) -> None:
        """Commit what is queued and release the environment."""
        await self._writer.close()
        self._env.close()

    # Inside ------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Txn]:
        """Raises StoreUnavailable while the environment is lost and not yet opened again."""
        try:
            with self._writer.remap, self._env.begin() as txn:
                yield txn
        except lmdb.Error as e:
            raise StoreUnavailable(f"namespace in {self._path}: {e}") from e

    def _submit(self, write: Write) -> asyncio.Future[None]:
        return self._writer.submit(write)[1]

    def _put_meta(self, key: bytes, value: bytes) -> asyncio.Future[None]:
        return self._submit(lambda txn: txn.put(key, value, db=self._meta))

    def _is_news(self, change: Change) -> bool:
        """Only a replica can hold a record newer than the log it replays (fuzzy snapshot)."""
        if self._keep_log:
            return True
        held = self.get(change.name)
        return supersedes(change.sequence, held.sequence if held is not None else None)

    def _bump(self, txn: Txn, counter: bytes, gained: int) -> None:
        count = int(txn.get(counter, default=b"0", db=self._meta)) + gained
        txn.put(counter, str(count).encode(), db=self._meta)

    def _finish_group(self, txn: Txn) -> None:
        trim(txn, self._log, self._log_entries_max, self._log_bytes_max)

    def _committed(self, number: int) -> None:
        while self._overlay_order and self._overlay_order[0][0] <= number:
            written, full = self._overlay_order.popleft()
            held = self._overlay.get(full)
            if held is not None and held[0] == written:
                del self._overlay[full]
        while self._tail and self._tail[0][0] <= number:
            self._tail.popleft()
        if self._adopted_by <= number:
            self._adopted_by = 0
        with self._writer.remap, self._env.begin() as txn:
            self._count = int(txn.get(b"count", default=b"0", db=self._meta))
