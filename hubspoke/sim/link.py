"""ports.HubLink over the simulated network: every message goes through its bytes."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from hubspoke import wire
from hubspoke.core.ids import ObjectName, Version
from hubspoke.errors import DeadlineExceeded, FormatError, HubSpokeError, HubUnavailable
from hubspoke.hub.service import HubService
from hubspoke.ports import LinkCounters
from hubspoke.sim.network import Path, Stream

CONTROL_S = 5.0  # as adapters/hub_link.py
SILENCE_S = 4.0


class SimulatedLink:
    """Of one spoke. again: probability that a feed begins before where it was left."""

    url = "simulated"

    def __init__(self, path: Path, rng: random.Random, *, again: float = 0.2) -> None:
        self._path = path
        self._rng = rng
        self._again = again

    async def connect(self) -> None:
        pass

    async def lease(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        body = wire.encode(request)

        async def serve(hub: HubService) -> bytes:
            asked = wire.decode(body)
            assert isinstance(asked, wire.LeaseRequest)
            return wire.encode(await hub.lease(asked))

        reply = wire.decode(await self._ask(serve, "lease"))
        if not isinstance(reply, wire.LeaseReply):
            raise FormatError(f"lease answered with {type(reply).__name__}")
        return reply

    async def read_index(self, request: wire.ReadIndexRequest) -> wire.ReadIndexReply:
        body = wire.encode(request)

        async def serve(hub: HubService) -> bytes:
            asked = wire.decode(body)
            assert isinstance(asked, wire.ReadIndexRequest)
            return wire.encode(hub.read_index(asked))

        reply = wire.decode(await self._ask(serve, "read index"))
        if not isinstance(reply, wire.ReadIndexReply):
            raise FormatError(f"read index answered with {type(reply).__name__}")
        return reply

    async def feed(
        self, epoch: str, after: int, incarnation: str = ""
    ) -> AsyncIterator[wire.Message]:
        if self._rng.random() < self._again:
            after = max(0, after - self._rng.randint(1, 3))

        async def send(hub: HubService, stream: Stream) -> None:
            async for message in hub.feed(epoch, after, incarnation):
                await stream.send(wire.encode(message))

        async for message in self._messages(send, "feed"):
            yield message

    async def snapshot(self) -> AsyncIterator[wire.Message]:
        async def send(hub: HubService, stream: Stream) -> None:
            async for message in hub.snapshot():
                await stream.send(wire.encode(message))

        async for message in self._messages(send, "snapshot"):
            yield message

    async def read(self, name: ObjectName, version: Version, size: int) -> bytes:
        """The bytes of one version, as a fetch would bring them. Raises VersionChanged,
        NoSuchKey, HubUnavailable."""

        async def serve(hub: HubService) -> bytes:
            return await hub.read_version(name, version, 0, size)

        return await self._ask(serve, f"read of {name}")

    async def fetch(
        self,
        lane: int,
        request: wire.FetchRequest,
        on_frames: Callable[[Sequence[tuple[wire.FrameHeader, bytes]]], Awaitable[None]],
        on_range: Callable[[int, HubSpokeError | None], None],
    ) -> None:
        raise HubUnavailable("the simulated link carries names; bytes come by `read`")

    def counters(self) -> LinkCounters:
        return LinkCounters(0, 0, 0, {})

    async def close(self) -> None:
        pass

    async def _ask(self, serve: Callable[[HubService], Awaitable[bytes]], what: str) -> bytes:
        try:
            async with asyncio.timeout(CONTROL_S):
                return await self._path.request(serve)
        except TimeoutError as e:
            raise DeadlineExceeded(f"{what}: no answer in {CONTROL_S} s") from e

    async def _messages(
        self, send: Callable[[HubService, Stream], Awaitable[None]], what: str
    ) -> AsyncIterator[wire.Message]:
        stream = self._path.stream(send)
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    body = await stream.receive()
                if body is None:
                    return
                yield wire.decode(body)
        except TimeoutError as e:
            raise DeadlineExceeded(f"{what}: silent for {SILENCE_S} s") from e
        finally:
            stream.close()
