"""Settings of the two processes: flag beats environment beats file beats default.

Decides what a setting may be and says, for a wrong one, where it came from (the flag, the
variable or the key of the file), what was given and what would be right. It opens nothing but
the configuration file: whether a folder or a port can be had is found out by run.py.

Environment: HUBSPOKE_HUB_<FLAG> and HUBSPOKE_SPOKE_<FLAG>; a list of folders is separated by
":", a list of policies by ",". Variables with other names are left alone: Kubernetes sets some
with this prefix for any service called "hubspoke-...". File: TOML, the flags' names as keys,
at the top or in a table [hub] or [spoke], so that one file can serve both.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hubspoke.errors import ConfigError
from hubspoke.report.cost import PriceOverride, parse_price

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGTP]i?B)?", re.IGNORECASE)
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
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError
    unit = (match[2] or "B").upper()
    power = "BKMGTP".index(unit[0])
    return int(float(match[1]) * (1024 if "I" in unit else 1000) ** power)


def _cache_size(value: Any) -> int:
    size = parse_size(value)
    if size < _CACHE_BYTES_MIN:
        raise ValueError
    return size


def _dwpd(value: Any) -> float:
    rating = float(value)
    if not 0 < rating <= 1_000:
        raise ValueError
    return rating


def _endpoint(value: Any) -> Endpoint:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s/]+)):(\d{1,5})", str(value))
    if match is None or int(match[3]) > 65535:
        raise ValueError
    return Endpoint(match[1] or match[2], int(match[3]))


def _hub_url(value: Any) -> str:
    parts = urlsplit(str(value))
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme != "http" or not parts.hostname or not plain or "@" in parts.netloc:
        raise ValueError
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{parts.port or 7070}"  # .port raises ValueError when out of range


def _store(value: Any) -> Path | S3Location:
    text = str(value)
    if not text.startswith("s3://"):
        if not text or "://" in text:
            raise ValueError
        return Path(text).expanduser()
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError
    return S3Location(bucket, prefix.rstrip("/") + "/" if prefix.strip("/") else "")


def _folder(value: Any) -> Path:
    if not str(value):
        raise ValueError
    return Path(str(value)).expanduser()


def _folders(value: Any) -> tuple[Path, ...]:
    items = value.split(":") if isinstance(value, str) else list(value)
    folders = tuple(_folder(item) for item in items)
    if not folders or len(set(folders)) < len(folders):
        raise ValueError
    return folders


def _rule(value: Any) -> StalenessRule:
    prefix, separator, policy = str(value).rpartition("=")
    if policy == "strict" and separator:
        return StalenessRule(prefix, None)
    seconds = float(policy.removeprefix("bounded:"))
    if not separator or not policy.startswith("bounded:") or not 0 <= seconds < 1e9:
        raise ValueError
    return StalenessRule(prefix, seconds)


def _rules(value: Any) -> tuple[StalenessRule, ...]:
    items = value.split(",") if isinstance(value, str) else list(value)
    return tuple(_rule(item) for item in items)


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}[
        str(value).lower()
    ]


def _price(value: Any) -> PriceOverride:
    return parse_price(str(value))


def _region(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(value)):
        raise ValueError
    return str(value)


def _bucket(value: Any) -> str:
    if not _BUCKET.fullmatch(str(value)):
        raise ValueError
    return str(value)


def _level(value: Any) -> str:
    if str(value).lower() not in ("debug", "info", "warning", "error"):
        raise ValueError
    return str(value).lower()


def _checked(parse: Callable[[Any], Any], expected: str) -> tuple[BeforeValidator, Any]:
    """The parser of one kind of setting, and the words for what would be right."""

    def validate(value: Any) -> Any:
        try:
            return parse(value)
        except (ValueError, KeyError, TypeError, ConfigError) as e:
            raise ValueError(expected) from e

    return BeforeValidator(validate), Field(description=expected)


_HOST_PORT = _checked(_endpoint, "HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
_FOLDER = _checked(_folder, "a folder")
_ON_OFF = _checked(_switch, "on or off")
_REGION = _checked(_region, "a region's name, such as us-east-2")
_LEVEL = _checked(_level, "debug, info, warning or error")
LogLevel = Literal["debug", "info", "warning", "error"]


class _Config(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=False
    )
    process: ClassVar[str]

    listen: Annotated[Endpoint, *_HOST_PORT]
    admin: Annotated[Endpoint, *_HOST_PORT]
    insecure: Annotated[bool, *_ON_OFF] = False
    log_level: Annotated[LogLevel, *_LEVEL] = "info"

    def ports(self) -> dict[str, Endpoint]:
        """The ports to bind, by flag."""
        return {"--listen": self.listen, "--admin": self.admin}


class HubConfig(_Config):
    """`hubspoke hub`. state None: a folder of its own per store under the user's state folder."""

    process: ClassVar[str] = "hub"

    store: Annotated[Path | S3Location, *_checked(_store, "a folder, or s3://BUCKET/PREFIX")]
    bucket: Annotated[
        str | None,
        *_checked(_bucket, "a bucket's name: 3 to 63 of a-z, 0-9, '.', '-'"),
    ] = None
    listen: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 7070)
    admin: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 7071)
    state: Annotated[Path | None, *_FOLDER] = None
    region: Annotated[str, *_REGION] = ""


