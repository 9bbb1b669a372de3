"""Settings: precedence, every kind of value, and errors that name source, value and remedy."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubspoke.config import HubConfig, SpokeConfig, load
from hubspoke.errors import ConfigError
from hubspoke.report.cost import PriceOverride
from hubspoke.values import Endpoint, Rescan, S3Location, StalenessRule, parse_size

SPOKE: dict[str, Any] = {"hub": "http://127.0.0.1:7070", "cache": ["/c"]}


def spoke(environ: dict[str, str] | None = None, **flags: Any) -> SpokeConfig:
    return load(SpokeConfig, {**SPOKE, **flags}, environ or {})


def hub(environ: dict[str, str] | None = None, **flags: Any) -> HubConfig:
    return load(HubConfig, {"store": "/data", **flags}, environ or {})


def test_defaults_are_those_of_the_interface() -> None:
    config = spoke()
    assert (str(config.listen), str(config.admin)) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert (config.cache_size, config.state, config.prefetch) == (None, None, True)
    assert (config.policy, config.price, config.region) == ((), None, "")
    hub_config = hub()
    assert (str(hub_config.listen), str(hub_config.admin)) == ("127.0.0.1:7070", "127.0.0.1:7071")
    assert hub_config.store == Path("/data")


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "hubspoke.toml"
    file.write_text('[spoke]\ncache-size = "3GiB"\nprefetch = false\nregion = "us-west-2"\n')
    environ = {"HUBSPOKE_SPOKE_CACHE_SIZE": "2GiB", "HUBSPOKE_SPOKE_PREFETCH": "on"}
    config = spoke(environ, config=str(file), cache_size="1GiB")
    assert config.cache_size == 1 << 30
    assert config.prefetch is True
    assert config.region == "us-west-2"
    assert spoke(environ, config=str(file)).cache_size == 2 << 30
    assert spoke(config=str(file)).cache_size == 3 << 30
    assert spoke().cache_size is None


def test_the_file_itself_can_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "hubspoke.toml"
    file.write_text('hub = "http://10.0.0.1:7070"\ncache = ["/a", "/b"]\n')
    config = load(SpokeConfig, {}, {"HUBSPOKE_SPOKE_CONFIG": str(file)})
    assert config.hub == "http://10.0.0.1:7070"
    assert config.cache == (Path("/a"), Path("/b"))


def test_what_is_shown_is_what_a_file_might_say() -> None:
    given = {
        "hub": "http://h:7070",
        "cache": ["/a", "/b"],
        "cache_size": 2**30,
        "listen": "127.0.0.1:8080",
        "policy": ["data/a=strict", "data/b=bounded:60"],
        "mount": "/mnt",
        "mount_umask": "027",
        "allow_other": True,
        "price": "0.02/0.05",
    }
    config = load(SpokeConfig, given, {})
    shown = json.loads(json.dumps(config.shown()))
    assert shown.items() >= given.items()
    assert load(SpokeConfig, shown, {}) == config
    given = {"store": "s3://bucket/below/", "rescan": "off"}
    hub = load(HubConfig, given, {})
    assert hub.shown().items() >= given.items()
    assert load(HubConfig, hub.shown(), {}) == hub


def test_one_file_serves_both_processes(tmp_path: Path) -> None:
    file = tmp_path / "hubspoke.toml"
    file.write_text('region = "us-east-2"\n[hub]\nstore = "/data"\n[spoke]\nhub = "http://h"\n')
    assert load(HubConfig, {"config": file}, {}).region == "us-east-2"
    assert load(SpokeConfig, {"config": file, "cache": ["/c"]}, {}).hub == "http://h:7070"


def test_everything_can_come_from_the_environment() -> None:
    environ = {
        "HUBSPOKE_SPOKE_HUB": "http://[::1]:7070/",
        "HUBSPOKE_SPOKE_CACHE": "/a:/b",
        "HUBSPOKE_SPOKE_POLICY": "data/a=strict,data/b=bounded:60",
        "HUBSPOKE_SPOKE_INSECURE": "true",
        "HUBSPOKE_SPOKE_LISTEN": "0.0.0.0:80",
        "HUBSPOKE_SPOKE_PORT": "tcp://10.0.0.1:80",  # set by Kubernetes, not by the user
        "HUBSPOKE_SPOKE_REGION": "",  # empty is not set
    }
    config = load(SpokeConfig, {}, environ)
    assert config.hub == "http://[::1]:7070"
    assert config.cache == (Path("/a"), Path("/b"))
    assert config.policy == (StalenessRule("data/a", None), StalenessRule("data/b", 60.0))
    assert config.listen == Endpoint("0.0.0.0", 80)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20),
        ("10GiB", 10 << 30),
        ("2TB", 2 * 10**12),
        ("1.5KiB", 1536),
        ("1048576", 1 << 20),
        ("7 kb", 7000),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "10G", "ten", "-1GiB", "1e9", "GiB", "1GiB2", True, None])
def test_wrong_sizes(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("/data", Path("/data")),
        ("s3://corpus", S3Location("corpus", "")),
        ("s3://corpus/", S3Location("corpus", "")),
        ("s3://corpus/a/b", S3Location("corpus", "a/b/")),
        ("s3://corpus/a/b/", S3Location("corpus", "a/b/")),
    ],
)
def test_stores(store: str, expected: object) -> None:
    assert hub(store=store).store == expected


def test_a_prefix_may_hold_an_equals_sign() -> None:
    rules = spoke(policy=["data/date=1/=strict", "=bounded:0"]).policy
    assert rules == (StalenessRule("data/date=1/", None), StalenessRule("", 0.0))


def test_prices_for_both_directions_or_each() -> None:
    assert spoke(price="0.02").price == PriceOverride(0.02, 0.02)
    assert spoke(price="0.02/0").price == PriceOverride(0.02, 0.0)
    assert (spoke().cache_dwpd, spoke(cache_dwpd="0.3").cache_dwpd) == (None, 0.3)
    assert (spoke().runway, spoke(runway="90").runway) == (0.0, 90.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"cache_size": "10G"},
            "--cache-size: '10G': expected a size of at least 1MiB, such as 512MiB, 10GiB or 2TB",
        ),
        ({"cache_size": "0"}, "--cache-size: '0': expected a size of at least 1MiB"),
        ({"hub": "127.0.0.1:7070"}, "--hub: '127.0.0.1:7070': expected http://HOST:PORT"),
        ({"hub": "https://h:7070"}, "--hub: 'https://h:7070': expected http://HOST:PORT"),
        ({"hub": "http://h:99999"}, "--hub: 'http://h:99999': expected"),
        ({"hub": "http://u:p@h"}, "--hub: 'http://u:p@h': expected"),
        ({"hub": "http://h/path"}, "--hub: 'http://h/path': expected"),
        ({"hub": "http://a b"}, "--hub: 'http://a b': expected"),
        ({"hub": "http://a\nb:1"}, r"--hub: 'http://a\nb:1': expected"),
        ({"hub": "http://h:0"}, "--hub: 'http://h:0': expected"),
        ({"cache_size": "9" * 400}, "--cache-size: '9999"),
        ({"cache": ["~nosuchuser/x"]}, "--cache: '~nosuchuser/x': expected one or more"),
        ({"state": "~nosuchuser/x"}, "--state: '~nosuchuser/x': expected a folder"),
        ({"listen": "a..b:80"}, "--listen: 'a..b:80': expected HOST:PORT"),
        ({"policy": ["a,b=strict"]}, "--policy: 'a', 'b=strict': expected PREFIX=strict or"),
        ({"policy": ["a=strict", "a=bounded:9"]}, "--policy: 'a=strict', 'a=bounded:9': expected"),
        ({"policy": ["a=bounded:nan"]}, "--policy: 'a=bounded:nan': expected PREFIX=strict"),
        ({"policy": ["a=bounded:-1"]}, "--policy: 'a=bounded:-1': expected PREFIX=strict"),
        ({"policy": ["strict"]}, "--policy: 'strict': expected PREFIX=strict"),
        ({"price": "1e308"}, "--price: '1e308': expected USD per GB"),
        ({"cache": ["/c", "/c"]}, "--cache: '/c', '/c': expected one or more different folders"),
        ({"cache": [""]}, "--cache: '': expected one or more"),
        ({"state": Path("")}, None),
        ({"listen": "8080"}, "--listen: '8080': expected HOST:PORT"),
        ({"listen": "127.0.0.1:70000"}, "--listen: '127.0.0.1:70000': expected HOST:PORT"),
        ({"policy": ["a=sometimes"]}, "--policy: 'a=sometimes': expected PREFIX=strict or"),
        ({"policy": ["strict"]}, "--policy: 'strict': expected PREFIX=strict or"),
        ({"policy": ["a=bounded:-1"]}, "--policy: 'a=bounded:-1': expected PREFIX=strict or"),
        ({"policy": ["a=bounded:nan"]}, "--policy: 'a=bounded:nan': expected PREFIX=strict"),
        ({"prefetch": "maybe"}, "--prefetch: 'maybe': expected on or off"),
        ({"price": "free"}, "--price: 'free': expected USD per GB"),
        ({"price": "-1"}, "--price: '-1': expected USD per GB"),
        ({"cache_dwpd": "0"}, "--cache-dwpd: '0': expected full drive writes per day"),
        ({"runway": "-1"}, "--runway: '-1': expected seconds of reading"),
        ({"runway": "nan"}, "--runway: 'nan': expected seconds of reading"),
        ({"cache_dwpd": "much"}, "--cache-dwpd: 'much': expected full drive writes per day"),
        ({"price": "1/2/3"}, "--price: '1/2/3': expected USD per GB"),
        ({"region": "us east"}, "--region: 'us east': expected a region's name"),
        ({"log_level": "loud"}, "--log-level: 'loud': expected debug, info, warning or error"),
        ({"admin": "127.0.0.1:8080"}, "--admin: '127.0.0.1:8080': expected two different ports"),
    ],
)
def test_a_wrong_flag_names_flag_value_and_remedy(
    flags: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert spoke(**flags).state == Path(".")
        return
    with pytest.raises(ConfigError) as e:
        spoke(**flags)
    assert str(e.value).startswith(message)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"store": "gs://bucket"}, "--store: 'gs://bucket': expected a folder, or s3://"),
        ({"store": "~nosuchuser/x"}, "--store: '~nosuchuser/x': expected a folder"),
        ({"store": "s3://UPPER"}, "--store: 's3://UPPER': expected a folder, or s3://"),
        ({"bucket": "Nope"}, "--bucket: 'Nope': expected a bucket's name"),
        ({"store": "s3://a-b", "bucket": "other"}, "--bucket: 'other': only for a folder"),
        ({"store": None}, "--store: not given (nor HUBSPOKE_HUB_STORE); expected a folder"),
        ({"rescan": "0.5"}, "--rescan: '0.5': expected seconds from 1 to 10000000, such as 300"),
        ({"rescan": "nan"}, "--rescan: 'nan': expected seconds"),
        ({"rescan": "on"}, "--rescan: 'on': expected seconds"),
        ({"rescan": True}, "--rescan: True: expected seconds"),
    ],
)
def test_a_wrong_flag_of_the_hub(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        hub(**flags)
    assert str(e.value).startswith(message)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^HUBSPOKE_SPOKE_CACHE_SIZE: 'big': expected a size"):
        spoke({"HUBSPOKE_SPOKE_CACHE_SIZE": "big"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[spoke]\ncache-size = "big"', ": cache-size: 'big': expected a size"),
        ("[spoke]\nmounted = 1", ": mounted: unknown key; expected one of"),
        ("[spoke]\nmount-umask = 888", ": mount-umask: 888: expected an octal umask"),
        ("mount-uid = -1", ": mount-uid: -1: expected a number from 0"),
        ("chache = 1", ": chache: unknown key; expected one of"),
        ("region = 'a'\n[spoke]\nregion = 'b'", ": region: given at the top and in [spoke]"),
        ("spoke = 1", ": spoke: expected a table, [spoke]"),
        ("= nonsense", "': expected a TOML file: "),
        ("a = " + "[" * 9999, "': expected a TOML file: "),
        ("a = " + "9" * 9999, "': expected a TOML file: "),
        ('state = "\\u0000"', r": state: '\x00': expected a folder"),
        ("state = true", ": state: True: expected a folder"),
        ("cache = {a = 1}", ": cache: {'a': 1}: expected one or more different folders"),
        ("region = 2026-01-01", ": region: datetime.date(2026, 1, 1): expected a region's name"),
        ("cache-size = 0x" + "f" * 9999, ": cache-size: a number: expected a size"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as e:
        spoke(config=str(file))
    assert f"{file}{message}" in str(e.value)


def test_a_wrong_value_is_named_though_another_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("listen = true")
    with pytest.raises(ConfigError, match=r"wrong\.toml: listen: True: expected HOST:PORT"):
        spoke(config=str(file), listen="127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^HUBSPOKE_SPOKE_LISTEN: 'x': expected HOST:PORT"):
        spoke({"HUBSPOKE_SPOKE_LISTEN": "x"}, listen="127.0.0.1:1")


def test_policies_are_separated_by_commas_but_in_a_list_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "list.toml"
    file.write_text('policy = ["a,b=strict", "c=strict"]')
    commas = (StalenessRule("a,b", None), StalenessRule("c", None))
    assert spoke(config=str(file)).policy == commas
    apart = (StalenessRule("a", None), StalenessRule("b", 1.0))
    assert spoke(policy=["a=strict,b=bounded:1"]).policy == apart
    assert spoke(policy=["a=strict", "b=bounded:1"]).policy == apart


TEXTS = st.one_of(
    st.text(max_size=40),
    st.text("0123456789.:/-+~[]%@?#=, \t\nabceghimnoprstuxyKMGTPiB", max_size=40),
    st.from_regex(r"(http|s3)://.{0,20}", fullmatch=True),
    st.from_regex(r"-?\d{1,400}(\.\d+)?([KMGTP]i?B)?", fullmatch=True),
)


@pytest.mark.parametrize("name", sorted(SpokeConfig.model_fields))
@given(text=TEXTS)
@example(text="~nosuchuser/x")
def test_any_text_for_the_spoke_is_accepted_or_one_line(name: str, text: str) -> None:
    flags: dict[str, Any] = {name: [text] if name in ("cache", "policy") else text}
    try:
        spoke(**flags)
    except ConfigError as e:
        assert len(str(e).splitlines()) == 1


@pytest.mark.parametrize("name", sorted(HubConfig.model_fields))
@given(text=TEXTS)
@example(text="~nosuchuser/x")
def test_any_text_for_the_hub_is_accepted_or_one_line(name: str, text: str) -> None:
    flags: dict[str, Any] = {name: text}
    try:
        hub(**flags)
    except ConfigError as e:
        assert len(str(e).splitlines()) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config: .*absent\.toml.*No such file"):
        spoke(config=str(tmp_path / "absent.toml"))


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "example.org:8080"])
def test_a_port_beyond_loopback_needs_insecure(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^--listen: .*--insecure"):
        spoke(listen=address)
    assert str(spoke(listen=address, insecure=True).listen) == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.8.8:1", "[::1]:8080", "localhost:9"])
def test_loopback_needs_nothing(address: str) -> None:
    assert spoke(listen=address).listen.loopback


@pytest.mark.parametrize(
    ("given", "seconds"), [("300", 300.0), (60, 60.0), ("off", None), (False, None)]
)
def test_a_rescan_is_seconds_or_off(given: object, seconds: float | None) -> None:
    assert hub(rescan=given).rescan == Rescan(seconds)
    assert hub().rescan is None
