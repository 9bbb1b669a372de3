"""One large object that may be a token file: its last reads, and the course they follow.

    reads here and there -> asked about at 64, 256, 1,024 of them -> a course -> followed
      ^                     (then once a day)                          |
      +------------------------- reads went elsewhere -----------------+

Of a .bin file orders of samples that were seen are tried here, a stretch at a time; whatever has
to be computed is asked of whoever searches. What was followed once is looked for again and again.
"""

from collections import deque
from collections.abc import Callable, Generator
from itertools import islice
from typing import Protocol

import numpy as np

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.records import lattice
from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.inference.documents import Documents, FoundSamples
from hubspoke.core.inference.question import Answer, Request
from hubspoke.core.inference.windows import FoundWindows, Stream, Windows
from hubspoke.core.orders.megatron import Index
from hubspoke.core.orders.nanogpt import TOKEN_BYTES
from hubspoke.core.streams import Access
from hubspoke.core.tokens.course import window_course
from hubspoke.core.tokens.follow import Follow
from hubspoke.core.tokens.future import Course
from hubspoke.core.tokens.indexes import Indexes
from hubspoke.core.tokens.samples import Located, SampleCourse, Samples, locate

ASK_AT = (64, 256, 1_024)
THOROUGH_AT = 1_024
AGAIN_S = 86_400.0  # without success
KEPT = 2**14  # reads: a search of 8 s at 2,000 a second
LOCATED_BY = 256  # the last reads
ALIKE = 0.9  # of the last reads are of one length
AGAIN_READS = 256  # at least, within which a read is of the same draw
TARGETS_PART = 0.5  # of all windows: then each has its targets
APART_PART = 64  # reads here and there are farther apart than this part of the object
APART_SHARE = 0.75
STREAMS_MAX = 256
BLOCK_MIN = 8  # tokens: shorter ones are nobody's

Locating = Generator[None, None, Located | None]


def _last(of: deque[int], most: int) -> list[int]:
    """The last ones, in order: a deque is long."""
    return list(islice(reversed(of), most))[::-1]


class Asker(Protocol):
    """core.inference.inference.Inference."""

    def ask(
        self, request: Callable[[int], Request], told: Callable[[Answer, float], None]
    ) -> int: ...

    def cancel(self, number: int) -> None: ...


