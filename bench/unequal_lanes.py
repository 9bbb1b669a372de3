"""A long read over lanes of unequal windows: how much of the path it uses.

    python bench/unequal_lanes.py [--mib 2048] [--seeds 8] [--path-mb-s 700]

Kernels leave slow start early where delays grow, each connection at another window. Here the
scheduler deals one long read over 32 lanes whose windows stop at random sizes, log-normal around
1,640 segments as `ss -ti` showed them at a hub, on a path of 60 ms whose rate all share; time is
virtual, steps of 1 ms. A lane that is slow holds up the reader, and with the reader's window all
others; with equal lanes nothing does. Prints MB/s for each seed and their mean.
"""

import argparse
import random
from collections import deque
from dataclasses import dataclass, field

from hubspoke.core.cache import Cache
from hubspoke.core.fetches import Fetch
from hubspoke.core.ids import FRAME_BYTES_MAX, PAGE_BYTES, ObjectEntry, ObjectName, Version
from hubspoke.core.pacing import INITIAL_WINDOW_BYTES, PacingConfig
from hubspoke.core.scheduler import Scheduler

RTT_S, STEP_S, SEGMENT_BYTES = 0.06, 0.001, 1448
WINDOW_BYTES_MAX = 4 << 20
READ_AHEAD = (64 << 20, 128 << 20)  # as spoke/reads.py


@dataclass(eq=False)
class Sender:
    """The hub's end of a lane. leaves_at: where slow start ends, after which it grows slowly."""

    leaves_at: int
    window: float = INITIAL_WINDOW_BYTES
    under_way: int = 0
    asked: deque[tuple[Fetch, int]] = field(default_factory=deque)
    acknowledged: deque[tuple[float, int]] = field(default_factory=deque)

    def listen(self, now: float) -> None:
        while self.acknowledged and self.acknowledged[0][0] <= now:
            bytes_ = self.acknowledged.popleft()[1]
            if self.window < 2 * self.under_way:
                slow = self.window >= self.leaves_at
                self.window += 3 * SEGMENT_BYTES * bytes_ / self.window if slow else bytes_
                self.window = min(self.window, WINDOW_BYTES_MAX)
            self.under_way -= bytes_


class Read:
    """One read of `size` bytes; `seconds` plays it."""

    def __init__(self, size: int, path: float, seed: int, *, equal: bool) -> None:
        cache = Cache(4 * size)
        name, entry = ObjectName("b", "k"), ObjectEntry(Version("v"), size, "e", 0)
        self._object, _ = cache.open(name, entry)
        self._scheduler = Scheduler(cache, PacingConfig())
        self._size, self._path = size, path
        self._random = random.Random(seed)
        self._senders = [Sender(self._leaves_at(equal)) for _ in self._scheduler.lanes]
        self._here = bytearray(size // PAGE_BYTES)
        self._requests: deque[tuple[float, Fetch]] = deque()
        self._coming: deque[tuple[float, Fetch, int]] = deque()
        self._now = 0.0

    def _leaves_at(self, equal: bool) -> int:
        return WINDOW_BYTES_MAX if equal else int(self._random.lognormvariate(7.4, 0.75)) * 1448

    def _dispatch(self) -> None:
        for fetch in self._scheduler.dispatch(self._now)[0]:
            self._requests.append((self._now + RTT_S / 2, fetch))

    def seconds(self) -> float:
        """How long it takes."""
        at = asked = 0
        while at < self._size:
            while at < self._size and self._here[at // PAGE_BYTES]:
                at += PAGE_BYTES
            window = min(READ_AHEAD[1], max(READ_AHEAD[0], at))
            if asked < self._size and asked - at <= window * 3 // 4:
                until = min(self._size, at + window)
                self._scheduler.demand(self._object, asked // PAGE_BYTES, until // PAGE_BYTES)
                asked = until
                self._dispatch()
            self._send()
            self._receive()
            self._now += STEP_S
        return self._now

    def _send(self) -> None:
        while self._requests and self._requests[0][0] <= self._now:
            request = self._requests.popleft()[1]
            self._senders[request.lane.index].asked.append((request, request.bytes))
        for sender in self._senders:
            sender.listen(self._now)
        budget = self._path * STEP_S
        sending = [s for s in self._senders if s.asked]
        self._random.shuffle(sending)
        for i, sender in enumerate(sending):
            room = int(min(budget / (len(sending) - i), sender.window - sender.under_way))
            while room > 0 and sender.asked:
                fetch, left = sender.asked[0]
                bytes_ = min(room, left)
                room, budget, sender.under_way = (
                    room - bytes_, budget - bytes_, sender.under_way + bytes_
                )  # fmt: skip
                sender.acknowledged.append((self._now + RTT_S, bytes_))
                self._coming.append((self._now + RTT_S / 2, fetch, bytes_))
                if left == bytes_:
                    sender.asked.popleft()
                else:
                    sender.asked[0] = fetch, left - bytes_

    def _receive(self) -> None:
        more = False
        while self._coming and self._coming[0][0] <= self._now:
            _, fetch, bytes_ = self._coming.popleft()
            self._scheduler.arrived(fetch, bytes_, self._now)
            self._present(fetch)
            if fetch.arrived == fetch.bytes:
                self._scheduler.finished(fetch, fetch.bytes, self._now)
            more |= self._scheduler.wants(fetch.lane, self._now)
        if more:
            self._dispatch()

    def _present(self, fetch: Fetch) -> None:
        """A frame is there when all of it is."""
        whole = fetch.arrived == fetch.bytes
        left = fetch.arrived if whole else fetch.arrived // FRAME_BYTES_MAX * FRAME_BYTES_MAX
        for r in fetch.ranges:
            pages = min(left, r.length) // PAGE_BYTES
            self._here[r.first : r.first + pages] = b"\x01" * pages
            left = max(0, left - r.length)


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--mib", type=int, default=2048, metavar="N", help="size of the object")
    p.add_argument("--seeds", type=int, default=8, metavar="N")
    p.add_argument("--path-mb-s", type=float, default=700.0, metavar="R")
    a = p.parse_args()
    for kind in ("unequal", "equal"):
        rates = [
            (a.mib << 20) / Read(a.mib << 20, a.path_mb_s * 1e6, s, equal=kind == "equal").seconds()
            for s in range(a.seeds)
        ]
        shown = " ".join(f"{rate / 1e6:.0f}" for rate in rates)
        print(f"{kind}: {shown}; mean {sum(rates) / len(rates) / 1e6:.0f} MB/s")


if __name__ == "__main__":
    main()
