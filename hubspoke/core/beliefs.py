"""What is believed of what is read, and why, in words for people (`/v1/streams`).

Looks only, and only when asked: nothing here decides. Every stream and every data set that is read
by items says what it takes its reads for, the evidence, how far ahead of them the cache is, which
generator fetches and how much of what it fetched was read.
"""

from typing import Any

import numpy as np

from hubspoke.core.epochs.item_set import ItemSet
from hubspoke.core.epochs.job import EVIDENCE_MIN, Job
from hubspoke.core.ids import PAGE_BYTES
from hubspoke.core.page_codes import IS_NOT_LOCAL
from hubspoke.core.prediction import Prediction
from hubspoke.core.scoring import Scored, Scoring
from hubspoke.core.streams import Pattern, Stream
from hubspoke.core.tokens.token_file import TokenFile


def streams(prediction: Prediction, most: int) -> list[dict[str, Any]]:
    """The `most` streams read last, the last one first."""
    scored: dict[int, Scored] = {}
    for (number, source), s in prediction.scoring.latest.items():
        if number and source not in ("known_order", "blind_fill"):
            scored[number] = s  # the last one counts
    last = sorted(prediction.streams, key=lambda s: -s.last_at)[:most]
    return [_stream(s, scored.get(s.stream_id), prediction.scoring) for s in last]


def data_sets(prediction: Prediction) -> list[dict[str, Any]]:
    """Data sets that are read by items, the one read last first."""
    found = list(prediction.epochs.sets.values())
    found.sort(key=lambda s: -max((j.last_at for j in s.jobs.all), default=0.0))
    return [_data_set(s, prediction) for s in found]


def token_files(prediction: Prediction) -> list[dict[str, Any]]:
    """Objects that are read here and there by computed places, the one read last first."""
    return [_token_file(f) for f in reversed(prediction.tokens.all.values()) if f.looked_at]


def _token_file(f: TokenFile) -> dict[str, Any]:
    follow = f.follow
    return {
        "object": str(f.obj.name),
        "why": f.says if follow is None else follow.says,
        "source": None if follow is None or not follow.confirmed else "known_order",
        "order": None
        if follow is None
        else {
            "family": follow.family,
            "why": follow.why,
            "position_pages": follow.future.front,
            "known_pages": follow.future.end - follow.future.front,
            "displaced_pages": round(follow.future.lag),
            "ahead_seconds": follow.ahead_seconds(f.last_at),
        },
    }


# -- streams ----------------------------------------------------------------------------------


def _stream(s: Stream, scored: Scored | None, scoring: Scoring) -> dict[str, Any]:
    source = None if scored is None else scored.candidate.source
    return s.describe() | {
        "why": _why(s),
        "evidence": s.accesses if scored is None else scored.candidate.evidence,
        "ahead_seconds": _ahead_s(s),
        "source": source,
        "probability": None if scored is None else scored.probability,
        "accuracy": None if source is None else _accuracy(s, source, scoring),
    }


def _accuracy(s: Stream, source: str, scoring: Scoring) -> float | None:
    folder = f"{s.obj.name.bucket}/{s.obj.name.key[: s.obj.name.key.rfind('/') + 1]}"
    share, known = scoring.outcomes.accuracy((source, s.pattern.value, folder))
    return share if known else None


def _ahead_s(s: Stream) -> float | None:
    """For how long what is local in front of the reads lasts (going down: what is planned); None
    if their rate is not known."""
    rate = s.rate.per_second(s.last_at)
    if not rate or s.obj.dead:
        return None
    if s.pattern is Pattern.BACKWARD:
        return (s.recent_lo - max(0, min(s.planned, s.recent_lo))) / rate
    end = min(s.planned, s.obj.size)
    if end <= s.hi:
        return 0.0
    gap = s.obj.pages.first_run(s.hi // PAGE_BYTES, -(-end // PAGE_BYTES), IS_NOT_LOCAL)
    here = end if gap is None else max(s.hi, gap[0] * PAGE_BYTES)
    return (here - s.hi) / rate


def _why(s: Stream) -> str:
    if s.layout:
        return f"the file says where its parts are: {s.layout}"
    follows = f", as in {s.chained} objects before" if s.chained else ""
    match s.pattern:
        case Pattern.SEQUENTIAL:
            behind = s.coverage(s.start, s.recent_lo) if s.recent_lo > s.start else 1.0
            return f"{behind:.0%} of what lies behind the front was read{follows}"
        case Pattern.BACKWARD:
            return f"{s.recent.share_down:.0%} of the last steps go down"
        case Pattern.STRIDED:
            steady = [c for c in s.clients.values() if c.confirmed >= 2 and c.jump]
            if not steady:
                return "what lies behind the front has holes, and no client jumps evenly"
            c = max(steady, key=lambda c: c.confirmed)
            again = f"{c.last_run_length:,} bytes every {c.jump:,}, {c.confirmed} times in a row"
            return f"{len(steady)} of {len(s.clients)} clients jump evenly: {again}"
        case Pattern.RANDOM:
            return f"the last {len(s.recent)} reads cover {s.density:.1%} of the bytes they span"
        case Pattern.UNKNOWN:
            return f"{s.accesses} reads are too few, or do not agree"


# -- data sets --------------------------------------------------------------------------------


def _data_set(s: ItemSet, prediction: Prediction) -> dict[str, Any]:
    source = None if not s.comes else "known_order" if s.shelf.exact else "blind_fill"
    return {
        "folder": "/".join(s.items.folder),
        "items": s.items.count,
        "item": "object" if s.items.record is None else "record",
        "item_bytes": round(s.items.bytes_mean),
        "cached_items": s.shelf.held if s.comes else None,
        "source": source,
        "jobs": [_job(j, s, prediction) for j in s.jobs.all],
    }


def _job(j: Job, s: ItemSet, prediction: Prediction) -> dict[str, Any]:
    f = j.follower
    return {
        "job": j.number,
        "epoch": j.epoch,
        "read_items": j.count,
        "items_per_second": j.rate,
        "believed": j.believed,
        "why": _why_job(j),
        "inference": prediction.inference.describe(j) if prediction.infers else None,
        "ahead_seconds": _job_ahead_s(j, s),
        "order": None
        if f is None
        else {
            "family": f.order.family,
            "why": f.order.why,
            "position": f.front,
            "length": len(f.order.items),
            "window": f.order.window,
            "next_epoch_known": f.following() is not None,
            "next_epoch_guesses": len(f.guesses()),
        },
    }


def _job_ahead_s(j: Job, s: ItemSet) -> float | None:
    """For how long what is here of the known order lasts; None without an order or a rate."""
    if j.follower is None or not j.rate or not s.comes:
        return None
    coming = j.follower.order.items[j.follower.front :]
    lacking = ~s.shelf.here[coming] & ~j.read[coming]
    ready = int(np.argmax(lacking)) if lacking.any() else len(coming)
    return ready / j.rate


def _why_job(j: Job) -> str:
    if j.follower is not None:
        of, why = j.follower.order.family, j.follower.order.why
        return f"reads follow the order of {of}{': ' if why else ''}{why}"
    reads = f"{j.repeats} of {j.count + j.repeats:,} reads of this epoch are repeats"
    if j.believed:
        return f"{reads}: what is unread will be read, in an order that is not known"
    if j.walks:
        return "items come in listing order: their streams know more"
    if j.evidence <= EVIDENCE_MIN:
        return f"{reads}: too few reads of {j.n:,} items to tell an epoch from draws"
    return f"{reads}: these are draws with replacement, or several jobs that are not told apart"
