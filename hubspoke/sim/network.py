"""The WAN between one hub and its spokes, message by message.

A path has two directions, each open or blocked. What is sent into a blocked one waits, as TCP lets
it wait, and comes when the path is open again, unless its connection was given up meanwhile; a
request comes then too, although nobody waits for its answer any more. Requests overtake each
other, each has a connection of its own; the messages of one stream do not. A request may come
twice (a client that tries again cannot know that the first try arrived).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from hubspoke.errors import HubSpokeError, HubUnavailable

if TYPE_CHECKING:
    from hubspoke.hub.service import HubService
    from hubspoke.sim.loop import Process, VirtualLoop


class Direction(Enum):
    UP = "up"  # to the hub
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class PathModel:
    """one_way_s: without anything in the way; each message takes up to jitter times longer.

    slow: probability that a message is lost and sent again, which takes up to slow_s more.
    twice: that a request comes a second time. broken: that a request's connection breaks.
    """

    one_way_s: float = 0.03
    jitter: float = 0.3
    slow: float = 0.02
    slow_s: float = 1.5
    twice: float = 0.03
    broken: float = 0.02


class _End(Protocol):
    """Something under way that ends with its connection."""

    def reset(self, why: str) -> None: ...


class Network:
    """Knows the hub that serves, if one does, and carries messages to and from it."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self.loop = loop
        self.hub: tuple[Process, HubService] | None = None
        self._context = Context()  # of no process: what was sent arrives, whoever has died
        self._open: dict[_End, None] = {}  # in order, or a seed would not repeat

    def hub_up(self, process: "Process", service: "HubService") -> None:
        self.hub = (process, service)

    def hub_down(self) -> None:
        """Its kernel resets every connection."""
        self.hub = None
        for end in list(self._open):
            end.reset("connection reset by the hub")

    def at(self, when: float, act: Callable[[], None]) -> None:
        self.loop.call_at(when, act, context=self._context)

    def opened(self, end: "_End") -> None:
        self._open[end] = None

    def closed(self, end: "_End") -> None:
        self._open.pop(end, None)


class Path:
    """One spoke's way to the hub."""

    def __init__(self, network: Network, model: PathModel, rng: random.Random) -> None:
        self.network = network
        self._rng = rng
        self.model = model
        self._blocked: dict[Direction, int] = dict.fromkeys(Direction, 0)
        self._held: dict[Direction, list[tuple[Callable[[], None], _Order | None]]] = {
            d: [] for d in Direction
        }
        self._streams: dict[Stream, None] = {}

    def block(self, *directions: Direction) -> None:
        for d in directions:
            self._blocked[d] += 1

    def unblock(self, *directions: Direction) -> None:
        for d in directions:
            self._blocked[d] -= 1
            if not self._blocked[d]:
                held, self._held[d] = self._held[d], []
                for act, order in held:
                    self.send(d, act, order)

    def reset(self) -> None:
        """Every stream of the path breaks, as by a middlebox that forgot it."""
        for stream in list(self._streams):
            stream.reset("connection reset")

    def send(
        self, direction: Direction, act: Callable[[], None], order: "_Order | None" = None
    ) -> None:
        """Do `act` at the other end when the message arrives; not before those of its order."""
        if self._blocked[direction]:
            self._held[direction].append((act, order))
            return
        rng, model = self._rng, self.model
        delay = model.one_way_s * rng.uniform(1.0, 1.0 + model.jitter)
        if rng.random() < model.slow:
            delay += rng.uniform(0.2, model.slow_s)
        when = self.network.loop.time() + delay
        if order is not None:
            # Later, not at once: two timers of one moment have no order.
            when = order.last = max(when, order.last + 1e-6)
        self.network.at(when, act)

    async def request(self, serve: Callable[["HubService"], Awaitable[bytes]]) -> bytes:
        """One request and its answer. Raises HubUnavailable, what the hub answers with, and
        nothing at all while no answer comes: the caller has a deadline."""
        answer: asyncio.Future[bytes] = self.network.loop.create_future()
        end = _Request(self, serve, answer)
        rng, model = self._rng, self.model
        if rng.random() < model.broken:
            # The spoke hears of it; whether the hub got the request, it cannot know.
            self.send(Direction.DOWN, lambda: end.fail(HubUnavailable("connection reset")))
            if rng.random() < 0.5:
                return await answer
        self.send(Direction.UP, end.arrive)
        if rng.random() < model.twice:
            self.send(Direction.UP, end.arrive)
        return await answer

    def stream(self, open_: Callable[["HubService", "Stream"], Awaitable[None]]) -> "Stream":
        """Ask the hub for messages; `open_` sends them at the hub."""
        stream = Stream(self, open_)
        self._streams[stream] = None
        self.send(Direction.UP, stream.arrive)
        return stream

    def spoke_down(self) -> None:
        """The spoke's kernel closes its connections."""
        for stream in list(self._streams):
            stream.close()

    def forget(self, stream: "Stream") -> None:
        self._streams.pop(stream, None)