class SpokeConfig(_Config):
    """`hubspoke spoke`. cache_size None: 80 % of the free space. state None: the first cache."""

    process: ClassVar[str] = "spoke"

    hub: Annotated[str, *_checked(_hub_url, "http://HOST:PORT, the hub's data port")]
    cache: Annotated[tuple[Path, ...], *_checked(_folders, "one or more different folders")]
    cache_size: Annotated[
        int | None, *_checked(_cache_size, "a size of at least 1MiB, such as 512MiB, 10GiB or 2TB")
    ] = None
    state: Annotated[Path | None, *_FOLDER] = None
    listen: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 8080)
    admin: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 8081)
    region: Annotated[str, *_REGION] = ""
    policy: Annotated[
        tuple[StalenessRule, ...],
        *_checked(_rules, "PREFIX=strict or PREFIX=bounded:SECONDS"),
    ] = ()
    prefetch: Annotated[bool, *_ON_OFF] = True
    cache_dwpd: Annotated[
        float | None, *_checked(_dwpd, "full drive writes per day the cache's drives stand, as 0.3")
    ] = None
    price: Annotated[
        PriceOverride | None,
        *_checked(_price, "USD per GB, such as 0.02, or HUB-TO-SPOKE/SPOKE-TO-HUB, 0.02/0.05"),
    ] = None


C = TypeVar("C", bound=_Config)


def load(kind: type[C], flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> C:
    """Settings of `kind` from flags (by field name, plus "config"), environment and file.

    Raises ConfigError: one line that names the source of the wrong value, the value and what
    would be right.
    """
    names = [name for name in kind.model_fields]
    variable = {name: f"HUBSPOKE_{kind.process.upper()}_{name.upper()}" for name in names}
    origins: dict[str, str] = {}
    values: dict[str, Any] = {}
    config_variable = f"HUBSPOKE_{kind.process.upper()}_CONFIG"
    file = flags.get("config") or environ.get(config_variable)
    if file:
        for key, value in _read_file(Path(str(file)), kind).items():
            values[key], origins[key] = value, f"{file}: {_flag(key)[2:]}"
    for name in names:
        if environ.get(variable[name]):
            values[name], origins[name] = environ[variable[name]], variable[name]
        if flags.get(name) not in (None, (), []):
            values[name], origins[name] = flags[name], _flag(name)
    try:
        config = kind.model_validate(values)
    except ValidationError as e:
        raise ConfigError(_message(kind, e, origins, variable)) from e
    _check_ports(config, origins)
    if isinstance(config, HubConfig) and config.bucket and isinstance(config.store, S3Location):
        raise ConfigError(
            f"{origins['bucket']}: {config.bucket!r}: only for a folder; "
            f"s3://{config.store.bucket} is served as bucket {config.store.bucket}"
        )
    return config


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _read_file(path: Path, kind: type[_Config]) -> dict[str, Any]:
    """The settings for `kind` in a TOML file, by field name."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise ConfigError(f"--config: {str(path)!r}: expected a TOML file: {reason}") from e
    tables = {name: content.pop(name, {}) for name in ("hub", "spoke")}
    # `hub` is also a setting of the spoke: as a text it is the URL, as a table the hub's settings.
    if isinstance(tables["hub"], str):
        content["hub"] = tables.pop("hub")
    table = tables.get(kind.process, {})
    if not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f"{path}: {kind.process}: expected a table, [{kind.process}]")
    both = sorted(content.keys() & table.keys())
    if both:
        raise ConfigError(f"{path}: {both[0]}: given at the top and in [{kind.process}]")
    settings = {**content, **table}
    known = {_flag(name)[2:]: name for name in kind.model_fields}
    for key in settings:
        if key not in known:
            raise ConfigError(f"{path}: {key}: unknown key; expected one of {', '.join(known)}")
    return {known[key]: value for key, value in settings.items()}


def _message(
    kind: type[_Config],
    error: ValidationError,
    origins: Mapping[str, str],
    variable: Mapping[str, str],
) -> str:
    """One line for the first wrong setting."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    expected = kind.model_fields[name].description
    if first["type"] == "missing":
        return f"{_flag(name)}: not given (nor {variable[name]}); expected {expected}"
    return f"{origins[name]}: {_shown(first['input'])}: expected {expected}"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(repr(str(item)) for item in value)
    return repr(value)


def _check_ports(config: _Config, origins: Mapping[str, str]) -> None:
    """No port beyond loopback without --insecure, and no port twice."""
    ports = config.ports()
    for flag, endpoint in ports.items():
        origin = origins.get(flag[2:], flag)
        if not endpoint.loopback and not config.insecure:
            raise ConfigError(
                f"{origin}: {str(endpoint)!r}: anybody who reaches this address could read and "
                f"write, there are no credentials and no TLS; expected 127.0.0.1:{endpoint.port}, "
                "or --insecure with it"
            )
    if ports["--listen"] == ports["--admin"] and ports["--listen"].port:
        origin = origins.get("admin", origins.get("listen", "--admin"))
        raise ConfigError(f"{origin}: {str(ports['--admin'])!r}: expected two different ports")
