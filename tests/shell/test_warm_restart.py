"""Warm jobs outlive the spoke that ran them, and are told of in report, status and metrics."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.jobs import JobMeters
from hubspoke.report.cost import prices_for
from hubspoke.report.metrics import spoke_metrics
from hubspoke.report.render_status import render_status, status_document
from hubspoke.report.report import build_report
from hubspoke.spoke.service import SpokeService
from tests.shell.test_warm import MIB, TUNING, WARM, a_hub, a_spoke, ended, run, until


def plain(renderable: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


async def report_of(spoke: SpokeService) -> dict[str, Any]:
    clock = BootClock()
    facts, prices = await spoke.facts(), prices_for("", "", None)
    jobs = JobMeters().jobs()
    report = build_report(spoke.ledger, facts, jobs, prices, clock.now(), clock.unix_ns())
    json.dumps(report, allow_nan=False)
    return report


async def test_a_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with a_hub() as hub:
        for i in range(4):
            await hub.put(f"data/{i}", MIB)
        await hub.put("logs/x", MIB)
        hub.app.hold.clear()
        replica = LmdbNamespace.open(tmp_path, keep_log=False)
        async with a_spoke(hub, namespace=replica) as spoke:
            started = await spoke.warm.start("warm", ["data", "logs/none"], threads=2)
            await until(lambda: hub.app.asked > 0)
        hub.app.hold.set()
        replica = LmdbNamespace.open(tmp_path, keep_log=False)
        async with a_spoke(hub, namespace=replica) as spoke:
            document = await ended(spoke, started["id"])
            assert document["state"] == "done" and document["cached_objects"] == 4
            assert (document["started"], document["threads"]) == (started["started"], 2)
            assert document["unmatched"] == ["logs/none"]
            assert (await run(spoke, "check", "data"))["id"] == "w2"
        replica = LmdbNamespace.open(tmp_path, keep_log=False)
        async with a_spoke(hub, namespace=replica) as spoke:
            assert [job["id"] for job in spoke.warm.jobs()] == ["w2", "w1"]
            assert spoke.warm.job("w1") == document  # with its paths, and not run again
            assert (await spoke.warm.start("check", ["data"]))["id"] == "w3"


async def test_cancelled_and_failed_jobs_stay_what_they_are() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", MIB)
        replica = MemoryNamespace(keep_log=False)
        async with a_spoke(hub, namespace=replica) as spoke:
            await run(spoke, "warm", "data/none")
            hub.app.hold.clear()
            started = await spoke.warm.start("warm", ["data"])
            cancelled = await spoke.warm.cancel(started["id"])
            hub.app.hold.set()
        async with a_spoke(hub, namespace=replica) as spoke:
            assert [job["state"] for job in spoke.warm.jobs()] == ["cancelled", "failed"]
            assert spoke.warm.job("w2") == cancelled == await spoke.warm.cancel("w2")
            failed = spoke.warm.job("w1")
            assert failed is not None and failed["failure"]["code"] == "no_match"


async def test_records_are_bounded_in_number_and_time() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", 1)
        replica = MemoryNamespace(keep_log=False)
        few = replace(TUNING, warm=replace(WARM, jobs_max=2, finished_max=3))
        async with a_spoke(hub, few, namespace=replica) as spoke:
            for _ in range(12):
                await run(spoke, "check", "data")
        assert len([key for key in replica._facts if key.startswith("warm:")]) <= 5
        async with a_spoke(hub, few, namespace=replica) as spoke:
            assert [job["id"] for job in spoke.warm.jobs()] == ["w12", "w11", "w10"]
        old = replace(TUNING, warm=replace(WARM, finished_s=0.0))
        async with a_spoke(hub, old, namespace=replica) as spoke:
            assert spoke.warm.jobs() == []
            assert (await run(spoke, "check", "data"))["id"] == "w13"


async def test_a_record_that_cannot_be_read_costs_nothing_else() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", 1)
        replica = MemoryNamespace(keep_log=False)
        async with a_spoke(hub, namespace=replica) as spoke:
            await run(spoke, "check", "data")
        for slot, text in enumerate(["{", "[]", '{"format":9}', '{"format":1,"number":7}'], 1):
            await replica.put_fact(f"warm:{slot}", text)
        async with a_spoke(hub, namespace=replica) as spoke:
            assert [job["id"] for job in spoke.warm.jobs()] == ["w1"]


async def test_report_status_and_metrics_tell_of_warm_jobs() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", MIB)
        await hub.put("data/b", MIB)
        async with a_spoke(hub) as spoke:
            hub.app.hold.clear()
            await spoke.warm.start("warm", ["data"])
            await until(lambda: hub.app.asked > 0)
            before = await report_of(spoke)
            (job,) = before["warm"]
            assert (job["id"], job["state"], job["cached_objects"]) == ("w1", "running", 0)
            assert (job["objects"], job["bytes"], job["problem_count"]) == (2, 2 * MIB, 0)
            hub.app.hold.set()
            await ended(spoke, "w1")
            await run(spoke, "warm", "data/none")
            report = await report_of(spoke)
            text = spoke_metrics(report, spoke.ledger.latency, True).decode()
            for line in (
                'hubspoke_warm_job_cached_bytes{warm_job="w1"} 2.097152e+06',
                'hubspoke_warm_job_objects{warm_job="w1"} 2.0',
                'hubspoke_warm_job_state{state="done",warm_job="w1"} 1.0',
                'hubspoke_warm_job_state{state="failed",warm_job="w2"} 1.0',
                'hubspoke_warm_job_state{state="done",warm_job="w2"} 0.0',
            ):
                assert line in text, line
            status = status_document(before, report, {"ready": True, "reasons": []}, [], [])
            assert status["warm"] == report["warm"]
            shown = plain(render_status(status))
            assert "failed (no_match)" in shown and "2.00 MiB" in shown


async def test_ended_jobs_in_the_report_are_the_newest() -> None:
    async with a_hub() as hub:
        await hub.put("data/a", 1)
        async with a_spoke(hub) as spoke:
            for _ in range(11):
                await run(spoke, "check", "data")
            report = await report_of(spoke)
            assert [job["id"] for job in report["warm"]] == [f"w{n}" for n in range(11, 3, -1)]
