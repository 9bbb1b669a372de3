"""Reads that are begun together and taken in turn."""

import asyncio
from dataclasses import replace

import pytest

from hubspoke.core.ids import ReadState
from hubspoke.errors import HubBusy, VersionChanged
from hubspoke.ports import ReadResult, Resolved
from hubspoke.spoke import filler
from hubspoke.spoke.begun import Begun
from hubspoke.spoke.service import SpokeService
from tests.shell.test_spoke_service import BODY, NAME, TUNING, a_hub, a_spoke, body_of, get, until

PLACES = [7 * 4096 * i + 5 for i in range(150)]


def begin(spoke: SpokeService, resolved: Resolved) -> list[Begun]:
    begun = []
    with spoke.batch("c"):
        for place in PLACES:
            read = spoke.begin(resolved, place, 5000, "c")
            assert isinstance(read, Begun)
            begun.append(read)
    return begun


def is_free(spoke: SpokeService) -> bool:
    obj = spoke.core.cache.current(NAME)
    return obj is None or not (obj.pins or spoke.filler.waiters.needed(obj.number, 0, 1 << 20))


async def test_all_are_asked_for_before_the_first_is_waited_for() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            app.hold.clear()
            begun = begin(spoke, await spoke.resolve(NAME))
            assert begun[0].result_now() is None
            lanes = spoke.core.scheduler.lanes
            assert sum(lane.in_flight for lane in lanes) == len(PLACES) * 8192
            assert sum(lane.requests for lane in lanes) <= 2 * len(lanes)
            app.hold.set()
            for place, read in zip(PLACES, begun, strict=True):
                result = read.result_now() or await read.result()
                assert result.state is ReadState.MISS
                assert await body_of(result) == BODY[place : place + 5000]
            assert is_free(spoke)
            assert spoke.ledger.requests[ReadState.MISS] == len(PLACES)
            again = spoke.begin(await spoke.resolve(NAME), PLACES[3], 5000, "c")
            assert isinstance(again, ReadResult) and again.state is ReadState.HIT


async def test_what_is_given_up_holds_nothing_and_its_pages_come_all_the_same() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            app.hold.clear()
            begun = begin(spoke, await spoke.resolve(NAME))
            waiting = asyncio.create_task(begun[0].result())
            await asyncio.sleep(0)
            waiting.cancel()
            for read in begun:
                await read.give_up()
            assert is_free(spoke)
            app.hold.set()
            await until(lambda: spoke.core.cache.flying == 0)
            asked = len(hub.fetches)
            assert await get(spoke, PLACES[9], 5000) == BODY[PLACES[9] : PLACES[9] + 5000]
            assert len(hub.fetches) == asked


async def test_what_fails_before_its_turn_is_tried_again_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, each would take its attempts' time."""
    monkeypatch.setattr(filler, "BUSY_RETRY_S", 0.0)
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub, tuning=replace(TUNING, fetch_attempts=2)) as spoke:
            app.refuse = 1000
            begun = begin(spoke, await spoke.resolve(NAME))
            await until(lambda: spoke.core.cache.flying == 0)
            app.refuse = 0
            bodies = [await body_of(await read.result()) for read in begun]
            assert bodies == [BODY[place : place + 5000] for place in PLACES]
            app.refuse = 1000
            hub.fetches.clear()
            (moved,) = [spoke.begin(await spoke.resolve(NAME), 5 << 20, 9, "c")]
            assert isinstance(moved, Begun)
            with pytest.raises(HubBusy):
                await moved.result()
            assert len(hub.fetches) == 2 and is_free(spoke)


async def test_what_came_is_of_its_version_and_what_did_not_is_told() -> None:
    async with a_hub() as (hub, app):
        await hub.put(NAME, BODY)
        async with a_spoke(hub) as spoke:
            resolved = await spoke.resolve(NAME)
            here = spoke.begin(resolved, 0, 4096, "c")
            spoke.filler.deal()
            assert isinstance(here, Begun)
            await until(lambda: spoke.core.cache.flying == 0 and spoke.core.cache.used > 0)
            app.hold.clear()
            coming = spoke.begin(resolved, 1 << 20, 4096, "c")
            spoke.filler.deal()
            assert isinstance(coming, Begun)
            await hub.put(NAME, BODY[::-1])
            app.hold.set()
            assert await body_of(here.result_now() or await here.result()) == BODY[:4096]
            with pytest.raises(VersionChanged):
                await coming.result()
