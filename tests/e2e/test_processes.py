"""Hub and spoke as real processes: what goes wrong at the start, and how they end."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubspoke.run import SAME_SIGNAL_S
from tests.processes import WAIT_S, Running, get, get_json, hub, put, running, spoke

CONTENT = random.Random(1).randbytes(3_000_000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    (store / "data").mkdir(parents=True)
    (store / "data" / "tokens.bin").write_bytes(CONTENT)
    return store


@pytest.fixture
def a_hub(store: Path, tmp_path: Path) -> Iterator[Running]:
    with running(*hub(store, tmp_path / "state")) as process:
        yield process.ready()


def fails(*arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """The one line that a process prints which cannot start; its status is 2."""
    with running(*arguments, env=env) as process:
        assert process.wait() == 2, process.log
        errors = [line for line in process.lines if line.startswith("hubspoke ")]
        assert len(errors) == 1, process.log
        assert "Traceback" not in process.log
        return errors[0]


def eventually(url: str, status: int) -> object:
    """Poll an admin port until it answers with `status`."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found, document = get_json(url)
        if found == status:
            return document
        assert time.monotonic() < deadline, (found, document)
        time.sleep(0.05)


def test_a_spoke_serves_what_the_hub_stores(a_hub: Running, tmp_path: Path) -> None:
    with running(*spoke(a_hub.data, tmp_path / "cache")) as a_spoke:
        a_spoke.ready()
        eventually(a_spoke.admin + "/readyz", 200)
        status, body, headers = get(a_spoke.data + "/data/tokens.bin")
        assert (status, body == CONTENT, headers["x-hubspoke-cache"]) == (200, True, "miss")
        status, body, headers = get(
            a_spoke.data + "/data/tokens.bin", {"Range": "bytes=1000000-1999999"}
        )
        assert status == 206
        assert body == CONTENT[1_000_000:2_000_000]
        assert headers["x-hubspoke-cache"] == "hit"
        _, report = get_json(a_spoke.admin + "/v1/report")
        assert report["reads"]["requests"] == 2
        assert report["reads"]["hit_requests"] == 1
        assert report["wan"]["received_bytes"] >= len(CONTENT)


def test_an_object_put_at_the_hub_is_read_at_the_spoke(a_hub: Running, tmp_path: Path) -> None:
    with running(*spoke(a_hub.data, tmp_path / "cache")) as a_spoke:
        a_spoke.ready()
        eventually(a_spoke.admin + "/readyz", 200)
        assert get(a_spoke.data + "/data/new.bin")[0] == 404
        assert put(a_hub.data + "/data/new.bin", b"new" * 1000) == 200
        assert get(a_spoke.data + "/data/new.bin")[:2] == (200, b"new" * 1000)


def test_hub_admin_port_counts(a_hub: Running) -> None:
    status, document = get_json(a_hub.admin + "/readyz")
    assert (status, document["ready"], document["reasons"]) == (200, True, [])
    status, document = get_json(a_hub.admin + "/v1/status")
    assert (status, document["objects"]) == (200, 1)


# Starting -----------------------------------------------------------------------------------


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    line = fails(*hub(tmp_path / "absent", tmp_path / "state"))
    assert "--store" in line and str(tmp_path / "absent") in line


def test_a_store_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "--store" in fails(*hub(tmp_path / "file", tmp_path / "state"))


def test_a_bucket_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    env = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    line = fails(*hub("s3://corpus/tokens", tmp_path / "state"), env=env)
    assert "--store" in line and "s3://corpus" in line


