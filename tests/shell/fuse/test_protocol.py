"""Structures against the layout of linux/fuse.h, byte by byte, and what INIT agrees on."""

import struct
import sys

import pytest

from hubspoke.frontends.fuse import protocol
from hubspoke.frontends.fuse.protocol import Init, Wishes

WISHES = Wishes(read_ahead=1 << 20, in_flight=64)

# By sizeof() of each structure in linux/fuse.h.
SIZES = {
    "fuse_in_header": (protocol.IN_HEADER, 40),
    "fuse_out_header": (protocol.OUT_HEADER, 16),
    "fuse_init_out": (protocol.INIT_OUT, 64),
    "fuse_attr": (protocol.ATTR, 88),
    "fuse_open_in": (protocol.OPEN_IN, 8),
    "fuse_open_out": (protocol.OPEN_OUT, 16),
    "fuse_getxattr_in": (protocol.GETXATTR_IN, 8),
    "fuse_getxattr_out": (protocol.GETXATTR_OUT, 8),
    "fuse_kstatfs": (protocol.STATFS_OUT, 80),
    "fuse_dirent": (protocol.DIRENT, 24),
    "fuse_forget_one": (protocol.FORGET_ONE, 16),
    "fuse_batch_forget_in": (protocol.BATCH_FORGET_IN, 8),
    "fuse_interrupt_in": (protocol.INTERRUPT_IN, 8),
    "fuse_notify_inval_inode_out": (protocol.INVAL_INODE_OUT, 24),
    "fuse_notify_inval_entry_out": (protocol.INVAL_ENTRY_OUT, 16),
}


@pytest.mark.parametrize("name", SIZES)
def test_structures_have_the_kernels_size(name: str) -> None:
    ours, theirs = SIZES[name]
    assert ours.size == theirs


def test_compound_structures_have_the_kernels_size() -> None:
    attributes = bytes(protocol.ATTR.size)
    assert len(protocol.entry(7, attributes, 1.5, 2.0)) == protocol.ENTRY_BYTES == 128
    assert len(protocol.attributes_out(attributes, 1.0)) == 104


@pytest.mark.skipif(sys.byteorder != "little", reason="golden bytes are little-endian")
def test_answers_are_these_bytes() -> None:
    assert protocol.message(0x0102, b"hi").hex() == "120000000000000002010000000000006869"
    assert protocol.message(3, error=2).hex() == "10000000feffffff0300000000000000"
    assert protocol.forget_entry(5, b"ab", expire=True).hex() == (
        "2300000003000000000000000000000005000000000000000200000001000000616200"
    )
    assert protocol.dirent(9, 3, b"abc", 8).hex() == (
        "0900000000000000030000000000000003000000080000006162630000000000"
    )
    head = protocol.entry(4, b"", 1.25, 0.5).hex()
    assert head == (
        "0400000000000000" "0000000000000000" "0100000000000000" "0000000000000000"
        "80b2e60e" "0065cd1d"
    )  # fmt: skip


def init_in(minor: int, flags: int, flags2: int = 0, major: int = 7) -> bytes:
    body = struct.pack("=IIII", major, minor, 128 << 10, flags)
    return body + struct.pack("=I44x", flags2) if minor >= 36 else body


ALL = 0xFFFFFFFF


def test_a_new_kernel_gets_what_both_know() -> None:
    reply, agreed = protocol.negotiate(init_in(45, ALL, ALL), WISHES)
    assert agreed is not None
    fields = protocol.INIT_OUT.unpack(reply)
    assert fields[:3] == (7, 45, 128 << 10)
    assert fields[3] | fields[10] << 32 == agreed.flags
    assert Init.HAS_EXPIRE_ONLY in agreed.flags and Init.MAX_PAGES in agreed.flags
    assert Init.PASSTHROUGH not in agreed.flags and fields[11] == 0
    assert fields[8] == 256 and agreed.request_bytes == 1 << 20


def test_a_newer_kernel_is_spoken_to_in_the_version_that_is_known() -> None:
    reply, agreed = protocol.negotiate(init_in(99, ALL, ALL), WISHES)
    assert agreed is not None
    assert protocol.INIT_OUT.unpack(reply)[:2] == (7, protocol.MINOR)
    reply, agreed = protocol.negotiate(init_in(0, 0, major=8), WISHES)
    assert agreed is None
    assert protocol.INIT_OUT.unpack(reply)[0] == 7


def test_an_old_kernel_gets_nothing_that_it_did_not_offer() -> None:
    plain = ALL & ~Init.INIT_EXT & ~Init.MAX_PAGES
    reply, agreed = protocol.negotiate(init_in(31, plain), WISHES)
    assert agreed is not None
    fields = protocol.INIT_OUT.unpack(reply)
    assert fields[1] == 31
    assert not fields[3] & ~plain and fields[10] == 0
    assert Init.HAS_EXPIRE_ONLY not in agreed.flags
    assert agreed.request_bytes == 128 << 10


def test_flags2_counts_only_where_it_is_announced() -> None:
    _, agreed = protocol.negotiate(init_in(45, ALL & ~Init.INIT_EXT, ALL), WISHES)
    assert agreed is not None and agreed.flags < 1 << 32


def test_a_kernel_that_is_too_old_is_refused_by_its_version() -> None:
    with pytest.raises(ValueError, match=r"FUSE 7\.30; 7\.31 is needed"):
        protocol.negotiate(init_in(30, ALL), WISHES)


def test_passthrough_is_asked_for_only_if_it_is_wished() -> None:
    wishes = Wishes(1 << 20, 64, passthrough=True)
    reply, agreed = protocol.negotiate(init_in(45, ALL, ALL), wishes)
    assert agreed is not None and Init.PASSTHROUGH in agreed.flags
    assert protocol.INIT_OUT.unpack(reply)[11] == 1
    _, agreed = protocol.negotiate(init_in(38, ALL, ALL & ~(1 << 5)), wishes)
    assert agreed is not None and Init.PASSTHROUGH not in agreed.flags


def test_a_batch_of_forgotten_nodes_is_read() -> None:
    body = struct.pack("=II", 2, 0) + struct.pack("=QQQQ", 5, 1, 7, 3) + b"rest"
    assert protocol.forgotten(memoryview(body)) == [(5, 1), (7, 3)]
