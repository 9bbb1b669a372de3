"""How a golden file tells an order: whole if it is short, else its head and its hash.

Imported by the scripts that run the real packages, so it needs nothing but Python.
"""

import hashlib
import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
WHOLE_MAX = 32
HEAD = 8
Case = dict[str, Any]


def told(*orders: Iterable[int]) -> Case:
    """Orders one behind the other: their lengths, and the items or sha256 of int64, low byte first.

    An order is ints one by one, or an array of int64 (taken whole: items number up to 10^8).
    """
    parts = [array("q", getattr(order, "tobytes", lambda o=order: o)()) for order in orders]
    items = array("q")
    for part in parts:
        items.extend(part)
    lengths = [len(part) for part in parts]
    if len(items) <= WHOLE_MAX:
        return {"lengths": lengths, "items": list(items)}
    digest = hashlib.sha256(items.tobytes()).hexdigest()
    return {"lengths": lengths, "head": list(items[:HEAD]), "sha256": digest}


def cases(family: str, what: str) -> list[Any]:
    """What the golden file of a family holds under one name: (parameters, told) pairs."""
    golden = json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))
    found = [(case["with"], case["read"]) for case in golden["cases"] if case["what"] == what]
    assert len(found) >= 5, (family, what)
    return found
