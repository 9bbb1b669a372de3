"""Which keys are paths, and which objects a mount cannot show."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubspoke.core.names import hidden_on_mount, mount_fault, path_fault


@pytest.mark.parametrize(
    "key",
    ["a", "a/b", "a/", "a/b/", " ","a\nb", "a b", "\u00e9", "e\u0301", "...", "a..", "A"],
)  # fmt: skip
def test_keys_that_are_paths(key: str) -> None:
    assert path_fault(key) is None
    assert mount_fault(key, 0) is None


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\udcff", "UTF-8"),
        ("k" * 1025, "1025 bytes"),
        ("/", "empty path segment"),
        ("/a", "empty path segment"),
        ("a//b", "empty path segment"),
        ("a//", "empty path segment"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a/../b", "'..'"),
        ("a/./", "'.'"),
        ("k" * 256, "255 bytes"),
        ("\u00e9" * 128, "255 bytes"),
    ],
)
def test_keys_that_are_no_paths(key: str, why: str) -> None:
    assert why in (path_fault(key) or "")
    assert why in (mount_fault(key, 0) or "")


def test_longest_segment_is_a_path() -> None:
    assert path_fault("k" * 255 + "/" + "\u00e9" * 127) is None


def test_marker_with_content_cannot_be_shown() -> None:
    assert mount_fault("a/", 0) is None
    assert "not empty" in (mount_fault("a/", 3) or "")


def test_object_beside_a_folder_of_its_name_is_hidden() -> None:
    keys = ["a", "a!", "a-", "a-/x", "a/b", "a/b/c", "a0", "b", "c", "c/"]
    found = dict(hidden_on_mount((key, 0) for key in keys))
    assert sorted(found) == ["a", "a-", "a/b", "c"]
    assert set(found.values()) == {"a folder has its name"}


def test_key_that_is_no_path_makes_no_folder() -> None:
    found = dict(hidden_on_mount([("a", 1), ("a//b", 1)]))
    assert list(found) == ["a//b"]


@given(st.sets(st.text("a/.-0", max_size=6)))
@example({"a", "a-", "a-a", "a/a", "a0/a"})
def test_hidden_objects_are_those_found_by_trying_all_pairs(keys: set[str]) -> None:
    shown = {key for key in keys if not path_fault(key)}
    by_pairs = {key for key in keys if key not in shown} | {
        key for key in shown for other in shown if other.startswith(key.rstrip("/") + "/")
        if not key.endswith("/")
    }  # fmt: skip
    found = [key for key, _ in hidden_on_mount((key, 0) for key in sorted(keys))]
    assert len(found) == len(set(found))
    assert set(found) == by_pairs
