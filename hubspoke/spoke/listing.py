"""The replica as generators see it: the objects of one folder, in listing order."""

from hubspoke.core.ids import ObjectEntry, ObjectName
from hubspoke.ports import NamespaceStore

NAMES_MAX = 1_024  # of one call
FOLDERS_PASSED_MAX = 64  # of one call, 30 us each; what lies behind more of them is not seen
_LAST = "\U0010ffff"  # behind all names of a folder but those that begin with it


class FolderListing:
    """core.generators.Listing of objects, without those of folders inside the folder."""

    def __init__(self, namespace: NamespaceStore) -> None:
        self._namespace = namespace

    def following(self, name: ObjectName, limit: int) -> list[tuple[ObjectName, ObjectEntry]]:
        """See Listing. A folder between two objects is stepped over, however large it is."""
        limit = min(limit, NAMES_MAX)
        cut = name.key.rfind("/") + 1
        folder, after = name.key[:cut], name.key
        found: list[tuple[ObjectName, ObjectEntry]] = []
        for _ in range(FOLDERS_PASSED_MAX):
            most = limit - len(found)
            records = self._namespace.scan(name.bucket, prefix=folder, after=after, limit=most)
            inner = ""
            for record in records:
                head, slash, _ = record.name.key[cut:].partition("/")
                if slash:
                    inner = f"{folder}{head}/"
                    break
                found.append((record.name, record.entry))
            if not inner or len(found) == limit:
                break
            after = inner + _LAST
        return found
