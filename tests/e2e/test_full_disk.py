"""Processes that start on a full disk; /dev/full stands for it where a file is written."""

from pathlib import Path

from tests.processes import get, hub, running, spoke


def test_a_full_disk_does_not_keep_hub_and_spoke_from_starting(tmp_path: Path) -> None:
    (tmp_path / "store" / "data").mkdir(parents=True)
    (tmp_path / "store" / "data" / "a").write_bytes(b"one")
    for state in ("state", "cache"):
        (tmp_path / state).mkdir()
        (tmp_path / state / "endpoints.json").write_text("{}")  # of a process that was killed
        (tmp_path / state / "endpoints.json.new").symlink_to("/dev/full")
    with running(*hub(tmp_path / "store", tmp_path / "state")) as a_hub:
        a_hub.ready()
        with running(*spoke(a_hub.data, tmp_path / "cache")) as a_spoke:
            a_spoke.ready()
            for process, state in ((a_hub, "state"), (a_spoke, "cache")):
                process.expect(r"WARNING .* ports are in the log only: .*No space left")
                assert not (tmp_path / state / "endpoints.json").exists()
            assert get(a_hub.data + "/data/a")[1] == b"one"
            assert a_spoke.stop() == 0
        assert a_hub.stop() == 0
