"""Strided: each client jumps by the same distance, and the gaps stay unread.

Assumes: a client's next runs start where its last ones did plus the jump, with the same length.
Used only where the stream as a whole is not dense: workers whose strides interleave without a
gap are one sequential stream (sequential.py), which needs no client identity and so survives
connection pools that deal requests to any connection.
"""

import math

from hubspoke.core.generators.candidates import Candidate
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.streams import Cursor, Stream

CONFIRMED_MIN = 2  # equal jumps in a row before a stride is believed
RUNS_AHEAD_MIN = 2
BYTES_AHEAD_MAX = 8 << 20  # per client


def propose(s: Stream, hide_s: float, *, waited: bool = False) -> list[Candidate]:
    """The coming runs of every client whose jumps have been equal, each named once; all of them
    again if a read has waited."""
    if not s.jumped:
        return []
    found: list[Candidate] = []
    ahead = 0
    for cursor in s.clients.values():
        if cursor.confirmed >= CONFIRMED_MIN and cursor.jump:
            length, period = cursor.last_run_length, max(cursor.period_s, 1e-3)
            count = max(RUNS_AHEAD_MIN, math.ceil(hide_s * s.boost.factor / period))
            count = min(count, max(1, BYTES_AHEAD_MAX // length))
            ahead += count * length
            if cursor.run_start != cursor.proposed_at or waited:
                found += _runs(s, cursor, count, period, waited=waited)
    s.hide_bytes = max(s.hide_bytes, ahead)
    return found


def _runs(s: Stream, cursor: Cursor, count: int, period: float, *, waited: bool) -> list[Candidate]:
    length, jump = cursor.last_run_length, cursor.jump
    cursor.proposed_at = cursor.run_start
    # k = 0 is the rest of the run the client is in.
    first_k = 0
    if not waited and (cursor.proposed_to - cursor.run_start) % jump == 0:
        first_k = max(0, (cursor.proposed_to - cursor.run_start) // jump + 1)
    found = []
    for k in range(first_k, count + 1):
        start = cursor.run_end if k == 0 else cursor.run_start + k * jump
        end = min(cursor.run_start + k * jump + length, s.end)
        first = max(0, start) // PAGE_BYTES * PAGE_BYTES
        if start < 0 or end <= first:
            continue
        found.append(
            Candidate(
                "strided",
                s.stream_id,
                s.obj.name,
                None,
                first,
                end - first,
                k * period,
                cursor.confirmed,
            )
        )
    cursor.proposed_to = cursor.run_start + max(first_k - 1, count) * jump
    return found
