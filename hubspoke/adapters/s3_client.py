"""Signed HTTP requests to one bucket of an S3-compatible server, with retries.

Keys go out as exact bytes: percent-encoded once, never normalised. Credentials and signatures
are botocore's, the connections aiohttp's. Each request has a deadline, retries share a budget,
and what remains of a failure is StoreUnavailable. It decides nothing about objects.
"""

import asyncio
import hashlib
import io
import logging
import os
import random
import ssl
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import quote, urlsplit

import aiohttp
import botocore.session
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from yarl import URL

from hubspoke.errors import ConfigError, StoreUnavailable

log = logging.getLogger(__name__)

_EMPTY_SHA256 = hashlib.sha256().hexdigest()
_RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_RETRIED_CODES = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})


@dataclass(frozen=True, slots=True)
class S3ClientTuning:
    connections_max: int = 64
    connect_s: float = 5.0
    request_s: float = 60.0  # one attempt, its body included
    operation_s: float = 150.0  # all attempts of one call
    attempts_max: int = 5
    backoff_s: float = 0.1  # doubles with each attempt, times a random number up to 1
    # As botocore's standard mode: a server in trouble is not asked five times by everybody.
    retry_budget: float = 50.0
    retry_refill: float = 0.1  # retries earned by a request that succeeds


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes to send, more than once if need be. data: bytes, or opens a file of that size."""

    data: "bytes | Callable[[], IO[bytes]]" = b""
    size: int = 0
    sha256: str = _EMPTY_SHA256
    md5_base64: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    data: bytes
    code: str = ""  # of an S3 error document
    message: str = ""

    def xml(self) -> "ET.Element[str]":
        """The document, namespaces removed. Raises StoreUnavailable if it is none."""
        try:
            root = ET.fromstring(self.data)
        except ET.ParseError as e:
            raise StoreUnavailable(f"the object store's answer is not XML: {e}") from e
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root


class _Signer(S3SigV4Auth):  # type: ignore[misc]  # its base has no types
    """botocore's signer with a payload hash that was computed outside of the event loop."""

    def payload(self, request: AWSRequest) -> str:
        return str(request.context["payload_sha256"])


@dataclass(slots=True)
class _RetryBudget:
    tuning: S3ClientTuning
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.tuning.retry_budget

    def take(self) -> bool:
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def earn(self) -> None:
        self.left = min(self.tuning.retry_budget, self.left + self.tuning.retry_refill)


