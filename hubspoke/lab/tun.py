"""A router between two TUN devices that emulates a long-distance path under the kernel's own TCP.

Decides when a packet goes on, and whether: delay, rate, bounded queue, loss. It must never reorder
packets of a direction, and must leave no namespace or device behind, whatever ends it short of kill
-9 (and then the next one sweeps up). Needs root, /dev/net/tun and iproute2.

Windows, slow start, retransmission and congestion control are real here, which a relay (relay.py)
can only imitate; the price is root and a namespace, in which the hub has to be started.
"""

import argparse
import json
import math
import os
import random
import select
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from hubspoke.errors import HubSpokeError
from hubspoke.lab.control import ControlServer, Reply, number, parse_address
from hubspoke.lab.gso import VNET_HEADER_BYTES, Shape, cut, shape
from hubspoke.lab.loop import Loop, stop_on_signals
from hubspoke.lab.tun_network import Network, build

_PACKET_BYTES_MAX: Final = (64 << 10) + VNET_HEADER_BYTES
_PACKETS_PER_TURN: Final = 64
# Beyond what TCP windows can put on the path (32 connections of 4 MiB); a stall must not eat
# memory.
_HELD_BYTES_MAX: Final = 256 << 20
# With a rate, super-packets go through the queue in pieces of this time, as packets would.
_PIECE_S: Final = 0.001
# A wake takes along what is due this soon: behind a bottleneck every packet has a time of its own,
# and a wake for each cost 7.3 instead of 4.0 s/GiB (1 Gbit/s, 16 connections).
_SLACK_S: Final = 0.000_2


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """One emulated path, the same in both directions."""

    rtt_s: float = 0.060
    rate_bytes_per_s: float | None = None  # IP bytes
    queue_s: float = 0.050  # drop-tail, in time at the rate
    loss: float = 0.0  # probability of each packet on the wire
    mtu: int = 1500
    seed: int = 0

    def name(self, congestion: str) -> str:
        """What the path is, for a table's head."""
        parts = [f"{self.rtt_s * 1e3:g} ms", f"kernel TCP {congestion}"]
        if self.rate_bytes_per_s:
            parts.append(f"{self.rate_bytes_per_s * 8e-6:g} Mbit/s")
            parts.append(f"queue {self.queue_s * 1e3:g} ms")
        if self.loss:
            parts.append(f"loss {self.loss:g}")
        parts.append(f"MTU {self.mtu}")
        return ", ".join(parts)


class Losses:
    """Which packets are lost: independent draws, made one loss at a time (geometric gaps)."""

    def __init__(self, probability: float, seed: int) -> None:
        self._probability = probability
        self._random = random.Random(seed)
        self._until_next = self._gap()

    def among(self, count: int) -> list[int]:
        """Positions of the lost ones among the next `count` packets."""
        lost = []
        while self._until_next < count:
            lost.append(int(self._until_next))
            self._until_next += 1 + self._gap()
        self._until_next -= count
        return lost

    def _gap(self) -> float:
        if not self._probability:
            return math.inf
        return math.floor(math.log(1 - self._random.random()) / math.log1p(-self._probability))


