"""What a running spoke says of a job's order, and when it said so first."""

import threading
import time
from pathlib import Path
from typing import Any, Final

from hubspoke.lab.stack import Service

LOOK_S: Final = 0.25


class OrderWatch:
    """Looks while it is entered. found: (monotonic time, job) each time the first job's order
    changed. search_cpu_s: processor seconds of the search for orders so far."""

    def __init__(self, spoke: Service) -> None:
        self.found: list[tuple[float, dict[str, Any]]] = []
        self.search_cpu_s = 0.0
        self._spoke = spoke
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "OrderWatch":
        self._thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        before: object = None
        while not self._ends.wait(LOOK_S):
            sets = self._spoke.ask("/v1/streams")["data_sets"]
            self.search_cpu_s = max(self.search_cpu_s, searching_s(self._spoke.process.pid))
            if not sets or not sets[0]["jobs"]:
                continue
            job = sets[0]["jobs"][0]
            says = (job["epoch"], (job["order"] or {}).get("why"), _next_ready(job))
            if says != before:
                before = says
                self.found.append((time.monotonic(), job))

    def first(self, epoch: int, *, following: bool = False) -> float | None:
        """When an epoch's order was believed, or what the next one may be was at hand."""
        for at, job in self.found:
            if job["epoch"] == epoch and job["order"] and (_next_ready(job) or not following):
                return at
        return None

    @property
    def orders(self) -> list[str]:
        """What was believed and why, each once."""
        return list(dict.fromkeys(job["order"]["why"] for _, job in self.found if job["order"]))


def _next_ready(job: dict[str, Any]) -> bool:
    """Whether the next epoch's order is known, or is among guesses of a process' draws: three
    guesses are made of any torch order."""
    order = job["order"] or {}
    return bool(order.get("next_epoch_known")) or order.get("next_epoch_guesses", 0) > 3


def searching_s(pid: int) -> float:
    """Processor seconds of a process' children: of a spoke that is the search for orders."""
    total = 0.0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / 100
    return total
