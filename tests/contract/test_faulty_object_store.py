"""Injected faults of an object store are seeded, and are what the port allows."""

from collections.abc import AsyncIterator

import pytest

from hubspoke.adapters.faulty import Faults, FaultyObjectStore
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.core.ids import ObjectName
from hubspoke.errors import StoreUnavailable, VersionChanged

NAME = ObjectName("data", "k")


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def stored(store: FaultyObjectStore) -> str:
    """Put an object while no faults are injected; returns its version."""
    faults, store.faults = store.faults, Faults()
    entry = await store.complete(await store.stage(NAME, {}, chunks(b"abc")))
    store.faults = faults
    return entry.version


async def outcomes(seed: int) -> list[str]:
    faults = Faults(fail_before=0.3, changed=0.3)
    store = FaultyObjectStore(MemoryObjectStore(["data"]), seed=seed, faults=faults)
    await stored(store)
    found = []
    for _ in range(100):
        try:
            entry = await store.head(NAME)
            assert entry is not None
            found.append((await store.read(NAME, entry.version, 0, 3)).decode())
        except (StoreUnavailable, VersionChanged) as e:
            found.append(type(e).__name__)
    assert store.injected == len(found) - found.count("abc")
    return found


async def test_a_seed_repeats_its_faults() -> None:
    first = await outcomes(1)
    assert first == await outcomes(1)
    assert first != await outcomes(2)
    assert set(first) == {"abc", "StoreUnavailable", "VersionChanged"}


async def test_failure_before_does_nothing_and_failure_after_is_done() -> None:
    inner = MemoryObjectStore(["data"])
    store = FaultyObjectStore(inner)
    await stored(store)
    store.faults = Faults(fail_before=1)
    with pytest.raises(StoreUnavailable):
        await store.delete(NAME)
    assert await inner.head(NAME) is not None
    store.faults = Faults(fail_after=1)
    with pytest.raises(StoreUnavailable):
        await store.delete(NAME)
    assert await inner.head(NAME) is None


async def test_delays_wait_for_what_they_were_given() -> None:
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    store = FaultyObjectStore(MemoryObjectStore(["data"]), faults=Faults(delay=1), pause=pause)
    await store.buckets()
    await store.head(NAME)
    assert pauses == 2
