"""A hub and spokes as real processes with an emulated WAN between, and what can befall them."""

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hubspoke.lab.wan import RelayWan, TunWan, Wan
from tests.processes import Running, get_json, hub, spoke

READY_S = 60.0
TUN_PORT = 7070  # in a network namespace of its own


def free_port() -> int:
    """A port that a process can be given again at each restart."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class Node:
    """One process that keeps its ports and folders when it is killed and started again."""

    def __init__(self, arguments: Sequence[str], *, prefix: Sequence[str] = ()) -> None:
        self._arguments = arguments
        self._prefix = prefix
        self.process = self._run()

    def _run(self) -> Running:
        return Running(*self._arguments, prefix=self._prefix)

    def ready(self) -> "Node":
        """Its ports are open."""
        self.data = self.process.ready().data
        return self

    def fresh(self) -> None:
        """Its /readyz says 200: a spoke has its replica and a lease."""
        deadline = time.monotonic() + READY_S
        while get_json(self.process.admin + "/readyz")[0] != 200:
            assert time.monotonic() < deadline, self.process.log
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.end()

    def restart(self) -> None:
        self.process = self._run()
        self.ready()

    def pause(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)


class Fleet:
    """hub_url: where writers go; behind a TUN router that is across the WAN too."""

    def __init__(self, hub_node: Node, wan: Wan, spokes: list[Node], hub_url: str) -> None:
        self.hub = hub_node
        self.wan = wan
        self.spokes = spokes
        self.hub_url = hub_url


@contextmanager
def running_fleet(
    folder: Path,
    *,
    bucket: str,
    policies: Sequence[str],
    rtt_ms: float = 60.0,
    tun: bool = False,
) -> Iterator[Fleet]:
    """One spoke for each of `policies` (`--policy`); all have a lease when it begins."""
    (folder / "store" / bucket).mkdir(parents=True)
    nodes: list[Node] = []
    wan: Wan | None = None
    try:
        if tun:
            wan = TunWan.start(TUN_PORT, rtt_ms=rtt_ms)
            listen, insecure = f"{wan.hub_host}:{TUN_PORT}", ["--insecure"]
        else:
            port = free_port()
            wan = RelayWan.start(port, rtt_ms=rtt_ms)
            listen, insecure = f"127.0.0.1:{port}", []
        arguments = hub(folder / "store", folder / "state", *insecure, listen=listen)
        nodes.append(Node(arguments, prefix=wan.hub_command_prefix).ready())
        for i, policy in enumerate(policies):
            own = ["--listen", f"127.0.0.1:{free_port()}", "--policy", policy]
            nodes.append(Node(spoke(wan.spoke_url, folder / f"cache{i}", *own)).ready())
        for node in nodes[1:]:
            node.fresh()
        yield Fleet(nodes[0], wan, nodes[1:], wan.spoke_url if tun else f"http://{listen}")
    finally:
        for node in reversed(nodes):
            node.process.end()
        if wan is not None:
            wan.close()
