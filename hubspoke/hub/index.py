"""Brings the log level with the store at the start: the first index, the settling of intents.

The store is the truth; a HEAD has the last word. reconcile.py does it while the hub serves.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from hubspoke.core.hub import Settlement, differs, settlement
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry
from hubspoke.core.namespace import Incarnation, bucket_name
from hubspoke.errors import ConfigError, HubSpokeError, NoSuchUpload, StoreUnavailable
from hubspoke.ports import Intent, NamespaceRecord, NamespaceStore, ObjectStore, Staged

log = logging.getLogger(__name__)

SETTLE_TRIES = 5
PROGRESS_EACH = 50_000
LIVES_FACT = "incarnations"
MOUNTS_FACT = "mounts"
LIVES_MAX = 256  # starts of the hub that a spoke may have slept through
FIRST_ID_FACT = "first_change_id"
IDS_PER_LIFE = 1 << 40  # more than three years of 10,000 changes a second take


@dataclass(slots=True)
class IndexProgress:
    """state: "waiting", "indexing", "reconciling" or "complete". objects: seen so far."""

    state: str = "waiting"
    objects: int = 0
    changed: int = 0


async def first_index(
    store: ObjectStore, namespace: NamespaceStore, epoch: Epoch, progress: IndexProgress
) -> None:
    """Fill an empty namespace from the store. An unfinished one has no epoch and begins anew."""
    progress.state = "indexing"
    log.info("first index started")
    await namespace.begin_load()
    buckets = await store.buckets()
    async for batch in store.scan():
        records = [
            NamespaceRecord(name, entry, LogSequence(progress.objects + i))
            for i, (name, entry) in enumerate(batch, 1)
        ]
        before = progress.objects // PROGRESS_EACH
        progress.objects += len(records)
        await namespace.load(records)
        if progress.objects // PROGRESS_EACH > before:
            log.info("first index objects=%d", progress.objects)
    await namespace.adopt(epoch, LogSequence(progress.objects), buckets=buckets)
    await note_mounts(store, namespace)
    log.info("first index complete objects=%d epoch=%s", progress.objects, epoch)


async def begin_life(namespace: NamespaceStore, incarnation: str) -> list[Incarnation]:
    """Note that from the present end of the log on this incarnation writes it; returns all that
    are remembered, this one last. Replicas whose history is older take a snapshot."""
    noted = msgspec.json.decode(namespace.fact(LIVES_FACT) or "[]", type=list[tuple[str, int]])
    noted = [*noted, (incarnation, int(namespace.sequence))][-LIVES_MAX:]
    # A log that cannot be written yet takes no change before this fact.
    with suppress(StoreUnavailable):
        await namespace.put_fact(LIVES_FACT, msgspec.json.encode(noted).decode())
    return [Incarnation(id_, LogSequence(since)) for id_, since in noted]


async def need_objects(store: ObjectStore, namespace: NamespaceStore) -> None:
    """Raises ConfigError when the store shows nothing of all that the log has, StoreUnavailable
    when a bucket had a file system of its own and shows nothing without it: what is not mounted
    looks so. Unreachable is not deleted."""
    await store.expect_mounts(noted_mounts(namespace))
    known = len(namespace) - len({intent.name for intent in namespace.intents()})
    if known <= 0:
        return
    async for batch in store.scan():
        if batch:
            return
    raise ConfigError(
        f"the store shows no object, and the log in the state folder has {known}: is its file "
        "system mounted? If all of them were deleted, begin with an empty state folder"
    )


def noted_mounts(namespace: NamespaceStore) -> list[str]:
    """Buckets that an earlier life saw on a file system of their own."""
    return msgspec.json.decode(namespace.fact(MOUNTS_FACT) or "[]", type=list[str])


async def note_mounts(store: ObjectStore, namespace: NamespaceStore) -> None:
    """For the next start. Without a writable log it is noted the next time."""
    if store.mounts() != noted_mounts(namespace):
        with suppress(StoreUnavailable):
            mounts = msgspec.json.encode(store.mounts()).decode()
            await namespace.put_fact(MOUNTS_FACT, mounts)


async def first_change_id(namespace: NamespaceStore, unix_us: int) -> int:
    """Note and return an id above all that earlier lives under this state gave out.

    The Unix clock alone does not do: set back between two lives, it made ids which the spokes took
    for those of revocations that had ended. It is for states that noted nothing yet.
    """
    noted = namespace.fact(FIRST_ID_FACT)
    first = unix_us if noted is None else max(unix_us, int(noted) + IDS_PER_LIFE)
    with suppress(StoreUnavailable):  # as for the incarnation
        await namespace.put_fact(FIRST_ID_FACT, str(first))
    return first


async def settle_intents(store: ObjectStore, namespace: NamespaceStore) -> int:
    """Find out by a HEAD what became of each change that a crash cut short; before any lease.

    Returns how many had been completed. Raises StoreUnavailable if the store does not answer.
    """
    completed = 0
    for intent in namespace.intents():
        completed += await _settle(store, namespace, intent)
    return completed


async def _settle(store: ObjectStore, namespace: NamespaceStore, intent: Intent) -> bool:
    name = intent.name
    for attempt in range(1, SETTLE_TRIES + 1):
        try:
            found = await store.head(name)
            break
        except HubSpokeError as e:
            if attempt == SETTLE_TRIES or not e.retryable:
                raise StoreUnavailable(f"{name}: cannot settle its last change: {e}") from e
            await asyncio.sleep(0.2 * attempt)
    found = await settled_entry(store, intent.staged, intent.before, found)
    record = namespace.get(name)
    changed = differs(record.entry if record is not None else None, found)
    if changed:
        await namespace.apply([Change(LogSequence(namespace.sequence + 1), name, found)])
    await namespace.drop_intent(intent.intent_id)
    log.info("intent settled name=%s completed=%s", name, changed)
    return changed


async def settled_entry(
    store: ObjectStore, staged: Staged | None, before: str | None, found: ObjectEntry | None
) -> ObjectEntry | None:
    """What the name holds, after a HEAD showed `found` and the outcome of a change is unknown.

    A HEAD may know less than the change (the MD5, some headers), so a change that came about is
    completed once more. Raises what the store raises.
    """
    size = staged.size if staged is not None else None
    outcome = settlement(before=before, staged_size=size, found=found)
    if staged is None or outcome is Settlement.OTHER:
        return found
    if outcome is Settlement.UNDONE:
        await store.discard(staged)
        return found
    try:
        return await store.complete(staged)
    except NoSuchUpload:
        return found


async def settle_buckets(store: ObjectStore, namespace: NamespaceStore) -> None:
    """Buckets that came or went while the hub was away become changes of the bucket itself."""
    found = sorted(await store.buckets())
    for bucket in sorted(set(found) ^ set(namespace.buckets())):
        name = bucket_name(bucket)
        await namespace.apply([Change(LogSequence(namespace.sequence + 1), name, None)])
    if found != namespace.buckets():
        await namespace.set_buckets(found)
