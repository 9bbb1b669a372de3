"""All data sets that are read by items, as the prediction asks for them."""

from collections.abc import Callable, Sequence

from hubspoke.core.cache import Cache
from hubspoke.core.epochs.data_sets import DataSets
from hubspoke.core.epochs.item_set import ItemSet
from hubspoke.core.epochs.items import Folder, folder_of
from hubspoke.core.epochs.job import Job
from hubspoke.core.epochs.replay import Replay
from hubspoke.core.generators.candidates import Candidate, Listing
from hubspoke.core.ids import ObjectName
from hubspoke.core.streams import Access


class Epochs:
    """`sets` by folder: what is known of each, and whose jobs may be given an order (`adopt`)."""

    def __init__(self, listing: Listing, cache: Cache) -> None:
        self.sets: dict[Folder, ItemSet] = {}
        self.data_sets = DataSets(listing)
        self._cache = cache
        self._replay = Replay()
        self._gone: list[Job] = []

    def observe(
        self, accesses: Sequence[Access], now: float, relearned: Callable[[str], None]
    ) -> list[ItemSet]:
        """Take accesses in, in order of time; returns the sets that were read. relearned: told
        why an order was dropped."""
        moved = []
        for reads in self.data_sets.observe(accesses):
            items = reads.folder.items
            if items is None or not items.count or not len(reads.items):
                continue
            found = self.sets.get(items.folder)
            if found is None or found.items is not items:
                if found is not None:
                    self._end(found)
                found = self.sets[items.folder] = ItemSet(items, self._cache, now)
            found.take(reads, now, relearned)
            for job in found.jobs.all:
                order = self._replay.look(job)
                if order is not None:
                    found.adopt(job, order, now)
            moved.append(found)
        for folder in [f for f in self.sets if f not in self.data_sets]:
            self._end(self.sets.pop(folder))
        return moved

    def _end(self, found: ItemSet) -> None:
        found.end()
        self._gone += found.jobs.all

    def gone(self) -> list[Job]:
        """Jobs of data sets that are not read by items any more; each is told once."""
        jobs, self._gone = self._gone, []
        return jobs

    def known(self, name: ObjectName) -> ItemSet | None:
        """The data set the object belongs to, if it is read by items."""
        return self.sets.get(folder_of(name))

    def relearn(self, folder: Folder) -> None:
        """See `DataSets.relearn`."""
        self.data_sets.relearn(folder)

    def forget(self, name: ObjectName) -> None:
        """Somebody knows what is read of the object's folder: what was believed of it is over."""
        folder = folder_of(name)
        self.data_sets.forget(folder)
        found = self.sets.pop(folder, None)
        if found is not None:
            self._end(found)

    def understood(self, folder: Folder, accesses: int) -> None:
        """See `DataSets.understood`. accesses: of the stream; what is believed already stays if
        that is less than half of what was read: then somebody scans it, too."""
        found = self.sets.get(folder)
        read = 0
        if found is not None and found.data_set is not None:
            read = sum(job.count for job in found.jobs.all)
        if 2 * accesses >= read:
            self.data_sets.understood(folder)

    def propose(
        self,
        now: float,
        want: int,
        queued: int,
        ahead_s: float,
        runway_s: float,
        *,
        given_up: bool,
    ) -> list[Candidate]:
        """What the data sets' jobs read within `ahead_s`, and `want` bytes of what they will
        read some time in this epoch. queued: bytes that are to come and have no room yet. given_up:
        whether some found none since the last call."""
        found: list[Candidate] = []
        for each in self.sets.values():
            new = each.propose(now, want, queued, ahead_s, runway_s, given_up=given_up)
            length = sum(c.length for c in new)
            want, queued = want - length, queued + length
            found += new
        return found
