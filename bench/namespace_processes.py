"""A folder of a million files behind real processes: index, snapshot, restarts, walks, HEADs.

    python bench/namespace_processes.py --work DIR [--objects 1000000] [--rtt-ms 60]
        [--steps files,index,restart-hub,snapshot,restart-spoke,walk,boto3,head,beside]

Hub and spoke over the relay. Folder, log and replica stay in DIR, so that steps can be run one by
one; a step needs those before it to have been run once. One figure a line, with what is asked.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.open_loop import Client, offered, quantile, request
from hubspoke.lab.stack import Service
from hubspoke.lab.wan import RelayWan

STEPS = ("files", "index", "restart-hub", "snapshot", "restart-spoke", "walk", "boto3", "head",
         "beside")  # fmt: skip
PER_FOLDER = 1_000
BLOB_BYTES = 64 << 20
HEADS_PER_S, HEAD_CONNECTIONS = 2_000, 8
GETS_PER_S, GET_CONNECTIONS = 1_000, 8
SECONDS = 8.0
_POLL_S = 0.02


def show(what: str, value: float, unit: str, asked: str = "") -> None:
    print(f"{what:<58} {value:>12,.2f} {unit:<4} {asked}", flush=True)


def key(i: int) -> str:
    return f"train/shard-{i // PER_FOLDER:05}/sample-{i:08}.bin"


def make_files(root: Path, count: int) -> None:
    """Files of 8 bytes, 1,000 a folder, and one object that GETs read."""
    for i in range(count):
        if i % PER_FOLDER == 0:
            folder = root / "data" / os.path.dirname(key(i))
            folder.mkdir(parents=True)
        fd = os.open(root / "data" / key(i), os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, b"%08d" % i)
        os.close(fd)


def make_blob(root: Path) -> None:
    (root / "blob").mkdir(parents=True)
    (root / "blob" / "object").write_bytes(os.urandom(BLOB_BYTES))


class Memory:
    """The peak of a process's anonymous memory, sampled 50 times a second."""

    def __init__(self, pid: int) -> None:
        self.peak_mib = 0.0
        self._path = Path(f"/proc/{pid}/status")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(_POLL_S):
            try:
                found = re.search(r"RssAnon:\s+(\d+)", self._path.read_text())
            except OSError:
                return
            if found is not None:
                self.peak_mib = max(self.peak_mib, int(found[1]) / 1024)

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return self.peak_mib


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.work: Path = args.work
        self.objects: int = args.objects
        self.rtt_ms: float = args.rtt_ms
        self.store = self.work / "store"
        self.hub_state = self.work / "hub-state"
        self.cache = self.work / "cache"

    def run(self, steps: list[str]) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        if "files" in steps and not (self.store / "data").exists():
            make_files(self.store, self.objects)
        if not (self.store / "blob").exists():
            make_blob(self.store)
        if "index" in steps:
            shutil.rmtree(self.hub_state, ignore_errors=True)
            with self.hub("first index", index=True):
                pass
        if "restart-hub" in steps:
            with self.hub("restart of the hub") as hub:
                self.reconciled(hub)
        if not {"snapshot", "restart-spoke", "walk", "boto3", "head", "beside"} & set(steps):
            return
        with self.hub("") as hub:
            port = int(hub.data.rpartition(":")[2])
            with RelayWan.start(port, rtt_ms=self.rtt_ms) as wan:
                self.spoke_steps(steps, hub, wan)

    @contextmanager
    def hub(self, what: str, *, index: bool = False) -> Iterator[Service]:
        command = [sys.executable, "-m", "hubspoke", "hub", "--store", str(self.store)]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        command += ["--state", str(self.hub_state)]
        self.hub_state.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        log = self.work / "hub.log"
        hub = Service("hub", command, self.hub_state, log, ready_by_admin=True)
        memory = Memory(hub.process.pid)
        try:
            told = self.progress(hub) if index else 0
            hub.await_ready()
            took = time.perf_counter() - started
            Client(hub.data).get(f"/data/{key(0)}")
            asked = "<= 60" if index else "<= 5"
            if what:
                show(f"{what}: until ready", took, "s", asked)
                show(f"{what}: until a GET is answered", time.perf_counter() - started, "s", asked)
            if index:
                show("first index: different counts seen at /readyz", told, "")
            yield hub
        finally:
            peak = memory.stop()
            hub.stop()
            if what or peak > 400:
                show(
                    f"{what or 'hub beside a spoke'}: anonymous memory, peak", peak, "MiB", "<= 400"
                )

    def progress(self, hub: Service) -> int:
        """How many different counts /readyz told until the hub was ready."""
        counts: set[str] = set()
        endpoints = self.hub_state / "endpoints.json"
        while hub.process.poll() is None:
            if endpoints.exists():
                hub.admin = json.loads(endpoints.read_text())["admin"]
                try:
                    status, body = hub._get("/readyz")
                except Exception:
                    status, body = 503, b""
                if status == 200:
                    break
                counts.update(re.findall(r"\((\d+) objects seen\)", body.decode()))
            time.sleep(0.1)
        return len(counts)

    def reconciled(self, hub: Service) -> None:
        """Reads while the hub looks for changes made in its absence, until that has ended."""
        client, rng, slowest, times = Client(hub.data), random.Random(1), 0.0, []
        started = time.perf_counter()
        while "reconciliation complete" not in hub._output().decode(errors="replace"):
            for _ in range(50):
                i = rng.randrange(self.objects)
                body, took = client.get(f"/data/{key(i)}")
                assert body == b"%08d" % i, (i, body)
                times.append(took)
            slowest = max(times)
            if time.perf_counter() - started > 120:
                raise TimeoutError("no end of the reconciliation within 120 s")
        show("reconciliation", time.perf_counter() - started, "s")
        show("GETs at the hub meanwhile, p99", quantile(sorted(times), 0.99) * 1e3, "ms")
        show("GETs at the hub meanwhile, slowest", slowest * 1e3, "ms")

    def spoke(self, wan: RelayWan) -> Service:
        command = [sys.executable, "-m", "hubspoke", "spoke", "--hub", wan.spoke_url]
        command += ["--cache", str(self.cache), "--cache-size", "2GiB"]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        log = self.work / "spoke.log"
        return Service("spoke", command, self.cache, log, ready_by_admin=True)

    def spoke_steps(self, steps: list[str], hub: Service, wan: RelayWan) -> None:
        if "snapshot" in steps:
            shutil.rmtree(self.cache, ignore_errors=True)
            self.cache.mkdir(parents=True)
            of_hub = Memory(hub.process.pid)
            started = time.perf_counter()
            spoke = self.spoke(wan)
            memory = Memory(spoke.process.pid)
            with spoke:
                show(f"snapshot over {self.rtt_ms:g} ms: until ready",
                     time.perf_counter() - started, "s", "<= 20")  # fmt: skip
                show("snapshot: bytes from the hub", wan.counters().to_spoke_bytes / 1e6, "MB")
                show(
                    "snapshot: anonymous memory of the spoke, peak", memory.stop(), "MiB", "<= 400"
                )
                show("snapshot: anonymous memory of the hub, peak", of_hub.stop(), "MiB", "<= 400")
        started, before = time.perf_counter(), hub.ask("/v1/status")["requests"]
        with self.spoke(wan) as spoke:
            memory = Memory(spoke.process.pid)
            took = time.perf_counter() - started
            if "restart-spoke" in steps:
                show("restart of the spoke: until ready", took, "s", "<= 2")
                after = hub.ask("/v1/status")["requests"]
                snapshots = after.get("snapshot", 0) - before.get("snapshot", 0)
                show("restart of the spoke: snapshots", snapshots, "", "0")
            if "walk" in steps:
                self.walk(spoke, hub, wan)
            if "boto3" in steps:
                self.boto3(spoke, hub, wan)
            if "head" in steps:
                self.heads(spoke)
            if "beside" in steps:
                self.beside(spoke)
            show("spoke at work: anonymous memory, peak", memory.stop(), "MiB", "<= 400")

    @contextmanager
    def no_wan(self, what: str, hub: Service, wan: RelayWan) -> Iterator[None]:
        """Requests of the hub by name but leases, and bytes beside what leases take."""
        idle = wan.counters()
        time.sleep(2.0)
        rest = wan.counters()
        per_s = (rest.to_hub_bytes + rest.to_spoke_bytes - idle.to_hub_bytes
                 - idle.to_spoke_bytes) / 2.0  # fmt: skip
        before, started = hub.ask("/v1/status")["requests"], time.perf_counter()
        yield
        took = time.perf_counter() - started
        after, end = hub.ask("/v1/status")["requests"], wan.counters()
        asked = {k: n - before.get(k, 0) for k, n in after.items() if n != before.get(k, 0)}
        leases = asked.pop("lease", 0)
        show(f"{what}: requests at the hub beside {leases} leases", sum(asked.values()), "", "0")
        moved = end.to_hub_bytes + end.to_spoke_bytes - rest.to_hub_bytes - rest.to_spoke_bytes
        show(f"{what}: bytes on the WAN", moved / 1e3, "kB")
        show(f"{what}: the same time idle", per_s * took / 1e3, "kB")

    def walk(self, spoke: Service, hub: Service, wan: RelayWan) -> None:
        with self.no_wan("walk", hub, wan):
            started = time.perf_counter()
            seen, times = walk(spoke.data)
        show("walk by a plain client", time.perf_counter() - started, "s")
        assert seen == self.objects, (seen, self.objects)
        times.sort()
        for name, share in (("p50", 0.5), ("p99", 0.99), ("slowest", 1.0)):
            asked = "<= 15" if share == 0.99 else ""
            show(f"page of 1,000 keys, {name}", quantile(times, share) * 1e3, "ms", asked)

    def boto3(self, spoke: Service, hub: Service, wan: RelayWan) -> None:
        import boto3

        client: Any = boto3.session.Session().client(
            "s3", endpoint_url=f"http://{spoke.data}", region_name="us-east-1",
            aws_access_key_id="any", aws_secret_access_key="any",
        )  # fmt: skip
        with self.no_wan("walk by boto3", hub, wan):
            started, seen = time.perf_counter(), 0
            for page in client.get_paginator("list_objects_v2").paginate(Bucket="data"):
                seen += page["KeyCount"]
            took = time.perf_counter() - started
        assert seen == self.objects, (seen, self.objects)
        show("walk by boto3, one page at a time", took, "s")

    def heads(self, spoke: Service) -> None:
        rng = random.Random(7)

        def requests() -> Iterator[bytes]:
            while True:
                target = f"/data/{key(rng.randrange(self.objects))}"
                yield request(spoke.data, "HEAD", target)

        took = offered(
            spoke.data, requests(), rate=HEADS_PER_S, connections=HEAD_CONNECTIONS,
            seconds=SECONDS, bodies=False,
        )  # fmt: skip
        what = f"HEAD of random keys, {HEADS_PER_S}/s offered over {HEAD_CONNECTIONS}"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("slowest", 1.0)):
            show(
                f"{what}, {name}",
                quantile(took, share) * 1e3,
                "ms",
                "<= 2" if share == 0.99 else "",
            )

    def beside(self, spoke: Service) -> None:
        """GETs of 4 KiB alone, and beside a client that walks all names again and again."""
        client, rng = Client(spoke.data), random.Random(3)
        client.get("/blob/object")

        def requests() -> Iterator[bytes]:
            while True:
                first = rng.randrange(BLOB_BYTES >> 12) << 12
                yield request(spoke.data, "GET", "/blob/object",
                              f"Range: bytes={first}-{first + 4095}")  # fmt: skip

        for _ in range(2):
            for what in ("alone", "beside a walking lister"):
                lister = None
                if what != "alone":
                    lister = subprocess.Popen([sys.executable, __file__, "--lister", spoke.data])
                try:
                    took = offered(spoke.data, requests(), rate=GETS_PER_S,
                                   connections=GET_CONNECTIONS, seconds=SECONDS / 2)  # fmt: skip
                finally:
                    if lister is not None:
                        lister.kill()
                        lister.wait()
                for name, share in (("p50", 0.5), ("p99", 0.99)):
                    show(f"GET of 4 KiB {what}, {name}", quantile(took, share) * 1e3, "ms")


def walk(address: str) -> tuple[int, list[float]]:
    """Keys and the seconds of each page."""
    client, token, seen, times = Client(address), "", 0, []
    while True:
        more = f"&continuation-token={quote(token)}" if token else ""
        body, took = client.get(f"/data?list-type=2&encoding-type=url{more}")
        times.append(took)
        seen += body.count(b"<Contents>")
        found = re.search(rb"<NextContinuationToken>([^<]+)<", body)
        if found is None:
            client.close()
            return seen, times
        token = found[1].decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, help="folder for store, states and logs")
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--rtt-ms", type=float, default=60.0)
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--lister", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.lister:
        while True:
            walk(args.lister)
    steps = args.steps.split(",")
    if args.work is None or not set(steps) <= set(STEPS):
        parser.error(f"--work DIR is needed, and steps are of {', '.join(STEPS)}")
    Bench(args).run(steps)


if __name__ == "__main__":
    main()
