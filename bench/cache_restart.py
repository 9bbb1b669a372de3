"""A spoke killed with kill -9 over a large cache: seconds until it is ready, bytes of memory.

    python bench/cache_restart.py [--objects 20000] [--pages 50]

The hub's files and the cache's files are all holes, so a million pages need no disk; the index is
as a killed spoke leaves it, one slot a page in the order of arrival and some of them punched. The
targets: ready within 5 s, 40 B of anonymous memory for each of 1,000,000 pages. Also: a read of a
page that was there before is a hit, checked against its digest.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

from hubspoke import wire
from hubspoke.adapters import cache_index
from hubspoke.core.ids import PAGE_BYTES, ObjectName, Version

READY = re.compile(r" ready data=(http://\S+) admin=(http://\S+)")


class Process:
    def __init__(self, *arguments: str | Path) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hubspoke", *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := READY.search(line):
                self.data, self.admin = found[1], found[2]
                return
        raise SystemExit("".join(self.log))

    def await_ready(self) -> float:
        """Seconds from the start until /readyz says so."""
        while True:
            try:
                with urlopen(self.admin + "/readyz", timeout=5):
                    return time.monotonic() - self.began
            except OSError:
                time.sleep(0.01)

    def anonymous(self) -> int:
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def build(store: Path, objects: int, size: int) -> None:
    (store / "data").mkdir(parents=True)
    for i in range(objects):
        with open(store / "data" / f"object-{i:06}", "wb") as f:
            f.truncate(size)


def fill(cache: Path, versions: dict[int, Version], pages: int, size: int) -> None:
    """Leave a cache as if every page had been fetched by itself, in any order."""
    (cache / "data").mkdir(parents=True, exist_ok=True)
    digest = wire.digest(bytes(PAGE_BYTES))
    parts = [cache_index.head()]
    for number, version in versions.items():
        name = ObjectName("data", f"object-{number - 1:06}")
        parts.append(cache_index.object_record(number, name, version, size))
        with open(cache / "data" / str(number), "wb") as f:
            f.truncate(size)
    frames = [(n, p) for n in versions for p in range(pages)]
    random.Random(0).shuffle(frames)
    for number, page in frames:
        parts.append(cache_index.frame_record(number, page * PAGE_BYTES, PAGE_BYTES, digest))
    for number in range(1, len(versions), 100):  # some were dropped and fetched again
        parts.append(cache_index.punch_record(number, 0, size))
        for page in range(pages):
            parts.append(cache_index.frame_record(number, page * PAGE_BYTES, PAGE_BYTES, digest))
    (cache / "index").write_bytes(b"".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--pages", type=int, default=50, help="of each object")
    args = parser.parse_args()
    size = args.pages * PAGE_BYTES
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        build(work / "store", args.objects, size)
        free = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        hub = Process("hub", "--store", work / "store", "--state", work / "hub", *free)
        hub.await_ready()
        cache = work / "cache"
        cache.mkdir()
        spoke = ("spoke", "--hub", hub.data, "--cache", cache, "--cache-size", "64GiB")
        first = Process(*spoke, *free, "--state", work / "state")
        first.await_ready()
        empty = first.anonymous()
        with urlopen(Request(first.data + "/data/object-000000", method="HEAD")) as answer:
            version = Version(answer.headers["x-hubspoke-version"])
        first.kill()
        # Only the first object's version is asked for; the others are of the same length.
        fill(cache, {n: version for n in range(1, args.objects + 1)}, args.pages, size)
        again = Process(*spoke, *free, "--state", work / "state")
        ready = again.await_ready()
        full = again.anonymous()
        with urlopen(again.data + "/data/object-000000") as answer:
            state, data = answer.headers["x-hubspoke-cache"], answer.read()
        with urlopen(again.admin + "/v1/report") as answer:
            there = json.load(answer)["cache"]
        print(
            json.dumps(
                {
                    "pages": args.objects * args.pages,
                    "resident_bytes": there["bytes"],
                    "ready_seconds": round(ready, 2),
                    "index_bytes": os.path.getsize(cache / "index"),
                    "anonymous_bytes_a_page": round(
                        (full - empty) / (args.objects * args.pages), 1
                    ),
                    "first_read": state,
                    "first_read_right": data == bytes(size),
                },
                indent=1,
            )
        )
        again.kill()
        hub.kill()


if __name__ == "__main__":
    main()
