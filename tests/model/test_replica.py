"""Replicas in memory and in LMDB, fed changes in any order, against the log they follow."""

import asyncio
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.namespace import NamespaceRecord, accept
from tests.model.oracle import Oracle

# Keys that are prefixes of others, and one longer than LMDB's keys may be.
NAMES = [ObjectName("b", key) for key in ("a", "a/", "a/b", "a" * 600, "é", "\U0001f600")]
EPOCH = Epoch("e")


class Replicas(RuleBasedStateMachine):
    """Both stores get the same messages and must say the same: what the log says at their
    sequence, which never falls but for a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.oracle = Oracle()
        self.oracle.epoch_began(EPOCH)
        self.log: list[Change] = []
        self.memory = MemoryNamespace(keep_log=False)
        self.lmdb = self.runner.run(self.opened())
        self.complete_at = LogSequence(0)
        self.snapshot(0, 0)

    async def opened(self) -> LmdbNamespace:
        return LmdbNamespace.open(Path(self.folder.name) / "replica", keep_log=False)

    def teardown(self) -> None:
        self.runner.run(self.lmdb.close())
        self.runner.close()
        self.folder.cleanup()

    def records(self, sequence: int) -> list[NamespaceRecord]:
        """What the hub's names are at that moment."""
        held: dict[ObjectName, NamespaceRecord] = {}
        for change in self.log[:sequence]:
            held.pop(change.name, None)
            if change.entry is not None:
                held[change.name] = NamespaceRecord(change.name, change.entry, change.sequence)
        return list(held.values())

    @rule(name=st.sampled_from(NAMES), gone=st.booleans())
    def change(self, name: ObjectName, gone: bool) -> None:
        number = len(self.log) + 1
        entry = None if gone else ObjectEntry(Version(f"v{number}"), number, "", 0)
        change = Change(LogSequence(number), name, entry)
        self.log.append(change)
        self.oracle.completed(name, entry.version if entry else None)
        self.oracle.published(EPOCH, change)

    @rule(back=st.integers(-2, 4), length=st.integers(0, 5), rng=st.randoms(use_true_random=False))
    def message(self, back: int, length: int, rng: random.Random) -> None:
        """Some of it known already, a hole before it, or its changes out of order."""
        begin = max(0, self.memory.sequence - back)
        changes = self.log[begin : begin + length]
        if rng.random() < 0.2:
            rng.shuffle(changes)
        for store in (self.memory, self.lmdb):
            self.runner.run(store.apply(accept(store.sequence, changes).changes))

    @rule(back=st.integers(0, 6), late=st.integers(0, 6))
    def snapshot(self, back: int, late: int) -> None:
        """It begins `late` changes before the end of the log; half of the names are read then,
        the others now. `back` is of a loading that breaks off before."""
        start = max(0, len(self.log) - late)
        then = [r for r in self.records(start) if r.name in NAMES[:3]]
        now = [r for r in self.records(len(self.log)) if r.name in NAMES[3:]]
        for store in (self.memory, self.lmdb):
            self.runner.run(store.begin_load())
            self.runner.run(store.load(self.records(max(0, start - back))))
            self.runner.run(store.begin_load())
            self.runner.run(store.load(then))
            self.runner.run(store.load(now))
            self.runner.run(store.adopt(EPOCH, LogSequence(start), buckets=["b"]))
        self.complete_at = LogSequence(len(self.log))
        for who in ("memory", "lmdb"):
            self.oracle.replica_lost(who)

    @rule()
    def restart(self) -> None:
        self.runner.run(self.lmdb.close())
        self.lmdb = self.runner.run(self.opened())

    @invariant()
    def both_hold_what_the_log_says(self) -> None:
        pages = []
        for who, store in (("memory", self.memory), ("lmdb", self.lmdb)):
            page = store.scan("b", limit=100)
            pages.append(page)
            assert [r.name.key for r in page] == sorted(r.name.key for r in page)
            assert [store.get(name) for name in NAMES if store.get(name)] == [
                r for name in NAMES for r in page if r.name == name
            ]
            if store.sequence >= self.complete_at:
                held = {r.name: r.entry.version for r in page}
                self.oracle.replica(who, EPOCH, store.sequence, held)
        assert pages[0] == pages[1]
        assert self.memory.sequence == self.lmdb.sequence


Replicas.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestReplicas = Replicas.TestCase
