"""Sends the order of a sampler to the spoke ahead of use.

    sampler --draw ahead--> [ indices ] --one by one--> the loader
                                 |
                                 +--> a thread: locate, POST /v1/hints --> spoke

The order that the loader gets is the sampler's own; only when it is drawn differs, so a sampler
that shares a random generator with the model should have one of its own. What the loader took
before it could be sent is left out. Whatever goes wrong with the spoke, the loader waits for no
more than its first answer, and not for long.
"""

import contextlib
import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from hubspoke.frontends.torch.admin_port import AdminPort, checked, rank, worker

T = TypeVar("T")
Place = str | tuple[str, int, int]  # "BUCKET/KEY", or that with offset and length
Locate = Callable[[Any], Place | Sequence[Place]]

AHEAD = 262_144  # indices or batches drawn ahead of the loader
FIRST_POST, POST = 256, 2_048  # reads
POST_BYTES_MAX = 512 << 10
NEXT_EPOCH = 1_024  # of the next epoch, sent behind this one
WINDOW = 16_384
# That a loader's first index waits for the first post: later would be too late for its first reads.
BEGIN_S = 0.25
RETRY_S, RETRIES_MAX = 1.0, 3_600


def hinted(
    order: Iterable[T],
    locate: Locate,
    *,
    spoke: str | None = None,
    job: str = "torch",
    next_epoch: Callable[[], Iterable[T]] | None = None,
    ahead: int = AHEAD,
    window: int = WINDOW,
) -> "HintedOrder[T]":
    """The order (a Sampler, a BatchSampler, any iterable of what an IterableDataset reads), sent to
    the spoke ahead of use.

    locate: of an index, "BUCKET/KEY" or (that, offset, length), or a list of these; called in a
    thread. spoke: URL of the admin port; None: HUBSPOKE_ADMIN_URL, or port 8081 of this host. job:
    the plan's name at the spoke, to which rank and worker are added. next_epoch: the order after
    this one, if it is known; of samplers with a seed and `set_epoch` it is. ahead: how much is
    drawn before the loader asks for it. window: see POST /v1/hints. Raises ValueError.
    """
    AdminPort(spoke)
    checked(job)
    if ahead < 1:
        raise ValueError(f"ahead={ahead}: at least 1")
    return HintedOrder(order, locate, spoke, job, next_epoch, ahead, window)


class HintedOrder(Generic[T]):
    """In a sampler's place; whatever else is asked of it is the sampler's."""

    def __init__(
        self,
        order: Iterable[T],
        locate: Locate,
        spoke: str | None,
        job: str,
        next_epoch: Callable[[], Iterable[T]] | None,
        ahead: int,
        window: int,
    ) -> None:
        self._order = order
        self._locate = locate
        self._spoke, self._job, self._window = spoke, job, window
        self._next_epoch, self._ahead = next_epoch, ahead

    def __iter__(self) -> Iterator[T]:
        part = worker()
        job = f"{self._job}-rank{rank()}" + ("" if part is None else f"-worker{part}")
        sender = _Sender(
            AdminPort(self._spoke, "hints"), job, self._locate, self._window, self._ahead
        )
        source = iter(self._order)
        drawn = deque(islice(source, self._ahead))
        sender.send(drawn)
        if drawn:
            sender.begun.wait(BEGIN_S)
        whole = False
        try:
            while drawn:
                index = drawn.popleft()
                if not whole:
                    more = list(islice(source, 1))
                    drawn.extend(more)
                    sender.send(more)
                    whole = not more
                    if whole:
                        sender.whole(self._following())
                sender.took()
                yield index
        finally:
            sender.end(drop=bool(drawn))

    def _following(self) -> Iterable[T]:
        """The first part of the next epoch, as far as it is known."""
        with contextlib.suppress(Exception):  # a guess at somebody else's sampler
            if self._next_epoch is not None:
                return list(islice(self._next_epoch(), NEXT_EPOCH))
            order: Any = self._order
            if all(hasattr(order, name) for name in ("seed", "epoch", "set_epoch")):
                clone = copy.copy(order)
                clone.set_epoch(order.epoch + 1)
                return list(islice(clone, NEXT_EPOCH))
        return ()

    def __len__(self) -> int:
        return len(self._order)  # type: ignore[arg-type]  # TypeError, as without us

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._order, name)


