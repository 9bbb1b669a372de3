"""Can a mount be had here, and how fast can it be?

passthrough: complete files are read by the kernel straight from the cache file, without the
spoke (Linux 6.9 on, and CAP_SYS_ADMIN). resend: a restarted spoke gets the requests back that its
predecessor left unanswered (6.9 on). The figures are those of ARCHITECTURE.md.
"""

from dataclasses import dataclass

from hubspoke.doctor.judge.finding import Finding, note, ok, problem, warning

PASSTHROUGH, RESEND = 1 << 37, 1 << 39  # of FUSE_INIT: flags2 << 32 | flags
PROTOCOL_MIN = (7, 31)
PASSTHROUGH_SINCE = (6, 9)
REQUEST_PAGES = 256  # 1 MiB in one request
# What a mount has that nobody set; a spoke that may sets each file its own, 64 KiB to 1 MiB.
READ_AHEAD_UNSET_KIB, READ_AHEAD_KIB = 128, 256
_CONTAINER = "in a container: --device /dev/fuse --cap-add SYS_ADMIN"


@dataclass(frozen=True, slots=True)
class Init:
    """What this kernel offers to a FUSE server."""

    major: int
    minor: int
    flags: int


@dataclass(frozen=True, slots=True)
class FuseFacts:
    """device_error: why /dev/fuse does not open, None if it does. registered: the kernel lists
    the file system. fusermount: path of fusermount3, None if there is none. allow_other: is
    user_allow_other set in /etc/fuse.conf. admin: CAP_SYS_ADMIN. init: of a trial mount; None
    without one, init_error says why not (also "not root")."""

    device_error: str | None
    registered: bool
    fusermount: str | None
    allow_other: bool
    admin: bool
    init: Init | None
    init_error: str | None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """release: (6, 18). pages_limit: fs.fuse.max_pages_limit, None where there is none."""

    release: tuple[int, int]
    pages_limit: int | None


@dataclass(frozen=True, slots=True)
class MountPoint:
    """error: of a stat of it, None if it can be looked at. read_ahead_kib: None unless a FUSE
    file system is mounted there and says it. bdi: the setting's file."""

    path: str
    error: str | None
    gone: bool  # ENOTCONN: mounted, and its server has died
    is_folder: bool
    mounted: str | None  # file system type
    entries: int  # not counted further than 1
    read_ahead_kib: int | None = None
    bdi: str = ""


def fuse(facts: FuseFacts) -> list[Finding]:
    """The device, and the rights to mount."""
    findings = []
    if facts.device_error is not None:
        remedy = f"modprobe fuse; {_CONTAINER}"
        findings.append(problem("fuse", f"/dev/fuse: {facts.device_error}", remedy))
    elif not facts.registered:
        findings.append(problem("fuse", "the kernel has no FUSE file system", "modprobe fuse"))
    elif facts.admin and facts.init is None:
        found = f"a trial mount failed: {facts.init_error}"
        findings.append(problem("fuse", found, f"{_CONTAINER} --security-opt apparmor=unconfined"))
    elif not facts.admin and facts.fusermount is None:
        found = "not root, and no fusermount3: nothing can be mounted"
        findings.append(problem("fuse", found, "apt-get install fuse3"))
    else:
        way = "mount(2)" if facts.admin else facts.fusermount
        findings.append(ok("fuse", f"/dev/fuse opens; a mount is made by {way}"))
    if not facts.admin and not facts.allow_other:
        findings.append(
            note(
                "fuse",
                "user_allow_other is not set: without root only the user of the spoke sees the "
                "mount",
                "add the line user_allow_other to /etc/fuse.conf to mount with allow_other",
            )
        )
    return findings


def kernel(facts: KernelFacts, fuse: FuseFacts) -> list[Finding]:
    """Protocol, passthrough, resend, size of requests."""
    release = "Linux {}.{}".format(*facts.release)
    findings = []
    init = fuse.init
    if init is not None and (init.major, init.minor) < PROTOCOL_MIN:
        found = f"{release} speaks FUSE {init.major}.{init.minor}, at least 7.31 is needed"
        findings.append(problem("kernel", found, "a kernel from 5.4 on"))
    findings.append(_passthrough(release, facts, fuse))
    if init is not None and not init.flags & RESEND:
        findings.append(
            note(
                "kernel",
                f"{release} resends no requests: a read that was open when a spoke died fails",
                "a kernel from 6.9 on",
            )
        )
    if facts.pages_limit is not None and facts.pages_limit < REQUEST_PAGES:
        kib = facts.pages_limit * 4
        found = f"fs.fuse.max_pages_limit is {facts.pages_limit}: requests of {kib} KiB at most"
        findings.append(
            warning("kernel", found, f"sysctl -w fs.fuse.max_pages_limit={REQUEST_PAGES}")
        )
    return findings


def _passthrough(release: str, facts: KernelFacts, fuse: FuseFacts) -> Finding:
    slow = "complete files are read through the spoke, at about 4 GB/s and 0.16 CPU s/GiB"
    if fuse.init is not None:
        offered, how = bool(fuse.init.flags & PASSTHROUGH), "offered at a trial mount"
    else:
        offered, how = facts.release >= PASSTHROUGH_SINCE, "by its version; not tried"
    if not offered:
        found = f"{release} has no FUSE passthrough ({how}): {slow}"
        return warning("kernel", found, "a kernel from 6.9 on with CONFIG_FUSE_PASSTHROUGH")
    if not fuse.admin:
        return warning(
            "kernel",
            f"{release} has FUSE passthrough ({how}), which needs CAP_SYS_ADMIN: {slow}",
            "run the spoke as root or with AmbientCapabilities=CAP_SYS_ADMIN",
        )
    return ok("kernel", f"{release}, FUSE passthrough ({how})")


def mount_point(facts: MountPoint, admin: bool) -> list[Finding]:
    """The folder of --mount."""
    path = facts.path
    if facts.gone:
        found = f"{path}: its server is gone (Transport endpoint is not connected)"
        return [problem("mount", found, f"fusermount3 -uz {path}")]
    if facts.error is not None:
        return [problem("mount", f"{path}: {facts.error}", f"mkdir -p {path}")]
    if not facts.is_folder:
        return [problem("mount", f"{path}: not a folder", "--mount with an empty folder")]
    if facts.mounted is None:
        if facts.entries:
            found = f"{path} is not empty: what is in it is hidden while the mount is there"
            return [note("mount", found, "--mount with an empty folder")]
        return [ok("mount", f"{path} is an empty folder")]
    if not facts.mounted.startswith("fuse"):
        found = f"{path} is a mount of {facts.mounted}, a second one would hide it"
        return [warning("mount", found, "--mount with an empty folder")]
    return [_read_ahead(facts, admin)]


def _read_ahead(facts: MountPoint, admin: bool) -> Finding:
    if facts.read_ahead_kib is None:
        found = f"{facts.path}: read-ahead not checked: the kernel shows no {facts.bdi or 'BDI'}"
        return note("read-ahead", found)
    found = f"{facts.path} reads {facts.read_ahead_kib} KiB ahead"
    if facts.read_ahead_kib != READ_AHEAD_UNSET_KIB:
        return ok("read-ahead", found)
    command = f"echo {READ_AHEAD_KIB} > {facts.bdi}"
    remedy = command if admin else f"as root: {command}"
    return warning("read-ahead", f"{found}: requests stay small (2.7 instead of 3.4 GB/s)", remedy)