class S3Client:
    def __init__(
        self, bucket: str, endpoint_url: str | None, region: str | None, tuning: S3ClientTuning
    ) -> None:
        self.bucket = bucket
        self._endpoint = endpoint_url
        self._region = region or ""
        self._tuning = tuning
        self._budget = _RetryBudget(tuning)
        self._jitter = random.Random()
        self._credentials: Any = None  # botocore's, refreshing themselves
        self._base = ""
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Find credentials, region and endpoint. Raises ConfigError."""
        await asyncio.to_thread(self._configure)
        tuning = self._tuning
        bundle = os.environ.get("AWS_CA_BUNDLE")
        secure: ssl.SSLContext | bool = True
        if self.is_secure and bundle:
            try:
                secure = ssl.create_default_context(cafile=bundle)
            except OSError as e:
                raise ConfigError(f"AWS_CA_BUNDLE={bundle}: {e}") from e
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=tuning.connections_max, ssl=secure),
            timeout=aiohttp.ClientTimeout(total=tuning.request_s, connect=tuning.connect_s),
            auto_decompress=False,  # an object with a content coding is still its bytes
            skip_auto_headers=("Content-Type", "Accept-Encoding", "User-Agent"),
            trust_env=True,
        )

    def _configure(self) -> None:
        session = botocore.session.Session()
        try:
            config = session.get_scoped_config()
            self._credentials = session.get_credentials()
            region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
        except Exception as e:  # botocore's errors have no useful common base
            raise ConfigError(f"AWS configuration: {type(e).__name__}: {e}") from e
        self._region = self._region or region or "us-east-1"
        endpoint = (
            self._endpoint
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or config.get("endpoint_url")
        )
        if endpoint:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(f"S3 endpoint {endpoint!r}: http://HOST[:PORT] is expected")
            self._base = f"{endpoint.rstrip('/')}/{self.bucket}"
        elif "." in self.bucket:  # the certificate *.s3.amazonaws.com covers no dots
            self._base = f"https://s3.{self._region}.amazonaws.com/{self.bucket}"
        else:
            self._base = f"https://{self.bucket}.s3.{self._region}.amazonaws.com"

    @property
    def is_secure(self) -> bool:
        return self._base.startswith("https:")

    @property
    def has_credentials(self) -> bool:
        return self._credentials is not None

    @property
    def place(self) -> str:
        return f"s3://{self.bucket} at {self._base}"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Answer:
        """The server's answer, error or not, after retries. Raises StoreUnavailable when there
        is none that is more than "try again"."""
        url = f"{self._base}/{quote(key, safe='/~')}"
        if query:
            pairs = sorted((quote(k, safe="~"), quote(v, safe="~")) for k, v in query.items())
            url += "?" + "&".join(f"{k}={v}" for k, v in pairs)
        what = f"{method} {self.bucket}/{key:.300}"
        trouble = "no answer"
        try:
            async with asyncio.timeout(self._tuning.operation_s):
                for attempt in range(self._tuning.attempts_max):
                    if attempt:
                        if not self._budget.take():
                            break
                        pause = self._tuning.backoff_s * 2**attempt * self._jitter.random()
                        await asyncio.sleep(pause)
                    try:
                        answer = await self._attempt(method, url, headers or {}, body or Body())
                    except (aiohttp.ClientError, TimeoutError, OSError) as e:
                        trouble = f"{type(e).__name__}: {e}"
                        log.debug("request=%r attempt=%d failed: %s", what, attempt, trouble)
                        continue
                    if answer.status not in _RETRIED_STATUS and answer.code not in _RETRIED_CODES:
                        self._budget.earn()
                        return answer
                    trouble = f"status {answer.status} {answer.code} {answer.message}"
        except TimeoutError as e:
            raise StoreUnavailable(
                f"{what}: not answered within {self._tuning.operation_s:g} s ({trouble})"
            ) from e
        raise StoreUnavailable(f"{what}: {trouble}")

    async def _attempt(
        self, method: str, url: str, headers: Mapping[str, str], body: Body
    ) -> Answer:
        assert self._session is not None, "open() was not called"
        signed = await self._signed(method, url, headers, body)
        # Bytes go as a file too: aiohttp writes large ones to the socket in one piece otherwise.
        data = io.BytesIO(body.data) if isinstance(body.data, bytes) else body.data()
        try:
            async with self._session.request(
                method, URL(url, encoded=True), headers=signed, data=data, allow_redirects=False
            ) as response:
                content = await response.read()
        finally:
            data.close()
        found = {name.lower(): value for name, value in response.headers.items()}
        code, message = _error_of(content) if content[:6] in (b"<?xml ", b"<Error") else ("", "")
        return Answer(response.status, found, content, code, message)

    async def _signed(
        self, method: str, url: str, headers: Mapping[str, str], body: Body
    ) -> dict[str, str]:
        """Headers with what authenticates them."""
        request = AWSRequest(method=method, url=url, headers=dict(headers))
        if body.md5_base64:
            request.headers["Content-MD5"] = body.md5_base64
        request.headers["Content-Length"] = str(body.size)
        if self._credentials is not None:
            frozen = await asyncio.to_thread(self._credentials.get_frozen_credentials)
            # Over TLS the channel protects the payload, and MD5 says that it is whole.
            unsigned = self.is_secure and bool(body.md5_base64)
            request.context["payload_sha256"] = "UNSIGNED-PAYLOAD" if unsigned else body.sha256
            _Signer(frozen, "s3", self._region).add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items()}


def _error_of(content: bytes) -> tuple[str, str]:
    """(code, message) of an error document; empty if it is another document."""
    try:
        root = ET.fromstring(content)
    except ET.ParseError:
        return "", ""
    if root.tag.rpartition("}")[2] != "Error":
        return "", ""
    return root.findtext("Code") or "", root.findtext("Message") or ""
