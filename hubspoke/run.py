"""The two processes: settings in, adapters and services put together, ports served, signals.

    bind ports -> lock folders -> admin port serves -> service starts -> data port serves
    -> SIGTERM: data port drains -> service closes -> admin port ends -> status 0

Decides the order of starting and stopping and nothing else. A port is bound first because a
taken one is the most common mistake; the data port listens only when the service has started,
so that a client is refused instead of left hanging while a store is indexed.

A second SIGTERM or SIGINT ends the process at once, as kill -9 would: what was acknowledged is
durable before its answer is sent, so nothing is lost.
"""

import asyncio
import errno
import hashlib
import json
import logging
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvloop

from hubspoke import wire
from hubspoke.adapters import model_file
from hubspoke.adapters.block_store import FileBlockStore
from hubspoke.adapters.clock import BootClock
from hubspoke.adapters.drive import Drive
from hubspoke.adapters.folder_store import FolderStore
from hubspoke.adapters.folder_watch import FolderWatch
from hubspoke.adapters.folders import (
    FolderLocks,
    cache_size,
    hold_cache,
    hold_caches,
    notice_other_hub,
    outside,
    outside_of_any_store,
)
from hubspoke.adapters.hub_link import AiohttpHubLink
from hubspoke.adapters.interpreter import keep_all_that_is_there, serve_first
from hubspoke.adapters.keeper import PASSED_ON, Kept
from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.malloc import keep_freed_memory
from hubspoke.adapters.outcomes_file import OutcomesFile
from hubspoke.config import HubConfig, SpokeConfig
from hubspoke.core.generators.candidates import DepthConfig
from hubspoke.core.policy import PartitionPolicy
from hubspoke.errors import ConfigError
from hubspoke.frontends.admin import SpokeReport, hub_admin_app, spoke_admin_app
from hubspoke.frontends.admin_views import HubFront, Phase, SpokeFront
from hubspoke.frontends.fuse.mount import Mount
from hubspoke.frontends.hub_protocol import HubProtocolApp
from hubspoke.frontends.ranges import RangesApp
from hubspoke.frontends.s3 import S3App
from hubspoke.frontends.server import HttpServer, address, bind
from hubspoke.hub.service import HubService
from hubspoke.hub.tuning import HubTuning
from hubspoke.ports import ObjectStore
from hubspoke.run_mount import mount_of, mount_point_of
from hubspoke.spoke.order_search import OrderSearch
from hubspoke.spoke.renewal import FollowerTuning
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tuning import SpokeTuning
from hubspoke.values import Endpoint, Rescan, S3Location

log = logging.getLogger(__name__)

ENDPOINTS = "endpoints.json"
SAME_SIGNAL_S = 0.05  # two of them so close together are one
# Between two comparisons of a store that tells no changes. A listing of S3 is paid for: 1,000,000
# keys are 1,000 requests of 0.5 cents a thousand, 1.44 USD a day at this interval.
FOLDER_RESCAN_S = 60.0
S3_RESCAN_S = 300.0


class Service(Protocol):
    """What a process runs between its ports."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def ready(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The bound sockets of one process."""

    data: socket.socket
    admin: socket.socket

    def close(self) -> None:
        self.data.close()
        self.admin.close()

    def document(self) -> dict[str, Any]:
        return {"data": address(self.data), "admin": address(self.admin), "pid": os.getpid()}


@dataclass(frozen=True, slots=True)
class Process:
    """A service with what is served on its two ports."""

    service: Service
    data_app: Any
    admin_app: Any
    phase: Phase
    drain: Callable[[], None] = lambda: None  # end answers that would never end by themselves
    mount: Mount | None = None


def set_up_logging(level: str) -> None:
    """Ours at `level`, other libraries' from WARNING on, all to stderr."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("hubspoke").setLevel(level.upper())


def run_hub(config: HubConfig) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises ConfigError, FolderInUse, FormatError, StoreUnavailable when it cannot start.
    """
    state = config.state or default_hub_state(config)
    if isinstance(config.store, Path):
        outside(state, config.store, "--state")
    _run(config, state, FolderLocks(), lambda: _hub_process(config, state))


