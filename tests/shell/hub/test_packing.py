"""When the hub tries to pack an object's bytes, and when it leaves it at that."""

from hubspoke.core.ids import ObjectName
from hubspoke.frontends.hub_fetch import Packing

NOISE, TEXT = ObjectName("b", "noise"), ObjectName("b", "text")


def test_what_did_not_pay_is_tried_again_only_after_a_while() -> None:
    packing = Packing(3)
    assert packing.tries(NOISE)
    packing.tried(NOISE, pays=False)
    assert [packing.tries(NOISE) for _ in range(4)] == [False, False, False, True]
    assert packing.tries(TEXT)


def test_what_pays_is_always_tried() -> None:
    packing = Packing(3)
    packing.tried(TEXT, pays=False)
    packing.tried(TEXT, pays=True)
    assert all(packing.tries(TEXT) for _ in range(9))


def test_memory_is_bounded() -> None:
    packing = Packing(3)
    for i in range(3 * Packing.NAMES_MAX):
        packing.tried(ObjectName("b", str(i)), pays=False)
    assert len(packing._untried) <= Packing.NAMES_MAX
