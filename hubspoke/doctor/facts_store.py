"""Facts about a folder store: what of it is no object, and how many folders it has."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from hubspoke.adapters.folder_layout import FolderLayout
from hubspoke.adapters.folder_scan import walk
from hubspoke.core.names import Skipped
from hubspoke.doctor.judge.names import NameFacts


@dataclass(frozen=True, slots=True)
class StoreFacts:
    names: NameFacts
    folders: int


def store(root: Path, bucket: str | None, seconds: float) -> StoreFacts:
    """As far as the walk comes in so many seconds. Raises StoreUnavailable."""
    real = os.path.realpath(os.fsencode(root))
    layout = FolderLayout(real, bucket)
    skipped, count, complete = Skipped(), 0, True
    folders = {real}
    until = time.monotonic() + seconds
    for batch in walk(layout, skipped):
        count += len(batch)
        for name, _ in batch:
            # Folders without a file below them are few; each of the others has an object.
            folder = os.path.dirname(layout.path(name))
            while folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        if time.monotonic() > until:
            complete = False
            break
    facts = NameFacts(str(root), count, complete, skipped.counts, skipped.examples)
    return StoreFacts(facts, len(folders))
