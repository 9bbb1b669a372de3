"""A spoke's mount, put together from its settings."""

from pathlib import Path

from hubspoke.adapters.keeper import Kept
from hubspoke.config import SpokeConfig
from hubspoke.frontends.admin import SpokeReport
from hubspoke.frontends.fuse.mount import FUSE, Mount, MountConfig
from hubspoke.frontends.fuse.mounting import mount_point, unasked
from hubspoke.frontends.fuse.own_files import documents
from hubspoke.spoke.service import SpokeService


def mount_point_of(config: SpokeConfig, state: Path, kept: Kept | None) -> Path | None:
    """Looked at before anything is started; raises ConfigError."""
    if config.mount is None:
        return None
    if kept is not None and FUSE in kept:
        return unasked(config.mount)
    return mount_point(config.mount, [*((c, "--cache") for c in config.cache), (state, "--state")])


def mount_of(
    config: SpokeConfig,
    point: Path,
    service: SpokeService,
    report: SpokeReport,
    kept: Kept | None,
) -> Mount:
    """The mount as the settings want it, not started."""
    uid, gid, umask = config.mount_uid, config.mount_gid, config.mount_umask
    return Mount(
        MountConfig(point, uid, gid, umask, config.allow_other, config.passthrough),
        service,
        documents(report, config.shown()),
        kept=kept,
    )
