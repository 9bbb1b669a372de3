"""Settings of the two processes: flag beats environment beats file beats default.

Decides what a setting may be and says, for a wrong one, where it came from (the flag, the
variable or the key of the file), what was given and what would be right. It opens nothing but
the configuration file: whether a folder or a port can be had is found out by run.py.

Environment: HUBSPOKE_HUB_<FLAG> and HUBSPOKE_SPOKE_<FLAG>; a list of folders is separated by
":", a list of policies by ",". Variables with other names are left alone: Kubernetes sets some
with this prefix for any service called "hubspoke-...". File: TOML, the flags' names as keys,
at the top or in a table [hub] or [spoke], so that one file can serve both.
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hubspoke import values
from hubspoke.errors import ConfigError
from hubspoke.report.cost import PriceOverride
from hubspoke.values import Endpoint, Rescan, S3Location, StalenessRule

_SHOWN_MAX = 200  # of a wrong value: the line must stay one that is read


def _checked(parse: Callable[[Any], Any], expected: str) -> tuple[BeforeValidator, Any]:
    """The parser of one kind of setting, and the words for what would be right."""

    def validate(value: Any) -> Any:
        try:
            return parse(value)
        except (ValueError, KeyError, TypeError, OverflowError, RuntimeError, ConfigError) as e:
            raise ValueError(expected) from e

    return BeforeValidator(validate), Field(description=expected)


_HOST_PORT = _checked(values.endpoint, "HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
_FOLDER = _checked(values.folder, "a folder")
_ON_OFF = _checked(values.switch, "on or off")
_ID = _checked(values.user_id, "a number from 0 to 4294967294, as `id` shows it")
_REGION = _checked(values.region, "a region's name, such as us-east-2")
_LEVEL = _checked(values.level, "debug, info, warning or error")
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

    def shown(self) -> dict[str, Any]:
        """What is set, as a file might set it: for a JSON document."""
        return {name: values.shown(name, value) for name, value in self if value not in (None, "")}

    def ports(self) -> dict[str, Endpoint]:
        """The ports to bind, by flag."""
        return {"--listen": self.listen, "--admin": self.admin}


class HubConfig(_Config):
    """`hubspoke hub`. state None: a folder of its own per store under the user's state folder.
    rescan None: where the store tells no changes, every 60 s (folder) or 300 s (S3)."""

    process: ClassVar[str] = "hub"

    store: Annotated[Path | S3Location, *_checked(values.store, "a folder, or s3://BUCKET/PREFIX")]
    bucket: Annotated[
        str | None,
        *_checked(values.bucket, "a bucket's name: 3 to 63 of a-z, 0-9, '.', '-'"),
    ] = None
    listen: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 7070)
    admin: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 7071)
    state: Annotated[Path | None, *_FOLDER] = None
    region: Annotated[str, *_REGION] = ""
    rescan: Annotated[
        Rescan | None,
        *_checked(values.rescan, "seconds from 1 to 10000000, such as 300, or off"),
    ] = None


class SpokeConfig(_Config):
    """`hubspoke spoke`. cache_size None: 80 % of the free space. state None: the first cache."""

    process: ClassVar[str] = "spoke"

    hub: Annotated[str, *_checked(values.hub_url, "http://HOST:PORT, the hub's data port")]
    cache: Annotated[tuple[Path, ...], *_checked(values.folders, "one or more different folders")]
    cache_size: Annotated[
        int | None,
        *_checked(values.cache_size, "a size of at least 1MiB, such as 512MiB, 10GiB or 2TB"),
    ] = None
    state: Annotated[Path | None, *_FOLDER] = None
    listen: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 8080)
    admin: Annotated[Endpoint, *_HOST_PORT] = Endpoint("127.0.0.1", 8081)
    region: Annotated[str, *_REGION] = ""
    policy: Annotated[
        tuple[StalenessRule, ...],
        *_checked(values.rules, "PREFIX=strict or PREFIX=bounded:SECONDS, each prefix once"),
    ] = ()
    prefetch: Annotated[bool, *_ON_OFF] = True
    infer_order: Annotated[bool, *_ON_OFF] = True
    runway: Annotated[
        float, *_checked(values.runway, "seconds of reading to have ahead, from 0 to 86400")
    ] = 0.0
    cache_dwpd: Annotated[
        float | None,
        *_checked(values.dwpd, "full drive writes per day the cache's drives stand, as 0.3"),
    ] = None
    mount: Annotated[Path | None, *_FOLDER] = None
    mount_uid: Annotated[int | None, *_ID] = None
    mount_gid: Annotated[int | None, *_ID] = None
    mount_umask: Annotated[
        int, *_checked(values.umask, "an octal umask from 000 to 777, such as 022")
    ] = 0o022
    allow_other: Annotated[bool, *_ON_OFF] = False
    passthrough: Annotated[bool, *_ON_OFF] = True
    price: Annotated[
        PriceOverride | None,
        *_checked(
            values.price, "USD per GB, such as 0.02, or HUB-TO-SPOKE/SPOKE-TO-HUB, 0.02/0.05"
        ),
    ] = None


C = TypeVar("C", bound=_Config)


def load(kind: type[C], flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> C:
    """Settings of `kind` from flags (by field name, plus "config"), environment and file.

    Raises ConfigError: one line that names the source of the wrong value, the value and what
    would be right.
    """
    variable = _variables(kind)
    origins: dict[str, str] = {}
    chosen: dict[str, Any] = {}
    for name, value, origin in _given(kind, flags, environ, variable):
        # Each one, not only the one that wins: a wrong line must not wait for the day on which
        # the flag above it is left out.
        _check_alone(kind, name, value, origin)
        chosen[name], origins[name] = value, origin
    try:
        config = kind.model_validate(chosen)
    except ValidationError as e:
        raise ConfigError(_message(kind, e, origins, variable)) from e
    _check_ports(config, origins)
    if isinstance(config, HubConfig) and config.bucket and isinstance(config.store, S3Location):
        raise ConfigError(
            f"{origins['bucket']}: {config.bucket!r}: only for a folder; "
            f"s3://{config.store.bucket} is served as bucket {config.store.bucket}"
        )
    return config


def given(
    kind: type[_Config], flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Only the settings of `kind` that are given somewhere, by field name, each by itself.

    Raises ConfigError as `load`, but not for what is missing or does not go together.
    """
    return {
        name: _check_alone(kind, name, value, origin)
        for name, value, origin in _given(kind, flags, environ, _variables(kind))
    }


