"""A TCP relay that emulates a long-distance path between spoke and hub; needs no privileges.

Decides what the switches mean; when bytes pass is decided in path_model.py and the sockets are in
relay_connection.py. It must never lose a byte of a connection that lives.

A connection costs a round trip before its first byte, as the handshake does, though `connect`
itself returns at once (the kernel answers on loopback): the hub is connected to after rtt/2, the
spoke is heard after rtt, the hub after 1.5 rtt. What it does not emulate: loss, packets, headers
(see tun.py).

Switches: *stall* holds everything and *resume* lets it go on, like a paused router. *partition*
drops silently: nothing passes, new connections hang; after *heal* what was lost passes when TCP
would send it again (RTO doubling, then one segment). *reset* aborts all connections at both ends.
"""

import argparse
import json
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Literal

from hubspoke.lab.control import ControlServer, Reply, number, parse_address
from hubspoke.lab.loop import Loop, stop_on_signals
from hubspoke.lab.path_model import INITIAL_WINDOW_BYTES, PathConfig, SharedLink
from hubspoke.lab.relay_connection import SOCKET_BUFFER_BYTES, Connection, Path

State = Literal["open", "stalled", "partitioned"]


def links_of(config: PathConfig) -> tuple[SharedLink | None, SharedLink | None]:
    """The bottlenecks of both directions, if the path has a rate."""
    rate = config.rate_bytes_per_s
    if rate is None:
        return None, None
    return SharedLink(rate, config.queue_s), SharedLink(rate, config.queue_s)


class Relay:
    """Listens, and passes each connection on to `target` over the emulated path."""

    def __init__(
        self, loop: Loop, listen: tuple[str, int], target: tuple[str, int], config: PathConfig
    ) -> None:
        self._path = Path(loop, target, config, links_of(config))
        self._state: State = "open"
        self._partitioned_at: float | None = None
        self._connections_total = 0
        self._listener = socket.create_server(listen, backlog=1024)
        # Before accepting, because it decides the window scaling of the accepted sockets.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        loop.add(self._listener.fileno(), select.EPOLLIN, self._accept)

    def handle(self, request: dict[str, object]) -> Reply:
        """Answer one control request. Raises ValueError for one that makes no sense."""
        match request.get("op"):
            case "counters":
                return self._counters()
            case "stall":
                self._close_path("stalled")
            case "partition":
                self._close_path("partitioned")
            case "resume" | "heal":
                self._open_path()
            case "reset":
                for connection in list(self._path.connections):
                    connection.abort()
            case "set":
                self._set(request)
            case other:
                raise ValueError(
                    f"op {other!r}: expected counters, stall, resume, partition, heal, reset or set"
                )
        return {"state": self._state, "name": self._path.config.name()}

    def _accept(self, _events: int) -> None:
        for _ in range(64):
            try:
                sock, _peer = self._listener.accept()
            except BlockingIOError:
                return
            self._connections_total += 1
            Connection(self._path, sock)

    def _counters(self) -> Reply:
        path = self._path
        return {
            "to_hub_bytes": path.to_hub.delivered,
            "to_spoke_bytes": path.to_spoke.delivered,
            "to_hub_accepted_bytes": path.to_hub.accepted,
            "to_spoke_accepted_bytes": path.to_spoke.accepted,
            "to_hub_discarded_bytes": path.to_hub.discarded,
            "to_spoke_discarded_bytes": path.to_spoke.discarded,
            "connections_current": len(path.connections),
            "connections_total": self._connections_total,
            "buffered_bytes": sum(c.up.ring.used + c.down.ring.used for c in path.connections),
            "state": self._state,
            "name": path.config.name(),
            "path": asdict(path.config),
        }

    def _close_path(self, state: State) -> None:
        if state == "partitioned" and self._partitioned_at is None:
            self._partitioned_at = time.monotonic()
        elif self._partitioned_at is not None:
            return  # a stall under a partition changes nothing
        self._state = state
        self._path.passing = False

    def _open_path(self) -> None:
        if self._path.passing:
            return
        lost_since, self._partitioned_at = self._partitioned_at, None
        self._state = "open"
        self._path.passing = True
        now = time.monotonic()
        for connection in list(self._path.connections):
            connection.pass_again(lost_since, now)

    def _set(self, request: dict[str, object]) -> None:
        config = self._path.config
        changes = {key: value for key, value in request.items() if key != "op"}
        for key, value in changes.items():
            match key:
                case "rtt_ms":
                    config = replace(config, rtt_s=number(request, key) / 1e3)
                case "rate_mbit":
                    config = replace(config, rate_bytes_per_s=number(request, key) * 125e3 or None)
                case "window_bytes":
                    config = replace(config, window_bytes=window_of(int(number(request, key))))
                case "slow_start" if isinstance(value, bool):
                    config = replace(config, slow_start=value)
                case "idle_reset" if isinstance(value, bool):
                    config = replace(config, idle_reset=value)
                case _:
                    raise ValueError(
                        f"set {key}={value!r}: expected rtt_ms, rate_mbit or window_bytes with a "
                        "number, slow_start or idle_reset with true or false"
                    )
        self._path.config = config
        self._path.links = links_of(config)
        for connection in list(self._path.connections):
            connection.take_config()


def window_of(count: int) -> int | None:
    """A window given as a number, 0 meaning none. Raises ValueError for one too small to work."""
    if count and count < INITIAL_WINDOW_BYTES:
        raise ValueError(f"window of {count} bytes: expected 0 (none) or >= {INITIAL_WINDOW_BYTES}")
    return count or None


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with status 2 and the reason when it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m hubspoke.lab.relay")
    parser.add_argument("--listen", type=parse_address, default=("127.0.0.1", 0), metavar="H:P")
    parser.add_argument("--target", type=parse_address, required=True, metavar="H:P")
    parser.add_argument("--control", type=parse_address, default=("127.0.0.1", 0), metavar="H:P")
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    parser.add_argument("--rate-mbit", type=float, default=0.0, help="per direction; 0: no cap")
    parser.add_argument("--queue-ms", type=float, default=50.0, help="of the bottleneck")
    parser.add_argument("--window-bytes", type=int, default=4 << 20, help="a connection; 0: none")
    parser.add_argument("--no-slow-start", action="store_true")
    parser.add_argument("--no-idle-reset", action="store_true")
    parsed = parser.parse_args(arguments)
    if parsed.rtt_ms < 0 or parsed.rate_mbit < 0 or parsed.queue_ms <= 0:
        parser.error("--rtt-ms and --rate-mbit must be >= 0, --queue-ms > 0")
    try:
        parsed.window = window_of(parsed.window_bytes)
    except ValueError as e:
        parser.error(f"--window-bytes: {e}")
    return parsed


def main(arguments: Sequence[str]) -> None:
    """Print one JSON line when ready; run until SIGTERM or the end of standard input."""
    parsed = parse_arguments(arguments)
    config = PathConfig(
        rtt_s=parsed.rtt_ms / 1e3,
        window_bytes=parsed.window,
        slow_start=not parsed.no_slow_start,
        idle_reset=not parsed.no_idle_reset,
        rate_bytes_per_s=parsed.rate_mbit * 125e3 or None,
        queue_s=parsed.queue_ms / 1e3,
    )
    loop = Loop()
    stop_on_signals(loop)
    relay = Relay(loop, parsed.listen, parsed.target, config)
    control = ControlServer(loop, parsed.control, relay.handle)
    ready = {"listen": relay.address, "control": control.address, "name": config.name()}
    print(json.dumps(ready), flush=True)
    loop.run()


if __name__ == "__main__":
    main(sys.argv[1:])
