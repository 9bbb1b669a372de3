"""Frames of several requests that are stored together: each request answers for its own."""

import asyncio
from dataclasses import replace

import pytest

from hubspoke import wire
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.pacing import PacingConfig
from hubspoke.errors import CorruptFrame, HubUnavailable
from hubspoke.spoke import incoming
from hubspoke.spoke.incoming import Running
from hubspoke.spoke.storing import Storing
from tests.shell.test_spoke_service import BODY, NAME, TUNING, a_hub, a_spoke

PAGES = 16


def frames(fetch: Fetch, *, good: bool) -> list[wire.Frame]:
    found = []
    for i, r in enumerate(fetch.ranges):
        data = BODY[r.offset : r.offset + r.length]
        n = len(data)
        digest = wire.digest(data) if good else 1
        found.append((wire.FrameHeader(wire.FRAME_DATA, 0, i, r.offset, n, n, digest), data))
    return found


async def test_a_bad_frame_costs_its_request_and_no_other() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        app.hold.clear()
        async with a_spoke(hub) as spoke:
            storing: Storing = spoke.filler._storing
            resolved = await spoke.resolve(NAME)
            obj, _ = spoke.core.open(NAME, resolved.entry)
            assert spoke.core.demand(obj, 0, 3 * PAGES * PAGE_BYTES) is not None
            fetches, _ = spoke.core.dispatch(0.0)
            assert len(fetches) >= 3
            running = [Running(fetch) for fetch in fetches]
            # All before the first is looked at: they go to the disk together.
            for n, r in enumerate(running):
                await storing.came(r, frames(r.fetch, good=n != 1))
                for i in range(len(r.fetch.ranges)):
                    storing.range_ended(r, i, None)
            for n, r in enumerate(running):
                if n == 1:
                    with pytest.raises(CorruptFrame, match="fails its digest"):
                        await r.settled()
                    with pytest.raises(CorruptFrame):
                        await storing.came(r, frames(r.fetch, good=True))
                else:
                    await r.settled()
                for part in r.fetch.ranges:
                    assert spoke.core.cache.readable(obj, part.first, part.last) is (n != 1)
            app.hold.set()
            result = await spoke.read(resolved, 0, 3 * PAGES * PAGE_BYTES, "c")
            assert isinstance(result.body, bytes)
            assert result.body == BODY[: 3 * PAGES * PAGE_BYTES]


async def test_lanes_wait_while_too_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "INCOMING_BYTES_MAX", PAGE_BYTES)
    one_lane = replace(TUNING, pacing=PacingConfig(lanes=1, demand_lanes=0))
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        app.hold.clear()
        async with a_spoke(hub, tuning=one_lane) as spoke:
            storing: Storing = spoke.filler._storing
            resolved = await spoke.resolve(NAME)
            obj, _ = spoke.core.open(NAME, resolved.entry)
            assert spoke.core.demand(obj, 0, PAGES * PAGE_BYTES) is not None
            (fetch,), _ = spoke.core.dispatch(0.0)
            running = Running(fetch)
            coming = asyncio.create_task(storing.came(running, frames(fetch, good=True)))
            await asyncio.sleep(0)
            assert not coming.done()
            async with asyncio.timeout(10):
                await coming
                await running.settled()
            app.hold.set()


async def test_closing_waits_for_nothing_that_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have come, and the task that would store them is cancelled before its first step."""
    async with a_hub() as (hub, _):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            filler = spoke.filler
            began = asyncio.Event()

            async def fetch(lane, request, on_frames, on_range):  # type: ignore[no-untyped-def]
                r = request.ranges[0]
                data = BODY[r.offset : r.offset + r.length]
                n, digest = len(data), wire.digest(data)
                head = wire.FrameHeader(wire.FRAME_DATA, 0, 0, r.offset, n, n, digest)
                await on_frames([(head, data)])
                for task in filler._tasks:
                    task.cancel()
                began.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(filler._link, "fetch", fetch)
            resolved = await spoke.resolve(NAME)
            reading = asyncio.create_task(spoke.read(resolved, 0, PAGE_BYTES, "c"))
            async with asyncio.timeout(10):
                await began.wait()
                await filler.close()
            reading.cancel()
            with pytest.raises((asyncio.CancelledError, HubUnavailable)):
                await reading
