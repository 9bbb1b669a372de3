"""A store on a file system that does not tell what others change in it: a FUSE mount, whose files
are changed behind the kernel's back as another host would."""

from pathlib import Path

from tests.faults.conftest import Folder, wait_for
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


def watch(admin: str) -> str:
    return str(get_json(admin + "/readyz")[1]["watch"])


def listed(data: str, bucket: str) -> list[str]:
    body = get(f"{data}/{bucket}?list-type=2")[1].decode()
    return [part.partition("</Key>")[0] for part in body.split("<Key>")[1:]]
