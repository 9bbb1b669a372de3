"""Which objects a person means by a path: a bucket, a key, a folder or a pattern.

    BUCKET               everything in it
    BUCKET/KEY           that object, and everything below BUCKET/KEY/
    BUCKET/KEY/          everything below it
    data/*.tar  **/x     whole keys: * and ? stay inside a segment, [a-z] and [!a-z] are one
                         character, ** is any number of segments, at the end at least one

A text that is exactly an object's name always means that object, whatever characters it has, so
a list of names needs no quoting. Decides by names alone, in time that does not explode with the
number of stars (a pattern is matched on the loop that serves reads).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hubspoke.core.ids import ObjectName
from hubspoke.errors import InvalidRequest

PATHS_MAX = 20_000  # of one request: about what fits into the admin port's 1 MiB
PATTERNS_MAX = 100  # those with wildcards: each is tried on each name
PATH_BYTES_MAX = 4_096
_WILD = re.compile(r"[*?\[]")
_CLASS = re.compile(r"\[(!|\^)?(\]?[^\]]*)\]")


class Span(NamedTuple):
    """Names to look at: the one named by `start`, or all whose key starts with it."""

    bucket: str
    start: str
    exact: bool  # False sorts first: a prefix covers the exact name equal to it


@dataclass(frozen=True, slots=True)
class _Pattern:
    index: int
    whole: re.Pattern[str]  # of BUCKET/KEY
    bucket: re.Pattern[str]
    start: str  # what every key of it starts with


class Selection:
    """A list of paths. Raises InvalidRequest naming the path that makes no sense."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(dict.fromkeys(paths))
        self._exact: dict[ObjectName, int] = {}
        self._folders: dict[str, int] = {}  # without the slash at the end
        self._patterns: list[_Pattern] = []
        if not self.paths:
            raise InvalidRequest("no path: expected BUCKET, BUCKET/KEY or a pattern")
        if len(self.paths) > PATHS_MAX:
            raise InvalidRequest(
                f"{len(self.paths)} paths: expected at most {PATHS_MAX}; name a folder or a pattern"
            )
        for index, path in enumerate(self.paths):
            self._add(index, path)
        if len(self._patterns) > PATTERNS_MAX:
            raise InvalidRequest(
                f"{len(self._patterns)} patterns: expected at most {PATTERNS_MAX} with * ? or ["
            )

    def _add(self, index: int, path: str) -> None:
        text = path.removeprefix("s3://")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as e:
            raise InvalidRequest(f"{path!r}: expected valid UTF-8") from e
        if not text or text.startswith("/") or "\0" in text or size > PATH_BYTES_MAX:
            raise InvalidRequest(f"{path!r}: expected BUCKET, BUCKET/KEY or a pattern")
        bucket, _, key = text.partition("/")
        if key and not _WILD.search(bucket):
            self._exact[ObjectName(bucket, key)] = index
        if _WILD.search(text):
            self._patterns.append(_pattern(index, path, text))
        else:
            self._folders[text.removesuffix("/")] = index

    def spans(self, buckets: Sequence[str]) -> list[Span]:
        """Where to look, in order of names, none inside another: no name is met twice."""
        spans = [Span(name.bucket, name.key, True) for name in self._exact]
        for folder in self._folders:
            bucket, _, key = folder.partition("/")
            spans.append(Span(bucket, f"{key}/" if key else "", False))
        for p in self._patterns:
            spans += [Span(b, p.start, False) for b in buckets if p.bucket.fullmatch(b)]
        kept: list[Span] = []
        outer: Span | None = None
        for span in sorted(set(spans)):
            if outer and span.bucket == outer.bucket and span.start.startswith(outer.start):
                continue
            kept.append(span)
            if not span.exact:
                outer = span
        return kept

    def matching(self, name: ObjectName) -> set[int]:
        """Positions in `paths` of all that mean this object."""
        path = str(name)
        found = {p.index for p in self._patterns if p.whole.fullmatch(path)}
        exact = self._exact.get(name)
        if exact is not None:
            found.add(exact)
        folders = self._folders
        at = path.find("/")
        while at >= 0 and folders:
            index = folders.get(path[:at])
            if index is not None:
                found.add(index)
            at = path.find("/", at + 1)
        return found


def _pattern(index: int, path: str, text: str) -> _Pattern:
    segments = text.split("/")
    if segments[-1] == "":
        segments[-1] = "**"
    if len(segments) == 1 and segments[0] != "**":
        segments.append("**")  # a bucket's pattern means everything in it
    bucket = ".*" if segments[0] == "**" else _segment(segments[0], path)
    start = ""
    if segments[0] != "**":
        key = text.partition("/")[2]
        wild = _WILD.search(key)
        start = key[: wild.start()] if wild else key
    flags = re.DOTALL
    whole = re.compile(_whole(segments, path), flags)
    return _Pattern(index, whole, re.compile(bucket, flags), start)


def _whole(segments: list[str], path: str) -> str:
    """The segments as one regular expression.

    Between two ** the first place that matches is as good as any later one, so that part is
    atomic; likewise between two * of a segment. That leaves one gap to try out, the last: the
    time is quadratic in the length of the name instead of growing with each star.
    """
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(_segment(segment, path))
    first, *rest = runs
    head = "".join(f"{segment}/" for segment in first)
    if not rest:
        return head.removesuffix("/")
    middle = "".join(
        f"(?>(?:[^/]*/)*?{''.join(f'{segment}/' for segment in run)})" for run in rest[:-1] if run
    )
    last = "/".join(rest[-1])
    return head + middle + (f"(?:.*/)?{last}" if last else ".*")


def _segment(segment: str, path: str) -> str:
    """One segment's wildcards as a regular expression. Raises InvalidRequest."""
    if "**" in segment:
        raise InvalidRequest(f"{path!r}: ** must stand alone between slashes")
    parts: list[str] = [""]
    at = 0
    while at < len(segment):
        c = segment[at]
        if c == "*":
            parts.append("")
        elif c == "?":
            parts[-1] += "[^/]"
        elif c == "[":
            found = _CLASS.match(segment, at)
            if found is None or not found[2]:
                raise InvalidRequest(f"{path!r}: [ without its ]; a bracket itself is [[]")
            parts[-1] += _character_class(found, path)
            at = found.end() - 1
        else:
            parts[-1] += re.escape(c)
        at += 1
    if len(parts) == 1:
        return parts[0]
    first, *middle, last = parts
    return first + "".join(f"(?>[^/]*?{part})" for part in middle) + f"[^/]*{last}"


def _character_class(found: re.Match[str], path: str) -> str:
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", found[2])
    text = f"(?!/)[{'^' if found[1] else ''}{body}]"
    try:
        re.compile(text)
    except re.error as e:
        raise InvalidRequest(f"{path!r}: {found[0]}: {e}") from e
    return text
