"""What a path means: folders, keys, patterns; and that no pattern is slow."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubspoke.core.ids import ObjectName
from hubspoke.core.selection import PATHS_MAX, PATTERNS_MAX, Selection, Span
from hubspoke.errors import InvalidRequest

NAMES = [
    "data/a.tar",
    "data/train/a.tar",
    "data/train/b.txt",
    "data/train/deep/c.tar",
    "data/train",
    "data/trainer/x",
    "data/[1].bin",
    "data/#odd name",
    "data/dir/",
    "logs/a.tar",
]


def name(path: str) -> ObjectName:
    return ObjectName(*path.split("/", 1))


def chosen(*paths: str) -> list[str]:
    selection = Selection(paths)
    found = [n for n in NAMES if selection.matching(name(n))]
    # What is matched lies where is looked, once.
    spans = selection.spans(["data", "logs"])
    for n in found:
        bucket, key = name(n)
        places = [
            s
            for s in spans
            if s.bucket == bucket and (key == s.start if s.exact else key.startswith(s.start))
        ]
        assert len(places) == 1, (n, spans)
    return found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data", [n for n in NAMES if n.startswith("data/")]),
        ("data/", [n for n in NAMES if n.startswith("data/")]),
        ("s3://logs", ["logs/a.tar"]),
        ("**", NAMES),
        ("*", NAMES),
        ("dat?", [n for n in NAMES if n.startswith("data/")]),
        (
            "data/train",
            ["data/train/a.tar", "data/train/b.txt", "data/train/deep/c.tar", "data/train"],
        ),
        ("data/train/", ["data/train/a.tar", "data/train/b.txt", "data/train/deep/c.tar"]),
        ("data/train/*", ["data/train/a.tar", "data/train/b.txt"]),
        ("data/train/*.tar", ["data/train/a.tar"]),
        ("data/train/**", ["data/train/a.tar", "data/train/b.txt", "data/train/deep/c.tar"]),
        (
            "data/**/*.tar",
            ["data/a.tar", "data/train/a.tar", "data/train/deep/c.tar"],
        ),
        ("**/a.tar", ["data/a.tar", "data/train/a.tar", "logs/a.tar"]),
        ("**/train/**/c.tar", ["data/train/deep/c.tar"]),
        ("*/[ab].tar", ["data/a.tar", "logs/a.tar"]),
        ("data/train/[!a]*", ["data/train/b.txt"]),
        ("data/tr*/", [n for n in NAMES if n.startswith("data/train") and n != "data/train"]),
        ("data/[1].bin", ["data/[1].bin"]),
        ("data/[[]1[]].bin", ["data/[1].bin"]),
        ("data/#odd name", ["data/#odd name"]),
        ("data/dir", ["data/dir/"]),
        ("data/absent", []),
        ("data/?", []),
    ],
)
def test_a_path_means(path: str, expected: list[str]) -> None:
    assert chosen(path) == expected


def test_several_paths_mean_each_object_once() -> None:
    assert chosen("data/train", "data/train/a.tar", "**/*.tar", "logs", "data/train") == [
        n for n in NAMES if ".tar" in n or n in ("data/train/b.txt", "data/train")
    ]
    assert Selection(["data/train", "**/a.tar"]).matching(name("data/train/a.tar")) == {0, 1}


def test_spans_lie_in_no_other_one() -> None:
    selection = Selection(["data/a", "data/a/b", "data", "logs/x", "logs/x/*.tar"])
    assert selection.spans(["data", "logs"]) == [
        Span("data", "", False),
        Span("logs", "x", True),
        Span("logs", "x/", False),
    ]
    assert Selection(["d*/train/*.tar"]).spans(["data", "logs"]) == [Span("data", "train/", False)]


@pytest.mark.parametrize(
    "path", ["", "/data", "data/a**b", "data/[a", "data/[]", "data/[z-a]", "a\0b", "data/\ud800"]
)
def test_what_makes_no_sense_is_named(path: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expected|\*\*|\["):
        Selection([path])


def test_lists_are_bounded() -> None:
    with pytest.raises(InvalidRequest, match="no path"):
        Selection([])
    with pytest.raises(InvalidRequest, match="20001 paths"):
        Selection([f"data/{i}" for i in range(PATHS_MAX + 1)])
    with pytest.raises(InvalidRequest, match="101 patterns"):
        Selection([f"data/{i}*" for i in range(PATTERNS_MAX + 1)])


@pytest.mark.parametrize("path", ["data/" + "*a" * 40 + "b", "**/a/" * 20 + "b", "*a/**/" * 20])
@pytest.mark.parametrize("key", ["a" * 1000, "a/" * 500])
def test_no_pattern_is_slow(path: str, key: str) -> None:
    selection = Selection([path])
    began = time.perf_counter()
    selection.matching(ObjectName("data", key))
    assert time.perf_counter() - began < 0.1


def slow_match(pattern: list[str], parts: list[str]) -> bool:
    """The definition, by trying everything."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(parts)
        return any(slow_match(pattern[1:], parts[i:]) for i in range(len(parts) + 1))
    return bool(parts) and slow_segment(pattern[0], parts[0]) and slow_match(pattern[1:], parts[1:])


def slow_segment(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(slow_segment(pattern[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and slow_segment(pattern[1:], text[1:])


SEGMENT = st.text("ab*?", min_size=1, max_size=5).filter(lambda s: "**" not in s)


@given(
    st.lists(st.one_of(st.just("**"), SEGMENT), min_size=1, max_size=4),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5),
)
def test_patterns_match_what_their_definition_says(pattern: list[str], parts: list[str]) -> None:
    text = "/".join(["b", *pattern])
    if not set(text) & {"*", "?"}:
        return
    assert bool(Selection([text]).matching(ObjectName("b", "/".join(parts)))) == slow_match(
        pattern, parts
    )
