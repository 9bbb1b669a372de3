"""What the kernel counted on a TCP connection (Linux `struct tcp_info`)."""

import socket
import struct
from typing import NamedTuple, Protocol

# Offsets in bytes, from linux/tcp.h; the struct only ever grows at its end.
_BYTES_RECEIVED = 128
_BYTES_SENT = 200
_BYTES_RETRANSMITTED = 208
_SIZE = 216


class TcpInfo(NamedTuple):
    """Payload bytes; sent counts each byte once, retransmitted counts repeats."""

    received: int
    sent: int
    retransmitted: int


class HasSockopt(Protocol):
    def getsockopt(self, level: int, option: int, buflen: int, /) -> bytes: ...


def tcp_info(sock: HasSockopt) -> TcpInfo | None:
    """None when the socket is closed or the kernel is older than 4.19 (no bytes_sent)."""
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except (OSError, ValueError):  # ValueError: uvloop, whose socket is closed
        return None
    if len(raw) < _SIZE:
        return None
    (received,) = struct.unpack_from("<Q", raw, _BYTES_RECEIVED)
    sent, again = struct.unpack_from("<QQ", raw, _BYTES_SENT)
    return TcpInfo(received, sent - again, again)
