"""Requests and answers of the search process, as frames: four bytes of length, then MessagePack."""

import struct
from dataclasses import astuple
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from hubspoke.core.inference.documents import Documents, FoundSamples
from hubspoke.core.inference.question import (
    Answer,
    Build,
    Follow,
    Followers,
    Found,
    Question,
    Recipe,
    Request,
)
from hubspoke.core.inference.windows import FoundWindows, Stream, Windows

LENGTH = struct.Struct("<I")
FRAME_BYTES_MAX = 1 << 28  # two arrays of 2^25 items

Word = Literal["pause", "go on"]


class Cancel(NamedTuple):
    """Nobody waits for the answer of the request of this number any more."""

    number: int


def _frame(*fields: Any) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return LENGTH.pack(len(body)) + body


def _numbers(data: bytes) -> Any:
    return np.frombuffer(data, np.int32)


def pack_word(word: Word) -> bytes:
    return _frame(word)


def pack_cancel(number: int) -> bytes:
    return _frame("cancel", number)


def pack_request(request: Request) -> bytes:
    """One frame; numbers of items as int32."""
    match request:
        case Question(number, count, reads, likely, thorough, shards):
            recipes = [astuple(recipe) for recipe in likely]
            return _frame("question", number, count, reads.tobytes(), recipes, thorough, shards)
        case Build(number, count, recipe, shards):
            return _frame("build", number, count, astuple(recipe), shards)
        case Follow(number, seed, part):
            return _frame("follow", number, seed, part)
        case Windows(number, span, starts, thorough, likely, only):
            return _frame("windows", number, span, starts.tobytes(), thorough, likely, only)
        case Documents(number, token_bytes, lengths, offsets, sizes, pages, thorough):
            arrays = lengths.tobytes(), offsets.tobytes(), sizes.tobytes()
            return _frame("documents", number, token_bytes, *arrays, pages, thorough)


def unpack_request(body: bytes) -> Request | Cancel | Word:
    match msgspec.msgpack.decode(body):
        case ["question", number, count, reads, likely, thorough, shards]:
            recipes = tuple(Recipe(*fields) for fields in likely)
            return Question(number, count, _numbers(reads), recipes, thorough, tuple(shards))
        case ["build", number, count, fields, shards]:
            return Build(number, count, Recipe(*fields), tuple(shards))
        case ["follow", number, seed, part]:
            return Follow(number, seed, part)
        case ["windows", number, span, starts, thorough, likely, only]:
            streams = tuple(Stream(*each) for each in likely)
            return Windows(number, span, np.frombuffer(starts, np.int64), thorough, streams, only)
        case ["documents", number, token_bytes, lengths, offsets, sizes, pages, thorough]:
            reads = np.frombuffer(offsets, np.int64), np.frombuffer(sizes, np.int64)
            return Documents(number, token_bytes, _numbers(lengths), *reads, pages, thorough)
        case ["cancel", number]:
            return Cancel(number)
        case ["pause"]:
            return "pause"
        case _:
            return "go on"


def pack_answer(number: int, answer: Answer) -> bytes:
    match answer:
        case None:
            return _frame(number)
        case Followers(seeds):
            return _frame(number, seeds)
        case FoundWindows(streams, log_p):
            return _frame(number, "windows", streams, log_p)
        case FoundSamples(why, documents, starts, order):
            three = documents.tobytes(), starts.tobytes(), order.tobytes()
            return _frame(number, "samples", why, *three)
        case Found(recipe, items, places, first, last, log_p):
            arrays = items.tobytes(), places.tobytes()
            return _frame(number, astuple(recipe), *arrays, first, last, log_p)


def unpack_answer(body: bytes) -> tuple[int, Answer]:
    """The question's number and what was found. Raises ValueError."""
    match msgspec.msgpack.decode(body):
        case [number, seeds]:
            return number, Followers(tuple(seeds))
        case [number, "windows", streams, log_p]:
            return number, FoundWindows(tuple(Stream(*each) for each in streams), log_p)
        case [number, "samples", why, documents, starts, order]:
            pairs = _numbers(starts).reshape(-1, 2)
            return number, FoundSamples(why, _numbers(documents), pairs, _numbers(order))
        case [number, fields, items, places, first, last, log_p]:
            arrays = _numbers(items), _numbers(places)
            return number, Found(Recipe(*fields), *arrays, first, last, log_p)
        case [number]:
            return number, None
        case other:
            raise ValueError(f"search process: {other!r}")
