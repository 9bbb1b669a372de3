"""What is known of a data set: the objects of one folder, which a job reads as a whole."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubspoke.core.eviction.by_item import ItemOrder

# A data set is proven when this part of it was read again.
_AGAIN_SHARE = 8


@dataclass(slots=True, eq=False)
class DataSet:
    """Clocks are bytes read: they stand still when nothing is read, and so does forgetting.

    folder: bucket, key up to the last slash; of the name of any of its objects.
    """

    folder: tuple[str, str]
    total: int = 0  # bytes of its objects that were opened
    resident: int = 0  # pages
    clock: int = 0  # bytes read of it
    read_at: int = 0  # the cache's clock at the last read
    new_at: int = 0  # the same for what had not been read before
    again: int = 0  # bytes of `clock` that had been read before
    small: bool = True  # few enough bytes for S3-FIFO
    items: "ItemOrder | None" = None  # goes by items instead of blocks
    objects: OrderedDict[int, None] = field(default_factory=OrderedDict)  # by last read

    @property
    def read_again(self) -> bool:
        return self.again * _AGAIN_SHARE >= self.total
