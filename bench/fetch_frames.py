"""How fast one hub process answers fetches on loopback: frames of a folder store, one client
connection that only counts the bytes.

    python bench/fetch_frames.py [--range-kib 4096] [--mib 512] [--runs 5] [--zstd]

Hub and client are two processes; the file lies in the page cache. Prints MB/s (1e6 bytes) of each
run, their median, and the hub's CPU seconds per GiB.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop

from hubspoke import wire
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.folder_store import FolderStore
from hubspoke.adapters.malloc import keep_freed_memory
from hubspoke.adapters.memory_namespace import MemoryNamespace
from hubspoke.core.ids import ObjectName
from hubspoke.frontends.hub_protocol import HubProtocolApp
from hubspoke.frontends.server import HttpServer, bind
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning

FILE_MIB = 64


def serve(folder: Path, pipe: Connection) -> None:
    async def main() -> None:
        hub = HubService(
            FolderStore(folder), MemoryNamespace(keep_log=True), BootClock(), HubTuning()
        )
        await hub.start()
        sock = bind("127.0.0.1", 0, "bench")
        server = HttpServer(HubProtocolApp(hub), sock, "bench")
        await server.start()
        entry = (await hub.resolve(ObjectName("data", "file"))).entry
        pipe.send((sock.getsockname()[1], entry.version))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv):
            pipe.send(time.process_time())
        await server.stop()
        await hub.close()

    keep_freed_memory()
    uvloop.run(main())


async def fetch(
    session: aiohttp.ClientSession, url: str, version: str, number: int, args: argparse.Namespace
) -> int:
    """One request for `args.mib` MiB in ranges; returns the bytes of the answer."""
    length = args.range_kib << 10
    total = args.mib << 20
    ranges = [wire.FetchRange(0, at % (FILE_MIB << 20), length) for at in range(0, total, length)]
    per_request = max(1, min(len(ranges), 4096, (256 << 20) // length))
    got = 0
    for start in range(0, len(ranges), per_request):
        request = wire.FetchRequest(
            "bench",
            number * 10_000 + start,
            "demand",
            [wire.FetchObject("data", "file", version)],
            ranges[start : start + per_request],
            args.zstd,
        )
        async with session.post(url, data=wire.encode(request)) as response:
            assert response.status == 200, await response.text()
            async for chunk in response.content.iter_any():
                got += len(chunk)
    return got


async def client(port: int, version: str, pipe: Connection, args: argparse.Namespace) -> None:
    url = f"http://127.0.0.1:{port}{wire.PREFIX}fetch"
    rates, cpu = [], []
    async with aiohttp.ClientSession(read_bufsize=1 << 20) as session:
        for run in range(args.runs + 1):
            pipe.send(True)
            cpu_before = pipe.recv()
            before = time.perf_counter()
            got = await fetch(session, url, version, run, args)
            took = time.perf_counter() - before
            assert args.zstd or got >= args.mib << 20, got
            pipe.send(True)
            if run == 0:  # connections, page cache, thread pools
                pipe.recv()
                continue
            rates.append((args.mib << 20) / took / 1e6)
            cpu.append((pipe.recv() - cpu_before) / args.mib * 1024)
            print(f"run {run}: {rates[-1]:.0f} MB/s, hub {cpu[-1]:.2f} CPU s/GiB")
    print(
        f"ranges of {args.range_kib} KiB: median {statistics.median(rates):.0f} MB/s,"
        f" hub {statistics.median(cpu):.2f} CPU s/GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--range-kib", type=int, default=4096)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--zstd", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as d:
        bucket = Path(d) / "data"
        bucket.mkdir()
        (bucket / "file").write_bytes(os.urandom(1 << 20) * FILE_MIB)
        ours, theirs = multiprocessing.Pipe()
        hub = multiprocessing.get_context("spawn").Process(target=serve, args=(Path(d), theirs))
        hub.start()
        port, version = ours.recv()
        uvloop.run(client(port, version, ours, args))
        ours.send(False)
        hub.join(30)


if __name__ == "__main__":
    main()
