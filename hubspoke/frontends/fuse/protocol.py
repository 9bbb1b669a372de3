"""The kernel's FUSE protocol as a table: numbers, structures, and what is agreed on at INIT.

Source: linux/fuse.h, versions 7.31 (Linux 5.4) to 7.45 (6.18). Pure: bytes in, bytes out. All
integers are in the machine's own order. A structure that grew keeps its old fields in place, so
a reader of the older one reads the newer.

Never: write a structure longer than the kernel of that version knows, or use a feature that its
INIT did not offer.
"""

import enum
from dataclasses import dataclass
from struct import Struct

MAJOR = 7
MINOR_MIN = 31  # Linux 5.4; before it pages per request are not agreed on
MINOR = 45  # Linux 6.18, the last whose structures were looked at
ROOT_ID = 1
PAGE = 4096
# The kernel hands nothing to a reader with less room than a header and a write of `MAX_WRITE`;
# more lets it forget many nodes in one message.
READ_BUFFER = 64 << 10
MAX_WRITE = 4096  # nothing is written here; the least there is
MAX_PAGES = 256  # of a request: 1 MiB, the kernel's own limit


class Op(enum.IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    COPY_FILE_RANGE = 47
    TMPFILE = 51


class Notice(enum.IntEnum):
    """What the kernel is told without having asked: a message with this in place of an error."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RESEND = 7


class Init(enum.IntFlag):
    """Features offered and chosen at INIT; from bit 32 on they travel in `flags2`."""

    ASYNC_READ = 1 << 0
    BIG_WRITES = 1 << 5
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    INIT_EXT = 1 << 30
    HAS_EXPIRE_ONLY = 1 << 35
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class Open(enum.IntFlag):
    """How an open file is served."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    PASSTHROUGH = 1 << 7


# ioctl numbers of the device: name a file (descriptor, two zeros), and end that name.
BACKING_OPEN = 0x4010E501
BACKING_CLOSE = 0x4004E502
BACKING_MAP = Struct("=iIQ")
BACKING_ID = Struct("=I")

EXPIRE_ONLY = 1  # of an INVAL_ENTRY: ask again instead of throwing away what hangs below
UNIQUE_RESEND = 1 << 63  # marks a request that was read before, by a server that is gone

IN_HEADER = Struct("=IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extensions, -
OUT_HEADER = Struct("=IiQ")  # length, minus errno or a notice, unique

INIT_IN = Struct("=IIII")  # major, minor, read-ahead, flags
INIT_IN_EXT = Struct("=I")  # flags2, behind it
INIT_OUT = Struct("=IIIIHHIIHHII24x")  # the last I: max_stack_depth
ATTR = Struct("=QQQQQQIIIIIIIIII")
ENTRY_HEAD = Struct("=QQQQII")  # node, generation, validity of name and attributes: s, ns
ATTR_HEAD = Struct("=QII")  # validity: seconds, -, nanoseconds
OPEN_IN = Struct("=II")
OPEN_OUT = Struct("=QIi")  # handle, Open, backing id
READ_IN = Struct("=QQI")  # handle, offset, size; flags behind it
RELEASE_IN = Struct("=Q")  # handle
GETXATTR_IN = Struct("=II")  # room
GETXATTR_OUT = Struct("=II")  # size
FORGET_IN = Struct("=Q")  # lookups
BATCH_FORGET_IN = Struct("=II")  # count
FORGET_ONE = Struct("=QQ")  # node, lookups
INTERRUPT_IN = Struct("=Q")  # unique
STATFS_OUT = Struct("=QQQQQIII28x")
DIRENT = Struct("=QQII")  # inode, offset of the next, length and type; the name behind it
INVAL_INODE_OUT = Struct("=Qqq")
INVAL_ENTRY_OUT = Struct("=QII")
ENTRY_BYTES = ENTRY_HEAD.size + ATTR.size

NAME_MAX = 255  # bytes of one component of a path; the kernel asks for no longer one


@dataclass(frozen=True, slots=True)
class Wishes:
    """What this side would like. read_ahead: bytes. in_flight: requests that nobody waits for
    (the kernel's read-ahead) at a time; from three quarters of it on it asks for less."""

    read_ahead: int
    in_flight: int
    passthrough: bool = False


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both sides do. request_bytes: most of one READ."""

    minor: int
    flags: Init
    read_ahead: int

    @property
    def request_bytes(self) -> int:
        return (MAX_PAGES if self.flags & Init.MAX_PAGES else 32) * PAGE


WANTED = (
    Init.ASYNC_READ
    | Init.DO_READDIRPLUS
    | Init.READDIRPLUS_AUTO
    | Init.ASYNC_DIO
    | Init.PARALLEL_DIROPS
    | Init.MAX_PAGES
    | Init.INIT_EXT
    | Init.HAS_EXPIRE_ONLY
    | Init.HAS_RESEND
)


def offered(body: bytes | memoryview) -> tuple[int, int, int, int]:
    """What the kernel says in an INIT: version (major, minor), read-ahead, and all its flags."""
    major, minor, read_ahead, flags = INIT_IN.unpack_from(body)
    if flags & Init.INIT_EXT and len(body) >= INIT_IN.size + INIT_IN_EXT.size:
        flags |= INIT_IN_EXT.unpack_from(body, INIT_IN.size)[0] << 32
    return major, minor, read_ahead, flags


def negotiate(body: bytes | memoryview, wishes: Wishes) -> tuple[bytes, Agreed | None]:
    """The answer to an INIT and what it means.

    Agreed is None when nothing is agreed yet: a newer major version is answered with ours and the
    kernel asks again. Raises ValueError for a kernel that is too old.
    """
    major, minor, read_ahead, offers = offered(body)
    if major > MAJOR:
        return INIT_OUT.pack(MAJOR, MINOR, *[0] * 10), None
    if major < MAJOR or minor < MINOR_MIN:
        raise ValueError(f"FUSE {major}.{minor}; {MAJOR}.{MINOR_MIN} is needed (Linux 5.4)")
    wanted = WANTED | (Init.PASSTHROUGH if wishes.passthrough else 0)
    agreed = Agreed(min(minor, MINOR), Init(offers & wanted), min(read_ahead, wishes.read_ahead))
    flags = int(agreed.flags)
    reply = INIT_OUT.pack(
        MAJOR,
        agreed.minor,
        agreed.read_ahead,
        flags & 0xFFFFFFFF,
        wishes.in_flight,
        wishes.in_flight * 3 // 4,
        MAX_WRITE,
        1,  # time_gran: mtimes are exact
        MAX_PAGES,
        0,
        flags >> 32,
        1 if agreed.flags & Init.PASSTHROUGH else 0,
    )
    return reply, agreed


def message(unique: int, payload: bytes | bytearray = b"", error: int = 0) -> bytes:
    """An answer; error: an errno, 0 for none."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(payload), -error, unique) + payload


def notice(kind: Notice, payload: bytes) -> bytes:
    """A message that answers nothing."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(payload), kind, 0) + payload


def forget_entry(parent: int, name: bytes, *, expire: bool) -> bytes:
    """A notice: what `name` in the directory stands for is to be asked again. expire: by
    `HAS_EXPIRE_ONLY`; without it what hangs below a directory is thrown away too."""
    flags = EXPIRE_ONLY if expire else 0
    return notice(Notice.INVAL_ENTRY, INVAL_ENTRY_OUT.pack(parent, len(name), flags) + name + b"\0")


def seconds(value: float) -> tuple[int, int]:
    """Whole seconds and nanoseconds of a duration >= 0."""
    whole = int(value)
    return whole, int((value - whole) * 1e9)


def entry(node_id: int, attributes: bytes, name_s: float, attributes_s: float) -> bytes:
    """fuse_entry_out. node_id 0: the name is absent, which holds for `name_s`."""
    a, b = seconds(name_s)
    c, d = seconds(attributes_s)
    return ENTRY_HEAD.pack(node_id, 0, a, c, b, d) + attributes


def attributes_out(attributes: bytes, valid_s: float) -> bytes:
    """fuse_attr_out."""
    whole, ns = seconds(valid_s)
    return ATTR_HEAD.pack(whole, ns, 0) + attributes


def dirent(inode: int, next_offset: int, name: bytes, kind: int) -> bytes:
    """fuse_dirent, padded. kind: the file type's bits of st_mode, moved down by 12."""
    padding = -(DIRENT.size + len(name)) % 8
    return DIRENT.pack(inode, next_offset, len(name), kind) + name + bytes(padding)


def forgotten(body: memoryview) -> list[tuple[int, int]]:
    """(node, lookups) of a BATCH_FORGET."""
    (count, _) = BATCH_FORGET_IN.unpack_from(body)
    size = FORGET_ONE.size
    end = BATCH_FORGET_IN.size + count * size
    return [(node, n) for node, n in FORGET_ONE.iter_unpack(body[BATCH_FORGET_IN.size : end])]
