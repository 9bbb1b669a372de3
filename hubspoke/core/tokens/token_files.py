"""All token files that are read, as the prediction asks for them.

Only objects of some size that are read in small pieces are looked at: a few numbers for each read.
Nothing here raises for what was read: what fits no course is random, and costs a search.
"""

from collections import OrderedDict
from collections.abc import Sequence

from hubspoke.core.cache import Cache
from hubspoke.core.cached_object import CachedObject
from hubspoke.core.epochs.items import Folder, folder_of
from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.ids import ObjectName
from hubspoke.core.inference.inference import Inference
from hubspoke.core.streams import Access
from hubspoke.core.tokens.future import PAGES_MAX
from hubspoke.core.tokens.indexes import SUFFIXES, Indexes
from hubspoke.core.tokens.token_file import TokenFile

SIZE_MIN = 256 << 10
READ_MAX = 64 << 10  # bytes: a fragment of a document, or a window
FILES_MAX = 64
FOLLOWED_MAX = 4  # at a time: each may take 0.4 GB


class TokenFiles:
    """By the object's name."""

    def __init__(self, cache: Cache, listing: Listing, inference: Inference) -> None:
        self.indexes = Indexes(cache, listing)
        self.all: OrderedDict[ObjectName, TokenFile] = OrderedDict()  # by last read
        self._cache = cache
        self._inference = inference

    def looks_at(self, folder: Folder) -> bool:
        """Whether an order of one of its objects is looked for or followed: then the pages that
        are read of it are no items in an order of their own."""
        return any(f.looks and folder_of(name) == folder for name, f in self.all.items())

    def observe(self, accesses: Sequence[Access], now: float) -> None:
        """Take accesses in, in order of time."""
        of: dict[CachedObject, list[Access]] = {}
        for a in accesses:
            if a.offset == 0 and a.obj.name.key.endswith(SUFFIXES):
                self.indexes.read(a.obj)
            if a.length <= READ_MAX and a.obj.size >= SIZE_MIN and not a.obj.dead:
                of.setdefault(a.obj, []).append(a)
        for obj, reads in of.items():
            if len(obj.pages) <= PAGES_MAX:
                self._file(obj).read(reads, now)

    def _file(self, obj: CachedObject) -> TokenFile:
        found = self.all.get(obj.name)
        if found is None or found.obj is not obj:
            if found is not None:
                found.end()
            found = self.all[obj.name] = TokenFile(
                obj, self._cache, self.indexes, self._inference, self._room
            )
            while len(self.all) > FILES_MAX:
                self.all.popitem(last=False)[1].end()
        self.all.move_to_end(obj.name)
        return found

    def _room(self) -> bool:
        return sum(each.follow is not None for each in self.all.values()) < FOLLOWED_MAX

    def propose(self, now: float, ahead_s: float, *, given_up: bool) -> list[Candidate]:
        """What is read within `ahead_s` of files whose course is known."""
        found = self.indexes.take()
        for each in self.all.values():
            if each.busy:
                found += each.propose(now, ahead_s, given_up=given_up)
        return found
