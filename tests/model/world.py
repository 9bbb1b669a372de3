"""One hub, two spokes and a network that delays, drops, repeats and reorders, without any I/O.

The parts are the product's own pure machines and its stores in memory; `Parts` lets a test put a
broken one in. What the shells do between them is written out here as plainly as possible; every
step ends with `check`, which shows the oracle all that anybody could read at that moment.
"""

import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.hub import Effect, Enter, HubCore, Proceed, Publish, Recall, Withdraw
from hubspoke.core.ids import Change, Epoch, LogSequence, ObjectEntry, ObjectName, Version
from hubspoke.core.leases import Grant, HubLeases, LeaseConfig, SpokeLease
from hubspoke.core.namespace import (
    Accepted,
    Incarnation,
    NamespaceRecord,
    PageSpan,
    accept,
    resume_refusal,
    shared_history,
)
from hubspoke.core.read_index import History
from tests.model.oracle import Content, Oracle

NAMES = (ObjectName("b", "a"), ObjectName("b", "b"), ObjectName("c", "a"))
PAGES = (PageSpan("b", "", "", None), PageSpan("b", "", "", "a"), PageSpan("b", "", "a", None))
LOG_KEPT = 6  # so short that a spoke which missed a few changes needs a snapshot
CONFIG = LeaseConfig()
START = LogSequence(0)
T = TypeVar("T")


