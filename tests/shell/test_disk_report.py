"""State of the cache folders and wear of their drives, in report, metrics and tables."""

from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from hubspoke.adapters.disk_stats import BlockDevice, Pressure
from hubspoke.adapters.nvme_smart import Smart
from hubspoke.core.ledger import Ledger
from hubspoke.report.facts import EnduranceFacts, FolderFacts
from hubspoke.report.metrics import spoke_metrics
from hubspoke.report.render import render_report
from tests.shell.test_report import FACTS, report

FOLDERS = [
    FolderFacts("/nvme0", "healthy", 5.0, 10, 0, 0, 0, 0, None),
    FolderFacts("/nvme1", "bypassed", 2.0, 7, 12, 3, 4, 2, "read: EIO"),
]
DRIVE = BlockDevice("nvme0n1", 10**12, 5, 6, 2, 1.5, Smart(41, 98, 7, 1, 2, 3, 0, ["spare_low"]))
ENDURANCE = EnduranceFacts(
    written_bytes_per_day=2e11,
    drive_writes_per_day=0.2,
    dwpd_rated=1.0,
    dwpd_share=0.2,
    expected_life_years=23.25,
    io_pressure=asdict(Pressure(0.1, 0.05, 0.01, 0.0, 4.0, 1.5)),
    drives=[asdict(DRIVE), asdict(replace(DRIVE, device="vda", smart=None))],
)


def a_report() -> Any:
    cache = replace(FACTS.cache, folders=FOLDERS)
    return report(Ledger(100.0, 0), replace(FACTS, cache=cache, endurance=ENDURANCE))


def metrics(document: Any) -> list[str]:
    return spoke_metrics(document, {}, True).decode().splitlines()


def test_the_report_shows_each_folder_and_drive() -> None:
    document = a_report()
    assert [f["state"] for f in document["cache"]["folders"]] == ["healthy", "bypassed"]
    assert document["endurance"]["drives"][0]["smart"]["warnings"] == ["spare_low"]
    assert document["endurance"]["drives"][1]["smart"] is None


def test_metrics_tell_the_state_of_each_folder() -> None:
    lines = metrics(a_report())
    assert 'hubspoke_cache_folder_state{folder="/nvme1",state="bypassed"} 1.0' in lines
    assert 'hubspoke_cache_folder_state{folder="/nvme1",state="healthy"} 0.0' in lines
    assert 'hubspoke_cache_folder_read_errors_total{folder="/nvme1"} 12.0' in lines


def test_metrics_tell_wear_and_leave_out_what_is_not_known() -> None:
    lines = metrics(a_report())
    assert "hubspoke_endurance_dwpd_share 0.2" in lines
    assert 'hubspoke_drive_used_percent{device="nvme0n1"} 7.0' in lines
    assert 'hubspoke_drive_in_flight{device="vda"} 2.0' in lines
    assert "hubspoke_io_pressure_some_seconds_total 4.0" in lines
    assert not any(line.startswith('hubspoke_drive_used_percent{device="vda"') for line in lines)
    unknown = metrics(report(Ledger(100.0, 0)))
    assert not any(line.startswith("hubspoke_endurance_") for line in unknown)
    assert not any(line.startswith("hubspoke_io_pressure") for line in unknown)


def test_the_tables_name_folders_and_warnings() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_report(a_report()))
    console.file.close()
    text = console.export_text()
    assert "folder /nvme1" in text and "bypassed, 15 errors, 4 slow calls" in text
    assert "7 % used, 41 C, spare_low" in text and "23.2 years" in text