def test_an_empty_store_is_served(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with running(*hub(tmp_path / "store", tmp_path / "state")) as process:
        process.ready()
        assert get_json(process.admin + "/v1/status")[1]["objects"] == 0


def test_a_taken_port_is_named_with_its_flag(store: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fails(*hub(store, tmp_path / "state", listen=f"127.0.0.1:{port}"))
    assert line == (
        f"hubspoke hub: --listen: '127.0.0.1:{port}': another process listens on this port; "
        "expected a free port"
    )


def test_a_second_hub_on_one_state_is_refused(a_hub: Running, store: Path, tmp_path: Path) -> None:
    line = fails(*hub(store, tmp_path / "state"))
    assert line == f"hubspoke hub: --state: '{tmp_path / 'state'}': in use by process {a_hub.pid}"


def test_a_second_hub_on_one_store_says_so(a_hub: Running, store: Path, tmp_path: Path) -> None:
    before = sorted(store.iterdir())
    with running(*hub(store, tmp_path / "other-state")) as second:
        second.ready()
        assert "WARNING hubspoke.adapters.folders another hub serves this store too" in second.log
    assert "another hub" not in a_hub.log
    assert sorted(store.iterdir()) == before
    a_hub.signal(signal.SIGKILL)
    a_hub.wait()
    with running(*hub(store, tmp_path / "other-state")) as alone:
        alone.ready()
        assert "another hub" not in alone.log


def test_a_second_spoke_on_one_cache_is_refused(a_hub: Running, tmp_path: Path) -> None:
    with running(*spoke(a_hub.data, tmp_path / "cache")) as first:
        first.ready()
        line = fails(*spoke(a_hub.data, tmp_path / "cache"))
        assert line.endswith(f"in use by process {first.pid}")
        assert "--cache" in line


@pytest.mark.parametrize("flag", ["cache", "state"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    folders = {"cache": tmp_path / "cache", "state": tmp_path / "state"}
    folders[flag] = tmp_path / "file" / "below"  # nobody can, not even root
    arguments = spoke("http://127.0.0.1:1", folders["cache"], "--state", str(folders["state"]))
    line = fails(*arguments)
    assert f"--{flag}: '{folders[flag]}'" in line
    assert line.endswith("expected a folder that can be written")


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    line = fails(*spoke("http://127.0.0.1:1", tmp_path, "--cache-size", "huge"))
    assert line.startswith("hubspoke spoke: --cache-size: 'huge': expected a size")


def test_a_port_beyond_loopback_is_announced(store: Path, tmp_path: Path) -> None:
    arguments = hub(store, tmp_path / "state", listen="0.0.0.0:0")
    assert "--insecure" in fails(*arguments)
    with running(*arguments, "--insecure") as process:
        process.ready()
        process.expect(r"WARNING .*--listen 0\.0\.0\.0:0 is open to everybody")


def test_settings_come_from_environment_and_file(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(f'[hub]\nstate = "{tmp_path / "from-file"}"\nlisten = "127.0.0.1:0"\n')
    env = {
        "HUBSPOKE_HUB_CONFIG": str(file),
        "HUBSPOKE_HUB_STORE": str(store),
        "HUBSPOKE_HUB_ADMIN": "127.0.0.1:0",
    }
    with running("hub", env=env) as process:
        process.ready()
        written = json.loads((tmp_path / "from-file" / "endpoints.json").read_text())
        assert written["pid"] == process.pid
        assert process.data == "http://" + written["data"]
        assert process.admin == "http://" + written["admin"]


def test_a_cache_larger_than_the_disk_is_clamped(tmp_path: Path) -> None:
    arguments = spoke("http://127.0.0.1:1", tmp_path / "cache", "--cache-size", "900TB")
    with running(*arguments) as process:
        process.expect(r"WARNING .*--cache-size clamped to the disk wanted_bytes=9\d+ bytes=\d+")
        process.ready()
        _, report = get_json(process.admin + "/v1/report")
        assert report["cache"]["capacity_bytes"] < 900 * 10**12


def test_a_spoke_waits_for_its_hub(store: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with running(*spoke(f"http://127.0.0.1:{port}", tmp_path / "cache")) as a_spoke:
        a_spoke.ready()
        assert get(a_spoke.admin + "/healthz")[0] == 200
        status, document = get_json(a_spoke.admin + "/readyz")
        assert status == 503
        assert document["reasons"]
        assert get(a_spoke.data + "/data/tokens.bin")[0] == 503
        with running(*hub(store, tmp_path / "state", listen=f"127.0.0.1:{port}")) as a_hub:
            a_hub.ready()
            eventually(a_spoke.admin + "/readyz", 200)
            assert get(a_spoke.data + "/data/tokens.bin")[1] == CONTENT


# Ending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_with_status_0(a_hub: Running, tmp_path: Path, number: int) -> None:
    with running(*spoke(a_hub.data, tmp_path / "cache")) as a_spoke:
        a_spoke.ready()
        eventually(a_spoke.admin + "/readyz", 200)
        began = time.monotonic()
        # The hub first: its feed to the spoke is open and must not keep it.
        a_hub.signal(number)
        assert a_hub.wait() == 0, a_hub.log
        assert time.monotonic() - began < 5
        a_spoke.signal(number)
        assert a_spoke.wait() == 0, a_spoke.log
        assert "Traceback" not in a_hub.log + a_spoke.log
    assert not (tmp_path / "state" / "endpoints.json").exists()
    assert not (tmp_path / "cache" / "endpoints.json").exists()


def slow_download(url: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A running response whose reader takes nothing yet."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
    connection.request("GET", parts.path)
    return connection, connection.getresponse()


@pytest.fixture
def large(store: Path) -> bytes:
    content = CONTENT * 12  # more than all socket buffers on the way
    (store / "data" / "large.bin").write_bytes(content)
    return content


def test_a_running_download_ends_before_the_hub_does(
    large: bytes, store: Path, tmp_path: Path
) -> None:
    with running(*hub(store, tmp_path / "state")) as a_hub:
        a_hub.ready()
        connection, response = slow_download(a_hub.data + "/data/large.bin")
        a_hub.signal()
        a_hub.expect("hub stopping")
        assert response.read() == large
        connection.close()
        assert a_hub.wait() == 0


def test_a_second_signal_ends_at_once(large: bytes, store: Path, tmp_path: Path) -> None:
    with running(*hub(store, tmp_path / "state")) as a_hub:
        a_hub.ready()
        connection, _ = slow_download(a_hub.data + "/data/large.bin")
        a_hub.signal()
        a_hub.expect("hub stopping")
        began = time.monotonic()
        while a_hub.process.poll() is None and time.monotonic() - began < 2:
            time.sleep(2 * SAME_SIGNAL_S)  # closer together they are one
            a_hub.signal()
        assert a_hub.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 2
        connection.close()


def test_one_signal_that_comes_twice_is_one(store: Path, tmp_path: Path) -> None:
    """`timeout` tells its child, and then all processes of the group."""
    with running(*hub(store, tmp_path / "state")) as a_hub:
        a_hub.ready()
        for _ in range(3):
            a_hub.signal()
            time.sleep(SAME_SIGNAL_S / 50)  # so that the kernel does not make one of them
        assert a_hub.wait() == 0, a_hub.log
        assert "hub stopped" in a_hub.log


def test_a_killed_spoke_is_warm_again(a_hub: Running, tmp_path: Path) -> None:
    with running(*spoke(a_hub.data, tmp_path / "cache")) as a_spoke:
        a_spoke.ready()
        eventually(a_spoke.admin + "/readyz", 200)
        assert get(a_spoke.data + "/data/tokens.bin")[1] == CONTENT
        time.sleep(0.3)  # residency reaches the index within 100 ms of arrival
        a_spoke.signal(signal.SIGKILL)
        a_spoke.wait()
    with running(*spoke(a_hub.data, tmp_path / "cache")) as again:
        again.ready()
        eventually(again.admin + "/readyz", 200)
        _, body, headers = get(again.data + "/data/tokens.bin")
        assert body == CONTENT
        assert headers["x-hubspoke-cache"] == "hit"


def test_a_killed_hub_has_what_it_acknowledged(store: Path, tmp_path: Path) -> None:
    for round_ in range(3):
        with running(*hub(store, tmp_path / "state")) as a_hub:
            a_hub.ready()
            for earlier in range(round_):
                body = get(f"{a_hub.data}/data/{earlier}")[1]
                assert body == bytes([earlier]) * 100_000
            put(f"{a_hub.data}/data/{round_}", bytes([round_]) * 100_000)
            a_hub.signal(signal.SIGKILL)
            a_hub.wait()


# Commands -----------------------------------------------------------------------------------


def hubspoke(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hubspoke", *arguments]
    environment = {**os.environ, "COLUMNS": "120", **(env or {})}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, env=environment, check=False
    )


def test_report_and_status_of_a_running_spoke(a_hub: Running, tmp_path: Path) -> None:
    with running(*spoke(a_hub.data, tmp_path / "cache", "--price", "0.5")) as a_spoke:
        a_spoke.ready()
        eventually(a_spoke.admin + "/readyz", 200)
        get(a_spoke.data + "/data/tokens.bin")
        result = hubspoke("report", a_spoke.admin, "--json")
        assert (result.returncode, result.stderr) == (0, "")
        saved = tmp_path / "run.json"
        saved.write_text(result.stdout)
        assert json.loads(result.stdout)["reads"]["requests"] == 1
        proxy = {"http_proxy": "http://192.0.2.1:1"}  # never used for loopback
        result = hubspoke("status", a_spoke.admin, "--json", env=proxy)
        assert (result.returncode, result.stderr) == (0, "")
        document = json.loads(result.stdout)
        assert document["ready"] is True
        assert document["received_bytes_per_second"] is not None
        assert "hit ratio" in hubspoke("status", a_spoke.admin).stdout
        for typed in (a_spoke.admin + "/v1/report", a_spoke.admin.removeprefix("http://") + "/"):
            assert hubspoke("report", typed, "--json").returncode == 0, typed
        line = hubspoke("report", a_spoke.data).stderr
        assert "answered 40" in line and "expected a spoke's admin port" in line
        line = hubspoke("status", a_hub.admin).stderr
        assert "a hub's admin port" in line and line.count("\n") == 1
        for arguments in ([], ["data"], ["--cancel", "w1"]):
            line = hubspoke("warm", "--url", a_hub.admin, *arguments).stderr
            assert "expected a spoke's admin port" in line and line.count("\n") == 1, line
        lines = _first_lines(2, "status", a_spoke.admin, "--watch", "--json")
        assert [json.loads(line)["ready"] for line in lines] == [True, True]
    result = hubspoke("report", str(saved))
    assert result.returncode == 0
    for word in ("Reads", "hit ratio", "WAN", "Money", "--price"):
        assert word in result.stdout


def _first_lines(count: int, *arguments: str) -> list[bytes]:
    """As `| head` takes them: then the pipe is closed, and the command ends without a word."""
    command = [sys.executable, "-m", "hubspoke", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    with process:
        lines = [process.stdout.readline() for _ in range(count)]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    return lines


def test_report_of_nothing_is_one_line(tmp_path: Path) -> None:
    result = hubspoke("report", "http://127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr.startswith("hubspoke report: http://127.0.0.1:1/v1/report: cannot be")
    assert result.stderr.count("\n") == 1
    (tmp_path / "other.json").write_text("{}")
    assert hubspoke("report", str(tmp_path / "other.json")).returncode == 1
    assert hubspoke("report", str(tmp_path / "absent.json"), "--json").stdout == ""


def test_help_and_version_are_quick_and_name_only_what_is_built() -> None:
    assert hubspoke("--version").stdout.startswith("hubspoke 0.")
    began = time.monotonic()
    listing = hubspoke("--help").stdout
    assert time.monotonic() - began < 2
    commands = {line.split()[0] for line in listing.splitlines() if line.startswith("  ")}
    assert "spoke" in commands
    assert not commands & {"mount", "plan", "bench"}
    assert hubspoke("spoke", "--mount", "/mnt").returncode == 2  # and no hub
    assert hubspoke("mount").returncode == 2


def test_a_hub_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with running(*spoke("http://127.0.0.1:1", tmp_path / "cache")) as alone:
        alone.expect(r"WARNING .*hub not reached url=http://127\.0\.0\.1:1 ")
