"""What is changed in the store's folder behind a running hub's back reaches readers at a spoke."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.processes import WAIT_S, Running, get, get_json, hub, put, running, spoke


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def watched(a_hub: Running) -> bool:
    return bool(get_json(a_hub.admin + "/readyz")[1]["watch"] == "notifications")


def test_every_kind_of_change_reaches_a_spoke_without_a_read_at_the_hub(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "bkt").mkdir(parents=True)
    with running(*hub(store, tmp_path / "state")) as a_hub:
        a_hub.ready()
        until(lambda: watched(a_hub), "notifications")
        with running(*spoke(a_hub.data, tmp_path / "cache")) as a_spoke:
            a_spoke.ready()
            until(lambda: get(a_spoke.admin + "/readyz")[0] == 200, "a lease")

            def shows(path: str, body: bytes) -> None:
                until(lambda: get(f"{a_spoke.data}/{path}")[:2] == (200, body), f"{path} {body!r}")

            def gone(path: str) -> None:
                until(lambda: get(f"{a_spoke.data}/{path}")[0] == 404, f"{path} gone")

            file = store / "bkt" / "a"
            file.write_bytes(b"one")
            shows("bkt/a", b"one")
            (store / "beside").write_bytes(b"two")
            (store / "beside").rename(file)
            shows("bkt/a", b"two")
            file.write_bytes(b"owt")
            shows("bkt/a", b"owt")
            os.truncate(file, 1)
            shows("bkt/a", b"o")
            file.rename(store / "bkt" / "b")
            shows("bkt/b", b"o")
            gone("bkt/a")
            (tmp_path / "tree" / "x").mkdir(parents=True)
            (tmp_path / "tree" / "x" / "f").write_bytes(b"in")
            (tmp_path / "tree").rename(store / "bkt" / "tree")
            shows("bkt/tree/x/f", b"in")
            shutil.copytree(store / "bkt", store / "new")
            shows("new/tree/x/f", b"in")
            shutil.rmtree(store / "bkt" / "tree")
            gone("bkt/tree/x/f")
            shutil.rmtree(store / "new")
            until(lambda: b"NoSuchBucket" in get(f"{a_spoke.data}/new/b")[1], "the bucket gone")
            assert put(f"{a_hub.data}/bkt/through", b"hub") == 200
            shows("bkt/through", b"hub")
            watch = get_json(a_hub.admin + "/v1/status")[1]["watch"]
            assert watch["lost"] == 0 and watch["changes"] > 0


def test_what_changes_while_the_hub_starts_is_not_lost(tmp_path: Path) -> None:
    """Between the first index and the watch there is no gap."""
    store = tmp_path / "store"
    for i in range(300):
        (store / "bkt" / f"d{i:03}").mkdir(parents=True)
        (store / "bkt" / f"d{i:03}" / "f").touch()
    made = 0
    with running(*hub(store, tmp_path / "state")) as a_hub:
        while not any(" ready data=" in line for line in a_hub.lines):
            (store / "bkt" / f"d{made % 300:03}" / f"new{made}").touch()
            made += 1
            time.sleep(0.001)
        a_hub.ready()
        until(lambda: watched(a_hub), "notifications")
        until(
            lambda: get_json(a_hub.admin + "/v1/status")[1]["objects"] == 300 + made,
            f"{300 + made} objects",
        )
