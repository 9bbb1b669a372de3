"""What a spoke learned from outcomes outlives it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.memory_blocks import MemoryBlockStore
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.adapters.outcomes_file import NAME, Kept, OutcomesFile
from hubspoke.core.outcomes import Outcomes
from hubspoke.core.page_codes import PAGES_PER_BLOCK
from hubspoke.core.ranking import RuleRanker
from hubspoke.spoke import remembered
from hubspoke.spoke.remembered import Remembered
from hubspoke.spoke.service import SpokeService
from tests.shell.test_spoke_service import TUNING, a_hub, until

KEPT: list[Kept] = [
    (("sequential", "unknown", "b/häuser/"), (1.0, 2.0, 3e8, 4.0)),
    (("strided", "strided", "b/"), (5e9, 0.0, 0.0, 0.0)),
]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = OutcomesFile(tmp_path)
    assert file.load() == []
    file.save(KEPT)
    file.save(KEPT)
    assert file.load() == KEPT
    assert [p.name for p in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace("300000000", "300000001"),
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: "[]",
        lambda text: "",
    ],
)
def test_what_is_damaged_or_unknown_is_set_aside_and_begun_anew(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    file = OutcomesFile(tmp_path)
    file.save(KEPT)
    assert callable(damage)
    file.path.write_text(damage(file.path.read_text()))
    with caplog.at_level(logging.ERROR):
        assert file.load() == []
    assert [p.name for p in tmp_path.iterdir()] == [f"{NAME}.set-aside-1"]
    file.save(KEPT)
    assert file.load() == KEPT


def wasteful() -> Outcomes:
    found = Outcomes()
    found.queued(KEPT[0][0], 1, 0, PAGES_PER_BLOCK, 0.0)
    found.wasted([(1, 0, 1 << 28)])
    return found


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Remembered(wasteful(), OutcomesFile(tmp_path))
    await first.close()
    outcomes = Outcomes()
    second = Remembered(outcomes, OutcomesFile(tmp_path))
    await second.recall(100.0)
    assert outcomes.adjusted(0.9, KEPT[0][0], 0.4) < 0.1
    await second.close()


async def test_it_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "KEEP_S", 0.01)
    kept = Remembered(wasteful(), OutcomesFile(tmp_path))
    task = asyncio.create_task(kept.keep())
    async with asyncio.timeout(10.0):
        while not OutcomesFile(tmp_path).load():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    task.cancel()
    await kept.close()


async def test_a_state_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{NAME}.new").mkdir()
    await Remembered(wasteful(), OutcomesFile(tmp_path)).close()
    assert "outcomes not written" in caplog.text


async def test_without_a_state_nothing_is_kept() -> None:
    outcomes = wasteful()
    nowhere = Remembered(outcomes, None)
    await nowhere.recall(1.0)
    await nowhere.keep()
    await nowhere.close()


@asynccontextmanager
async def started(hub_url: str, state: Path) -> AsyncIterator[SpokeService]:
    spoke = SpokeService(
        AiohttpHubLink(hub_url, TUNING.spoke_id, TUNING.pacing.lanes),
        MemoryNamespace(keep_log=False),
        MemoryBlockStore(),
        BootClock(),
        RuleRanker(),
        TUNING,
        outcomes=OutcomesFile(state),
    )
    await spoke.start()
    try:
        await until(lambda: not spoke.ready())
        yield spoke
    finally:
        await spoke.close()


async def test_a_spoke_that_starts_again_knows_what_was_wasted(tmp_path: Path) -> None:
    async with a_hub() as (hub, _):
        async with started(hub.url, tmp_path) as spoke:
            outcomes = spoke.core.prediction.scoring.outcomes
            assert outcomes.adjusted(0.9, KEPT[0][0], 0.4) == 0.9
            outcomes.queued(KEPT[0][0], 1, 0, PAGES_PER_BLOCK, 0.0)
            outcomes.wasted([(1, 0, 1 << 28)])
        async with started(hub.url, tmp_path) as spoke:
            outcomes = spoke.core.prediction.scoring.outcomes
            assert outcomes.adjusted(0.9, KEPT[0][0], 0.4) < 0.1
            (entry,) = spoke.model()["outcomes"]
            assert entry["wasted_bytes"] > 1 << 27
