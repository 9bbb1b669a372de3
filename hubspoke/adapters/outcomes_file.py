"""What a spoke has learned from outcomes, kept over restarts: one small file in its --state.

JSON with a format and a digest. A file that is damaged or of another format is set aside and
begun anew: what it held corrects guesses and is learned again within minutes.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import xxhash

from hubspoke.adapters.lmdb_env import free_name
from hubspoke.core.outcomes import ARMS_MAX, Arm

log = logging.getLogger(__name__)

FORMAT = 1
NAME = "outcomes.json"
FILE_BYTES_MAX = 4 << 20

Kept = tuple[Arm, tuple[float, float, float, float]]  # useful, late, wasted, due bytes


class OutcomesFile:
    """Calls block."""

    def __init__(self, state: Path) -> None:
        self.path = state / NAME

    def load(self) -> list[Kept]:
        """What was saved last; nothing if there is no good file."""
        try:
            if self.path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
            return _read(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as e:
            log.warning("outcomes not read path=%s error=%s", self.path, e)
            return []
        except (ValueError, KeyError, TypeError) as e:
            self._set_aside(e)
            return []

    def _set_aside(self, reason: Exception) -> None:
        aside = free_name(self.path)
        log.warning("outcomes set aside path=%s to=%s reason=%s", self.path, aside, reason)
        try:
            os.rename(self.path, aside)
        except OSError as e:
            log.warning("outcomes not set aside path=%s error=%s", self.path, e)

    def save(self, kept: Sequence[Kept]) -> None:
        """Replace what was saved. Raises OSError."""
        body = json.dumps([[*arm, *(round(n) for n in bytes_)] for arm, bytes_ in kept])
        document = {"format": FORMAT, "xxh3": _digest(body), "outcomes": body}
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps(document) + "\n")
        os.replace(new, self.path)


def _read(content: bytes) -> list[Kept]:
    document = json.loads(content)
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']}, expected {FORMAT}")
    body = document["outcomes"]
    if document["xxh3"] != _digest(body):
        raise ValueError("the digest is not that of the content")
    found: list[Kept] = []
    for source, pattern, folder, *bytes_ in json.loads(body)[:ARMS_MAX]:
        useful, late, wasted, due = (max(0.0, float(n)) for n in bytes_)
        found.append(((str(source), str(pattern), str(folder)), (useful, late, wasted, due)))
    return found


def _digest(body: str) -> str:
    return xxhash.xxh3_64_hexdigest(body.encode())
