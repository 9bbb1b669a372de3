"""The services as their admin ports see them: ready only while the data port serves."""

from typing import Any, Protocol

from hubspoke.core.ledger import Ledger
from hubspoke.hub.service import HubService
from hubspoke.report.facts import HubFacts, SpokeFacts
from hubspoke.spoke.hints import HintPosts
from hubspoke.spoke.recording import Recorders
from hubspoke.spoke.service import SpokeService
from hubspoke.spoke.warm import WarmJobs


class Ready(Protocol):
    """What can say why it is not ready."""

    def ready(self) -> list[str]: ...


class Phase:
    """Where the process is in its life, as the first reason of /readyz."""

    def __init__(self) -> None:
        self.reason: str | None = "starting"

    def reasons(self, service: Ready) -> list[str]:
        """Why not ready; what the service says while it starts is more than "starting"."""
        of_service = service.ready()
        if self.reason is None or (self.reason == "starting" and of_service):
            return of_service
        return [self.reason, *of_service]


class SpokeFront:
    """The service as its admin port sees it: ready only while the data port serves."""

    def __init__(self, service: SpokeService, phase: Phase) -> None:
        self._service = service
        self._phase = phase

    @property
    def ledger(self) -> Ledger:
        return self._service.ledger

    async def facts(self) -> SpokeFacts:
        return await self._service.facts()

    def streams(self) -> list[dict[str, Any]]:
        return self._service.streams()

    def data_sets(self) -> list[dict[str, Any]]:
        return self._service.data_sets()

    def token_files(self) -> list[dict[str, Any]]:
        return self._service.token_files()

    def model(self) -> dict[str, Any]:
        return self._service.model()

    def reset_stats(self) -> None:
        self._service.reset_stats()

    @property
    def warm(self) -> WarmJobs:
        return self._service.warm

    @property
    def hints(self) -> HintPosts:
        return self._service.hints

    @property
    def recorders(self) -> Recorders:
        return self._service.recorders

    def ready(self) -> list[str]:
        return self._phase.reasons(self._service)


class HubFront:
    """The same for a hub."""

    def __init__(self, service: HubService, phase: Phase) -> None:
        self._service = service
        self._phase = phase

    def facts(self) -> HubFacts:
        return self._service.facts()

    def limits(self) -> list[str]:
        return self._service.limits()

    def ready(self) -> list[str]:
        return self._phase.reasons(self._service)