class Lane:
    """One direction: packets taken from a device, held, written to the other."""

    def __init__(self, loop: Loop, source: int, target: int) -> None:
        self._loop, self._source, self._target = loop, source, target
        self.config = RouterConfig()
        self.losses = Losses(0.0, 0)
        self.state = "open"
        self.payload_bytes = self.ip_bytes = self.packets = self.dropped = 0
        self._held: deque[tuple[float, bytes, Shape]] = deque()
        self._held_bytes = 0
        self._free_at = -math.inf
        self._last_due = -math.inf
        self._waking = False
        loop.add(source, select.EPOLLIN, self._take)

    def _take(self, _events: int) -> None:
        now = time.monotonic()
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet = os.read(self._source, _PACKET_BYTES_MAX)
            except BlockingIOError:
                break
            form = shape(packet)
            if self.state == "partitioned" or self._held_bytes > _HELD_BYTES_MAX:
                self.dropped += form.segments
                continue
            for piece, piece_form in self._pieces(packet, form):
                self._enqueue(piece, piece_form, now)
        self._schedule()

    def _pieces(self, packet: bytes, form: Shape) -> Iterator[tuple[bytes, Shape]]:
        """What is not lost of a packet, in pieces that suit the rate."""
        longest = form.segments
        if self.config.rate_bytes_per_s:
            per_piece = self.config.rate_bytes_per_s * _PIECE_S / self.config.mtu
            longest = max(1, min(longest, int(per_piece)))
        lost = self.losses.among(form.segments)
        self.dropped += len(lost)
        if not lost and longest == form.segments:
            yield packet, form
            return
        first = 0
        for border in [*lost, form.segments]:
            while first < border:
                count = min(longest, border - first)
                piece = cut(packet, form, first, count) if form.segments > 1 else packet
                yield piece, shape(piece)
                first += count
            first = border + 1

    def _enqueue(self, packet: bytes, form: Shape, now: float) -> None:
        leaves = now
        rate = self.config.rate_bytes_per_s
        if rate:
            starts = max(self._free_at, now)
            if starts - now > self.config.queue_s:
                self.dropped += form.segments
                return
            self._free_at = leaves = starts + form.wire_bytes / rate
        # A path that gets shorter at run time must not reorder.
        self._last_due = max(self._last_due, leaves + self.config.rtt_s / 2)
        self._held.append((self._last_due, packet, form))
        self._held_bytes += len(packet)

    def give(self) -> None:
        """Write what is due to the other device."""
        self._waking = False
        if self.state != "open":
            return
        held, now = self._held, time.monotonic() + _SLACK_S
        while held and held[0][0] <= now:
            _, packet, form = held.popleft()
            self._held_bytes -= len(packet)
            try:
                os.write(self._target, packet)
            except OSError:  # the device takes no more (no memory): a router would drop too
                self.dropped += form.segments
                continue
            self.packets += form.segments
            self.ip_bytes += form.wire_bytes
            self.payload_bytes += form.payload_bytes
        self._schedule()

    def switch(self, state: str) -> None:
        """Open, stall or partition; a partition loses what is under way, too."""
        self.state = state
        if state == "partitioned":
            self.dropped += sum(form.segments for _, _, form in self._held)
            self._held.clear()
            self._held_bytes = 0
        self.give()

    def _schedule(self) -> None:
        if self._held and not self._waking and self.state == "open":
            self._waking = True
            self._loop.at(self._held[0][0], self.give)


