"""The bytes of the hub-spoke protocol: what version 1 is, and that no bytes break a reader."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubspoke import wire
from hubspoke.errors import FormatError

GOLDEN = Path(__file__).with_name("wire_v1.golden")

REVOCATION = wire.Revocation(7, "bkt", "k/é")
ENTRY = wire.WireEntry("bkt", "k", 9, "v1", 5, "etag", 1_700_000_000_123_456_789, {"a": "ü"})
KINDS = get_args(wire.Message)
MESSAGES: list[wire.Message] = [
    wire.FetchRequest(
        "s1", 3, "demand", [wire.FetchObject("bkt", "k", "v1")], [wire.FetchRange(0, 4096, 9)], True
    ),
    wire.CancelRequest("s1", 3, [0, 2]),
    wire.LeaseRequest("s1", "e1", 12, [7, 8], 0.25),
    wire.LeaseReply("e1", 2.0, 12, [REVOCATION], "why", 8, "life"),
    wire.ReadIndexRequest("s1", "e1"),
    wire.ReadIndexReply("e1", 12, [REVOCATION], 8, "life"),
    wire.SnapshotStart("e1", 12, 1_000_000, ["bkt"], "life"),
    wire.SnapshotBatch([ENTRY]),
    wire.SnapshotEnd(1_000_000, 13),
    wire.FeedStart("e1", 12, 1, ["bkt"], "eu", "life"),
    wire.FeedChanges([ENTRY, wire.WireEntry("bkt", "gone", 10)], ["bkt"], [7]),
    wire.FeedRevoke([REVOCATION]),
    wire.FeedHeartbeat(12),
    wire.FeedResync("e1", "why"),
]


def name(message: wire.Message) -> str:
    return type(message).__name__


def golden() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text().splitlines())
    return {kind: bytes.fromhex(text) for kind, text in lines}


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_the_bytes_of_version_1_stay_what_they_are(message: wire.Message) -> None:
    """A field may be added at the end of a message, and only there: see the next test."""
    assert wire.encode(message) == golden()[name(message)]
    assert wire.decode(golden()[name(message)]) == message


def test_every_message_has_its_golden_bytes() -> None:
    assert set(golden()) == {name(m) for m in MESSAGES}
    assert {name(m) for m in MESSAGES} == {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_a_message_of_the_version_before_and_of_the_next_is_understood(
    message: wire.Message,
) -> None:
    fields = msgspec.msgpack.decode(wire.encode(message))
    required = sum(
        f.required for f in msgspec.structs.fields(type(message))
    )  # what has a default came later
    older = msgspec.msgpack.encode(fields[: 1 + required])
    assert type(wire.decode(older)) is type(message)
    newer = msgspec.msgpack.encode([*fields, "a field of the future"])
    assert wire.decode(newer) == message


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        message = wire.decode(data)
    except FormatError:
        return
    assert wire.decode(wire.encode(message)) == message


@given(
    st.sampled_from(MESSAGES), st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000)
)
def test_damaged_messages_are_refused_or_are_messages(
    message: wire.Message, at: int, byte: int, cut: int
) -> None:
    data = bytearray(wire.encode(message))
    data[at % len(data)] = byte
    for damaged in (bytes(data), bytes(data[: cut % len(data)])):
        try:
            decoded = wire.decode(damaged)
        except FormatError:
            continue
        assert isinstance(decoded, KINDS)
