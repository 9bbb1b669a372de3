"""Bounds, deadlines and errors of what a mount answers, without a kernel."""

import asyncio
import errno
from collections.abc import Iterator

import pytest

from hubspoke import errors
from hubspoke.errors import HubSpokeError, HubUnavailable, VersionChanged
from hubspoke.frontends.fuse.answers import Answers
from hubspoke.frontends.fuse.channel import Channel
from hubspoke.frontends.fuse.errors import Refused, errno_of
from hubspoke.frontends.fuse.own_files import HANDLES_MAX, OwnFiles
from hubspoke.frontends.fuse.tuning import FuseTuning


class Told(Channel):
    """A channel that keeps what it is given."""

    def __init__(self) -> None:
        self.refused: dict[int, int] = {}
        self.paused = False

    def refuse(self, unique: int, number: int) -> None:
        self.refused[unique] = number

    def pause(self) -> None:
        self.paused = True

    def start(self) -> None:
        self.paused = False


@pytest.fixture
def channel() -> Iterator[Told]:
    yield Told()


async def failing(error: Exception) -> None:
    raise error


async def settled(answers: Answers) -> None:
    async with asyncio.timeout(10):
        while len(answers):  # noqa: ASYNC110 - tasks that nobody else may await
            await asyncio.sleep(0)


async def test_every_failure_is_answered(channel: Told, caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers(channel, FuseTuning())
    answers.later(1, failing(VersionChanged("x")))
    answers.later(2, failing(HubUnavailable("x")))
    answers.later(3, failing(Refused(errno.EISDIR, "x")))
    answers.later(4, failing(ZeroDivisionError()))
    answers.later(5, asyncio.sleep(60))
    await asyncio.sleep(0)
    answers.give_up(5)
    answers.give_up(99)
    await settled(answers)
    assert channel.refused == {
        1: errno.ESTALE, 2: errno.EIO, 3: errno.EISDIR, 4: errno.EIO, 5: errno.EINTR,
    }  # fmt: skip
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == ["request failed"]
    caplog.clear()


async def test_what_takes_too_long_is_answered(channel: Told) -> None:
    answers = Answers(channel, FuseTuning(deadline_s=0.01))
    answers.later(1, asyncio.sleep(60))
    await settled(answers)
    assert channel.refused == {1: errno.EIO}


async def test_no_more_is_taken_than_may_wait(channel: Told) -> None:
    answers = Answers(channel, FuseTuning(waiting_max=2))
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    answers.later(1, wait())
    assert not channel.paused
    answers.later(2, wait())
    assert channel.paused
    gate.set()
    await settled(answers)
    assert not channel.paused


async def test_closing_answers_all_that_waits(channel: Told) -> None:
    answers = Answers(channel, FuseTuning())
    for unique in range(3):
        answers.later(unique, asyncio.sleep(60))
    await asyncio.sleep(0)
    await answers.close()
    assert channel.refused == dict.fromkeys(range(3), errno.EINTR)


def test_only_absence_is_enoent_and_what_may_be_retried_is_eio() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    numbers = {c: errno_of(c.__new__(c)) for c in classes if issubclass(c, HubSpokeError)}
    absent = {c for c, number in numbers.items() if number == errno.ENOENT}
    assert absent == {errors.NoSuchBucket, errors.NoSuchKey, errors.InvalidKey}
    retried = {number for c, number in numbers.items() if c.retryable and c is not VersionChanged}
    assert retried == {errno.EIO}


async def test_an_own_file_stays_as_it_was_opened() -> None:
    texts = iter([b"first", b"second", b"third"])

    async def make() -> bytes:
        return next(texts)

    own = OwnFiles({"report": make})
    one, two = await own.open("report"), await own.open("report")
    assert await own.read("report", one, 0, 3) == b"fir"
    assert await own.read("report", one, 3, 99) == b"st"
    assert await own.read("report", two, 0, 99) == b"second"
    own.release(one)
    with pytest.raises(VersionChanged):
        await own.read("report", one, 3, 99)
    assert await own.read("report", one, 0, 99) == b"third"


async def test_own_files_that_are_never_closed_have_a_bound() -> None:
    async def make() -> bytes:
        return b"x"

    own = OwnFiles({"report": make})
    first = await own.open("report")
    for _ in range(HANDLES_MAX):
        await own.open("report")
    with pytest.raises(VersionChanged):
        await own.read("report", first, 1, 99)