def _variables(kind: type[_Config]) -> dict[str, str]:
    """The environment's name of each setting."""
    return {name: f"HUBSPOKE_{kind.process.upper()}_{name.upper()}" for name in kind.model_fields}


def _given(
    kind: type[_Config],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    variable: Mapping[str, str],
) -> Iterator[tuple[str, Any, str]]:
    """(name, value, where from) of all sources, the weakest first."""
    file = flags.get("config")
    if file is None:
        file = environ.get(f"HUBSPOKE_{kind.process.upper()}_CONFIG") or None
    if file is not None:
        for key, value in _read_file(Path(str(file)), kind).items():
            yield key, value, f"{file}: {_flag(key)[2:]}"
    for name in variable:
        if environ.get(variable[name]):
            yield name, environ[variable[name]], variable[name]
    for name in variable:
        value = flags.get(name)
        if name == "policy" and isinstance(value, list | tuple):
            # As in the variable: "a=strict,b=strict" would else be one rule, of the prefix
            # "a=strict,b". A prefix with a comma goes into the file's list.
            value = [part for item in value for part in str(item).split(",")]
        if value not in (None, (), []):
            yield name, value, _flag(name)


def _check_alone(kind: type[_Config], name: str, value: Any, origin: str) -> Any:
    """The value, parsed."""
    field = kind.model_fields[name]
    for validator in field.metadata:
        if isinstance(validator, BeforeValidator):
            try:
                value = validator.func(value)  # type: ignore[call-arg]  # ours take it alone
            except ValueError as e:
                raise ConfigError(f"{origin}: {_shown(value)}: expected {field.description}") from e
    return value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _read_file(path: Path, kind: type[_Config]) -> dict[str, Any]:
    """The settings for `kind` in a TOML file, by field name."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e).splitlines()[0]
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
        return ", ".join(_shown(str(item)) for item in value)
    try:
        shown = repr(value)
    except ValueError:  # a number of more digits than Python writes out
        shown = "a number"
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."


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
