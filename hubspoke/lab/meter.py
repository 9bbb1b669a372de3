"""A training job's own meter: tells the spoke about once a second how the job is doing.

`POST {admin}/v1/jobs/NAME` takes increments: samples, compute_seconds, wait_seconds. The first is
one of zeros before the job reads anything, because the spoke counts a job's hit ratio from its
first post on: without it the cold reads of the first second were left out. The others are sent
by a thread, so that a slow or absent admin port never delays a step; what could not be sent goes
with the next try, and what nobody takes is dropped at the end. It never raises into the job.
"""

import http.client
import json
import threading
from urllib.parse import quote, urlsplit

from hubspoke.errors import ConfigError

INTERVAL_S = 1.0
_TIMEOUT_S = 2.0


class JobMeter:
    """admin: base URL of the spoke's admin port, "http://HOST:PORT"."""

    def __init__(self, admin: str, job: str) -> None:
        parts = urlsplit(admin)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ConfigError(f"admin {admin}: must be http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port
        self._path = f"/v1/jobs/{quote(job, safe='')}"
        self._lock = threading.Lock()
        self._pending = [0.0, 0.0, 0.0]  # samples, compute_seconds, wait_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-meter", daemon=True)

    def start(self) -> None:
        """Tell that the job begins, which waits for one try at most; call before the first read."""
        self._post(0, 0.0, 0.0)
        self._thread.start()

    def add(self, samples: int, compute_s: float, wait_s: float) -> None:
        """One step more; costs a lock and three additions."""
        with self._lock:
            self._pending[0] += samples
            self._pending[1] += compute_s
            self._pending[2] += wait_s

    def stop(self) -> None:
        """Send the rest and end; waits at most for two tries."""
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._send()
        self._send()

    def _send(self) -> None:
        with self._lock:
            samples, compute, wait = self._pending
            self._pending = [0.0, 0.0, 0.0]
        if not samples:
            return
        if not self._post(samples, compute, wait):
            self.add(int(samples), compute, wait)

    def _post(self, samples: float, compute: float, wait: float) -> bool:
        """Whether the admin port took it."""
        body = json.dumps(
            {"samples": int(samples), "compute_seconds": compute, "wait_seconds": wait}
        )
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", self._path, body, {"content-type": "application/json"})
            return connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
