"""Hub, WAN and spokes as real processes on this machine, for the demo, the bench and tests.

Decides how they are started, waited for and ended, and on which ports (the system chooses). The
hub's data port is reached only through the emulated WAN. Every process dies with its `with`
block, in a session of its own, so a Ctrl-C reaches the owner alone and the owner ends them in
order; where the owner is killed its guard does. It must never end a process that it did not start.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

from hubspoke.errors import ConfigError, DeadlineExceeded, HubSpokeError
from hubspoke.lab.guard import guard
from hubspoke.lab.wan import RelayWan, TunWan, Wan

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
HUB_REGION = "us-east-2"  # the reference set-up's regions, which have a price between them
SPOKE_REGION = "us-west-2"
WanKind = Literal["relay", "tun"]
_TUN_HUB_PORT = 7070  # in a network namespace of its own, where nobody else listens
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


class ProcessFailed(HubSpokeError):
    """A process of the stack ended or did not become ready; the end of its log is the message."""


@dataclass(frozen=True, slots=True)
class WanConfig:
    """The emulated path. rate_mbit: 10^6 bit/s in each direction, 0 for no cap. congestion: the
    hub's congestion control behind a TUN router; None: the kernel's default."""

    kind: WanKind = "relay"
    rtt_ms: float = 60.0
    rate_mbit: float = 0.0
    congestion: str | None = None


class Service:
    """One `hubspoke` process, its log, and the addresses it is bound to.

    data, admin: "HOST:PORT", known once it listens.
    """

    def __init__(
        self, name: str, command: Sequence[str], state: Path, log: Path, *, ready_by_admin: bool
    ) -> None:
        self.name = name
        self._ready_by_admin = ready_by_admin
        self._log = log
        with log.open("ab") as out:
            self._log_start = out.tell()
            self.process = subprocess.Popen(
                [*command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        guard().add(self.process.pid)
        self._endpoints = state / "endpoints.json"
        self.data = ""
        self.admin = ""

    def await_ready(self) -> None:
        """Wait until it serves; its ports are known then.

        It says in its log that the ports are open. A spoke has no lease at that moment, so its
        /readyz is asked too; a hub behind a TUN router has an admin port that only it can reach.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        self._poll(lambda: re.search(rb" ready data=", self._output()) is not None, deadline)
        document = json.loads(self._endpoints.read_text())
        self.data, self.admin = document["data"], document["admin"]
        if self._ready_by_admin:
            self._poll(lambda: self._get("/readyz")[0] == 200, deadline)

    def _poll(self, ready: Callable[[], bool], deadline: float) -> None:
        while not ready():
            if self.process.poll() is not None:
                status = self.process.returncode
                raise ProcessFailed(f"{self.name} ended, status {status}: {self.tail()}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"{self.name} not ready after {READY_TIMEOUT_S:g} s: {self.tail()}"
                )
            time.sleep(_POLL_S)

    def ask(self, path: str) -> Any:
        """A JSON document of the admin port; raises ProcessFailed when it is no 200."""
        status, body = self._get(path)
        if status != 200:
            raise ProcessFailed(f"{self.name}, {path}: status {status}: {body[:300]!r}")
        return json.loads(body)

    def _get(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(f"//{self.admin}")
        assert parts.hostname and parts.port, self.admin
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as e:
            raise ProcessFailed(f"{self.name}, {path}: {e}; {self.tail()}") from e
        finally:
            connection.close()

    def _output(self) -> bytes:
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read()

    def tail(self) -> str:
        """The end of its log."""
        return self._output()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() or "(no output)"

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self.process.kill()
        self.process.wait()
        guard().drop(self.process.pid)

    def stop(self) -> None:
        """SIGTERM and, if that does not end it, SIGKILL."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
            guard().drop(self.process.pid)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> "Service":
        try:
            self.await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Stack:
    """A hub over `store` behind an emulated WAN; `spoke()` starts spokes at the near end.

    work: a folder for state, which the owner removes. logs: where the processes' output goes.
    price: as `--price`, or None for the package's table.
    """

    def __init__(
        self, store: Path, *, work: Path, logs: Path, wan: WanConfig, price: str | None = None
    ) -> None:
        self._store = store
        self._work = work
        self._logs = logs
        self._config = wan
        self._price = price
        self._wan: Wan | None = None
        self._hub: Service | None = None

    @property
    def wan(self) -> Wan:
        """The running emulator."""
        assert self._wan is not None, "the stack is not started"
        return self._wan

    @property
    def hub(self) -> Service:
        """The running hub."""
        assert self._hub is not None, "the stack is not started"
        return self._hub

    @property
    def rtt_s(self) -> float:
        """Round trip of the emulated path, in seconds."""
        return self._config.rtt_ms / 1000

    def __enter__(self) -> "Stack":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> None:
        c = self._config
        if c.kind == "tun":
            require_wan(c.kind)
            self._wan = TunWan.start(
                _TUN_HUB_PORT, rtt_ms=c.rtt_ms, rate_mbit=c.rate_mbit, congestion=c.congestion
            )
            self._start_hub(f"{self._wan.hub_host}:{_TUN_HUB_PORT}", self._wan.hub_command_prefix)
            return
        hub = self._start_hub("127.0.0.1:0", [])
        port = int(hub.data.rpartition(":")[2])
        self._wan = RelayWan.start(port, rtt_ms=c.rtt_ms, rate_mbit=c.rate_mbit)

    def _start_hub(self, listen: str, prefix: Sequence[str]) -> Service:
        state = self._work / "hub-state"
        command = [*prefix, sys.executable, "-m", "hubspoke", "hub", "--store", str(self._store)]
        command += ["--listen", listen, "--admin", "127.0.0.1:0", "--state", str(state)]
        command += ["--region", HUB_REGION]
        if prefix:
            command.append("--insecure")  # the namespace's own address, which only we can reach
        log = self._logs / "hub.log"
        self._hub = Service("hub", command, state, log, ready_by_admin=not prefix)
        self._hub.await_ready()
        return self._hub

    def spoke(
        self,
        name: str,
        cache: Path,
        *,
        prefetch: bool = True,
        listen: str = "127.0.0.1:0",
        more: Sequence[str] = (),
    ) -> Service:
        """A spoke process on `cache`; use it as a context manager, or await_ready and stop. more:
        flags of `hubspoke spoke`."""
        command = [sys.executable, "-m", "hubspoke", "spoke", "--hub", self.wan.spoke_url]
        command += ["--cache", str(cache), "--listen", listen, "--admin", "127.0.0.1:0"]
        command += ["--region", SPOKE_REGION, "--prefetch", "on" if prefetch else "off"]
        if self._price is not None:
            command += ["--price", self._price]
        command += more
        return Service(name, command, cache, self._logs / f"{name}.log", ready_by_admin=True)

    def _stop(self) -> None:
        if self._hub is not None:
            self._hub.stop()
        if self._wan is not None:
            self._wan.close()


def require_wan(kind: WanKind) -> None:
    """Raises ConfigError where that emulator cannot be built."""
    reason = TunWan.available() if kind == "tun" else None
    if reason is not None:
        raise ConfigError(f"--wan tun: {reason}; --wan relay needs nothing")


def room_for(folder: Path, size: int) -> None:
    """Raises ConfigError unless `folder`'s file system has `size` bytes free."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < size:
        raise ConfigError(f"{folder}: {free >> 20} MiB free, the demo needs {size >> 20} MiB")
