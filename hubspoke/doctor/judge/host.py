"""Limits and clock."""

from dataclasses import dataclass

from hubspoke.doctor.judge.finding import Finding, note, ok, problem, warning

DESCRIPTORS_MIN, DESCRIPTORS_FEW = 1024, 8192
MICROSECONDS = 1e-6
ERROR_MANY_S = 1.0


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """descriptors: the hard limit, to which the processes raise theirs. watches: of inotify for
    this user, None where there is none; folders: in the store, None if not counted; all: were
    all of them counted."""

    descriptors: int
    watches: int | None = None
    folders: int | None = None
    counted_all: bool = True


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """boottime: CLOCK_BOOTTIME is there. synchronized: by adjtimex(2), None if it does not say.
    error_s: the kernel's bound for the error, when synchronized."""

    boottime: bool
    synchronized: bool | None
    error_s: float = 0.0


def limits(facts: LimitFacts) -> list[Finding]:
    """Descriptors everywhere, watches at a hub with a folder."""
    findings = []
    found = f"{facts.descriptors} descriptors a process (RLIMIT_NOFILE, hard)"
    remedy = "LimitNOFILE=1048576 in the unit, or nofile in /etc/security/limits.conf"
    if facts.descriptors < DESCRIPTORS_MIN:
        found += ": 512 cache files and the readers' connections do not fit"
        findings.append(problem("limits", found, remedy))
    elif facts.descriptors < DESCRIPTORS_FEW:
        found += ": each reader's connection and each open file is one"
        findings.append(warning("limits", found, remedy))
    else:
        findings.append(ok("limits", found))
    if facts.folders is None:
        return findings
    if facts.watches is None:
        found = "no inotify: the store is compared as a whole, every 60 s"
        findings.append(warning("limits", found, "--rescan SECONDS sets the interval"))
        return findings
    more = "" if facts.counted_all else "more than "
    found = f"{more}{facts.folders} folders to watch, fs.inotify.max_user_watches {facts.watches}"
    if facts.folders > facts.watches:
        command = f"sysctl -w fs.inotify.max_user_watches={2 * facts.folders}"
        found += ": the store is compared as a whole instead, every 60 s"
        findings.append(warning("limits", found, command))
    elif not facts.counted_all:
        findings.append(note("limits", f"{found}: not all counted in time"))
    else:
        findings.append(ok("limits", found))
    return findings


def clock(facts: ClockFacts, *, signs: bool) -> list[Finding]:
    """signs: requests to S3 are signed here, and refused when the date is off by 15 minutes."""
    findings = []
    if not facts.boottime:
        found = "no CLOCK_BOOTTIME: leases cannot be counted over a suspend"
        findings.append(problem("clock", found, "a Linux kernel from 2.6.39 on"))
    if facts.synchronized is None:
        findings.append(note("clock", "synchronization not checked: adjtimex does not say"))
    elif facts.synchronized and facts.error_s <= ERROR_MANY_S:
        findings.append(ok("clock", f"synchronized, within {facts.error_s * 1e3:.3g} ms"))
    else:
        how = f"off by up to {facts.error_s:.3g} s" if facts.synchronized else "not synchronized"
        remedy = "apt-get install chrony, or timedatectl set-ntp true"
        if signs:
            found = f"{how}: S3 refuses requests signed 15 minutes off"
            findings.append(warning("clock", found, remedy))
        else:
            found = f"{how}: dates in logs and reports may be wrong; leases do not depend on it"
            findings.append(note("clock", found, remedy))
    return findings