def run_spoke(config: SpokeConfig, kept: Kept | None = None) -> None:
    """Serve until SIGTERM or SIGINT. An unreachable hub is waited for. kept: what outlives a crash.

    Raises ConfigError, FolderInUse, FormatError when it cannot start.
    """
    state = config.state or config.cache[0]
    locks = FolderLocks()
    hold_caches(config.cache, locks)
    outside_of_any_store(state, "--state")
    _run(config, state, locks, lambda: _spoke_process(config, state, locks, kept), kept)


def default_hub_state(config: HubConfig) -> Path:
    """A folder of its own for each store: the log of one store must never meet another's."""
    if isinstance(config.store, S3Location):
        identity = f"s3://{config.store.bucket}/{config.store.prefix}"
    else:
        identity = os.path.realpath(config.store)
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if base.startswith("~"):
        raise ConfigError("--state: not given, and there is no home folder to choose one in")
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return Path(base) / "hubspoke" / f"hub-{digest}"


def _run(
    config: HubConfig | SpokeConfig,
    state: Path,
    locks: FolderLocks,
    build: Callable[[], Awaitable[Process]],
    kept: Kept | None = None,
) -> None:
    set_up_logging(config.log_level)
    _raise_descriptor_limit()
    keep_freed_memory()
    serve_first()
    for flag, endpoint in config.ports().items():
        if not endpoint.loopback:
            log.warning(
                "%s %s is open to everybody who reaches it: no credentials, no TLS", flag, endpoint
            )
    ports = _bind(config, kept)
    try:
        locks.take(state, "--state")
        endpoints = state / ENDPOINTS
        _write_whole(endpoints, json.dumps(ports.document()) + "\n")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(config.process, ports, build))
        with suppress(OSError):
            endpoints.unlink()
    finally:
        ports.close()
        locks.release()


def _raise_descriptor_limit() -> None:
    """As many descriptors as allowed: each reader's connection and each open cache file is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bind(config: HubConfig | SpokeConfig, kept: Kept | None) -> Ports:
    data = _bound(config.listen, "--listen", kept)
    try:
        return Ports(data, _bound(config.admin, "--admin", kept))
    except BaseException:
        data.close()
        raise


def _bound(endpoint: Endpoint, flag: str, kept: Kept | None) -> socket.socket:
    """The port as it was before a crash, with the connections that wait at it."""
    former = None if kept is None else kept.take(flag)
    if former is not None:
        return socket.socket(fileno=former)
    made = bind(endpoint.host, endpoint.port, flag)
    if kept is not None:
        kept.keep(flag, made.fileno())
    return made


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise ConfigError(
                f"--state: {str(path)!r}: {e.strerror}; expected a folder that can be written"
            ) from e
        # A full disk stops no reads while a process runs, so it does not stop its next start.
        log.warning("not written, the ports are in the log only: %s: %s", path, e.strerror)
        with suppress(OSError):
            path.unlink(missing_ok=True)  # of a process that was killed


async def _live(name: str, ports: Ports, build: Callable[[], Awaitable[Process]]) -> None:
    stop = _stop_event()
    process = await build()
    admin = HttpServer(process.admin_app, ports.admin, "--admin")
    data = HttpServer(process.data_app, ports.data, "--listen", process.data_app.answer_now)
    try:
        await admin.start()
        log.info("%s starting admin=http://%s", name, address(ports.admin))
        if await _unless(stop, process.service.start()):
            keep_all_that_is_there()
            await data.start()
            if process.mount is not None:
                await process.mount.start()
            process.phase.reason = None
            # The one line that scripts wait for.
            where = (address(ports.data), address(ports.admin), os.getpid())
            log.info("%s ready data=http://%s admin=http://%s pid=%d", name, *where)
            await stop.wait()
        log.info("%s stopping", name)
        process.phase.reason = "stopping"
        process.drain()
        if process.mount is not None:
            await process.mount.close()
        await data.stop()
    finally:
        if process.mount is not None:
            await process.mount.close()
        await process.service.close()
        await admin.stop()
    log.info("%s stopped", name)


def _stop_event() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second one ends the process. The same one may come
    twice, from who sent it to all processes and from the parent that passes its own on; or at
    once, from `timeout`, which tells its child and then all processes."""
    stop = asyncio.Event()
    seen = dict[bool, float]()  # when, by whether it was passed on
    loop = asyncio.get_running_loop()

    def signalled(number: int) -> None:
        passed_on, now = number == PASSED_ON, loop.time()
        if now - seen.setdefault(passed_on, now) > SAME_SIGNAL_S:
            os._exit(128 + (signal.SIGTERM if passed_on else number))
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, PASSED_ON):
        loop.add_signal_handler(number, signalled, number)
    return stop


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work and return True, or give it up and return False when `stop` comes first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        return False
    finally:
        stopping.cancel()


