"""`hubspoke doctor` as a process, at real ones."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.mounts import site
from tests.processes import WAIT_S, hub, running, spoke


def doctor(
    *arguments: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HUBSPOKE_")}
    return subprocess.run(
        [sys.executable, "-m", "hubspoke", "doctor", *map(str, arguments)],
        env={**clean, **(env or {})}, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def as_json(*arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, Any]:
    result = doctor(*arguments, "--json", env=env)
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


def found(document: Any, check: str) -> str:
    return "\n".join(
        f"{f['severity']}: {f['found']}" for f in document["findings"] if f["check"] == check
    )


def test_hub_and_spoke_that_run_are_found_well(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "data").mkdir(parents=True)
    (store / "data" / "a").write_bytes(b"1")
    (store / "beside").write_bytes(b"2")
    with running(*hub(store, tmp_path / "hub", "--region", "us-east-2")) as origin:
        origin.ready()
        with running(*spoke(origin.data, tmp_path / "cache")) as near:
            near.ready()
            _, document = as_json("--hub", origin.data, "--cache", tmp_path / "cache")
            assert "ok: http://127.0.0.1" in found(document, "hub")
            assert "region us-east-2" in found(document, "hub")
            assert "ok: " in found(document, "holes")
            assert f"in use by process {near.pid}" in found(document, "cache")
            assert "SIGBUS" in found(document, "state")
            assert "each of 1 names can be shown on a mount" in found(document, "names")
            assert document["subject"]["cache"] == [str(tmp_path / "cache")]
            assert {f["severity"] for f in document["findings"]} >= {"ok", "note"}
        _, document = as_json("--store", store)
        assert f"1 left out, beside the buckets: not a folder: {store}/beside" in found(
            document, "names"
        )
        assert "2 folders to watch" in found(document, "limits")


def test_hub_that_is_away_is_a_problem(tmp_path: Path) -> None:
    with running(*hub(tmp_path, tmp_path.with_name(tmp_path.name + "-state"))) as origin:
        origin.ready()
        status, document = as_json("--hub", origin.admin)
        assert status == 1
        assert "but not as a hub" in found(document, "hub")
        assert origin.stop() == 0
    status, document = as_json("--hub", origin.data)
    assert status == 1
    assert "problem: http://127.0.0.1" in found(document, "hub")
    assert document["worst"] == "problem"


def test_settings_come_from_where_the_processes_take_them(tmp_path: Path) -> None:
    config = tmp_path / "hubspoke.toml"
    config.write_text(f'[spoke]\ncache = ["{tmp_path}/from-file"]\n[hub]\nstore = "{tmp_path}"\n')
    _, document = as_json(
        env={"HUBSPOKE_SPOKE_STATE": f"{tmp_path}/s", "HUBSPOKE_SPOKE_CONFIG": str(config)}
    )
    assert document["subject"]["cache"] == [f"{tmp_path}/from-file"]
    assert document["subject"]["state"] == f"{tmp_path}/s"
    assert document["subject"]["store"] is None
    _, document = as_json("--config", config, "--cache", tmp_path / "flag")
    assert document["subject"]["cache"] == [f"{tmp_path}/flag"]
    assert document["subject"]["store"] == str(tmp_path)


def test_lines_for_people_and_status(tmp_path: Path) -> None:
    result = doctor("--cache", "/proc/none")
    assert result.returncode == 1
    assert "problem  cache: /proc/none: " in result.stdout
    assert "\n         remedy: --cache with a folder on a local drive" in result.stdout
    result = doctor("--cache", "")
    assert result.returncode == 2
    assert "--cache: " in result.stderr


def test_mount_that_is_there_and_one_whose_spoke_has_died(tmp_path: Path) -> None:
    with site(tmp_path) as place, place.running_spoke() as near:
        _, document = as_json(env={"HUBSPOKE_SPOKE_MOUNT": str(place.point)})
        assert "KiB ahead" in found(document, "read-ahead")
        os.killpg(near.pid, signal.SIGKILL)  # with the parent that would have cleaned up
        near.wait()
        status, document = as_json("--mount", place.point)
        assert status == 1
        assert f"problem: {place.point}: its server is gone" in found(document, "mount")
