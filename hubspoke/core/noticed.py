"""What of a store may have changed without the hub, and when to look at it.

    notified -> waits until it is quiet -> due -> looked at -> settled, or tried again

Decides which names and which parts of the store are looked at next, from notices and times that
come in. Many notices of one name become one look; a burst becomes a look at its folder, a bigger
one a look at everything under a common folder or in the whole store, so memory has a bound and
nothing that was noticed is ever dropped. It must never let a name wait for ever because it is
written without a pause, nor make a log entry of each write of a slow writer.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace

from hubspoke.core.ids import ObjectName


@dataclass(frozen=True, slots=True)
class Part:
    """Names of a bucket under `prefix`, which is "" or ends in "/".

    deep: with all folders below it, and the marker of the folder itself.
    """

    bucket: str
    prefix: str
    deep: bool

    def covers(self, name: ObjectName) -> bool:
        return (
            name.bucket == self.bucket
            and name.key.startswith(self.prefix)
            and (self.deep or "/" not in name.key[len(self.prefix) :])
        )


@dataclass(frozen=True, slots=True)
class NameNotice:
    """writing: it has been written to and its writer may not be through."""

    name: ObjectName
    writing: bool


@dataclass(frozen=True, slots=True)
class BucketsNotice:
    """A bucket may have come or gone."""


@dataclass(frozen=True, slots=True)
class LostNotice:
    """Changes were not told, or will not be: only looking at everything finds them."""

    reason: str


Notice = NameNotice | Part | BucketsNotice | LostNotice


@dataclass(frozen=True, slots=True)
class NoticedConfig:
    # Several notices belong to one change (create, write, close, a temporary name): wait for the
    # last. More than the 20 ms after which a file's version can be relied on.
    quiet_s: float = 0.05
    # The same while the file is still open for writing: a pause of a writer, or its end.
    quiet_writing_s: float = 0.1
    # One that is written without a pause is looked at all the same.
    writing_max_s: float = 10.0
    # A name that changes again and again becomes at most two log entries a second.
    again_s: float = 0.5
    # A part waits longer: every look at it costs a listing.
    part_quiet_s: float = 0.1
    part_max_s: float = 0.5
    # A listing that takes long is begun again after so many times its duration.
    part_rest: float = 2.0
    names_max: int = 10_000
    names_per_folder_max: int = 1_000
    parts_max: int = 1_000
    # What could not be looked at is tried again after 1, 2, 4 ... seconds, so many times; a read
    # or the next look at everything finds it afterwards.
    tries: int = 8
    retry_s: float = 1.0


@dataclass(slots=True)
class _Wait:
    first: float
    last: float
    writing: bool = False
    tries: int = 0
    not_before: float = 0.0


class Noticed:
    """Of one store. `everything`: why all of it has to be looked at, or None."""

    def __init__(self, config: NoticedConfig | None = None) -> None:
        self._config = config or NoticedConfig()
        self._names: dict[ObjectName, _Wait] = {}
        self._folders: Counter[tuple[str, str]] = Counter()  # of the names that wait
        self._parts: dict[Part, _Wait] = {}
        self._looked: OrderedDict[ObjectName, float] = OrderedDict()  # when, oldest first
        self._rested: dict[Part, float] = {}  # until when
        self.everything: str | None = None

    def __len__(self) -> int:
        return len(self._names) + len(self._parts)

    def waits(self, name: ObjectName) -> bool:
        """Whether the name is going to be looked at by itself."""
        return name in self._names

    def name(self, name: ObjectName, *, writing: bool, now: float) -> None:
        """A notice of one name."""
        wait = self._names.get(name)
        if wait is not None:
            if wait.writing and not writing:
                wait.first = now
            wait.last, wait.writing = now, writing
            return
        if self._touch_part(name.bucket, name.key, now):
            return
        at = self._looked.get(name)
        not_before = at + self._config.again_s if at is not None else 0.0
        self._names[name] = _Wait(now, now, writing, not_before=not_before)
        folder = _folder(name)
        self._folders[folder] += 1
        if self._folders[folder] > self._config.names_per_folder_max:
            self.part(Part(*folder, deep=False), now=now)
        elif len(self._names) > self._config.names_max:
            for folder in list(self._folders):
                self.part(Part(*folder, deep=False), now=now)

    def part(self, part: Part, *, now: float) -> None:
        """Everything in a part of the store may have changed."""
        wait = self._parts.get(part)
        if wait is not None:
            wait.last = now
            return
        if self._touch_part(part.bucket, part.prefix, now, deep_only=part.deep):
            return
        self._parts[part] = _Wait(now, now, not_before=self._rested.get(part, 0.0))
        self._absorb(part)
        if len(self._parts) > self._config.parts_max:
            self._widen(now)

    def all(self, reason: str) -> None:
        """Everything may have changed: the rest need not be remembered."""
        self.everything = reason
        self._names.clear()
        self._folders.clear()
        self._parts.clear()
        self._rested.clear()

    def begin_all(self) -> None:
        """Everything is being looked at; what is noticed from here on is looked at afterwards."""
        self.everything = None

    def due_names(self, now: float, limit: int) -> list[ObjectName]:
        """Names to look at now, at most `limit`; they wait no more."""
        due = []
        for name, wait in self._names.items():
            if self._name_due(wait) <= now:
                due.append(name)
                if len(due) == limit:
                    break
        for name in due:
            self._forget(name)
            self._looked[name] = now
            self._looked.move_to_end(name)
        while self._looked:
            oldest = next(iter(self._looked))
            fresh = self._looked[oldest] > now - self._config.again_s
            if fresh and len(self._looked) <= self._config.names_max:
                break
            del self._looked[oldest]
        return due

    def due_part(self, now: float) -> Part | None:
        """A part to look at now; it waits no more."""
        for part, wait in self._parts.items():
            if self._part_due(wait) <= now:
                del self._parts[part]
                return part
        return None

    def part_done(self, part: Part, *, now: float, took_s: float) -> None:
        """Looked at. The same part has its rest, or bulk copies would be listed all the time."""
        self._rested = {p: until for p, until in self._rested.items() if until > now}
        self._rested[part] = now + took_s * self._config.part_rest
        if (wait := self._parts.get(part)) is not None:
            wait.not_before = self._rested[part]

    def failed(self, what: ObjectName | Part, *, tries: int, now: float) -> bool:
        """It could not be looked at for the `tries`-th time: try again later. Returns whether it
        will be; False after the last time."""
        if tries >= self._config.tries:
            return False
        after = now + self._config.retry_s * 2.0 ** (tries - 1)
        if isinstance(what, Part):
            self.part(what, now=now)
            wait = self._parts.get(what)
        else:
            self.name(what, writing=False, now=now)
            wait = self._names.get(what)
        if wait is not None:
            wait.not_before = max(wait.not_before, after)
        return True

    def next_name(self) -> float | None:
        """When a name is due at the earliest; None while none waits."""
        return min(map(self._name_due, self._names.values()), default=None)

    def next_part(self) -> float | None:
        return min(map(self._part_due, self._parts.values()), default=None)

    def _name_due(self, wait: _Wait) -> float:
        config = self._config
        quiet = config.quiet_writing_s if wait.writing else config.quiet_s
        longest = config.writing_max_s if wait.writing else config.again_s
        return max(min(wait.last + quiet, wait.first + longest), wait.not_before)

    def _part_due(self, wait: _Wait) -> float:
        config = self._config
        at = min(wait.last + config.part_quiet_s, wait.first + config.part_max_s)
        return max(at, wait.not_before)

    def _touch_part(self, bucket: str, key: str, now: float, *, deep_only: bool = False) -> bool:
        """Whether a part that waits covers the name or folder; it waits for the quiet again."""
        folder = key.rpartition("/")[0]
        prefix = folder + "/" if folder else ""
        if not deep_only and (wait := self._parts.get(Part(bucket, prefix, False))) is not None:
            wait.last = now
            return True
        while True:
            if (wait := self._parts.get(Part(bucket, prefix, True))) is not None:
                wait.last = now
                return True
            if not prefix:
                return False
            above = prefix[:-1].rpartition("/")[0]
            prefix = above + "/" if above else ""

    def _absorb(self, part: Part) -> None:
        """What waits inside the part is looked at with it."""
        if part.deep:
            inside = [p for p in self._parts if p != part and _within(p, part)]
            for other in inside:
                del self._parts[other]
        folders = [f for f in self._folders if _within(Part(*f, deep=False), part)]
        if folders:
            for name in [n for n in self._names if part.covers(n)]:
                self._forget(name)

    def _widen(self, now: float) -> None:
        """Too many parts: one for each bucket, over the folder that is common to them."""
        prefixes: dict[str, list[str]] = {}
        for part in self._parts:
            prefixes.setdefault(part.bucket, []).append(part.prefix)
        if len(prefixes) > self._config.parts_max // 2:
            self.all("changes in very many buckets")
            return
        for bucket, those in prefixes.items():
            wide = Part(bucket, _common(min(those), max(those)), deep=True)
            inside = [p for p in self._parts if p.bucket == bucket]
            first = min(self._parts.pop(p).first for p in inside)
            self._parts[wide] = _Wait(first, now, not_before=self._rested.get(wide, 0.0))
            self._absorb(wide)

    def _forget(self, name: ObjectName) -> None:
        del self._names[name]
        folder = _folder(name)
        self._folders[folder] -= 1
        if not self._folders[folder]:
            del self._folders[folder]


def _folder(name: ObjectName) -> tuple[str, str]:
    above = name.key.rpartition("/")[0]
    return name.bucket, above + "/" if above else ""


def _common(low: str, high: str) -> str:
    """The deepest folder that both lie in; of the least and the greatest, that of all between."""
    at = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[: low.rfind("/", 0, at) + 1]


def _within(part: Part, other: Part) -> bool:
    if part.bucket != other.bucket:
        return False
    return part == replace(other, deep=part.deep) or (
        other.deep and part.prefix.startswith(other.prefix)
    )
