"""Handles on the emulated WANs, for tests, the demo and the bench.

Decides how an emulator process is started, asked and ended; which bytes pass when is the emulators'
own business (relay.py, tun.py). It must never wait without a deadline nor leave a process behind:
the emulators end with `close`, and by themselves when their owner dies.

    with RelayWan.start(7070) as wan:      # or TunWan.start(7070), where `TunWan.available()` is
    None
        hub = Popen([*wan.hub_command_prefix, "hubspoke", "hub", "--listen", f"{wan.hub_host}:7070",
        ...]) spoke = Popen(["hubspoke", "spoke", "--hub", wan.spoke_url, ...]) before =
        wan.counters()
"""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

from hubspoke.errors import ConfigError, DeadlineExceeded, HubSpokeError

_START_S: Final = 15.0
_CONTROL_S: Final = 10.0
_CLOSE_S: Final = 10.0


class WanFailed(HubSpokeError):
    """An emulator did not start, refused a request or has ended; the message has its own words."""


class WanCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What has passed since the start.

    to_hub_bytes, to_spoke_bytes: TCP payload delivered to that side: what the sockets at the two
    ends see. At a relay exact; at a TUN router retransmitted bytes are in it.
    """

    to_hub_bytes: int
    to_spoke_bytes: int
    state: str  # open, stalled, partitioned
    # Relay only: accepted = delivered + discarded (receiver gone) + buffered.
    to_hub_accepted_bytes: int | None = None
    to_spoke_accepted_bytes: int | None = None
    to_hub_discarded_bytes: int | None = None
    to_spoke_discarded_bytes: int | None = None
    buffered_bytes: int | None = None
    connections_current: int | None = None
    connections_total: int | None = None
    # TUN only: whole IP packets, headers included.
    to_hub_ip_bytes: int | None = None
    to_spoke_ip_bytes: int | None = None
    to_hub_packets: int | None = None
    to_spoke_packets: int | None = None
    dropped_packets: int | None = None


class Wan:
    """A running emulator. `name` says what path it is; every figure should carry it."""

    def __init__(self, process: subprocess.Popen[bytes], ready: dict[str, Any], port: int) -> None:
        self._process = process
        self._control: tuple[str, int] = (ready["control"][0], ready["control"][1])
        self.name: str = ready["name"]
        self.hub_host: str = "127.0.0.1"
        self.hub_port = port
        self.hub_command_prefix: list[str] = []
        self.spoke_url = ""

    @property
    def pid(self) -> int:
        """Process id of the emulator."""
        return self._process.pid

    def counters(self) -> WanCounters:
        """Bytes and connections so far."""
        return msgspec.convert(self._ask({"op": "counters"}), WanCounters)

    def partition(self) -> None:
        """Drop everything silently until `heal`; new connections hang."""
        self._ask({"op": "partition"})

    def heal(self) -> None:
        """End a partition; what was lost passes when TCP sends it again."""
        self._ask({"op": "heal"})

    def stall(self) -> None:
        """Hold everything until `resume`, which lets it all go on at once."""
        self._ask({"op": "stall"})

    def resume(self) -> None:
        """End a stall."""
        self._ask({"op": "resume"})

    def set(self, **changes: float | bool) -> None:
        """Change the path while it runs: rtt_ms, rate_mbit, and what else the emulator knows."""
        self.name = self._named(self._ask({"op": "set", **changes})["name"])

    def close(self) -> None:
        """End the emulator and wait until it has cleaned up."""
        _end(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _named(path: str) -> str:
        return path

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        what = f"WAN emulator {self.name!r}, request {request}"
        try:
            with socket.create_connection(self._control, timeout=_CONTROL_S) as sock:
                sock.sendall(json.dumps(request).encode() + b"\n")
                with sock.makefile("rb") as replies:
                    line = replies.readline()
            reply: dict[str, Any] = json.loads(line)
        except (OSError, ValueError) as e:
            raise WanFailed(f"{what}: {type(e).__name__}: {e}; exit {self._process.poll()}") from e
        if "error" in reply:
            raise WanFailed(f"{what}: {reply['error']}")
        return reply


class RelayWan(Wan):
    """The TCP relay: no privileges, hub and spoke both on loopback."""

    @classmethod
    def start(
        cls,
        target_port: int,
        *,
        rtt_ms: float = 60.0,
        rate_mbit: float = 0.0,
        queue_ms: float = 50.0,
        window_bytes: int = 4 << 20,
        slow_start: bool = True,
        idle_reset: bool = True,
    ) -> Self:
        """Start a relay to 127.0.0.1:`target_port`, where nobody needs to listen yet.

        rate_mbit: 10^6 bit/s for each direction, 0 for no cap. window_bytes: 0 for none.
        Raises: WanFailed, DeadlineExceeded.
        """
        command = [sys.executable, "-m", "hubspoke.lab.relay"]
        command += ["--target", f"127.0.0.1:{target_port}", "--rtt-ms", str(rtt_ms)]
        command += ["--rate-mbit", str(rate_mbit), "--queue-ms", str(queue_ms)]
        command += ["--window-bytes", str(window_bytes)]
        command += [] if slow_start else ["--no-slow-start"]
        command += [] if idle_reset else ["--no-idle-reset"]
        process, ready = _launch(command)
        wan = cls(process, ready, target_port)
        wan.name = cls._named(wan.name)
        wan.spoke_url = f"http://{ready['listen'][0]}:{ready['listen'][1]}"
        return wan

    def reset(self) -> None:
        """RST all connections, at both ends, now."""
        self._ask({"op": "reset"})

    @staticmethod
    def _named(path: str) -> str:
        return f"relay, {path}"


class TunWan(Wan):
    """Two TUN devices and a network namespace for the hub: the kernel's own TCP; needs root."""

    @staticmethod
    def available() -> str | None:
        """None where a TUN router can be built; else the reason why not, to print or skip with."""
        if sys.platform != "linux":
            return f"TUN routers are built on Linux only, this is {sys.platform}"
        if os.geteuid() != 0:
            return "needs root (network namespaces)"
        if not os.path.exists("/dev/net/tun"):
            return "/dev/net/tun is missing (module tun, or the container does not pass it)"
        if shutil.which("ip") is None:
            return "the command `ip` is missing: install the package iproute2"
        return None

    @classmethod
    def start(
        cls,
        target_port: int,
        *,
        rtt_ms: float = 60.0,
        rate_mbit: float = 0.0,
        queue_ms: float = 50.0,
        loss: float = 0.0,
        mtu: int = 1500,
        congestion: str | None = None,
        seed: int = 0,
    ) -> Self:
        """Build the namespace and the path. Start the hub with `hub_command_prefix`, at `hub_host`.

        loss: probability for each packet of `mtu` bytes. congestion: the hub's congestion control;
        None: the kernel's default. seed: of the losses.
        Raises: ConfigError (with the reason of `available`), WanFailed, DeadlineExceeded.
        """
        reason = cls.available()
        if reason is not None:
            raise ConfigError(f"TUN router: {reason}")
        command = [sys.executable, "-m", "hubspoke.lab.tun", "--rtt-ms", str(rtt_ms)]
        command += ["--rate-mbit", str(rate_mbit), "--queue-ms", str(queue_ms)]
        command += ["--loss", str(loss), "--mtu", str(mtu), "--seed", str(seed)]
        command += ["--congestion", congestion] if congestion else []
        process, ready = _launch(command)
        wan = cls(process, ready, target_port)
        wan.name = cls._named(wan.name)
        wan.hub_host = ready["hub_host"]
        wan.hub_command_prefix = ["ip", "netns", "exec", ready["namespace"]]
        wan.spoke_url = f"http://{wan.hub_host}:{target_port}"
        return wan

    @staticmethod
    def _named(path: str) -> str:
        return f"TUN router, {path}"


def _launch(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start an emulator and wait for its ready line.

    Its standard input stays open as long as this process lives: the end of it is how an emulator
    learns that its owner was killed. Standard error is ours, so that it can say why it died.
    """
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        line = _first_line(process, time.monotonic() + _START_S)
        ready: dict[str, Any] = json.loads(line)
    except BaseException as e:
        _end(process)
        if isinstance(e, ValueError):
            what = " ".join(command[1:])
            raise WanFailed(
                f"{what}: no ready line, exit {process.returncode}; see its error output"
            ) from e
        raise
    return process, ready


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, so that it cleans up after itself; SIGKILL only if that does not end it."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_CLOSE_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _first_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1e3):
            raise DeadlineExceeded(f"WAN emulator not ready after {_START_S:g} s")
        piece = os.read(fd, 4096)
        if not piece:
            break
        line += piece
    return line
