"""Is the path to the hub good, and the kernel set so that it can be filled?"""

from dataclasses import dataclass

from hubspoke.core.pacing import PacingConfig
from hubspoke.doctor.judge.finding import Finding, note, ok, problem, warning

RTT_ASSUMED_S = 0.060  # where no hub was named: Ohio to Oregon
RATE_WANTED = 1.25e9  # bytes/s, 10 Gbit/s over all lanes
# Of a socket's buffer the kernel advertises about half as window (tcp_adv_win_scale 1).
WINDOW_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TcpFacts:
    """Sysctls; None for what is not to be read. rmem_max, wmem_max: third number, bytes."""

    rmem_max: int | None
    wmem_max: int | None
    congestion: str | None
    available: tuple[str, ...]
    slow_start_after_idle: bool | None


@dataclass(frozen=True, slots=True)
class HubFacts:
    """error: why it was not reached or did not answer as a hub. rtt_s: the least of some
    handshakes. protocol: of its feed, None if it sent none."""

    url: str
    error: str | None
    rtt_s: float | None = None
    protocol: int | None = None
    region: str = ""


def hub(facts: HubFacts, protocol: int) -> list[Finding]:
    """The hub by its URL. protocol: ours."""
    rtt = "" if facts.rtt_s is None else f", RTT {facts.rtt_s * 1e3:.1f} ms"
    if facts.error is not None and facts.rtt_s is None:
        return [
            problem(
                "hub",
                f"{facts.url} cannot be reached: {facts.error}",
                "start the hub with --listen on an address that this host reaches, open its port "
                "in the firewall, or mend --hub",
            )
        ]
    if facts.error is not None or facts.protocol is None:
        found = f"{facts.url} answers{rtt}, but not as a hub: {facts.error or 'no feed'}"
        return [problem("hub", found, "--hub with the hub's data port (7070), not its admin port")]
    found = f"{facts.url} speaks protocol {facts.protocol}{rtt}"
    if abs(facts.protocol - protocol) > 1:
        remedy = "the same or a neighbouring version of hubspoke at both ends"
        return [problem("hub", f"{found}; this host speaks {protocol}", remedy)]
    if facts.protocol != protocol:
        found = f"{found}; this host speaks {protocol}, which works while you upgrade"
        return [note("hub", found, "the same version of hubspoke at both ends")]
    return [ok("hub", found + (f", region {facts.region}" if facts.region else ""))]


def tcp(facts: TcpFacts, rtt_s: float | None, *, hub_here: bool, spoke_here: bool) -> list[Finding]:
    """Buffers against the bandwidth-delay product, and what a sender does."""
    findings = []
    if spoke_here:
        findings.append(_buffer("net.ipv4.tcp_rmem", "receive", "131072", facts.rmem_max, rtt_s))
    if hub_here:
        findings.append(_buffer("net.ipv4.tcp_wmem", "send", "16384", facts.wmem_max, rtt_s))
        findings += [_idle(facts), _congestion(facts)]
    return findings


def _buffer(name: str, verb: str, usual: str, most: int | None, rtt_s: float | None) -> Finding:
    if most is None:
        return note("tcp", f"{name} not checked: it cannot be read here")
    lanes, rtt = PacingConfig().lanes, RTT_ASSUMED_S if rtt_s is None else max(rtt_s, 1e-4)
    rate = lanes * most * WINDOW_SHARE / rtt
    assumed = " (assumed)" if rtt_s is None else ""
    found = (
        f"{name} max {most}: {lanes} connections {verb} {rate / 1e6:.0f} MB/s at most over "
        f"{rtt * 1e3:.3g} ms{assumed}"
    )
    if rate >= RATE_WANTED:
        return ok("tcp", found)
    needed = 1 << (int(RATE_WANTED * rtt / WINDOW_SHARE / lanes) - 1).bit_length()
    return warning("tcp", found, f"sysctl -w {name}='4096 {usual} {needed}'")


def _idle(facts: TcpFacts) -> Finding:
    name = "net.ipv4.tcp_slow_start_after_idle"
    if facts.slow_start_after_idle is None:
        return note("tcp", f"{name} not checked: it cannot be read here")
    if facts.slow_start_after_idle:
        found = (
            f"{name} is 1: an idle connection starts slowly again; 4 MiB take 0.55 s over 60 ms, "
            "not 0.13 s"
        )
        return warning("tcp", found, f"sysctl -w {name}=0")
    return ok("tcp", f"{name} is 0")


def _congestion(facts: TcpFacts) -> Finding:
    if facts.congestion is None:
        return note("tcp", "congestion control not checked: it cannot be read here")
    found = f"congestion control {facts.congestion}"
    if facts.congestion.startswith("bbr"):
        return ok("tcp", found)
    found += ": at 60 ms and 0.1 % loss 16 connections carried 26 MB/s by cubic, 466 by bbr"
    load = "" if "bbr" in facts.available else "modprobe tcp_bbr; "
    return warning("tcp", found, f"{load}sysctl -w net.ipv4.tcp_congestion_control=bbr")
