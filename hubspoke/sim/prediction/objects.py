"""Objects as names and sizes: the simulated hub's namespace. Their bytes do not exist."""

from bisect import bisect_right
from collections.abc import Sequence

from hubspoke.core.ids import ObjectEntry, ObjectName, Version


def object_name(text: str) -> ObjectName:
    """From "bucket/key"."""
    bucket, _, key = text.partition("/")
    return ObjectName(bucket, key)


class Objects:
    """By number, as workloads and traces count them; `core.generators.Listing` by name."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.names = [object_name(n) for n in names]
        self.entries = [ObjectEntry(Version("v1"), int(size), "simulated", 0) for size in sizes]
        self._number = {name: i for i, name in enumerate(self.names)}
        self._folders: dict[tuple[str, str], list[ObjectName]] = {}
        for name in sorted(self.names):
            self._folders.setdefault(_folder(name), []).append(name)

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        """See core.generators.candidates.Listing."""
        found = self._folders.get(_folder(name), [])
        at = bisect_right(found, name)
        return [(n, self.entries[self._number[n]]) for n in found[at : at + limit]]

    def entry(self, name: ObjectName) -> ObjectEntry | None:
        """What the namespace has of a name."""
        number = self._number.get(name)
        return None if number is None else self.entries[number]

    def change(self, number: int, version: str) -> None:
        """The name has another version of the same size from now on."""
        entry = self.entries[number]
        self.entries[number] = ObjectEntry(Version(version), entry.size, entry.etag, 0)


def _folder(name: ObjectName) -> tuple[str, str]:
    return name.bucket, name.key[: name.key.rfind("/") + 1]
