"""Limits and deadlines of the S3 door, with units and reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class S3DoorTuning:
    # A body that brings no byte for so long is given up: 408. As long as nginx's default.
    body_stall_s: float = 60.0
    # A reader that takes nothing for so long is disconnected, or it would hold a fetch for ever.
    send_stall_s: float = 60.0
    # Long completions and copies: white space keeps the connection from looking dead. Below the
    # 60 s read timeout of botocore; AWS sends it too.
    keepalive_s: float = 5.0
    # 10,000 parts with three checksums each are 2.6 MB.
    xml_bytes_max: int = 4 << 20
    # A refused body up to this size is read and thrown away, so that the connection can be kept
    # and the client sees the answer; beyond it the connection is closed.
    drain_bytes_max: int = 1 << 20
    drain_s: float = 2.0
    # Payload is handed on in pieces of this size: few thread hops for hashing and writing.
    chunk_bytes: int = 1 << 20
    # Concurrent deletes of one DeleteObjects: enough to fill a group commit.
    deletes_in_flight_max: int = 64
    # DNS suffixes under which the first labels of Host name the bucket (virtual-host style).
    domains: tuple[str, ...] = ("localhost",)
