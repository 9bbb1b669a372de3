"""Requests and answers of the search process, as frames: four bytes of length, then MessagePack."""

import struct
from typing import Any, Literal

import msgspec
import numpy as np

from hubspoke.core.inference.question import (
    Answer,
    Build,
    Follow,
    Followers,
    Found,
    Question,
    Request,
)

LENGTH = struct.Struct("<I")
FRAME_BYTES_MAX = 1 << 28  # two arrays of 2^25 items

Word = Literal["pause", "go on"]


def _frame(*fields: Any) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return LENGTH.pack(len(body)) + body


def _numbers(data: bytes) -> Any:
    return np.frombuffer(data, np.int32)


def pack_word(word: Word) -> bytes:
    return _frame(word)


def pack_request(request: Request) -> bytes:
    match request:
        case Question(number, count, reads, likely, thorough):
            return _frame("question", number, count, reads.tobytes(), likely, thorough)
        case Build(number, count, family, seed):
            return _frame("build", number, count, family, seed)
        case Follow(number, seed):
            return _frame("follow", number, seed)


def unpack_request(body: bytes) -> Request | Word:
    match msgspec.msgpack.decode(body):
        case ["question", number, count, reads, likely, thorough]:
            return Question(number, count, _numbers(reads), tuple(likely), thorough)
        case ["build", number, count, family, seed]:
            return Build(number, count, family, seed)
        case ["follow", number, seed]:
            return Follow(number, seed)
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
        case Found(family, seed, items, places, first, last, log_p):
            arrays = items.tobytes(), places.tobytes()
            return _frame(number, family, seed, *arrays, first, last, log_p)


def unpack_answer(body: bytes) -> tuple[int, Answer]:
    match msgspec.msgpack.decode(body):
        case [number, seeds]:
            return number, Followers(tuple(seeds))
        case [number, family, seed, items, places, first, last, log_p]:
            found = Found(family, seed, _numbers(items), _numbers(places), first, last, log_p)
            return number, found
        case [number]:
            return number, None
        case other:
            raise ValueError(f"search process: {other!r}")
