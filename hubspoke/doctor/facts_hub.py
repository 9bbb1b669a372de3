"""Facts about a hub, asked as a spoke would: it grants nothing and is counted nowhere."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from urllib.parse import urlsplit

from hubspoke import wire
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.core.names import Skipped, hidden_on_mount
from hubspoke.doctor.judge.names import NameFacts
from hubspoke.doctor.judge.network import HubFacts
from hubspoke.errors import FormatError, HubSpokeError

HANDSHAKES = 5
CONNECT_S = 3.0
EXAMPLES_MAX = 20
NAMES_MAX = 2_000_000  # kept to be sorted: about 400 MB
_NAME = "hubspoke-doctor"


def hub(url: str) -> HubFacts:
    """Handshakes, then the head of the feed. May take HANDSHAKES * CONNECT_S and the link's own
    deadlines."""
    return asyncio.run(_hub(url))


async def _hub(url: str) -> HubFacts:
    try:
        rtt = await _rtt(url)
    except (OSError, TimeoutError) as e:
        reason = f"no answer in {CONNECT_S:g} s" if isinstance(e, TimeoutError) else str(e)
        return HubFacts(url, reason)
    link = AiohttpHubLink(url, _NAME, lanes=1)
    try:
        index = await link.read_index(wire.ReadIndexRequest(_NAME, ""))
        feed = link.feed(index.epoch, index.sequence, index.incarnation)
        async with aclosing(_generator(feed)) as messages:
            async for message in messages:
                if isinstance(message, wire.FeedStart):
                    return HubFacts(url, None, rtt, message.protocol, message.region)
                return HubFacts(url, f"{type(message).__name__} where a feed begins", rtt)
        return HubFacts(url, "its feed ended at once", rtt)
    except HubSpokeError as e:
        return HubFacts(url, str(e), rtt)
    finally:
        await link.close()


async def _rtt(url: str) -> float:
    """Seconds of the fastest of some TCP handshakes. Raises OSError, TimeoutError."""
    parts, least = urlsplit(url), float("inf")
    for _ in range(HANDSHAKES):
        started = time.monotonic()
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        least = min(least, time.monotonic() - started)
        writer.close()
    return least


async def _generator(
    messages: AsyncIterator[wire.Message],
) -> AsyncGenerator[wire.Message, None]:
    """One that can be closed, so that its connection is."""
    async for message in messages:
        yield message


def names(url: str, seconds: float) -> NameFacts:
    """What a mount of this hub would not show, as far as its snapshot comes in so many seconds.

    Raises HubSpokeError.
    """
    return asyncio.run(_names(url, seconds))


async def _names(url: str, seconds: float) -> NameFacts:
    found: dict[str, list[tuple[str, int]]] = {}
    count, complete = 0, False
    link = AiohttpHubLink(url, _NAME, lanes=1)
    try:
        async with asyncio.timeout(seconds), aclosing(_generator(link.snapshot())) as messages:
            async for message in messages:
                if isinstance(message, wire.SnapshotEnd):
                    complete = True
                elif isinstance(message, wire.SnapshotBatch):
                    for entry in message.entries:
                        found.setdefault(entry.bucket, []).append((entry.key, entry.size))
                    count += len(message.entries)
                    if count > NAMES_MAX:
                        break
                elif not isinstance(message, wire.SnapshotStart):
                    raise FormatError(f"{type(message).__name__} in a snapshot of {url}")
    except TimeoutError:
        pass
    finally:
        await link.close()
    hidden = Skipped()
    for bucket, objects in sorted(found.items()):
        for key, reason in hidden_on_mount(sorted(objects)):
            hidden.add(reason, f"{bucket}/{key}", EXAMPLES_MAX)
    return NameFacts(url, count, complete, hidden.counts, hidden.examples)