class Router:
    """Both lanes and the switches."""

    def __init__(self, loop: Loop, network: Network, config: RouterConfig) -> None:
        self._network = network
        self._state = "open"
        self._to_hub = Lane(loop, network.spoke_fd, network.hub_fd)
        self._to_spoke = Lane(loop, network.hub_fd, network.spoke_fd)
        self._config = RouterConfig()
        self._configure(config)

    @property
    def name(self) -> str:
        """What the path is."""
        return self._config.name(self._network.congestion)

    def handle(self, request: dict[str, object]) -> Reply:
        """Answer one control request. Raises ValueError for one that makes no sense."""
        match request.get("op"):
            case "counters":
                return self._counters()
            case "stall":
                if self._state == "open":
                    self._switch("stalled")
            case "partition":
                self._switch("partitioned")
            case "resume" | "heal":
                self._switch("open")
            case "set":
                self._set(request)
            case other:
                raise ValueError(
                    f"op {other!r}: expected counters, stall, resume, partition, heal or set"
                )
        return {"state": self._state, "name": self.name}

    def _switch(self, state: str) -> None:
        self._state = state
        for lane in (self._to_hub, self._to_spoke):
            lane.switch(state)

    def _counters(self) -> Reply:
        to_hub, to_spoke = self._to_hub, self._to_spoke
        return {
            "to_hub_bytes": to_hub.payload_bytes,
            "to_spoke_bytes": to_spoke.payload_bytes,
            "to_hub_ip_bytes": to_hub.ip_bytes,
            "to_spoke_ip_bytes": to_spoke.ip_bytes,
            "to_hub_packets": to_hub.packets,
            "to_spoke_packets": to_spoke.packets,
            "dropped_packets": to_hub.dropped + to_spoke.dropped,
            "state": self._state,
            "name": self.name,
            "path": asdict(self._config),
        }

    def _set(self, request: dict[str, object]) -> None:
        config = self._config
        for key in request.keys() - {"op"}:
            match key:
                case "rtt_ms":
                    config = replace(config, rtt_s=number(request, key) / 1e3)
                case "rate_mbit":
                    config = replace(config, rate_bytes_per_s=number(request, key) * 125e3 or None)
                case "queue_ms":
                    config = replace(config, queue_s=number(request, key) / 1e3)
                case "loss" if number(request, key) < 1:
                    config = replace(config, loss=number(request, key))
                case _:
                    raise ValueError(
                        f"set {key}={request[key]!r}: expected rtt_ms, rate_mbit, queue_ms or "
                        "loss (< 1)"
                    )
        self._configure(config)

    def _configure(self, config: RouterConfig) -> None:
        self._config = config
        for salt, lane in enumerate((self._to_hub, self._to_spoke)):
            if lane.config.loss != config.loss:
                lane.losses = Losses(config.loss, config.seed + salt)
            lane.config = config


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with status 2 and the reason when it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m hubspoke.lab.tun")
    parser.add_argument("--control", type=parse_address, default=("127.0.0.1", 0), metavar="H:P")
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    parser.add_argument("--rate-mbit", type=float, default=0.0, help="per direction; 0: no cap")
    parser.add_argument("--queue-ms", type=float, default=50.0, help="of the bottleneck, drop-tail")
    parser.add_argument("--loss", type=float, default=0.0, help="probability of each packet")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--congestion", help="the hub's congestion control; default: the kernel's")
    parser.add_argument("--seed", type=int, default=0, help="of the losses")
    parsed = parser.parse_args(arguments)
    if min(parsed.rtt_ms, parsed.rate_mbit, parsed.queue_ms) < 0 or not 0 <= parsed.loss < 1:
        parser.error("--rtt-ms, --rate-mbit, --queue-ms must be >= 0, and 0 <= --loss < 1")
    if not 576 <= parsed.mtu <= 65535:
        parser.error("--mtu must be from 576 to 65535")
    return parsed


def main(arguments: Sequence[str]) -> None:
    """Print one JSON line when ready; run until SIGTERM or the end of standard input."""
    parsed = parse_arguments(arguments)
    config = RouterConfig(
        rtt_s=parsed.rtt_ms / 1e3,
        rate_bytes_per_s=parsed.rate_mbit * 125e3 or None,
        queue_s=parsed.queue_ms / 1e3,
        loss=parsed.loss,
        mtu=parsed.mtu,
        seed=parsed.seed,
    )
    loop = Loop()
    stop_on_signals(loop)
    try:
        network = build(mtu=parsed.mtu, congestion=parsed.congestion)
    except (HubSpokeError, OSError) as e:
        sys.exit(f"TUN router: {e}")
    try:
        router = Router(loop, network, config)
        control = ControlServer(loop, parsed.control, router.handle)
        ready = {
            "control": control.address,
            "name": router.name,
            "namespace": network.namespace,
            "hub_host": network.hub_host,
            "spoke_host": network.spoke_host,
        }
        print(json.dumps(ready), flush=True)
        loop.run()
    finally:
        network.remove()


if __name__ == "__main__":
    main(sys.argv[1:])
