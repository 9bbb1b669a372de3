"""Cutting the super-packets that a TUN device with segmentation offload hands out.

Decides how a TCP super-packet (up to 64 KiB, one header) is cut at segment borders, so that a lost
segment loses 1,448 bytes and not 64 KiB. Pure; it must never touch a packet it cannot read:
anything but TCP over IPv4 counts as one segment without payload and is never cut.

Layout: virtio-net header (10 bytes: flags, gso type, header length, gso size, checksum start and
offset; virtio 1.2 section 5.1.6), IPv4 header, TCP header, payload.
"""

import struct
from dataclasses import dataclass
from typing import Final

VNET_HEADER_BYTES: Final = 10
_VNET: Final = struct.Struct("<BBHHHH")
_GSO_NONE: Final = 0
_GSO_TCPV4: Final = 1
_GSO_ECN: Final = 0x80
_PROTOCOL_TCP: Final = 6
_FIN_PSH: Final = 0x09
_CWR: Final = 0x80


@dataclass(frozen=True, slots=True)
class Shape:
    """What a packet from the device consists of."""

    segments: int  # packets it would be on a wire
    segment_bytes: int  # payload of each but the last; 0 when it is not to be cut
    header_bytes: int  # IP and TCP headers
    payload_bytes: int  # of TCP

    @property
    def wire_bytes(self) -> int:
        """IP bytes on a wire, where every segment carries its own headers."""
        return self.payload_bytes + self.segments * self.header_bytes


def shape(packet: bytes) -> Shape:
    """Read the headers; see `Shape`."""
    ip = VNET_HEADER_BYTES
    size = len(packet) - ip
    if size < 40 or packet[ip] >> 4 != 4 or packet[ip + 9] != _PROTOCOL_TCP:
        return Shape(segments=1, segment_bytes=0, header_bytes=size, payload_bytes=0)
    ip_header = (packet[ip] & 15) * 4
    header = ip_header + (packet[ip + ip_header + 12] >> 4) * 4
    payload = size - header
    _, gso_type, _, gso_size, _, _ = _VNET.unpack_from(packet)
    if gso_type & ~_GSO_ECN != _GSO_TCPV4 or not gso_size:
        return Shape(segments=1, segment_bytes=0, header_bytes=header, payload_bytes=payload)
    return Shape(
        segments=max(1, -(-payload // gso_size)),
        segment_bytes=gso_size,
        header_bytes=header,
        payload_bytes=payload,
    )


def cut(packet: bytes, form: Shape, first: int, count: int) -> bytes:
    """Segments `first` to `first + count` of a super-packet, as a packet of its own.

    The headers are those the sender's stack would have put on: sequence number and IP id moved on,
    lengths and checksums made right, FIN and PSH only at the end, CWR only at the start. The TCP
    checksum field of an offloaded packet holds the pseudo header's sum, whose length term changes
    too.
    """
    assert form.segment_bytes and 0 <= first < first + count <= form.segments, (form, first, count)
    if count == form.segments:
        return packet
    ip = VNET_HEADER_BYTES
    begin = ip + form.header_bytes + first * form.segment_bytes
    body = memoryview(packet)[begin : begin + count * form.segment_bytes]
    head = bytearray(packet[: ip + form.header_bytes])
    if count == 1:
        head[1] = _GSO_NONE
        struct.pack_into("<H", head, 4, 0)
    ip_header = (head[ip] & 15) * 4
    tcp = ip + ip_header
    struct.pack_into("!H", head, ip + 2, form.header_bytes + len(body))
    (identification,) = struct.unpack_from("!H", head, ip + 4)
    struct.pack_into("!H", head, ip + 4, (identification + first) & 0xFFFF)
    struct.pack_into("!H", head, ip + 10, 0)
    struct.pack_into("!H", head, ip + 10, 0xFFFF ^ _sum16(bytes(head[ip:tcp])))
    (sequence,) = struct.unpack_from("!I", head, tcp + 4)
    struct.pack_into("!I", head, tcp + 4, (sequence + first * form.segment_bytes) & 0xFFFFFFFF)
    if first + count < form.segments:
        head[tcp + 13] &= ~_FIN_PSH
    if first:
        head[tcp + 13] &= ~_CWR
    tcp_bytes = form.header_bytes - ip_header + len(body)
    pseudo = bytes(head[ip + 12 : ip + 20]) + struct.pack("!HH", _PROTOCOL_TCP, tcp_bytes)
    struct.pack_into("!H", head, tcp + 16, _sum16(pseudo))
    return bytes(head) + body


def _sum16(data: bytes) -> int:
    """Ones' complement sum of big-endian 16-bit words (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