class TokenFile:
    """room: whether there is memory to follow one more file."""

    def __init__(
        self,
        obj: CachedObject,
        cache: Cache,
        indexes: Indexes,
        inference: Asker,
        room: Callable[[], bool],
    ) -> None:
        self.obj = obj
        self.follow: Follow | None = None
        self.says = "too few reads"
        self.last_at = float("-inf")
        self._cache = cache
        self._indexes = indexes
        self._inference = inference
        self._room = room
        self._offsets: deque[int] = deque(maxlen=KEPT)
        self._lengths: deque[int] = deque(maxlen=KEPT)
        self._reads = 0  # since the file was read first, or a course was lost
        self._targets = 0  # reads beside those, of targets of windows
        self._latest: dict[int, int] = {}  # lengths of the last reads, by offset
        self._before: dict[int, int] = {}
        self._pending = 0  # the number of what is asked
        self._asked = 0
        self._changes = 0  # of the indexes, when they were looked at
        self._thorough_at = float("-inf")
        self._streams: dict[int, Stream] = {}  # that were followed, by seed
        self._orders: list[tuple[str, Samples]] = []  # that are to be tried
        self._followed: tuple[str, Samples] | None = None  # the last one that was
        self._locating: tuple[str, Samples, Locating] | None = None

    @property
    def looked_at(self) -> bool:
        """Whether an order was looked for, or is followed."""
        return bool(self._asked) or self.follow is not None

    @property
    def looks(self) -> bool:
        """Whether an order is looked for just now, or followed."""
        return bool(self._pending) or self.busy

    @property
    def busy(self) -> bool:
        """Whether `propose` has something to do."""
        return self.follow is not None or self._locating is not None

    def read(self, accesses: list[Access], now: float) -> None:
        """Reads of the object, in order of time."""
        self.last_at = now
        follow = self.follow
        for a in accesses:
            if self._again(a.offset, a.length):
                continue
            self._offsets.append(a.offset)
            self._lengths.append(a.length)
            self._reads += 1
            if follow is not None:
                follow.read(a)
        if follow is not None:
            follow.judge()
            if follow.lost:
                self.says = f"reads left the order of {follow.family}"
                self._remember(follow.streams)
                self._forget()
            elif follow.streams and not self._pending and follow.drifts():
                self._drift(follow)
        elif not self._pending and self._locating is None:
            self._seek(now)

    def _again(self, offset: int, length: int) -> bool:
        """Whether nothing was drawn for a read: it is asked for once more, or is what a window's
        tokens are compared with, from the next token on. Pages say nothing: several fragments or
        windows have some in common."""
        if offset % PAGE_BYTES == 0:
            return False
        latest, before = self._latest, self._before
        if length in (latest.get(offset), before.get(offset)):
            return True
        if len(latest) >= AGAIN_READS:
            self._latest, self._before = latest, before = {}, latest
        latest[offset] = length
        window = offset - TOKEN_BYTES
        if length in (latest.get(window), before.get(window)):
            self._targets += 1
            return True
        return False

    def _remember(self, streams: tuple[Stream, ...]) -> None:
        for stream in streams:
            self._streams[stream.seed] = stream
        while len(self._streams) > STREAMS_MAX:
            del self._streams[next(iter(self._streams))]

    def _forget(self) -> None:
        self.follow = None
        self._offsets.clear()
        self._lengths.clear()
        self._reads = self._asked = self._targets = 0

    def _drift(self, follow: Follow) -> None:
        """Some ranks are elsewhere in their streams: look for all of them once more, and go on
        meanwhile."""
        self._remember(follow.streams)
        length = self._one_length()
        if length is not None:
            self._ask_windows(length, thorough=False, only_likely=True)

    def end(self) -> None:
        """It is not looked at any more."""
        if self._pending:
            self._inference.cancel(self._pending)
        if self.follow is not None:
            self.follow.release()

    # -- which course ---------------------------------------------------------------------------

    def _seek(self, now: float) -> None:
        ready = max((n for n in ASK_AT if n <= self._reads), default=0)
        again = bool(self._streams) or self._followed is not None
        if again and ready == ASK_AT[-1]:
            ready = self._reads // ready * ready
        if ready and self._changes != self._indexes.changes:
            self._asked = min(self._asked, ready - 1)
        if ready <= self._asked:
            return
        self._asked, self._changes = ready, self._indexes.changes
        if not self._scattered():
            self.says = "reads are not here and there"
            self._reads = self._asked = 0  # looked at again after as many
            return
        if self.obj.name.key.endswith(".bin"):
            self._indexes.fetch(self.obj)
        self._orders = self._indexes.orders(self.obj)
        if self._followed is not None:
            self._orders.insert(0, self._followed)
        if not self._next_order():
            self._search(now)

    def _search(self, now: float) -> None:
        """Ask for what has to be computed."""
        thorough = self._asked >= THOROUGH_AT and now - self._thorough_at >= AGAIN_S
        index, length = self._indexes.documents(self.obj), self._one_length()
        if length is not None and self.obj.size % TOKEN_BYTES == 0:
            self._ask_windows(length, thorough=thorough)
        elif index is not None and self._asked <= THOROUGH_AT:
            self._ask_documents(index, thorough=thorough)
        if self._pending and thorough:
            self._thorough_at = now

    def _scattered(self) -> bool:
        last = np.array(_last(self._offsets, ASK_AT[0]), np.int64)
        apart = np.abs(np.diff(last)) > self.obj.size // APART_PART
        return bool(apart.mean() > APART_SHARE)

    def _begin(self, course: Course, family: str, why: str, now: float) -> None:
        if self.follow is None and not self._room():
            self.says = f"the order of {family} is known, but as many files as may be are followed"
            return
        self.follow = Follow(self.obj, course, self._cache, family, why, now)
        self._reads = self._asked = 0

    # -- nanoGPT ----------------------------------------------------------------------------------

    def _one_length(self) -> int | None:
        """If all reads are windows of so many bytes, and no records."""
        lengths = _last(self._lengths, ASK_AT[0])
        length = max(set(lengths), key=lengths.count)
        odd = length % TOKEN_BYTES or length < TOKEN_BYTES * (BLOCK_MIN + 1)
        if odd or lengths.count(length) < ALIKE * len(lengths):
            return None
        last = _last(self._offsets, ASK_AT[0])
        offsets = np.array(last, np.int64)
        if (offsets % TOKEN_BYTES).any() or not (offsets % length).any():
            return None
        # Windows overlap; rows with a header in front of them do not.
        return None if lattice(last, length, int(ALIKE * len(last))) else length

    def _ask_windows(self, length: int, *, thorough: bool, only_likely: bool = False) -> None:
        """A window is read with the token that follows its last one, or its targets are read by
        themselves."""
        if self._targets > TARGETS_PART * self._reads:
            length += TOKEN_BYTES
        span = self.obj.size // TOKEN_BYTES - (length // TOKEN_BYTES - 1)
        if span < BLOCK_MIN:
            return
        starts = np.unique(np.array(_last(self._offsets, ASK_AT[-1]), np.int64) // TOKEN_BYTES)
        asked_at = max(0, self._reads - ASK_AT[-1])

        def told(answer: Answer, now: float) -> None:
            self._pending = 0
            if not isinstance(answer, FoundWindows):
                self.says = f"no stream of nanoGPT's draws the {len(starts)} places read"
                return
            since = self._reads - asked_at
            course = window_course(answer, span, list(self._offsets), since, length)
            if course is None:
                self.says = f"{len(answer.streams)} streams of nanoGPT's do not draw all reads"
                return
            seeds = ", ".join(str(stream.seed) for stream in answer.streams)
            odds = round(answer.log_p / np.log(10))
            self._begin(course, "nanoGPT", f"seeds {seeds}; by chance 1e{odds}", now)

        self.says = "the likely streams of nanoGPT are gone through"
        likely = tuple(self._streams.values())
        only = only_likely or self._asked > ASK_AT[-1]
        self._pending = self._inference.ask(
            lambda n: Windows(n, span, starts, thorough, likely, only), told
        )

    # -- Megatron ---------------------------------------------------------------------------------

    def _last_reads(self) -> list[tuple[int, int]]:
        both = _last(self._offsets, LOCATED_BY), _last(self._lengths, LOCATED_BY)
        return list(zip(*both, strict=True))

    def _next_order(self) -> bool:
        """Look for the last reads in the next order; returns whether there is one."""
        if not self._orders:
            return False
        why, samples = self._orders.pop(0)
        self.says = f"reads are looked for in the order of samples of {why}"
        self._locating = why, samples, locate(samples, self._last_reads(), len(self.obj.pages))
        return True

    def _locate(self, now: float) -> None:
        """Look at one more stretch."""
        assert self._locating is not None
        why, samples, steps = self._locating
        try:
            next(steps)
        except StopIteration as end:
            self._locating = None
            located: Located | None = end.value
            if located is not None:
                self._begin_at(located, why, samples, now)
            elif not self._next_order():
                self.says = "reads are in no order of samples that was seen"
                self._search(now)

    def _begin_at(self, located: Located, why: str, samples: Samples, now: float) -> None:
        self._followed = why, samples
        odds = round(located.log_p / np.log(10))
        told = f"{why}; by chance 1e{odds}, from sample {located.place:,} of {samples.count:,}"
        reads = self._last_reads()
        self._begin(SampleCourse(samples, located.place), "Megatron-LM", told, now)
        if self.follow is not None:
            self.follow.replay(reads)

    def _ask_documents(self, index: Index, *, thorough: bool) -> None:
        ends = index.pointers + index.lengths.astype(np.int64) * index.token_bytes
        if not len(ends) or index.pointers[0] or (index.pointers[1:] != ends[:-1]).any():
            self.says = "the documents of the index do not lie one behind the other"
            return
        if int(ends[-1]) > self.obj.size:
            self.says = "the index is of a longer file"
            return
        reads = np.array(self._last_reads(), np.int64)
        pages = len(self.obj.pages)

        def told(answer: Answer, now: float) -> None:
            self._pending = 0
            if not isinstance(answer, FoundSamples):
                self.says = f"no likely order of Megatron-LM's has the last {len(reads)} reads"
                return
            samples = Samples(index, answer.documents, answer.starts, answer.order)
            self._orders = [(answer.why, samples)] if samples.valid(self.obj.size) else []
            self._next_order()

        self.says = "the likely orders of Megatron-LM are tried"
        self._pending = self._inference.ask(
            lambda number: Documents(
                number, index.token_bytes, index.lengths, reads[:, 0], reads[:, 1], pages, thorough
            ),
            told,
        )

    # -- what comes -----------------------------------------------------------------------------

    def propose(self, now: float, ahead_s: float, *, given_up: bool) -> list[Candidate]:
        """What is read within `ahead_s`, exactly."""
        if self._locating is not None:
            self._locate(now)
        if self.follow is None:
            return []
        if not self.follow.victims.followed:  # the folder was not read for long
            self.follow.release()
            self._forget()
            return []
        self.follow.extend()
        return self.follow.propose(now, ahead_s, given_up=given_up)
