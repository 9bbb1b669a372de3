"""Facts about FUSE: by looking, and by a trial mount that lives for a moment."""

import ctypes
import errno
import os
import select
import shutil
import struct
import tempfile
from pathlib import Path

from hubspoke.doctor.judge.mount import FuseFacts, Init, KernelFacts, MountPoint

DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")
_CAP_SYS_ADMIN = 21
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
_FLAG_EXT = 1 << 30  # FUSE_INIT_EXT: flags2 holds more
_IN_HEADER_BYTES, _INIT = 40, 26
_REQUEST_BYTES = 1 << 16
_INIT_WAIT_MS = 2_000


def fuse(proc: Path = Path("/proc")) -> FuseFacts:
    """Mounts and unmounts once, on a folder of its own, if this process may."""
    admin = has_admin(proc)
    device_error = _device_error()
    init, init_error = None, "not root"
    if admin and device_error is None:
        try:
            init, init_error = trial_mount(), ""
        except OSError as e:
            init_error = str(e.strerror or e)
    return FuseFacts(
        device_error=device_error,
        registered="\tfuse\n" in (proc / "filesystems").read_text(),
        fusermount=shutil.which("fusermount3"),
        allow_other=_allow_other(),
        admin=admin,
        init=init,
        init_error=init_error or None,
    )


def has_admin(proc: Path = Path("/proc")) -> bool:
    """CAP_SYS_ADMIN, which mount(2) and passthrough need."""
    for line in (proc / "self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def _device_error() -> str | None:
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as e:
        return e.strerror
    return None


def _allow_other() -> bool:
    try:
        lines = FUSE_CONF.read_text().splitlines()
    except OSError:
        return False
    return any(line.split("#")[0].strip() == "user_allow_other" for line in lines)


def trial_mount() -> Init:
    """What the kernel says in its first request. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tempfile.mkdtemp(prefix="hubspoke-doctor-")
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        target = os.fsencode(folder)
        flags = _MS_NOSUID | _MS_NODEV
        if libc.mount(b"hubspoke-doctor", target, b"fuse", flags, options.encode()):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            return _init(fd)
        finally:
            libc.umount2(target, _MNT_DETACH)
    finally:
        os.close(fd)
        os.rmdir(folder)


def _init(fd: int) -> Init:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(_INIT_WAIT_MS):
        raise OSError(f"the kernel sent no FUSE_INIT in {_INIT_WAIT_MS} ms")
    request = os.read(fd, _REQUEST_BYTES)
    (opcode,) = struct.unpack_from("<I", request, 4)
    if opcode != _INIT:
        raise OSError(f"the kernel's first request was {opcode}, not FUSE_INIT")
    major, minor, _, flags = struct.unpack_from("<IIII", request, _IN_HEADER_BYTES)
    if flags & _FLAG_EXT:
        (more,) = struct.unpack_from("<I", request, _IN_HEADER_BYTES + 16)
        flags |= more << 32
    return Init(major, minor, flags)


def kernel(proc: Path = Path("/proc")) -> KernelFacts:
    major, minor = os.uname().release.split(".")[:2]
    digits = "".join(c for c in minor if c.isdigit())  # 6.9-rc1
    try:
        pages = int((proc / "sys/fs/fuse/max_pages_limit").read_text())
    except (OSError, ValueError):
        pages = None
    return KernelFacts((int(major), int(digits or 0)), pages)


def mount_point(path: Path, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> MountPoint:
    """May block as long as a file system that is mounted there."""
    kind = _mounted(path, proc)
    try:
        device, is_folder = os.stat(path).st_dev, path.is_dir()
        os.statvfs(path)  # asks whoever serves it; a stat may be answered by the kernel alone
        entries = 0
        if is_folder and kind is None:
            with os.scandir(path) as found:
                entries = sum(1 for _ in zip(found, range(1), strict=False))
    except OSError as e:
        gone = e.errno == errno.ENOTCONN
        return MountPoint(str(path), e.strerror, gone, False, kind, 0)
    bdi = sys / "class/bdi" / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb"
    try:
        read_ahead = int(bdi.read_text()) if kind is not None else None
    except (OSError, ValueError):
        read_ahead = None
    return MountPoint(str(path), None, False, is_folder, kind, entries, read_ahead, str(bdi))


def _mounted(path: Path, proc: Path) -> str | None:
    """File system type of what is mounted exactly there."""
    wanted, kind = os.path.abspath(path), None
    for line in (proc / "self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        where = before.split()[4].encode().decode("unicode_escape")
        if where == wanted:
            kind = after.split()[0]  # the last one covers the others
    return kind
