"""Super-packets cut at segment borders are the packets the sender's stack would have made."""

import struct

import pytest

from hubspoke.lab.gso import VNET_HEADER_BYTES, cut, shape

MSS = 1448
SEQUENCE, IDENTIFICATION = 0xFFFFFFF0, 0xFFFE  # both wrap within the packet
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80


def ones_sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def tcp_packet(payload: bytes, *, gso: bool = True, flags: int = ACK | PSH | FIN | CWR) -> bytes:
    vnet = struct.pack("<BBHHHH", 1, 1 if gso else 0, 52, MSS if gso else 0, 20, 16)
    addresses = bytes([198, 18, 0, 1, 198, 18, 0, 2])
    ip = bytearray(
        struct.pack("!BBHHHBBH", 0x45, 0, 52 + len(payload), IDENTIFICATION, 0x4000, 64, 6, 0)
    )
    ip += addresses
    struct.pack_into("!H", ip, 10, 0xFFFF ^ ones_sum(bytes(ip)))
    pseudo = ones_sum(addresses + struct.pack("!HH", 6, 32 + len(payload)))
    tcp = struct.pack("!HHIIBBHHH", 7070, 40000, SEQUENCE, 7, 0x80, flags, 512, pseudo, 0)
    return vnet + bytes(ip) + tcp + bytes([1, 1, 8, 10]) + bytes(8) + payload


def payload_of(count: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(count))


def test_a_super_packet_counts_as_what_a_wire_would_carry() -> None:
    form = shape(tcp_packet(payload_of(10 * MSS + 5)))
    assert (form.segments, form.segment_bytes, form.header_bytes) == (11, MSS, 52)
    assert form.payload_bytes == 10 * MSS + 5
    assert form.wire_bytes == 10 * MSS + 5 + 11 * 52


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_pieces_put_together_are_the_packet(count: int) -> None:
    payload = payload_of(8 * MSS + 100)
    packet = tcp_packet(payload)
    form = shape(packet)
    joined = b""
    for first in range(0, form.segments, count):
        taken = min(count, form.segments - first)
        piece = cut(packet, form, first, taken)
        ip, tcp = piece[VNET_HEADER_BYTES:], piece[VNET_HEADER_BYTES + 20 :]
        body = tcp[32:]
        assert shape(piece).segments == taken
        assert struct.unpack_from("!H", ip, 2) == (len(ip),)
        assert struct.unpack_from("!H", ip, 4) == ((IDENTIFICATION + first) & 0xFFFF,)
        assert ones_sum(ip[:20]) == 0xFFFF, "IP checksum"
        assert struct.unpack_from("!I", tcp, 4) == ((SEQUENCE + len(joined)) & 0xFFFFFFFF,)
        assert struct.unpack_from("!H", tcp, 16) == (
            ones_sum(ip[12:20] + struct.pack("!HH", 6, len(tcp))),
        )
        last = first + taken == form.segments
        expected = ACK | (PSH | FIN if last else 0) | (0 if first else CWR)
        assert tcp[13] == expected
        assert piece[1] == (0 if taken == 1 else 1)
        joined += body
    assert joined == payload


def test_the_whole_is_not_copied() -> None:
    packet = tcp_packet(payload_of(3 * MSS))
    assert cut(packet, shape(packet), 0, 3) is packet


@pytest.mark.parametrize(
    "packet",
    [
        bytes(VNET_HEADER_BYTES) + bytes([0x60]) + bytes(59),  # IPv6
        bytes(VNET_HEADER_BYTES) + bytes([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]) + bytes(18),  # UDP
        bytes(VNET_HEADER_BYTES) + bytes([0x45]),
        bytes(VNET_HEADER_BYTES),
    ],
)
def test_what_is_not_tcp_over_ipv4_is_one_packet_without_payload(packet: bytes) -> None:
    form = shape(packet)
    assert (form.segments, form.segment_bytes, form.payload_bytes) == (1, 0, 0)
    assert form.wire_bytes == len(packet) - VNET_HEADER_BYTES


def test_an_acknowledgement_has_headers_only() -> None:
    form = shape(tcp_packet(b"", gso=False, flags=ACK))
    assert (form.segments, form.payload_bytes, form.wire_bytes) == (1, 0, 52)