def done(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as e:
        result: T = e.value
        return result
    raise AssertionError("it waits")


@dataclass(frozen=True)
class Parts:
    """What the world is built of."""

    hub_core: type[HubCore] = HubCore
    hub_leases: type[HubLeases] = HubLeases
    spoke_lease: type[SpokeLease] = SpokeLease
    replica: type[MemoryNamespace] = MemoryNamespace
    accept: Callable[[LogSequence, Sequence[Change]], Accepted] = accept
    config: LeaseConfig = CONFIG
    waits_after_restart: bool = True


@dataclass
class Message:
    """For a spoke's feed: revocations, or changes with the revocations that end with them."""

    connection: int
    revocations: tuple[tuple[int, ObjectName], ...] = ()
    changes: tuple[Change, ...] = ()
    ended: tuple[int, ...] = ()


@dataclass
class Spoke:
    name: str
    rate: float  # its clock against the hub's
    rtt_s: float
    lease: SpokeLease
    replica: MemoryNamespace
    life: int = 0
    consistent_at: LogSequence = START
    incarnation: str = ""  # of the hub whose log the replica continues
    snapshot: tuple[History, Epoch, LogSequence] | None = None  # being loaded, beside the replica
    connection: int = 0  # 0: no feed
    feed: list[Message] = field(default_factory=list)

    @property
    def history(self) -> History:
        return History(self.replica.epoch, self.incarnation)

    @property
    def complete(self) -> bool:
        return self.replica.epoch is not None and self.replica.sequence >= self.consistent_at


@dataclass(frozen=True)
class Request:
    spoke: Spoke
    life: int
    sent_at: float
    history: History
    acks: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    request: Request
    history: History  # of the hub
    grant: Grant
    required: LogSequence


class World:
    """Each method is one event. now: seconds of the hub's clock."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.now = 100.0
        self.oracle = Oracle()
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.versions = itertools.count(1)
        self.connections = itertools.count(1)
        self.ids_begin = 1
        self.term_noted = 0.0
        rates = ((1.0, 0.0), (0.985, 0.7))
        self.spokes = [
            Spoke(
                f"spoke {i}", rate, rtt_s, parts.spoke_lease(parts.config),
                parts.replica(keep_log=False),
            )
            for i, (rate, rtt_s) in enumerate(rates)
        ]  # fmt: skip
        self.new_epoch()

    def local(self, spoke: Spoke) -> float:
        return 1000.0 + self.now * spoke.rate

    # The hub -----------------------------------------------------------------------------------

    def new_epoch(self) -> None:
        """The hub's state is lost: it indexes its store again."""
        self.epoch = Epoch(f"e{self.ids_begin}")
        self.oracle.epoch_began(self.epoch)
        self.base = [
            NamespaceRecord(name, entry_of(version), LogSequence(0))
            for name, version in self.oracle.store().items()
        ]
        self.log: list[Change] = []  # published
        self.lives: list[Incarnation] = []
        self.start_hub(former_term_s=self.parts.config.term_max_s)

    def start_hub(self, *, former_term_s: float) -> None:
        parts = self.parts
        life = Incarnation(f"{self.epoch} {self.ids_begin}", LogSequence(len(self.log)))
        self.lives.append(life)
        self.history = History(self.epoch, life.id)
        self.hub = MemoryNamespace(keep_log=True, log_entries_max=LOG_KEPT)
        done(self.hub.load(self.base))
        done(self.hub.adopt(self.epoch, LogSequence(0), buckets=[]))
        done(self.hub.apply(self.log))
        self.core = parts.hub_core(
            epoch=self.epoch,
            sequence=LogSequence(len(self.log)),
            leases=parts.hub_leases(
                parts.config,
                now=self.now,
                former_term_s=former_term_s if parts.waits_after_restart else 0.0,
                through=self.ids_begin - 1,
            ),
            first_change_id=self.ids_begin,
        )
        self.waiting: dict[int, ObjectName] = {}
        self.entered: dict[int, ObjectName] = {}
        self.revoked: dict[int, ObjectName] = {}
        self.proceeding: dict[int, ObjectName] = {}
        self.numbered: dict[LogSequence, tuple[int, Change]] = {}

    def crash(self, *, came_about: bool, state_lost: bool) -> None:
        """kill -9. came_about: changes that might just have reached the store have."""
        numbered = [change for _, change in self.numbered.values()]
        under_way = dict(self.proceeding) if came_about else {}
        for name in under_way.values():
            self.oracle.completed(name, self.new_version())
        self.ids_begin += 1000
        for spoke in self.spokes:
            self.cut(spoke)
        if state_lost:
            self.new_epoch()
            return
        # Settled from the store before anybody is answered.
        held = self.oracle.store()
        settled = [change.name for change in numbered] + list(under_way.values())
        for name in dict.fromkeys(settled):
            version = held.get(name)
            sequence = LogSequence(len(self.log) + 1)
            change = Change(sequence, name, entry_of(version) if version else None)
            self.log.append(change)
            self.oracle.published(self.epoch, change)
        self.start_hub(former_term_s=self.term_noted)

    def new_version(self) -> Version:
        return Version(f"v{next(self.versions)}")

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Enter(change_id):
                    self.entered[change_id] = self.waiting.pop(change_id)
                case Recall(revocation_id, name):
                    self.tell(revocations=((revocation_id, name),))
                case Proceed(change_id):
                    self.proceeding[change_id] = self.revoked.pop(change_id)
                case Publish(change, revocation_id):
                    self.log.append(change)
                    self.oracle.published(self.epoch, change)
                    self.tell(changes=(change,), ended=(revocation_id,))
                case Withdraw(revocation_id):
                    self.tell(ended=(revocation_id,))

    def tell(self, **content: Any) -> None:
        for spoke in self.spokes:
            if spoke.connection:
                spoke.feed.append(Message(spoke.connection, **content))

    def tick(self) -> None:
        self.carry_out(self.core.tick(now=self.now))

    def enter(self, name: ObjectName) -> None:
        change_id, effects = self.core.enter(name)
        self.waiting[change_id] = name
        self.carry_out(effects)

    def revoke(self, change_id: int) -> None:
        self.revoked[change_id] = self.entered.pop(change_id)
        self.carry_out(self.core.revoke(change_id, now=self.now))

    def complete(self, change_id: int, *, gone: bool) -> LogSequence:
        name = self.proceeding.pop(change_id)
        version = None if gone else self.new_version()
        self.oracle.completed(name, version)
        change = self.core.completed(change_id, entry_of(version) if version else None)
        done(self.hub.apply([change]))
        self.numbered[change.sequence] = (change_id, change)
        return change.sequence

    def durable(self, sequence: LogSequence) -> None:
        del self.numbered[sequence]
        self.carry_out(self.core.durable(sequence))

    def leave(self, change_id: int) -> None:
        for group in (self.waiting, self.entered, self.revoked, self.proceeding):
            group.pop(change_id, None)
        self.carry_out(self.core.leave(change_id))

    # Lease rounds ------------------------------------------------------------------------------

    def send_request(self, spoke: Spoke) -> None:
        if spoke.replica.epoch is not None and spoke.snapshot is None:
            sent_at, acks = self.local(spoke), tuple(spoke.lease.acks())
            self.requests.append(Request(spoke, spoke.life, sent_at, spoke.history, acks))

    def answer(self, request: Request) -> None:
        if request.history.epoch != self.epoch:
            return
        rtt_s = request.spoke.rtt_s
        self.term_noted = max(self.term_noted, self.parts.config.term_for(rtt_s))
        grant, required, effects = self.core.lease(
            now=self.now, spoke=request.spoke.name, acked=list(request.acks), rtt_s=rtt_s
        )
        self.replies.append(Reply(request, self.history, grant, required))
        self.carry_out(effects)

    def take_reply(self, reply: Reply) -> None:
        spoke, request = reply.request.spoke, reply.request
        if request.life == spoke.life and request.history == spoke.history == reply.history:
            spoke.lease.replied(
                sent_at=request.sent_at,
                grant=reply.grant,
                required=reply.required,
                applied=spoke.replica.sequence,
                now=self.local(spoke),
            )

    # A spoke -----------------------------------------------------------------------------------

    def cut(self, spoke: Spoke) -> None:
        spoke.connection = 0
        spoke.feed.clear()

    def resume(self, spoke: Spoke) -> None:
        """A new feed; where the log does not reach, a snapshot begins."""
        self.cut(spoke)
        applied = spoke.replica.sequence
        changes = self.hub.changes_after(applied, 1000)
        refusal = resume_refusal(
            replica_epoch=spoke.replica.epoch,
            applied=applied,
            hub_epoch=self.epoch,
            shared=shared_history(self.lives, spoke.incarnation, self.core.published),
            log_reaches=changes is not None,
        )
        if refusal is not None:
            self.begin_snapshot(spoke)
            return
        spoke.connection = next(self.connections)
        spoke.incarnation = self.history.incarnation
        published = tuple(c for c in changes or () if c.sequence <= self.core.published)
        spoke.feed.append(Message(spoke.connection, changes=published))
        spoke.feed.append(Message(spoke.connection, revocations=self.core.under_way()))

    def begin_snapshot(self, spoke: Spoke) -> None:
        spoke.snapshot = (self.history, self.epoch, self.core.published)
        spoke.lease.lose()
        done(spoke.replica.begin_load())
        done(spoke.replica.load(self.hub.scan("b", limit=1000)))

    def end_snapshot(self, spoke: Spoke) -> None:
        assert spoke.snapshot is not None
        (history, epoch, sequence), spoke.snapshot = spoke.snapshot, None
        if history != self.history or self.core.published < self.core.assigned:
            return  # it broke off, or would wait for what is not yet durable
        done(spoke.replica.load(self.hub.scan("c", limit=1000)))
        spoke.lease.forget(now=self.local(spoke))
        self.oracle.replica_lost(spoke.name)
        spoke.consistent_at, spoke.incarnation = self.core.assigned, history.incarnation
        done(spoke.replica.adopt(epoch, sequence, buckets=[]))
        self.resume(spoke)

    def take_message(self, spoke: Spoke, message: Message) -> None:
        if message.connection != spoke.connection:
            return
        for revocation_id, name in message.revocations:
            spoke.lease.revoke(revocation_id, name, now=self.local(spoke))
        accepted = self.parts.accept(spoke.replica.sequence, message.changes)
        done(spoke.replica.apply(accepted.changes))
        if accepted.gap:
            self.cut(spoke)
        else:
            spoke.lease.ended(message.ended)
        spoke.lease.advance(applied=spoke.replica.sequence, now=self.local(spoke))

    def restart_spoke(self, spoke: Spoke) -> None:
        self.cut(spoke)
        spoke.life += 1
        spoke.snapshot = None
        spoke.lease = self.parts.spoke_lease(self.parts.config)

    # What anybody could see now ----------------------------------------------------------------

    def check(self) -> None:
        for name in NAMES:
            if not self.core.blocked(name):
                self.oracle.read("hub", name, content(self.hub).get(name))
        for spoke in self.spokes:
            if not spoke.complete:
                continue
            held, applied = content(spoke.replica), spoke.replica.sequence
            assert spoke.replica.epoch is not None
            self.oracle.replica(spoke.name, spoke.replica.epoch, applied, held)
            if spoke.lease.state(now=self.local(spoke), applied=applied) != "valid":
                continue
            for name in NAMES:
                if not spoke.lease.is_revoked(name):
                    self.oracle.read(spoke.name, name, held.get(name))
            for page in PAGES:
                if not spoke.lease.revoked_of(page.covers):
                    covered = [name for name in NAMES if page.covers(name)]
                    self.oracle.listed(spoke.name, covered, held)
        wait = self.core.next_tick()
        longest = self.parts.config.term_max_s + self.parts.config.margin_s
        assert wait is None or wait <= self.now + longest + 1e-6, "a change waits too long"


def entry_of(version: str) -> ObjectEntry:
    return ObjectEntry(Version(version), 1, "", 0)


def content(store: MemoryNamespace) -> Content:
    return {r.name: r.entry.version for bucket in "bc" for r in store.scan(bucket, limit=1000)}
