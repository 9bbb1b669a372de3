"""Where the command line gets reports from: a spoke's admin port, or a file."""

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from hubspoke.errors import FormatError, HubSpokeError
from hubspoke.report.render import status_document
from hubspoke.report.report import SCHEMA

TIMEOUT_S = 10.0


class AdminUnreachable(HubSpokeError):
    """The admin port does not answer, or not with what was asked for."""

    retryable = True


def get_json(
    url: str, *, refused: tuple[int, ...] = (), method: str = "GET", body: Any = None
) -> Any:
    """The JSON document at `url`; an answer with a status in `refused` counts as one too.

    body: sent as JSON, if it is not None.
    Raises AdminUnreachable. A proxy from the environment is not used for loopback.
    """
    host = urlsplit(url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    opener = build_opener(ProxyHandler({})) if local else build_opener()
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = Request(url, data, headers, method=method)
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except HTTPError as e:
        if e.code in refused:
            return json.load(e)
        raise AdminUnreachable(f"{url}: answered {e.code} {e.reason}") from e
    except (URLError, OSError) as e:
        reason = getattr(e, "reason", e)
        raise AdminUnreachable(f"{url}: cannot be reached: {reason}") from e
    except ValueError as e:
        raise AdminUnreachable(f"{url}: expected JSON, as an admin port answers: {e}") from e


def load_report(source: str) -> dict[str, Any]:
    """A report of this schema from an admin port's URL or a file.

    Raises AdminUnreachable, FormatError.
    """
    if source.startswith(("http://", "https://")):
        document = get_json(source.rstrip("/") + "/v1/report")
    else:
        try:
            document = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else e
            raise FormatError(f"{source}: expected a URL or a saved report: {reason}") from e
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FormatError(f"{source}: expected a report of schema {SCHEMA}")
    return document


class StatusSource:
    """A spoke's admin port, asked repeatedly; rates are those since the last question."""

    def __init__(self, url: str) -> None:
        """Asks at once, so that the first `now` has something to compare with.

        Raises AdminUnreachable, FormatError.
        """
        self._url = url.rstrip("/")
        self._before = load_report(self._url)

    def now(self) -> dict[str, Any]:
        """The status document. Raises AdminUnreachable, FormatError."""
        report = load_report(self._url)
        before, self._before = self._before, report
        readiness = get_json(f"{self._url}/readyz", refused=(503,))
        streams = get_json(f"{self._url}/v1/streams")["streams"]
        return status_document(before, report, readiness, streams)
