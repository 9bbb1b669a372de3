"""Where the command line gets reports from: a spoke's admin port, or a file."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from hubspoke.errors import FormatError, HubSpokeError
from hubspoke.report.render_status import status_document
from hubspoke.report.report import SCHEMA

TIMEOUT_S = 10.0
REPORT_PATH = "/v1/report"
_EXAMPLE = "http://HOST:8081"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}(/.*)?")


class AdminUnreachable(HubSpokeError):
    """The admin port does not answer, or not with what was asked for.

    status: of the answer, None without one.
    """

    retryable = True

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


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
        raise AdminUnreachable(f"{url}: answered {e.code} {e.reason}", e.code) from e
    except (URLError, OSError) as e:
        reason = getattr(e, "reason", e)
        raise AdminUnreachable(f"{url}: cannot be reached: {reason}") from e
    except ValueError as e:
        raise AdminUnreachable(f"{url}: expected JSON, as an admin port answers: {e}") from e


def admin_url(source: str) -> str | None:
    """The admin port's URL without a path; None for what can only be a file.

    Takes what people type: with /v1/report or a slash at the end, or without http://.
    """
    url = source
    if not url.startswith(("http://", "https://")):
        if not _ADDRESS.fullmatch(source) or Path(source).exists():
            return None
        url = f"http://{source}"
    return url.rstrip("/").removesuffix(REPORT_PATH)


def load_report(source: str) -> dict[str, Any]:
    """A report of this schema from an admin port's URL or a file.

    Raises AdminUnreachable, FormatError.
    """
    url = admin_url(source)
    if url is not None:
        document = _ask_report(url)
    else:
        try:
            document = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else e
            raise FormatError(f"{source}: expected a URL or a saved report: {reason}") from e
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FormatError(f"{source}: expected a report of schema {SCHEMA}")
    return document


def _ask_report(url: str) -> Any:
    try:
        return get_json(url + REPORT_PATH)
    except AdminUnreachable as e:
        if e.status is None or e.status >= 500:
            raise
        if _is_hub(url):
            raise AdminUnreachable(
                f"{url}: a hub's admin port; a report is a spoke's, a hub's counters are at "
                f"{url}/v1/status",
                e.status,
            ) from e
        raise AdminUnreachable(
            f"{e}; expected a spoke's admin port, {_EXAMPLE} unless its --admin says otherwise",
            e.status,
        ) from e


def _is_hub(url: str) -> bool:
    try:
        document = get_json(url + "/v1/status")
    except AdminUnreachable:
        return False
    return isinstance(document, dict) and "epoch" in document


class StatusSource:
    """A spoke's admin port, asked repeatedly; rates are those since the last question."""

    def __init__(self, url: str) -> None:
        """Asks at once, so that the first `now` has something to compare with.

        Raises AdminUnreachable, FormatError.
        """
        base = admin_url(url)
        if base is None:
            raise FormatError(f"{url}: expected the URL of a spoke's admin port, {_EXAMPLE}")
        self._url = base
        self._before = load_report(self._url)

    def now(self) -> dict[str, Any]:
        """The status document. Raises AdminUnreachable, FormatError."""
        report = load_report(self._url)
        before, self._before = self._before, report
        readiness = get_json(f"{self._url}/readyz", refused=(503,))
        believed = get_json(f"{self._url}/v1/streams")
        streams, sets = believed["streams"], believed["data_sets"]
        return status_document(before, report, readiness, streams, sets)
