"""The checks of one run: which, in which order, each with its deadline.

Facts are collected one check after the other, since they would disturb each other's measurements,
each in a thread of its own, since a dead mount blocks a stat for ever: what takes longer than its
deadline is told as not checked and left behind. Judging is in judge/.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hubspoke import wire
from hubspoke.doctor import facts_cache, facts_host, facts_hub, facts_mount, facts_store
from hubspoke.doctor.judge import cache, host, mount, names, network
from hubspoke.doctor.judge.cache import FolderFacts
from hubspoke.doctor.judge.finding import Finding, problem, warning
from hubspoke.errors import HubSpokeError, StoreUnavailable
from hubspoke.frontends.fuse.mounting import has_admin

FUSE_S, MOUNT_S, FOLDER_S, HUB_S, HOST_S = 5.0, 3.0, 10.0, 30.0, 3.0
NAMES_S = 15.0  # for reading names; judging them takes less again


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be looked at; None or empty for what this host does not have. store: a folder,
    or the S3 bucket's URL as text."""

    hub: str | None = None
    caches: tuple[Path, ...] = ()
    state: Path | None = None
    mount: Path | None = None
    store: Path | str | None = None
    bucket: str | None = None

    @property
    def hub_here(self) -> bool:
        return self.store is not None

    @property
    def spoke_here(self) -> bool:
        """Also of a host of which nothing is said."""
        return not self.hub_here or bool(self.hub or self.caches or self.mount)


class _TooLate(Exception):
    pass


@dataclass(slots=True)
class Examination:
    """One run."""

    subject: Subject
    rtt_s: float | None = field(default=None, init=False)
    _hub_answers: bool = field(default=False, init=False)

    def findings(self) -> Iterator[Finding]:
        """All of them, as they are made; none of the checks raises."""
        for check, seconds, examine in self._checks():
            try:
                yield from _within(seconds, examine)
            except _TooLate:
                yield warning(
                    check,
                    f"not checked: no answer in {seconds:g} s",
                    "look for a dead mount or a drive that hangs (dmesg), and run this again",
                )
            except (HubSpokeError, OSError, ValueError) as e:
                yield warning(check, f"not checked: {e}", "mend this first, and run this again")

    def _checks(self) -> Iterator[tuple[str, float, Callable[[], list[Finding]]]]:
        s = self.subject
        if s.spoke_here:
            yield "fuse", FUSE_S, _fuse
        if s.mount is not None:
            yield "mount", MOUNT_S, partial(_mount, s.mount)
        if s.caches or s.state is not None:
            yield "cache", FOLDER_S * max(len(s.caches), 1), self._folders
        if s.hub is not None:
            yield "hub", HUB_S, partial(self._hub, s.hub)
        yield "tcp", HOST_S, self._tcp
        yield "clock", HOST_S, self._clock
        if isinstance(s.store, Path):
            yield "store", 2 * NAMES_S, partial(_store, s.store, s.bucket)
        else:
            yield "limits", HOST_S, _limits
        if s.hub is not None and self._hub_answers:
            yield "names", 2 * NAMES_S, partial(_names, s.hub)

    def _folders(self) -> list[Finding]:
        s, found = self.subject, []
        caches: list[FolderFacts] = []
        for path in s.caches:
            facts = facts_cache.folder(path, "--cache", measure=True)
            caches.append(facts)
            found += cache.cache_folder(facts)
        state = s.state or (s.caches[0] if s.caches else None)
        about = None if state is None else facts_cache.folder(state, "--state", measure=False)
        return found + cache.together(caches, about)

    def _hub(self, url: str) -> list[Finding]:
        facts = facts_hub.hub(url)
        self.rtt_s, self._hub_answers = facts.rtt_s, facts.error is None
        return network.hub(facts, wire.PROTOCOL_VERSION)

    def _tcp(self) -> list[Finding]:
        s = self.subject
        return network.tcp(
            facts_host.tcp(), self.rtt_s, hub_here=s.hub_here, spoke_here=s.spoke_here
        )

    def _clock(self) -> list[Finding]:
        return host.clock(facts_host.clock(), signs=isinstance(self.subject.store, str))


def _fuse() -> list[Finding]:
    fuse = facts_mount.fuse()
    return mount.fuse(fuse) + mount.kernel(facts_mount.kernel(), fuse)


def _mount(path: Path) -> list[Finding]:
    return mount.mount_point(facts_mount.mount_point(path), has_admin())


def _limits() -> list[Finding]:
    return host.limits(facts_host.limits(None))


def _store(root: Path, bucket: str | None) -> list[Finding]:
    try:
        facts = facts_store.store(root, bucket, NAMES_S)
    except StoreUnavailable as e:
        return [problem("store", str(e), "--store with a folder that the hub can list")]
    limits = facts_host.limits(facts.folders, counted_all=facts.names.complete)
    return names.in_store(facts.names) + host.limits(limits)


def _names(url: str) -> list[Finding]:
    return names.on_mount(facts_hub.names(url, NAMES_S))


def _within(seconds: float, work: Callable[[], list[Finding]]) -> list[Finding]:
    """What `work` returns or raises. Raises _TooLate; then the thread is left behind."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as e:
            result.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not result:
        raise _TooLate
    if isinstance(result[0], Exception):
        raise result[0]
    findings: list[Finding] = result[0]
    return findings
