"""`hubspoke doctor`: the findings as lines, or as one JSON document.

Like cli.py it imports nothing heavy before it knows the command.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from hubspoke.cli_parts import Json, fail, option, print_json
from hubspoke.errors import ConfigError

if TYPE_CHECKING:
    from hubspoke.doctor.examine import Subject
    from hubspoke.doctor.judge.finding import Finding

SCHEMA = 1
_COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def doctor(
    hub: Annotated[str | None, option("--hub", "URL", "The hub's data port.")] = None,
    cache: Annotated[
        list[str] | None, option("--cache", "DIR", "A spoke's cache folder; repeatable.")
    ] = None,
    mount: Annotated[str | None, option("--mount", "DIR", "Where a spoke mounts.")] = None,
    store: Annotated[
        str | None, option("--store", "DIR|s3://BUCKET[/PREFIX]", "A hub's store, on its host.")
    ] = None,
    bucket: Annotated[
        str | None, option("--bucket", "NAME", "The whole folder is this one bucket.")
    ] = None,
    state: Annotated[
        str | None, option("--state", "DIR", "A spoke's state folder, or a hub's with --store.")
    ] = None,
    config: Annotated[str | None, option("--config", "FILE", "The processes' TOML file.")] = None,
    as_json: Json = False,
) -> None:
    """What on this host or in this configuration will hurt, and the remedy.

    Takes the settings of `hub` and `spoke` from where they take them: flags, variables, the TOML
    file. Writes up to 64 MiB to each cache folder for a moment and mounts once for a moment, if it
    may; leaves nothing behind. Exit status: 0 no problem, 1 a problem, 2 a wrong setting.
    """
    flags = {
        "hub": hub, "cache": cache, "mount": mount, "store": store, "bucket": bucket,
        "state": state, "config": config,
    }  # fmt: skip
    try:
        subject = _subject(flags)
    except ConfigError as e:
        fail("doctor", e, 2)
    from hubspoke.doctor.examine import Examination
    from hubspoke.doctor.judge.finding import Severity, worst

    found: list[Finding] = []
    shown = _quietly if as_json else _show
    found.extend(shown(Examination(subject).findings()))
    if as_json:
        print_json(_document(subject, found))
    raise SystemExit(1 if worst(found) is Severity.PROBLEM else 0)


def _subject(flags: dict[str, Any]) -> "Subject":
    """Raises ConfigError."""
    from hubspoke.config import HubConfig, SpokeConfig, given
    from hubspoke.doctor.examine import Subject
    from hubspoke.values import S3Location, folder

    spoke_flags, hub_flags = dict(flags), dict(flags)
    # The flag --state means the process that the other flags mean.
    of_hub = flags["store"] is not None and flags["cache"] is None
    (spoke_flags if of_hub else hub_flags)["state"] = None
    spoke, hub = given(SpokeConfig, spoke_flags), given(HubConfig, hub_flags)
    store = hub.get("store")
    if isinstance(store, S3Location):
        store = f"s3://{store.bucket}/{store.prefix}"
    try:
        mount = spoke.get("mount") if flags["mount"] is None else folder(flags["mount"])
    except (ValueError, RuntimeError) as e:
        raise ConfigError(f"--mount: {flags['mount']!r}: expected a folder") from e
    return Subject(
        hub=spoke.get("hub"),
        caches=spoke.get("cache", ()),
        state=hub.get("state") if of_hub else spoke.get("state"),
        mount=mount,
        store=store,
        bucket=hub.get("bucket"),
    )


def _quietly(findings: "Iterable[Finding]") -> "Iterable[Finding]":
    return findings


def _show(findings: "Iterable[Finding]") -> "Iterable[Finding]":
    """Print each as it is made: a check may take seconds."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        severity = finding.severity.value
        line = Text(f"{severity:8}", style=_COLORS[severity])
        line.append(f" {finding.check}: {finding.found}", style="default")
        console.print(line)
        if finding.remedy:
            console.print(Text(f"{'':9}remedy: {finding.remedy}"))
        yield finding


def _document(subject: "Subject", findings: "list[Finding]") -> dict[str, Any]:
    from hubspoke.doctor.judge.finding import worst

    def text(value: Any) -> str | None:
        return None if value is None else str(value)

    return {
        "schema": SCHEMA,
        "worst": worst(findings).value,
        "subject": {
            "hub": subject.hub,
            "cache": [str(path) for path in subject.caches],
            "state": text(subject.state),
            "mount": text(subject.mount),
            "store": text(subject.store),
            "bucket": subject.bucket,
        },
        "findings": [
            {"check": f.check, "severity": f.severity.value, "found": f.found, "remedy": f.remedy}
            for f in findings
        ],
    }
