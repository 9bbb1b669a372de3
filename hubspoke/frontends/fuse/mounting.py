"""Mounting and unmounting: as root by mount(2), otherwise through fusermount3.

Decides which mount points are refused and what is said of them. It must never touch a path below
the mount point from the loop that serves it: the kernel would wait for an answer of this process.
What has to be known of the mount is read from /proc/self/mountinfo and /sys.
"""

import array
import ctypes
import errno
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hubspoke.errors import ConfigError

log = logging.getLogger(__name__)

FLAG = "--mount"
TYPE = "fuse.hubspoke"
DEVICE = "/dev/fuse"
HELPER = "fusermount3"
_RDONLY, _NOSUID, _NODEV, _NOATIME = 1, 2, 4, 1024
_CAP_SYS_ADMIN = 21
_DETACH, _NOFOLLOW = 2, 8
LOOK_S = 5.0  # at a mount point; who takes longer does not answer
HELPER_S = 20.0
_libc = ctypes.CDLL(None, use_errno=True)
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A line of mountinfo. device: MAJOR:MINOR."""

    device: str
    point: str
    type: str


@dataclass(frozen=True, slots=True)
class Mounted:
    """What `mount` made. descriptor: of /dev/fuse. device: of the file system."""

    point: Path
    descriptor: int
    device: str

    @property
    def read_ahead(self) -> Path:
        """The kernel's setting, in KiB."""
        return Path(f"/sys/class/bdi/{self.device}/read_ahead_kb")


