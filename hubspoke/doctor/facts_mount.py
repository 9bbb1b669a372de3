"""Facts about FUSE: by looking, and by a trial mount that lives for a moment."""

import errno
import os
import select
import shutil
import tempfile
from pathlib import Path

from hubspoke.doctor.judge.mount import FuseFacts, Init, KernelFacts, MountPoint
from hubspoke.errors import ConfigError
from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.mounting import has_admin, mount, mounts, unmount

DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")
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
        except ConfigError as e:
            init_error = str(e)
    return FuseFacts(
        device_error=device_error,
        registered="\tfuse\n" in (proc / "filesystems").read_text(),
        fusermount=shutil.which("fusermount3"),
        allow_other=_allow_other(),
        admin=admin,
        init=init,
        init_error=init_error or None,
    )


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
    """What the kernel says in its first request. Raises OSError, ConfigError."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="hubspoke-doctor-")))
    try:
        mounted = mount(folder, allow_other=False)
        try:
            return _init(mounted.descriptor)
        finally:
            unmount(mounted, lazy=True)
            os.close(mounted.descriptor)
    finally:
        folder.rmdir()


def _init(fd: int) -> Init:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(_INIT_WAIT_MS):
        raise OSError(f"the kernel sent no FUSE_INIT in {_INIT_WAIT_MS} ms")
    request = os.read(fd, protocol.READ_BUFFER)
    _, opcode, *_ = protocol.IN_HEADER.unpack_from(request)
    if opcode != protocol.Op.INIT:
        raise OSError(f"the kernel's first request was {opcode}, not FUSE_INIT")
    major, minor, _, offered = protocol.offered(memoryview(request)[protocol.IN_HEADER.size :])
    return Init(major, minor, offered)


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
    there = [m.type for m in mounts(proc) if m.point == os.path.abspath(path)]
    return there[-1] if there else None  # the last one covers the others
