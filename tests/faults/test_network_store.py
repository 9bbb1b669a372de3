"""A store on a file system that does not tell what others change in it: a FUSE mount, whose files
are changed behind the kernel's back as another host would."""

import subprocess
import sys
from pathlib import Path

from tests.faults.conftest import Folder, faulty_folder, wait_for
from tests.processes import get, get_json, hub, running


def test_a_store_on_a_fuse_mount_is_rescanned_and_the_hub_says_so(
    folder: Folder, tmp_path: Path
) -> None:
    source = tmp_path / "faulty" / "source"
    (source / "data").mkdir()
    (source / "data" / "a").write_bytes(b"one")
    with running(*hub(folder.path, tmp_path / "state", "--rescan", "1")) as a_hub:
        a_hub.ready()
        wait_for(lambda: watch(a_hub.admin).startswith("rescan every 1 s: "), 15, "rescan")
        assert "file system FUSE (0x65735546)" in watch(a_hub.admin)
        status, document = get_json(a_hub.admin + "/v1/status")
        assert (status, document["watch"]["mode"]) == (200, "rescan")
        metrics = get(a_hub.admin + "/metrics")[1].decode().splitlines()
        assert 'hubspoke_hub_watch_mode{mode="rescan"} 1.0' in metrics
        (source / "data" / "new").write_bytes(b"two")
        (source / "other").mkdir()
        # Listed, not asked for by name, which would look for it.
        wait_for(lambda: listed(a_hub.data, "data") == ["a", "new"], 15, "a new file")
        (source / "data" / "a").unlink()
        wait_for(lambda: listed(a_hub.data, "data") == ["new"], 15, "a deletion")
        wait_for(lambda: get(a_hub.data + "/other")[0] == 200, 15, "a new bucket")


def test_a_bucket_whose_file_system_goes_away_loses_no_object(tmp_path: Path) -> None:
    with (
        faulty_folder(tmp_path / "store") as folder,
        running(*hub(tmp_path / "store", tmp_path / "state", "--rescan", "1")) as a_hub,
    ):
        for key in ("a", "not read"):
            (folder.path / key).write_bytes(b"one")
        bucket = a_hub.ready().data + "/" + folder.path.name
        wait_for(lambda: get(bucket + "/a")[1] == b"one", 15, "the object")
        subprocess.run(["fusermount3", "-u", "-z", str(folder.path)], check=True, timeout=30)
        wait_for(lambda: "is not mounted" in str(reasons(a_hub.admin)), 30, "why it is not read")
        assert get(bucket + "/not%20read")[0] == 503
        assert listed(a_hub.data, folder.path.name) == ["a", "not read"]
        assert get_json(a_hub.admin + "/readyz")[0] == 200
        folder.path.rmdir()  # taken away on purpose
        wait_for(lambda: get(bucket + "/not%20read")[0] == 404, 30, "the end of the bucket")


def test_a_hub_does_not_start_without_a_bucket_that_was_mounted(tmp_path: Path) -> None:
    (tmp_path / "store" / "plain").mkdir(parents=True)
    (tmp_path / "store" / "plain" / "b").write_bytes(b"two")
    command = hub(tmp_path / "store", tmp_path / "state", "--rescan", "1")
    program = [sys.executable, "-m", "hubspoke", *command]
    with faulty_folder(tmp_path / "store") as folder:
        (folder.path / "a").write_bytes(b"one")
        with running(*command) as a_hub:
            bucket = a_hub.ready().data + "/" + folder.path.name
            wait_for(lambda: get(bucket + "/a")[1] == b"one", 15, "the object")
        subprocess.run(["fusermount3", "-u", "-z", str(folder.path)], check=True, timeout=30)
        refused = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "is not mounted" in refused.stderr
        folder.path.rmdir()  # taken away on purpose
        with running(*command) as a_hub:
            data = a_hub.ready().data
            wait_for(lambda: get(f"{data}/{folder.path.name}/a")[0] == 404, 15, "its end")
            assert get(f"{data}/plain/b")[1] == b"two"


def reasons(admin: str) -> list[str]:
    return list(get_json(admin + "/readyz")[1]["reasons"])


def watch(admin: str) -> str:
    return str(get_json(admin + "/readyz")[1]["watch"])


def listed(data: str, bucket: str) -> list[str]:
    body = get(f"{data}/{bucket}?list-type=2")[1].decode()
    return [part.partition("</Key>")[0] for part in body.split("<Key>")[1:]]
