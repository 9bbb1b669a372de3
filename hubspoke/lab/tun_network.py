"""The namespace, the two TUN devices and the addresses of a TUN router.

Decides their names and which addresses are free. It must never touch an interface, route or
namespace that this program did not make, and must leave none of its own behind.

    spoke: the namespace we run in            hub: namespace hubspoke-PID
      hsPIDs  198.18.x.y+2/30   <--- tun.py --->   hsPIDh  198.18.x.y+1/30
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hubspoke.errors import ConfigError, HubSpokeError

# Reserved for testing network devices (RFC 2544), so nobody's machines have these addresses.
ADDRESS_POOL: Final = ipaddress.IPv4Network("198.18.0.0/15")
# The device's own queue: a burst of windows of many connections must not be lost before the path.
_TX_QUEUE_PACKETS: Final = 10_000
_COMMAND_S: Final = 10.0

_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_TUNSETVNETHDRSZ: Final = 0x400454D8
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_OFFLOAD_CHECKSUM_TSO4: Final = 0x01 | 0x02
_VNET_HEADER_BYTES: Final = 10


class NetworkFailed(HubSpokeError):
    """A step of building the network failed; the message has the command and its words."""


def ip(*arguments: str) -> str:
    """Run iproute2's `ip`. Raises ConfigError when it is missing, NetworkFailed when it fails."""
    command = ["ip", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except FileNotFoundError as e:
        raise ConfigError(
            "the command `ip` is missing: install the package iproute2 (apt install iproute2)"
        ) from e
    except subprocess.TimeoutExpired as e:
        raise NetworkFailed(f"{' '.join(command)}: no end after {_COMMAND_S:g} s") from e
    if done.returncode:
        raise NetworkFailed(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def free_subnet(used: list[ipaddress.IPv4Network], start: int) -> ipaddress.IPv4Network:
    """The first /30 of the pool, from number `start` on, that overlaps nothing in `used`.

    Raises NetworkFailed when the pool is used up.
    """
    count = 1 << (30 - ADDRESS_POOL.prefixlen)
    base = int(ADDRESS_POOL.network_address)
    near = [net for net in used if net.prefixlen and net.overlaps(ADDRESS_POOL)]
    for i in range(count):
        subnet = ipaddress.IPv4Network((base + 4 * ((start + i) % count), 30))
        if not any(subnet.overlaps(net) for net in near):
            return subnet
    raise NetworkFailed(f"no free /30 in {ADDRESS_POOL}: routes cover all of it")


def routed_networks() -> list[ipaddress.IPv4Network]:
    """Every IPv4 destination this namespace has a route or an address for."""
    found = []
    for route in json.loads(ip("-json", "-4", "route", "show", "table", "all")):
        with contextlib.suppress(ValueError):  # "default" and the like
            found.append(ipaddress.IPv4Network(route["dst"], strict=False))
    return found


@dataclass(frozen=True, slots=True)
class Network:
    """What was built; `remove` takes it away."""

    namespace: str
    spoke_host: str
    hub_host: str
    spoke_fd: int
    hub_fd: int
    congestion: str  # the hub's congestion control

    def remove(self) -> None:
        """Delete the devices, which go with their descriptors, and the namespace."""
        os.close(self.spoke_fd)
        os.close(self.hub_fd)
        with contextlib.suppress(NetworkFailed):
            ip("netns", "del", self.namespace)


def build(*, mtu: int, congestion: str | None) -> Network:
    """Make the namespace, devices and addresses, named after this process.

    Raises: ConfigError, NetworkFailed, OSError; nothing is left behind then.
    """
    pid = os.getpid()
    namespace, spoke_device, hub_device = f"hubspoke-{pid}", f"hs{pid}s", f"hs{pid}h"
    sweep()
    ip("netns", "add", namespace)
    fds: list[int] = []
    try:
        for device in (spoke_device, hub_device):
            fds.append(_open_device(device))
        subnet = free_subnet(routed_networks(), pid)
        hub_host, spoke_host = (str(host) for host in subnet.hosts())
        ip("link", "set", hub_device, "netns", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        for prefix, device, host in (
            ((), spoke_device, spoke_host),
            (("-n", namespace), hub_device, hub_host),
        ):
            # No IPv6 address, or its router solicitations would be in the counters.
            ip(*prefix, "link", "set", device, "addrgenmode", "none", "mtu", str(mtu))
            ip(*prefix, "link", "set", device, "txqueuelen", str(_TX_QUEUE_PACKETS), "up")
            ip(*prefix, "addr", "add", f"{host}/{subnet.prefixlen}", "dev", device)
        used = _congestion_control(namespace, congestion)
    except BaseException:
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(NetworkFailed):
            ip("netns", "del", namespace)
        raise
    return Network(namespace, spoke_host, hub_host, fds[0], fds[1], used)


def sweep() -> None:
    """Delete namespaces of routers that were killed before they could (kill -9)."""
    for path in Path("/run/netns").glob("hubspoke-*"):
        match = re.fullmatch(r"hubspoke-(\d+)", path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            with contextlib.suppress(NetworkFailed):
                ip("netns", "del", path.name)


def _open_device(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(fd, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_HEADER_BYTES))
        # With offload one read brings a super-packet of 64 KiB instead of 44 packets.
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM_TSO4)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _congestion_control(namespace: str, wanted: str | None) -> str:
    path = "/proc/sys/net/ipv4/tcp_congestion_control"
    inside = ("netns", "exec", namespace)
    if wanted is not None:
        try:
            ip(*inside, "sh", "-c", f'echo "$1" > {path}', "sh", wanted)
        except NetworkFailed as e:
            allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().strip()
            raise ConfigError(
                f"congestion control {wanted!r}: expected one of {allowed} "
                "(net.ipv4.tcp_allowed_congestion_control)"
            ) from e
    return ip(*inside, "cat", path).strip()
