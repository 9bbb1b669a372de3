"""Following an order that has fewer items than the data set."""

import numpy as np
import pytest

from hubspoke.core.epochs.follow import Follower
from hubspoke.core.epochs.known import KnownOrder

N, PART = 1_000, 100


@pytest.mark.timeout(10)
def test_reads_of_other_items_only_end_an_order_of_a_part() -> None:
    order = KnownOrder(np.arange(PART, dtype=np.int32), 8, "a part", "", lambda: None)
    follower = Follower(order, N)
    others = np.arange(2 * PART, 4 * PART, dtype=np.int32)
    read = np.zeros(N, np.bool_)
    read[others] = True
    assert not follower.moved(others, read)
    assert follower.front <= PART
