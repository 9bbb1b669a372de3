"""Collects what the report shows of a spoke, as counts since the last reset."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import hubspoke
from hubspoke.adapters.disk_stats import io_pressure
from hubspoke.core.endurance import wear
from hubspoke.core.health import Call
from hubspoke.core.runway import runway_s
from hubspoke.ports import LinkCounters
from hubspoke.report.facts import (
    CacheFacts,
    EnduranceFacts,
    FolderFacts,
    MetadataFacts,
    PolicyFacts,
    SpokeFacts,
    WanFacts,
)
from hubspoke.report.report import rfc3339
from hubspoke.spoke.full_copy import FullCopy

if TYPE_CHECKING:  # the service owns a collector; the collector only reads the service
    from hubspoke.spoke.service import SpokeService


class FactsCollector:
    """Reads a service; remembers what its counters were at the last reset."""

    def __init__(self, service: "SpokeService") -> None:
        self._service = service
        self._link = LinkCounters(0, 0, 0, {})
        self._evicted = 0
        self._written = 0
        self._full_copy = FullCopy(service.namespace)
        self.read = self._full_copy.read

    def reset(self) -> None:
        s = self._service
        self._link = s.link.counters()
        self._evicted = s.core.cache.counters.evicted_bytes
        self._written = s.disks.written_bytes
        self._full_copy.reset()

    async def collect(self) -> SpokeFacts:
        full_copy_bytes = await self._full_copy.added_up()
        s = self._service
        return SpokeFacts(
            spoke=s.tuning.spoke_id,
            region=s.tuning.region,
            hub_region=s.follower.hub_region(),
            model=s.ranker.name,
            wan=self._wan(),
            cache=self._cache(),
            metadata=self._metadata(),
            prefetch_in_flight_bytes=s.core.scheduler.prefetch_bytes_in_flight,
            runway_seconds=self._runway(),
            full_copy_bytes=full_copy_bytes,
            endurance=self._endurance(),
            kernel=None if s.kernel is None else replace(s.kernel),
            warm=s.warm.jobs(),
        )

    def _runway(self) -> float | None:
        known = self._service.core.prediction
        return runway_s(known.streams, known.epochs.sets.values(), self._service.clock.now())

    def of_trace(self) -> dict[str, object]:
        """What whoever simulates a trace of this spoke has to know, as it is at the start."""
        s = self._service
        return {
            "hubspoke": hubspoke.__version__,
            "spoke": s.tuning.spoke_id,
            "region": s.tuning.region,
            "hub_region": s.follower.hub_region(),
            "started": rfc3339(s.clock.unix_ns()),
            "capacity_bytes": s.core.cache.capacity,
            "cached_bytes": s.core.cache.used,
            "prefetch": s.tuning.prefetch,
            **self.of_path(),
        }

    def of_path(self) -> dict[str, object]:
        """Round trip and bytes a second, None as long as nothing was measured."""
        s = self._service
        return {"rtt_s": s.follower.rtt_s(), "rate": s.core.path.rate(s.clock.now())}

    def _wan(self) -> WanFacts:
        s = self._service
        now, before = s.link.counters(), self._link
        payload = sum(s.ledger.payload_bytes.values())
        rtt = s.follower.rtt_s()
        return WanFacts(
            received_bytes=now.received - before.received,
            sent_bytes=now.sent - before.sent,
            retransmitted_bytes=now.retransmitted - before.retransmitted,
            payload_bytes=payload,
            received_by_class={
                k: n - before.received_by_class.get(k, 0) for k, n in now.received_by_class.items()
            },
            rtt_ms=None if rtt is None else rtt * 1e3,
            bandwidth_bytes_per_second=s.core.path.rate(s.clock.now()),
            encoded_bytes=s.core.encoded_bytes,
        )

    def _cache(self) -> CacheFacts:
        s = self._service
        cache = s.core.cache
        return CacheFacts(
            bytes=cache.used - cache.away.bytes,
            capacity_bytes=cache.capacity,
            objects=len(cache.objects),
            blocks=cache.blocks,
            evicted_bytes=cache.counters.evicted_bytes - self._evicted,
            flash_written_bytes=s.disks.written_bytes - self._written,
            corrupt_blocks=s.ledger.corrupt_frames,
            memory_bytes=s.memory_bytes,
            folders=self._disks(),
        )

    def _disks(self) -> list[FolderFacts]:
        disks, now = self._service.disks, self._service.clock.now()
        facts = []
        for disk, objects in zip(disks.disks, disks.objects_by_folder(), strict=True):
            h = disk.health
            facts.append(
                FolderFacts(
                    path=None if disk.root is None else str(disk.root),
                    state=h.state.value,
                    state_seconds=now - h.since,
                    objects=objects,
                    read_errors=h.errors[Call.READ],
                    write_errors=h.errors[Call.WRITE],
                    slow_calls=h.slow_calls,
                    state_changes=h.changes,
                    last_error=h.last_error,
                )
            )
        return facts

    def _endurance(self) -> EnduranceFacts:
        s = self._service
        drives = s.drives
        used = [d.smart.used_percent / 100 for d in drives if d.smart is not None]
        worn = wear(
            s.disks.written_bytes - self._written,
            s.clock.now() - s.ledger.since,
            sum(d.capacity_bytes for d in drives) or None,
            s.tuning.dwpd,
            max(used, default=None),
        )
        pressure = io_pressure()
        return EnduranceFacts(
            **asdict(worn),
            io_pressure=None if pressure is None else asdict(pressure),
            drives=[asdict(d) for d in drives],
        )

    def _metadata(self) -> MetadataFacts:
        s = self._service
        f = s.follower
        return MetadataFacts(
            sequence=f.sequence,
            hub_sequence=f.hub_sequence,
            entries=len(s.namespace),
            lag_seconds=f.lag_seconds(),
            lease=f.lease_state(),
            staleness_seconds=f.staleness_s(),
            policy=[PolicyFacts(*bound) for bound in s.tuning.follower.policy.bounds().items()],
        )
