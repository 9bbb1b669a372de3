"""A cache folder that could not be opened at start, and now can: what of it is still of use.

The spoke went on meanwhile. What it has cached since, of the same names or under the same
numbers, stays; what the folder holds of it goes from the folder and from nowhere else.
"""

import asyncio
import logging

from hubspoke.adapters.disk_health import Disk
from hubspoke.adapters.disks import Disks
from hubspoke.core.cache import Cache
from hubspoke.ports import IndexedObject, NamespaceStore

log = logging.getLogger(__name__)

OBJECTS_A_TURN = 32  # 50 pages each cost 2 ms on the loop


async def take_in(
    cache: Cache, disks: Disks, namespace: NamespaceStore, disk: Disk, found: list[IndexedObject]
) -> None:
    """Bring what the folder holds into the book; it is read and counted once its disk is well."""
    dropped = 0
    for n, o in enumerate(found):
        if n % OBJECTS_A_TURN == 0:
            await asyncio.sleep(0)
        if not _useful(cache, namespace, o):
            disk.drop(o.number)
            dropped += 1
            continue
        cache.away.add(cache.restore(o.number, o.name, o.version, o.size, o.frames))
        disks.settle(o.number, disk)
    log.info("cache folder %s opened objects=%d dropped=%d", disk.root, len(found), dropped)


def _useful(cache: Cache, namespace: NamespaceStore, o: IndexedObject) -> bool:
    if o.number in cache.objects or cache.current(o.name) is not None:
        return False
    record = namespace.get(o.name)  # none: the replica may not be there yet
    return record is None or record.entry.version == o.version
