"""Real `hubspoke` processes for tests: started, waited for by their own words, always ended."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hubspoke.lab.guard import guard

WAIT_S = 30.0


class Running:
    """One process; its stderr is read all the time and kept.

    In a process group of its own, so that nothing of it outlives the test, and under guard, so
    that nothing outlives a runner that is killed.
    """

    def __init__(
        self,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """prefix: what starts it, such as `ip netns exec NAME`."""
        command = [*prefix, sys.executable, "-m", "hubspoke", *map(str, arguments)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HUBSPOKE_")}
        self.process = subprocess.Popen(
            command,
            env={**clean, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        guard().add(self.process.pid)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def expect(self, pattern: str, timeout_s: float = WAIT_S) -> re.Match[str]:
        """The first line, past or to come, that matches."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.lines if (m := re.search(pattern, line))), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, timeout_s)
            match = found()
        assert match is not None, f"no line like {pattern!r} in:\n{self.log}"
        return match

    def ready(self) -> "Running":
        """Wait for the line that says so, and remember the addresses in it."""
        match = self.expect(r" ready data=(http://\S+) admin=(http://\S+) ")
        self.data, self.admin = match[1], match[2]
        return self

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Exit status, with all of stderr read."""
        status = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return status

    def stop(self) -> int:
        self.signal()
        return self.wait()

    def end(self) -> None:
        """However the test went."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()
        guard().drop(self.process.pid)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def running(*arguments: str | Path, env: dict[str, str] | None = None) -> Iterator[Running]:
    process = Running(*arguments, env=env)
    try:
        yield process
    finally:
        process.end()


def hub(store: str | Path, state: Path, *more: str, listen: str = "127.0.0.1:0") -> list[str]:
    """Arguments of a hub on free ports."""
    ports = ["--listen", listen, "--admin", "127.0.0.1:0"]
    return ["hub", "--store", str(store), "--state", str(state), *ports, *more]


def spoke(hub_url: str, cache: Path, *more: str) -> list[str]:
    """Arguments of a spoke on free ports."""
    ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return ["spoke", "--hub", hub_url, "--cache", str(cache), *ports, *more]


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers (lower case), for errors too."""
    try:
        with urlopen(Request(url, headers=headers or {}), timeout=WAIT_S) as answer:
            return answer.status, answer.read(), lower(answer.headers)
    except HTTPError as e:
        with e:
            return e.code, e.read(), lower(e.headers)


def lower(headers: Any) -> dict[str, str]:
    return {k.lower(): v for k, v in headers.items()}


def get_json(url: str) -> tuple[int, Any]:
    status, body, _ = get(url)
    return status, json.loads(body)


def put(url: str, body: bytes) -> int:
    with urlopen(Request(url, data=body, method="PUT"), timeout=WAIT_S) as answer:
        return int(answer.status)
