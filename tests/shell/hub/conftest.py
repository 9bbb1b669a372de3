"""One hub and the spokes of a test, ended with it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hubspoke.adapters.memory import MemoryObjectStore
from tests.hub_bench import HubBench, SpokeBench, running_spoke


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubBench]:
    bench = HubBench(tmp_path / "hub", MemoryObjectStore(["bkt"]))
    await bench.start()
    yield bench
    await bench.stop()


SpokeMaker = Callable[..., Awaitable[SpokeBench]]


@pytest.fixture
async def spoke_of(tmp_path: Path) -> AsyncIterator[SpokeMaker]:
    async with AsyncExitStack() as stack:

        async def make(bench: HubBench, name: str = "s1", **kw: object) -> SpokeBench:
            running = running_spoke(bench.url, tmp_path / name, spoke_id=name, **kw)  # type: ignore[arg-type]  # forwarded keywords
            return await stack.enter_async_context(running)

        yield make
