"""The spoke's shell: waits, transfers and disk, around SpokeCore.

A read takes three short steps: what is its state (core), fetch what is missing and wait for it,
read the bytes from the cache file. Fetches belong to the service, never to a reader: a reader
that goes away cancels only its own wait.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from hubspoke.adapters.disk_stats import BlockDevice
from hubspoke.adapters.disk_stats import drives as block_devices
from hubspoke.adapters.disk_threads import DiskThreads
from hubspoke.adapters.disks import Disks
from hubspoke.adapters.drive import Drive
from hubspoke.adapters.outcomes_file import OutcomesFile
from hubspoke.core import beliefs
from hubspoke.core.ids import (
    Change,
    ObjectName,
)
from hubspoke.core.inference.question import Answer
from hubspoke.core.ledger import Ledger
from hubspoke.core.namespace import Listed, PageSpan
from hubspoke.core.spoke import SpokeCore
from hubspoke.errors import (
    HubSpokeError,
    NoSuchBucket,
    NoSuchKey,
)
from hubspoke.ports import (
    BlockStore,
    Clock,
    FileSpan,
    HubLink,
    NamespaceStore,
    Ranker,
    ReadResult,
    Resolved,
)
from hubspoke.report.facts import KernelCounters, SpokeFacts
from hubspoke.spoke.facts import FactsCollector
from hubspoke.spoke.filler import Filler
from hubspoke.spoke.follower import Follower
from hubspoke.spoke.hints import HintPosts
from hubspoke.spoke.late_folder import take_in
from hubspoke.spoke.listing import FolderListing
from hubspoke.spoke.looks import Looks
from hubspoke.spoke.order_search import OrderSearch
from hubspoke.spoke.predicting import Predicting
from hubspoke.spoke.reads import SpokeReads
from hubspoke.spoke.recording import Recorders
from hubspoke.spoke.remembered import Remembered
from hubspoke.spoke.tuning import SpokeTuning
from hubspoke.spoke.upkeep import CapacityOf, Upkeep
from hubspoke.spoke.warm import WarmJobs
from hubspoke.spoke.whole import WholeFiles

log = logging.getLogger(__name__)

RESOLVED_KEPT_MAX = 4_096
STREAMS_SHOWN_MAX = 256  # 50 us each, between reads
SETTLE_S = 10.0  # a disk that takes longer is slow, and no reason to wait for
DRIVES_INTERVAL_S = 15.0  # Prometheus' usual interval


class SpokeService:
    """ports.Reader of a spoke. All state is the core's and is touched only on the loop."""

    def __init__(
        self,
        link: HubLink,
        namespace: NamespaceStore,
        blocks: BlockStore | Sequence[Drive],
        clock: Clock,
        ranker: Ranker,
        tuning: SpokeTuning,
        rng: random.Random | None = None,
        capacity_of: CapacityOf | None = None,
        outcomes: OutcomesFile | None = None,
        search: OrderSearch | None = None,
    ) -> None:
        """rng: what retries are spread by; a simulation gives its own. capacity_of: see Upkeep.
        outcomes: where they are kept over restarts. search: for seeds of shuffles, None: none."""
        self.tuning = tuning
        self.ranker = ranker
        self.follower = Follower(
            link,
            namespace,
            clock,
            spoke_id=tuning.spoke_id,
            on_change=self._changed,
            on_reset=self._reset,
            tuning=tuning.follower,
            rng=rng,
        )
        self.link = link
        self.namespace = namespace
        drives = blocks if isinstance(blocks, Sequence) else [Drive(blocks)]
        self.drives: list[BlockDevice] = []
        self.disks = Disks(drives, clock, tuning.health)
        self.clock = clock
        config = tuning.core_config(searching=search is not None)
        self.core = SpokeCore(
            config, ranker.score, FolderListing(namespace), clock.now(), clock.unix_ns()
        )
        self._remembered = Remembered(self.core.prediction.scoring.outcomes, outcomes)
        self.filler = Filler(self.core, link, self.disks, clock, tuning.spoke_id)
        self.core.fills = self.filler.fills
        self._search = search
        self.upkeep = Upkeep(
            self.core, self.filler, tuning.scrub_bytes_per_second, tuning.upkeep_interval_s,
            capacity_of,
        )  # fmt: skip
        self.disks.events.opened = partial(take_in, self.core.cache, self.disks, namespace)
        self.when_loaded: Callable[[], None] = lambda: None  # before anything is dropped
        self._tasks: set[asyncio.Task[None]] = set()
        self._predicting = Predicting(self._predict, clock, tuning.predict_interval_s)
        self.hints = HintPosts(
            self.core.prediction.hints, namespace, self.follower, clock, self._predicting.soon,
            prefetch=tuning.prefetch,
        )  # fmt: skip
        self._looks = Looks(self.core, self.filler, clock, self._predicting.soon)
        self._facts = FactsCollector(self)
        soon, noted = self._predicting.soon, self._facts.read
        self._reads = SpokeReads(
            self.core, self.filler, clock, tuning, predict_soon=soon, noted=noted
        )
        self.begin = self._reads.begin
        self.whole_files = WholeFiles(self.core, self.filler, clock, soon, noted)
        self.warm = WarmJobs(self.core, self.filler, namespace, self.follower, clock, tuning.warm)
        self.recorders = Recorders(
            self.core.accesses, self._facts.of_trace, self._facts.of_path, clock, tuning.recording
        )
        self._resolved: dict[ObjectName, Resolved] = {}  # of the replica at _resolved_at
        self._resolved_at = namespace.sequence
        self.kernel: KernelCounters | None = None

    @property
    def ledger(self) -> Ledger:
        """See SpokeCore.ledger."""
        return self.core.ledger

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the cache's index and follow the hub; returns before the hub was reached."""
        await self.filler.load()
        self.when_loaded()
        # What a smaller cache or a fuller disk has no place for leaves before anything is read.
        await self.upkeep.look()
        await self.disks.written(SETTLE_S)
        await self._remembered.recall(self.clock.now())
        self.warm.open()
        await self.follower.start()
        if self._search is not None:
            self._search.start(self._answered)
        self._spawn(self._connect())
        self._spawn(self._watch_drives())
        self._spawn(self.upkeep.keep_space())
        self._spawn(self.upkeep.scrub())
        self._spawn(self._remembered.keep())
        cache = self.core.cache
        log.info("cache loaded objects=%d bytes=%d", len(cache.objects), cache.used)

    async def close(self) -> None:
        """Stop fetching; what is on disk stays and is found at the next start."""
        self._predicting.close()
        self.hints.look_again(None)
        self.recorders.close()
        await self.warm.close()
        await self.follower.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._looks.close()
        await self._remembered.close()
        if self._search is not None:
            await self._search.close()
        await self.upkeep.close()
        await self.filler.close()
        await self.link.close()
        await self.namespace.close()

    @property
    def memory_bytes(self) -> int:
        """Of the budget for bytes on their way to readers."""
        return self._reads.memory.budget.used

    async def _watch_drives(self) -> None:
        """Keep what the drives tell; a drive that hangs is waited for by a thread of its own."""
        folders = [d.root for d in self.disks.disks if d.root is not None]
        thread = DiskThreads("drives", 1)
        try:
            while folders:
                self.drives = await thread.submit(lambda: block_devices(folders))
                await asyncio.sleep(DRIVES_INTERVAL_S)
        finally:
            await thread.close(0.0)

    def ready(self) -> list[str]:
        """Reasons why this spoke does not serve now; empty when it does."""
        return self.follower.ready()

    def _reset(self) -> None:
        """Another replica, which may stand at the very sequence of the old one."""
        self._resolved.clear()

    def _changed(self, change: Change) -> None:
        """The replica applied a change: cached blocks of other versions are of no use."""
        current = self.core.cache.current(change.name)
        if current is None:
            return
        if change.entry is None or change.entry.version != current.version:
            self.filler.drop(self.core.gone(change.name))
        self.filler.waiters.name_changed(change.name)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        """Open the lanes once the hub answers: the first reads should not pay for that."""
        while True:
            try:
                await self.link.connect()
                return
            except HubSpokeError as e:
                log.debug("lanes not open yet error=%s", e)
                await asyncio.sleep(self.tuning.follower.backoff_max_s)

    # -- names --------------------------------------------------------------------------------

    async def buckets(self) -> list[str]:
        await self.follower.buckets_admitted(self.clock.now() + self.tuning.read_deadline_s)
        return self.namespace.buckets()

    async def resolve(self, name: ObjectName) -> Resolved:
        """See ports.Reader."""
        deadline = self.clock.now() + self.tuning.read_deadline_s
        staleness = await self.follower.admitted(name, deadline)
        record = self.namespace.get(name)
        if record is None:
            self.follower.absent(name)
            if name.bucket not in self.namespace.buckets():
                raise NoSuchBucket(f"{name.bucket}: no such bucket")
            raise NoSuchKey(f"{name}: no such object")
        return Resolved(name, record.entry, staleness)

    async def list_page(self, bucket: str, *, prefix: str, after: str, limit: int) -> list[Listed]:
        """See ports.Reader. A page under revocation waits until the change is applied."""
        deadline = self.clock.now() + self.tuning.read_deadline_s
        span = PageSpan(bucket, prefix, after, after)  # nothing yet but the bucket
        while True:
            leased = await self.follower.page_admitted(span, deadline)
            if bucket not in self.namespace.buckets():
                raise NoSuchBucket(f"{bucket}: no such bucket")
            page = self.namespace.listed(bucket, prefix=prefix, after=after, limit=limit)
            last = page[-1][0] if len(page) == limit else None
            span = PageSpan(bucket, prefix, after, last)
            # Not whether the lease is valid by now: the page was read under that of the admission.
            if not leased or not self.follower.revoked(span):
                return page

    def staleness_s(self) -> float | None:
        """See ports.Reader."""
        return self.follower.staleness_s()

    def resolve_now(self, name: ObjectName, *, keep: bool = True) -> Resolved | None:
        """See ports.DirectReader. Under a valid lease only."""
        sequence = self.namespace.sequence
        if sequence != self._resolved_at:
            self._resolved.clear()
            self._resolved_at = sequence
        if not self.follower.current(name):
            return None
        resolved = self._resolved.get(name)
        if resolved is None:
            record = self.namespace.get(name)
            if record is None:
                return None
            resolved = Resolved(name, record.entry)
            if keep:
                if len(self._resolved) >= RESOLVED_KEPT_MAX:
                    del self._resolved[next(iter(self._resolved))]
                self._resolved[name] = resolved
        return resolved

    # -- reads --------------------------------------------------------------------------------

    async def read(self, resolved: Resolved, offset: int, length: int, client: str) -> ReadResult:
        """See ports.Reader."""
        return await self._reads.read(resolved, offset, length, client)

    def read_now(
        self, resolved: Resolved, offset: int, length: int, client: str
    ) -> bytes | FileSpan | None:
        """See ports.DirectReader."""
        return self._reads.read_now(resolved, offset, length, client)

    def copy_now(self, resolved: Resolved, offset: int, buffer: memoryview, client: str) -> bool:
        """A hit that waits for no disk, into a buffer of its length; False: there is none."""
        return self._reads.copy_now(resolved, offset, buffer, client)

    def serves(self, resolved: Resolved) -> bool:
        """Whether `read` of this version can succeed: it is cached, or still the name's."""
        cached = self.core.cache.current(resolved.name)
        if cached is not None and cached.version == resolved.entry.version:
            return True
        record = self.namespace.get(resolved.name)
        return record is not None and record.entry.version == resolved.entry.version

    def cached_bytes(self, resolved: Resolved) -> int:
        """How many bytes of this version are on the drives."""
        cached = self.core.cache.current(resolved.name)
        same = cached is not None and cached.version == resolved.entry.version
        return cached.local_bytes() if cached is not None and same else 0

    # -- prediction ---------------------------------------------------------------------------

    @contextmanager
    def batch(self, client: str) -> Iterator[None]:
        """What this client begins to read inside is asked for and predicted from as a whole."""
        try:
            with self.core.accesses.batch(client):
                yield
        finally:
            self.filler.deal()
            self._predicting.soon(self.clock.now())

    def _predict(self, now: float) -> None:
        rtt = self.follower.rtt_s()
        if rtt is not None:
            self.core.path.round_trip(rtt)
        self.filler.drop(self.core.predict(now))
        self._looks.look()
        self.filler.dispatch_unheld()
        if self._search is not None:
            self._search.serve(self.core.prediction.inference)
        self.hints.look_again(self.core.next_look(self.clock.now()))

    def _answered(self, number: int, answer: Answer) -> None:
        self.core.prediction.inference.answered(number, answer, self.clock.now())
        self._predicting.soon(self.clock.now())

    # -- what is told about it ----------------------------------------------------------------

    def streams(self) -> list[dict[str, Any]]:
        """What is believed about each stream, newest first, for /v1/streams."""
        return beliefs.streams(self.core.prediction, STREAMS_SHOWN_MAX)

    def data_sets(self) -> list[dict[str, Any]]:
        """The same of each data set that is read by items."""
        return beliefs.data_sets(self.core.prediction)

    def token_files(self) -> list[dict[str, Any]]:
        """The same of each token file that is read at computed places."""
        return beliefs.token_files(self.core.prediction)

    def model(self) -> dict[str, Any]:
        """The ranker, what it saw last of each stream, and what became of its kind."""
        return self.core.prediction.scoring.describe(self.ranker.name)

    async def facts(self) -> SpokeFacts:
        return await self._facts.collect()

    def kernel_counters(self) -> KernelCounters:
        """There is a mount: what it counts is shown from now on."""
        self.kernel = self.kernel or KernelCounters()
        return self.kernel

    def reset_stats(self) -> None:
        """Start the counters of report and metrics anew; the cache stays as it is."""
        self._facts.reset()
        if self.kernel is not None:
            self.kernel.reset()
        self.core.reset_stats(self.clock.now(), self.clock.unix_ns())