def spoke_id(state: Path) -> str:
    """The name under which the hub knows this spoke: kept, or a restart would be a second spoke."""
    path = state / "spoke-id"
    with suppress(OSError):
        if kept := path.read_text().strip():
            return kept
    made = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    _write_whole(path, made + "\n")
    return made


async def _hub_process(config: HubConfig, state: Path) -> Process:
    clock = BootClock()
    namespace = LmdbNamespace.open(state / "namespace", keep_log=True)
    is_folder = isinstance(config.store, Path)
    rescan = config.rescan or Rescan(FOLDER_RESCAN_S if is_folder else S3_RESCAN_S)
    tuning = HubTuning(
        region=config.region,
        rescan_s=rescan.seconds,
        rescan_always=config.rescan is not None and rescan.seconds is not None,
    )
    source = FolderWatch(config.store, config.bucket) if isinstance(config.store, Path) else None
    service = HubService(_store(config), namespace, clock, tuning, source=source)
    protocol = HubProtocolApp(service)
    phase = Phase()
    return Process(
        service=service,
        data_app=S3App(service, service, inner={wire.PREFIX: protocol}),
        admin_app=hub_admin_app(HubFront(service, phase)),
        phase=phase,
        drain=service.end_feeds,
    )


def _store(config: HubConfig) -> ObjectStore:
    if isinstance(config.store, S3Location):
        # Here, because it imports botocore, which takes longer than everything else together.
        from hubspoke.adapters.s3_store import S3Store

        return S3Store(config.store.bucket, config.store.prefix)
    notice_other_hub(config.store)
    return FolderStore(config.store, config.bucket)


async def _spoke_process(
    config: SpokeConfig, state: Path, locks: FolderLocks, kept: Kept | None
) -> Process:
    point = await asyncio.to_thread(mount_point_of, config, state, kept)
    size = partial(cache_size, config.cache_size)
    clock = BootClock()
    tuning = SpokeTuning(
        capacity=size(config.cache),
        spoke_id=spoke_id(state),
        prefetch=config.prefetch,
        infer_order=config.infer_order,
        region=config.region,
        dwpd=config.cache_dwpd,
        depth=DepthConfig(runway_s=config.runway),
        follower=FollowerTuning(policy=PartitionPolicy(config.policy)),
    )
    link = AiohttpHubLink(config.hub, tuning.spoke_id, tuning.pacing.lanes)
    namespace = LmdbNamespace.open(state / "namespace", keep_log=False)
    blocks = [
        Drive(FileBlockStore([folder]), folder, claim=partial(hold_cache, folder, locks))
        for folder in config.cache
    ]
    service = SpokeService(
        link,
        namespace,
        blocks,
        clock,
        model_file.ranker(),
        tuning,
        capacity_of=size,
        outcomes=OutcomesFile(state),
        search=OrderSearch(),
    )
    phase = Phase()
    report = SpokeReport(SpokeFront(service, phase), clock, config.price)
    return Process(
        service=service,
        data_app=S3App(service, None, inner={wire.PREFIX: RangesApp(service)}, direct=service),
        admin_app=spoke_admin_app(report),
        phase=phase,
        mount=None if point is None else mount_of(config, point, service, report, kept),
    )