@dataclass(slots=True)
class _Order:
    last: float = 0.0


class _Request:
    def __init__(
        self,
        path: Path,
        serve: Callable[["HubService"], Awaitable[bytes]],
        answer: "asyncio.Future[bytes]",
    ) -> None:
        self._path = path
        self._serve = serve
        self._answer = answer

    def arrive(self) -> None:
        network = self._path.network
        if network.hub is None:
            self._path.send(Direction.DOWN, lambda: self.fail(HubUnavailable("refused")))
            return
        process, service = network.hub
        network.opened(self)
        process.start(self._at_hub(service))

    async def _at_hub(self, service: "HubService") -> None:
        try:
            data = await self._serve(service)
        except HubSpokeError as e:
            error = e
            self._path.send(Direction.DOWN, lambda: self.fail(error))
        else:
            self._path.send(Direction.DOWN, lambda: self._answered(data))
        self._path.network.closed(self)

    def reset(self, why: str) -> None:
        self._path.network.closed(self)
        self._path.send(Direction.DOWN, lambda: self.fail(HubUnavailable(why)))

    def fail(self, error: HubSpokeError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    def _answered(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(data)


class Stream:
    """Messages from the hub in order, at most WINDOW of them on their way."""

    WINDOW = 16

    def __init__(
        self, path: Path, open_: Callable[["HubService", "Stream"], Awaitable[None]]
    ) -> None:
        self._path = path
        self._open = open_
        self._order = _Order()
        self._arrived: asyncio.Queue[bytes | HubSpokeError | None] = asyncio.Queue()
        self._taken = asyncio.Event()
        self._on_way = 0
        self._broken = False
        self._gone = False  # the hub has heard that nobody listens
        self._pump: asyncio.Task[None] | None = None

    async def receive(self) -> bytes | None:
        """The next message, None at the end. Raises HubUnavailable."""
        item = await self._arrived.get()
        if isinstance(item, HubSpokeError):
            raise item
        self._on_way -= 1
        self._taken.set()
        return item

    async def send(self, data: bytes) -> None:
        """At the hub; waits while the spoke takes nothing."""
        while self._on_way >= self.WINDOW:
            self._taken.clear()
            await self._taken.wait()
        self._put(data)

    def close(self) -> None:
        """At the spoke: nobody listens any more; the hub hears of it when that arrives."""
        self._broken = True
        self._path.forget(self)
        self._path.send(Direction.UP, self._dropped)

    def reset(self, why: str) -> None:
        self._path.network.closed(self)
        self._path.forget(self)
        self._put(HubUnavailable(why))
        self._broken = True
        self._dropped()

    def arrive(self) -> None:
        network = self._path.network
        if self._gone:
            return
        if network.hub is None:
            self._put(HubUnavailable("refused"))
            return
        process, service = network.hub
        network.opened(self)
        self._pump = process.start(self._at_hub(service))

    async def _at_hub(self, service: "HubService") -> None:
        try:
            await self._open(service, self)
        except HubSpokeError as e:
            self._put(HubUnavailable(str(e)))
        else:
            self._put(None)
        self._path.network.closed(self)

    def _put(self, item: bytes | HubSpokeError | None) -> None:
        if self._broken:
            return
        self._on_way += 1
        self._path.send(Direction.DOWN, lambda: self._arrived.put_nowait(item), self._order)

    def _dropped(self) -> None:
        self._gone = True
        if self._pump is not None:
            self._pump.cancel()
        self._path.network.closed(self)