class _Sender:
    """One epoch's plan, and the thread that posts it."""

    def __init__(self, port: AdminPort, job: str, locate: Locate, window: int, ahead: int) -> None:
        self._port, self._job, self._locate, self._window = port, job, locate, window
        self._least = min(POST // 4, max(1, ahead // 4))  # reads of a post while more come
        self._news = threading.Condition()
        self._queue: deque[tuple[int, Any]] = deque()  # place (-1: of the next epoch), index
        self._added = self._taken = 0
        self._whole = self._ended = self._drop = False
        self._posted = False
        self.begun = threading.Event()  # the first post was answered, or will not be
        threading.Thread(target=self._run, name="hubspoke hints", daemon=True).start()

    # -- by the loader's thread ---------------------------------------------------------------

    def send(self, indices: Iterable[Any]) -> None:
        """These come next."""
        with self._news:
            for index in indices:
                self._queue.append((self._added, index))
                self._added += 1
            self._news.notify()

    def whole(self, following: Iterable[Any]) -> None:
        """No more come in this epoch; following: in the next one."""
        with self._news:
            self._whole = True
            self._queue.extend((-1, index) for index in following)
            self._news.notify()

    def took(self) -> None:
        """The loader has the next one."""
        self._taken += 1

    def end(self, *, drop: bool) -> None:
        """The loader is done; drop: before it read all that was sent."""
        with self._news:
            self._ended, self._drop = True, drop
            self._news.notify()

    @property
    def _ready(self) -> bool:
        if self._ended or (self._whole and bool(self._queue)):
            return True
        return len(self._queue) >= (self._least if self._posted else 1)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (reads := self._next()) is not None:
                if reads and not self._post(reads):
                    break
            if self._drop and self._posted:
                self._port.ask("DELETE", f"/v1/hints/{self._job}")
        except Exception as e:  # of `locate`, which is the script's
            self._port.tell(f"hints of {self._job}: {e!r}")
        finally:
            self.begun.set()
            self._port.close()

    def _next(self) -> list[Any] | None:
        """Reads of the next post; None at the end."""
        most = POST if self._posted else FIRST_POST
        with self._news:
            self._news.wait_for(lambda: self._ready)
            if self._drop or not self._queue:
                return None
            chosen: list[Any] = []
            while self._queue and len(chosen) < most:
                place, index = self._queue.popleft()
                if place < 0 or place >= self._taken:
                    chosen.append(index)
        return self._reads(chosen)

    def _reads(self, indices: list[Any]) -> list[Any]:
        single = (i for index in indices for i in (index if _is_batch(index) else (index,)))
        found = chain.from_iterable(_places(self._locate(i)) for i in single)
        return [
            p if isinstance(p, str) else {"object": p[0], "ranges": [[int(p[1]), int(p[2])]]}
            for p in found
        ]

    def _post(self, reads: list[Any]) -> bool:
        """Whether it is worth going on."""
        for part in _parts(reads):
            for _ in range(RETRIES_MAX):
                answer = self._port.ask(
                    "POST",
                    "/v1/hints",
                    {
                        "job": self._job,
                        "plan": part,
                        "append": self._posted,
                        "window": self._window,
                    },
                )
                if answer is None:
                    return False
                status, document, retry_s = answer
                if status in (429, 503):
                    self.begun.set()
                    with self._news:
                        ended = self._news.wait_for(lambda: self._ended, retry_s or RETRY_S)
                    if ended:
                        return False
                    continue
                if status == 200:
                    self._posted = True
                self.begun.set()
                if status == 404 or (status == 200 and document["unknown_items"]):
                    self._port.tell(f"hints of {self._job}: {_unknown(document)}")
                elif status != 200:
                    self._port.tell(f"hints of {self._job} are refused: {document['detail']}")
                    return False
                break
        return True


def _is_batch(index: Any) -> bool:
    """Whether it is a list of indices: a tuple may be one index."""
    return isinstance(index, list)


def _places(located: Any) -> Sequence[Place]:
    if isinstance(located, str) or (
        isinstance(located, tuple) and len(located) == 3 and not isinstance(located[1], str | tuple)
    ):
        return (located,)
    return list(located)


def _parts(reads: list[Any]) -> Iterator[list[Any]]:
    """Posts of a size that is taken."""
    part: list[Any] = []
    size = 0
    for read in reads:
        size += 64 + len(read if isinstance(read, str) else read["object"])
        if part and (size > POST_BYTES_MAX or len(part) >= POST):
            yield part
            part, size = [], 0
        part.append(read)
    if part:
        yield part


def _unknown(document: Any) -> str:
    if "unknown" in document:
        return (
            f"{document['unknown_items']} objects, as {document['unknown'][0]['object']}: unknown"
        )
    return str(document["detail"])
