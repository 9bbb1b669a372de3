"""A hub whose state was lost: its spokes follow the new one, also where sequences are equal."""

import shutil
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from tests.fleet import Node, free_port
from tests.processes import hub, spoke


def read(connection: HTTPConnection) -> bytes:
    connection.request("GET", "/data/k", headers={"Range": "bytes=0-99"})
    answer = connection.getresponse()
    assert answer.status == 206
    return answer.read()


def test_a_spoke_of_a_rebuilt_hub_forgets_what_it_had_resolved(tmp_path: Path) -> None:
    file = tmp_path / "store" / "data" / "k"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"1" * 5000)
    port = free_port()
    arguments = hub(tmp_path / "store", tmp_path / "state", listen=f"127.0.0.1:{port}")
    a_hub = Node(arguments).ready()
    a_spoke = Node(spoke(f"http://127.0.0.1:{port}", tmp_path / "cache")).ready()
    try:
        a_spoke.fresh()
        with closing(HTTPConnection(urlsplit(a_spoke.data).netloc, timeout=30)) as connection:
            for _ in range(3):  # resolved, then cached, then answered at once
                assert read(connection) == b"1" * 100
            a_hub.kill()
            shutil.rmtree(tmp_path / "state")
            file.write_bytes(b"2" * 5000)
            a_hub.restart()
            epoch = a_hub.process.expect(r"hub serves epoch=(\w+)")[1]
            a_spoke.process.expect(f"snapshot started epoch={epoch}")
            a_spoke.fresh()
            assert read(connection) == b"2" * 100
    finally:
        a_spoke.process.end()
        a_hub.process.end()
