"""A mount's life: mounted and answered for before the spoke is ready, unmounted before it ends."""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hubspoke.adapters.keeper import Kept
from hubspoke.core.ids import ObjectName
from hubspoke.errors import ConfigError
from hubspoke.frontends.fuse import journal
from hubspoke.frontends.fuse.attributes import Attributes, Ownership
from hubspoke.frontends.fuse.mounting import (
    FLAG,
    Mounted,
    has_admin,
    mount,
    taken_over,
    unmount,
)
from hubspoke.frontends.fuse.own_files import Make, OwnFiles
from hubspoke.frontends.fuse.protocol import Init
from hubspoke.frontends.fuse.server import FuseServer
from hubspoke.frontends.fuse.tuning import FuseTuning
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.tree import Tree

log = logging.getLogger(__name__)

INIT_S = 10.0
FUSE, JOURNAL = "fuse", "journal"  # what is kept of it (serve.KEPT)


@dataclass(frozen=True, slots=True)
class MountConfig:
    """Where, and how it looks. uid, gid: None is who runs this process."""

    point: Path
    uid: int | None = None
    gid: int | None = None
    umask: int = 0o022
    allow_other: bool = False
    passthrough: bool = True

    def ownership(self) -> Ownership:
        uid = os.getuid() if self.uid is None else self.uid
        gid = os.getgid() if self.gid is None else self.gid
        return Ownership(uid, gid, self.umask)


class Mount:
    """One mount of one spoke: `start` when the service has started, `close` before it ends."""

    def __init__(
        self,
        config: MountConfig,
        service: SpokeService,
        documents: Mapping[str, Make],
        tuning: FuseTuning | None = None,
        kept: Kept | None = None,
    ) -> None:
        """config.point: as `mount_point` gave it. documents: the mount's own files. kept: where
        the mount of a process that crashed is found, and this one left. Made before the service
        starts, which from then on calls names back here too."""
        self._kept = kept
        self._config = config
        self._service = service
        self._documents = documents
        self._tuning = tuning or FuseTuning(passthrough=config.passthrough and has_admin())
        self._mounted: Mounted | None = None
        self._server: FuseServer | None = None
        self._watch: asyncio.Task[None] | None = None
        service.follower.call_back(self._call_back)
        service.when_loaded = self._take_over

    def _take_over(self) -> None:
        """Before anything is dropped or revoked: what the kernel has of a mount that is kept."""
        if self._kept is None:
            return
        descriptor, log_descriptor = self._kept.take(FUSE), self._kept.take(JOURNAL)
        if descriptor is None or log_descriptor is None:
            return
        told = journal.read(log_descriptor)
        os.close(log_descriptor)
        self._mounted = taken_over(self._config.point, descriptor)
        self._server = self._made(descriptor, told)
        self._server.take_over()
        log.info("mount taken over nodes=%d passed=%d", len(told.nodes), len(told.backed))

    def _made(self, descriptor: int, told: journal.Told) -> FuseServer:
        service, kept = self._service, self._kept
        noted = None
        if kept is not None:
            noted = journal.MemoryJournal(told, lambda fd: kept.keep(JOURNAL, fd))
        return FuseServer(
            descriptor,
            service,
            Tree(
                service.namespace, service.follower, service.clock, service.tuning.read_deadline_s
            ),
            OwnFiles(self._documents),
            Attributes(self._config.ownership()),
            service.clock,
            counters=self._service.kernel_counters(),
            whole=service.whole_files,
            space=self._space,
            journal=noted,
            tuning=self._tuning,
        )

    async def start(self) -> None:
        """Raises ConfigError."""
        point, other = self._config.point, self._config.allow_other
        former = self._server is not None
        if self._mounted is None:
            self._mounted = await asyncio.to_thread(mount, point, allow_other=other)
        mounted = self._mounted
        server = self._server = self._server or self._made(mounted.descriptor, journal.Told())
        server.start()
        if former:
            await server.ask_again()
        try:
            async with asyncio.timeout(INIT_S):
                await server.ready.wait()
        except TimeoutError as e:
            raise ConfigError(f"{FLAG}: {str(point)!r}: the kernel does not take the mount") from e
        server.read_ahead.begin(mounted.read_ahead)
        agreed = server.agreed
        assert agreed is not None
        keeps = self._kept is not None and bool(agreed.flags & Init.HAS_RESEND)
        if self._kept is not None and keeps:
            self._kept.keep(FUSE, mounted.descriptor)
        self._watch = asyncio.create_task(self._watched(server, point))
        passes = bool(agreed.flags & Init.PASSTHROUGH)
        log.info(
            "mounted point=%s fuse=7.%d passthrough=%s kept=%s",
            *(point, agreed.minor, passes, keeps),
        )

    async def _watched(self, server: FuseServer, point: Path) -> None:
        """Somebody else may unmount it: then S3 goes on alone, and no name is kept elsewhere."""
        await server.channel.gone.wait()
        log.warning("unmounted by somebody else point=%s", point)
        if self._kept is not None:
            self._kept.drop(FUSE)

    async def close(self) -> None:
        """Unmount. Who still has files open there gets ENOTCONN from then on. Idempotent."""
        mounted, server = self._mounted, self._server
        if self._watch is not None:
            self._watch.cancel()
        self._mounted = self._server = None
        if server is None or mounted is None:
            return
        try:
            if not server.channel.gone.is_set() and not await asyncio.to_thread(unmount, mounted):
                if await asyncio.to_thread(unmount, mounted, lazy=True):
                    log.warning("unmounted while in use point=%s", mounted.point)
            else:
                log.info("unmounted point=%s", mounted.point)
        finally:
            if self._kept is not None:
                self._kept.drop(FUSE)
            await server.close()

    def _call_back(self, name: ObjectName) -> "asyncio.Future[None] | None":
        return None if self._server is None else self._server.call_back(name)

    def _space(self) -> tuple[int, int]:
        """df shows the cache: of the store's size a spoke knows nothing."""
        cache = self._service.core.cache
        return cache.capacity, max(cache.capacity - cache.used, 0)
