"""What a setting may be: texts, and what TOML has, to values.

Each parser takes one value from any source and raises ValueError (or KeyError, TypeError,
OverflowError, RuntimeError from the library's own) when it is none; the words for what would be
right are the settings' own (config.py). Opens nothing.
"""

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hubspoke.report.cost import PriceOverride, parse_price

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(B|[KMGTP]i?B)?", re.IGNORECASE)
_SIZE_MAX = 1 << 60  # more than any disk; float and off_t hold it
_LABEL = "[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CACHE_BYTES_MIN = 1 << 20  # one block


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a port is bound; port 0 lets the kernel choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """False for every name but localhost: what a name means can change after the check."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """What a spoke without a lease answers under `prefix` (BUCKET/KEY...).

    bounded_s: seconds for which it answers with the age; None: it refuses (strict).
    """

    prefix: str
    bounded_s: float | None


@dataclass(frozen=True, slots=True)
class S3Location:
    bucket: str
    prefix: str  # "" or ends in "/"


def parse_size(value: Any) -> int:
    """Bytes from 512MiB, 10GiB, 2TB, or a plain number of bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            raise ValueError
        unit = (match[2] or "B").upper()
        power = "BKMGTP".index(unit[0])
        size = int(float(match[1]) * (1024 if "I" in unit else 1000) ** power)
    if not -_SIZE_MAX <= size <= _SIZE_MAX:
        raise ValueError
    return size


def _text(value: Any) -> str:
    """A file may hold any type: true or a date is no folder's name. No path holds a NUL."""
    if not isinstance(value, str | os.PathLike) or "\0" in (text := os.fspath(value)):
        raise ValueError
    return text


def _items(value: Any, separator: str) -> list[Any]:
    if isinstance(value, str):
        return value.split(separator)
    if not isinstance(value, list | tuple):
        raise ValueError
    return list(value)


def _host(host: str) -> str:
    """A name or an address that a resolver can be asked for; an IPv6 address without brackets."""
    if ":" in host:
        ipaddress.IPv6Address(host)
    elif not _HOST.fullmatch(host) or len(host) > 253:
        raise ValueError
    return host


def cache_size(value: Any) -> int:
    size = parse_size(value)
    if size < _CACHE_BYTES_MIN:
        raise ValueError
    return size


def dwpd(value: Any) -> float:
    rating = float(value)
    if not 0 < rating <= 1_000:
        raise ValueError
    return rating


def runway(value: Any) -> float:
    seconds = float(value)
    if isinstance(value, bool) or not 0 <= seconds <= 86_400:
        raise ValueError
    return seconds


def user_id(value: Any) -> int:
    """Of a user or a group; the highest number means "none" to the kernel."""
    number = int(value)
    if isinstance(value, bool | float) or not 0 <= number < 2**32 - 1:
        raise ValueError
    return number


def umask(value: Any) -> int:
    """In octal, also as a number: 22 and "022" are the same."""
    if isinstance(value, bool | float):
        raise ValueError
    bits = int(str(value).removeprefix("0o"), 8)
    if not 0 <= bits <= 0o777:
        raise ValueError
    return bits


@dataclass(frozen=True, slots=True)
class Rescan:
    """seconds None: never."""

    seconds: float | None


def rescan(value: Any) -> Rescan:
    if value is False or str(value).lower() == "off":
        return Rescan(None)
    seconds = float(value)
    if isinstance(value, bool) or not 1 <= seconds <= 1e7:
        raise ValueError
    return Rescan(seconds)


def endpoint(value: Any) -> Endpoint:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s/]+)):([0-9]{1,5})", _text(value))
    if match is None or int(match[3]) > 65535:
        raise ValueError
    return Endpoint(_host(match[1] or match[2]), int(match[3]))


def hub_url(value: Any) -> str:
    text = _text(value)
    parts = urlsplit(text)
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme != "http" or not parts.hostname or not plain or "@" in parts.netloc:
        raise ValueError
    port = 7070 if parts.port is None else parts.port  # ValueError when out of range
    if port == 0 or not text.isprintable() or " " in text:  # urlsplit drops new lines silently
        raise ValueError
    host = _host(parts.hostname)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def store(value: Any) -> Path | S3Location:
    text = _text(value)
    if not text.startswith("s3://"):
        if "://" in text:
            raise ValueError
        return folder(text)
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError
    return S3Location(bucket, prefix.rstrip("/") + "/" if prefix.strip("/") else "")


def folder(value: Any) -> Path:
    text = _text(value)
    if not text:
        raise ValueError
    return Path(text).expanduser()  # RuntimeError when there is no such user


def folders(value: Any) -> tuple[Path, ...]:
    folders = tuple(folder(item) for item in _items(value, ":"))
    if not folders or len(set(folders)) < len(folders):
        raise ValueError
    return folders


def _rule(value: Any) -> StalenessRule:
    prefix, separator, policy = _text(value).rpartition("=")
    if policy == "strict" and separator:
        return StalenessRule(prefix, None)
    seconds = float(policy.removeprefix("bounded:"))
    if not separator or not policy.startswith("bounded:") or not 0 <= seconds < 1e9:
        raise ValueError
    return StalenessRule(prefix, seconds)


def rules(value: Any) -> tuple[StalenessRule, ...]:
    """One for each prefix at most: of two, nobody could say which holds."""
    rules = tuple(_rule(item) for item in _items(value, ","))
    if len({rule.prefix for rule in rules}) < len(rules):
        raise ValueError
    return rules


def shown(name: str, value: Any) -> Any:
    """A value of the setting `name` for JSON, in a form that it would be taken in."""
    if name == "mount_umask":
        return f"{value:03o}"
    if isinstance(value, tuple):
        return [shown(name, item) for item in value]
    if isinstance(value, StalenessRule):
        rule = "strict" if value.bounded_s is None else f"bounded:{value.bounded_s:g}"
        return f"{value.prefix}={rule}"
    if isinstance(value, PriceOverride):
        return f"{value.hub_to_spoke:g}/{value.spoke_to_hub:g}"
    if isinstance(value, S3Location):
        return f"s3://{value.bucket}/{value.prefix}"
    if isinstance(value, Rescan):
        return "off" if value.seconds is None else value.seconds
    return value if isinstance(value, bool | int | float) else str(value)


def switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}[
        str(value).lower()
    ]


def price(value: Any) -> PriceOverride:
    return parse_price(str(value))


def region(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", _text(value)):
        raise ValueError
    return _text(value)


def bucket(value: Any) -> str:
    if not _BUCKET.fullmatch(_text(value)):
        raise ValueError
    return _text(value)


def level(value: Any) -> str:
    if str(value).lower() not in ("debug", "info", "warning", "error"):
        raise ValueError
    return str(value).lower()