def has_admin(proc: Path = Path("/proc")) -> bool:
    """CAP_SYS_ADMIN, which mount(2) and passthrough need."""
    for line in (proc / "self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def mounts(proc: Path = Path("/proc")) -> list[MountEntry]:
    """Of this process' namespace, the later ones on top."""
    found = []
    for line in (proc / "self/mountinfo").read_text().splitlines():
        fields, _, more = line.partition(" - ")
        _, _, device, _, point, *_ = fields.split(" ")
        plain = _ESCAPED.sub(lambda m: chr(int(m[1], 8)), point)
        found.append(MountEntry(device, plain, more.split(" ", 1)[0]))
    return found


def _on_top(point: Path) -> MountEntry | None:
    """What is mounted exactly there."""
    return next((m for m in reversed(mounts()) if m.point == str(point)), None)


def mount_point(folder: Path, own: Sequence[tuple[Path, str]]) -> Path:
    """The real path of a folder that can be mounted on; a dead mount of ours on it is cleaned up.

    own: folders that this process keeps files in, with their flags. Raises ConfigError.
    """
    wrong = f"{FLAG}: {str(folder)!r}:"
    point = unasked(folder)
    _clear(point, wrong)
    error = _looked(point)
    if error is not None:
        raise ConfigError(f"{wrong} {error}; expected an existing folder")
    point = Path(os.path.realpath(point))
    for kept, flag in own:
        inside, outside = os.path.realpath(kept), str(point)
        if os.path.commonpath([inside, outside]) in (inside, outside):
            raise ConfigError(
                f"{wrong} lies in the folder of {flag}, {str(kept)!r}, or around it; expected a "
                "folder apart from it"
            )
    if os.listdir(point):
        log.warning("%s %s is not empty: what is in it cannot be seen meanwhile", FLAG, point)
    return point


def unasked(folder: Path) -> Path:
    """Its real path, without asking what is mounted there, which may not answer: the parent's
    path, and the name."""
    return Path(os.path.realpath(folder.parent)) / folder.name if folder.name else folder


def _clear(point: Path, wrong: str) -> None:
    """No mount of ours may be there already: a dead one is taken away, a live one is in use."""
    there = _on_top(point)
    if there is None or there.type != TYPE:
        return
    if _looked(point) is None:
        raise ConfigError(f"{wrong} another process has its mount there; expected another folder")
    log.warning("%s %s is what a process that ended left behind: unmounted", FLAG, point)
    unmount(Mounted(point, -1, there.device), lazy=True)


def _looked(point: Path) -> str | None:
    """What is wrong with a folder; None: nothing. In a thread, as a look may never end."""
    found: list[str | None] = []

    def look() -> None:
        try:
            # Not stat: the kernel answers that of a dead mount's root from what it kept.
            os.statvfs(point)
            found.append(None if os.path.isdir(point) else "no folder")
        except OSError as e:
            found.append(e.strerror)

    thread = threading.Thread(target=look, name="look at a mount point", daemon=True)
    thread.start()
    thread.join(LOOK_S)
    return found[0] if found else f"does not answer for {LOOK_S:g} s"


def mount(point: Path, *, allow_other: bool) -> Mounted:
    """Mount a connection; may block. Raises ConfigError that says what is missing."""
    wrong = f"{FLAG}: {str(point)!r}:"
    if os.geteuid() == 0:
        descriptor = _mount_as_root(point, allow_other, wrong)
    else:
        descriptor = _mount_by_helper(point, allow_other, wrong)
    return taken_over(point, descriptor)


def _mount_as_root(point: Path, allow_other: bool, wrong: str) -> int:
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        raise ConfigError(
            f"{wrong} {DEVICE}: {e.strerror}; expected the kernel's module fuse (modprobe fuse; "
            "in a container: --device /dev/fuse --cap-add SYS_ADMIN)"
        ) from e
    options = f"fd={descriptor},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
    options += ",default_permissions" + (",allow_other" if allow_other else "")
    flags = _RDONLY | _NOSUID | _NODEV | _NOATIME
    target = os.fsencode(point)
    if _libc.mount(b"hubspoke", target, TYPE.encode(), flags, options.encode()):
        number = ctypes.get_errno()
        os.close(descriptor)
        hint = " (in a container: --cap-add SYS_ADMIN)" if number == errno.EPERM else ""
        raise ConfigError(f"{wrong} cannot be mounted: {os.strerror(number)}{hint}")
    return descriptor


def _mount_by_helper(point: Path, allow_other: bool, wrong: str) -> int:
    """fusermount3 mounts, being setuid, and passes the descriptor over a socket."""
    helper = shutil.which(HELPER)
    if helper is None:
        raise ConfigError(f"{wrong} no {HELPER}; expected it, or to run as root (package fuse3)")
    options = "ro,nosuid,nodev,noatime,default_permissions,subtype=hubspoke,fsname=hubspoke"
    options += ",allow_other" if allow_other else ""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            done = subprocess.run(
                [helper, "-o", options, "--", os.fspath(point)],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=HELPER_S,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise ConfigError(f"{wrong} {HELPER} does not end") from e
        if done.returncode:
            raise ConfigError(f"{wrong} {done.stderr.strip() or f'{HELPER} failed'}")
        ours.settimeout(HELPER_S)
        return _passed(ours, wrong)


def _passed(ours: socket.socket, wrong: str) -> int:
    _, extra, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i", data[:4])
            os.set_inheritable(descriptors[0], False)
            return descriptors[0]
    raise ConfigError(f"{wrong} {HELPER} passed no descriptor")


def taken_over(point: Path, descriptor: int) -> Mounted:
    """A mount that another process made, by its descriptor. point: its real path."""
    # Somebody may have mounted something else over it.
    ours = [m.device for m in mounts() if m.point == str(point) and m.type == TYPE]
    return Mounted(point, descriptor, ours[-1] if ours else "")


def unmount(mounted: Mounted, *, lazy: bool = False) -> bool:
    """Take the mount away; may block while the kernel asks for things, so not from the loop. lazy:
    also if it is in use; whoever uses it then gets ENOTCONN. False: it is in use, or was gone."""
    there = _on_top(mounted.point)
    if there is None or there.device != mounted.device:
        return False
    if os.geteuid() == 0:
        flags = _NOFOLLOW | (_DETACH if lazy else 0)
        return not _libc.umount2(os.fsencode(mounted.point), flags)
    helper = [HELPER, "-u", *(["-z"] if lazy else []), "-q", "--", os.fspath(mounted.point)]
    try:
        return not subprocess.run(
            helper, stdin=subprocess.DEVNULL, capture_output=True, timeout=HELPER_S, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
