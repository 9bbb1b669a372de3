"""Flags -> settings -> the process. What a daemon needs is imported in the daemon alone: with a
mount it is forked from a parent that stays small, and that keeps the mount over a crash."""

from functools import partial
from pathlib import Path
from typing import Any

from hubspoke.adapters.keeper import supervise
from hubspoke.config import HubConfig, SpokeConfig, load

KEPT = "fuse"  # without it there is nothing to start a daemon again for


def hub(flags: dict[str, Any]) -> None:
    """Serve. Raises HubSpokeError."""
    config = load(HubConfig, flags)
    from hubspoke import run

    run.run_hub(config)


def spoke(flags: dict[str, Any]) -> None:
    """Serve, with a mount in a child. Raises HubSpokeError, there."""
    config = load(SpokeConfig, flags)
    kept = None
    if config.mount is not None:
        kept = supervise("hubspoke spoke", KEPT, partial(_unmounted, config.mount))
    from hubspoke import run

    run.run_spoke(config, kept)


def _unmounted(point: Path) -> None:
    """By the parent, which has given up."""
    from hubspoke.frontends.fuse.mounting import taken_over, unasked, unmount

    unmount(taken_over(unasked(point), -1), lazy=True)
