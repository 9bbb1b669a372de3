"""The command line: flags in, one line per error out.

Decides names and exit statuses: 0 done, 1 what was asked failed, 2 a setting is wrong or cannot
be had now (a port taken, a folder in use). Imports nothing heavy before it knows the command:
`--help` has to answer at once.
"""

import sys
import time
from typing import Annotated, Any

import typer

from hubspoke import __version__
from hubspoke.cli_parts import SPOKE_ADMIN, Json
from hubspoke.cli_parts import fail as _fail
from hubspoke.cli_parts import option as _option
from hubspoke.cli_parts import print_json as _print_json
from hubspoke.doctor_cli import doctor
from hubspoke.errors import ConfigError, FolderInUse, HubSpokeError
from hubspoke.model_cli import model
from hubspoke.simulate_cli import simulate
from hubspoke.trace_cli import trace

app = typer.Typer(
    help="Training data stays at a hub; a spoke next to the GPUs reads it as if it were local.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(trace, name="trace")
app.add_typer(model, name="model")
app.command()(simulate)
app.command()(doctor)

WATCH_S = 1.0

Config = Annotated[str | None, _option("--config", "FILE", "A TOML file with these settings.")]
Listen = Annotated[str | None, _option("--listen", "HOST:PORT", "The data port.")]
Admin = Annotated[str | None, _option("--admin", "HOST:PORT", "The admin port.")]
Region = Annotated[str | None, _option("--region", "NAME", "Where this is, to price the traffic.")]
LogLevel = Annotated[str | None, _option("--log-level", "LEVEL", "debug, info, warning, error.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a port beyond loopback: no credentials, no TLS.")
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hubspoke {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it, exit.")
    ] = False,
) -> None:
    """Every flag is also a variable (HUBSPOKE_SPOKE_CACHE_SIZE) and a key of --config FILE."""


@app.command()
def hub(
    store: Annotated[
        str | None, _option("--store", "DIR|s3://BUCKET[/PREFIX]", "Where the objects lie.")
    ] = None,
    bucket: Annotated[
        str | None, _option("--bucket", "NAME", "Serve the whole folder as this one bucket.")
    ] = None,
    listen: Listen = None,
    admin: Admin = None,
    state: Annotated[
        str | None, _option("--state", "DIR", "The namespace's log; one folder per store.")
    ] = None,
    region: Region = None,
    rescan: Annotated[
        str | None,
        _option(
            "--rescan",
            "SECONDS|off",
            "Compare the whole store with the log so often (only where the store tells no "
            "changes: 60 for a folder, 300 for S3).",
        ),
    ] = None,
    insecure: Insecure = False,
    config: Config = None,
    log_level: LogLevel = None,
) -> None:
    """Serve a store to spokes, and by S3.

    Data port 127.0.0.1:7070, admin port 127.0.0.1:7071 if not said otherwise.
    """
    flags = {**locals(), "insecure": insecure or None}
    _serve("hub", flags)


@app.command()
def spoke(
    hub: Annotated[str | None, _option("--hub", "URL", "The hub's data port.")] = None,
    cache: Annotated[
        list[str] | None, _option("--cache", "DIR", "A folder on a local drive; repeatable.")
    ] = None,
    cache_size: Annotated[
        str | None, _option("--cache-size", "SIZE", "Such as 10GiB (80 % of the free space).")
    ] = None,
    state: Annotated[
        str | None, _option("--state", "DIR", "The namespace's copy (the first cache folder).")
    ] = None,
    listen: Listen = None,
    admin: Admin = None,
    region: Region = None,
    policy: Annotated[
        list[str] | None,
        _option(
            "--policy",
            "PREFIX=strict|bounded:SECONDS",
            "What to answer without the hub (bounded:3600); repeatable.",
        ),
    ] = None,
    prefetch: Annotated[
        str | None, _option("--prefetch", "on|off", "Bring blocks before they are asked for (on).")
    ] = None,
    infer_order: Annotated[
        str | None,
        _option("--infer-order", "on|off", "Find the seed of a shuffle by its first reads (on)."),
    ] = None,
    runway: Annotated[
        str | None,
        _option("--runway", "SECONDS", "Of reading to have ahead, for a hub that is away (0)."),
    ] = None,
    cache_dwpd: Annotated[
        str | None,
        _option("--cache-dwpd", "NUMBER", "Drive writes per day the cache's drives stand."),
    ] = None,
    mount: Annotated[
        str | None, _option("--mount", "DIR", "Show the objects as files there, read-only.")
    ] = None,
    mount_uid: Annotated[
        str | None, _option("--mount-uid", "NUMBER", "Whose the files are (this user's).")
    ] = None,
    mount_gid: Annotated[
        str | None, _option("--mount-gid", "NUMBER", "Of which group they are (this user's).")
    ] = None,
    mount_umask: Annotated[
        str | None, _option("--mount-umask", "MODE", "Who may not read them, in octal (022).")
    ] = None,
    allow_other: Annotated[
        str | None, _option("--allow-other", "on|off", "Let other users into the mount (off).")
    ] = None,
    passthrough: Annotated[
        str | None,
        _option("--passthrough", "on|off", "Let the kernel read whole files by itself (on)."),
    ] = None,
    price: Annotated[
        str | None, _option("--price", "USD[/USD]", "Per GB, hub to spoke / spoke to hub.")
    ] = None,
    insecure: Insecure = False,
    config: Config = None,
    log_level: LogLevel = None,
) -> None:
    """Serve a hub's objects from a local cache.

    Data port 127.0.0.1:8080 (S3), admin port 127.0.0.1:8081 if not said otherwise.
    """
    flags = {**locals(), "insecure": insecure or None}
    _serve("spoke", flags)


def _serve(process: str, flags: dict[str, Any]) -> None:
    from hubspoke import serve

    try:
        (serve.hub if process == "hub" else serve.spoke)(flags)
    except (ConfigError, FolderInUse) as e:
        _fail(process, e, 2)
    except HubSpokeError as e:
        _fail(process, e, 1)


@app.command()
def report(
    source: Annotated[
        str, typer.Argument(metavar="[URL|FILE]", help="A spoke's admin port, or a saved report.")
    ] = SPOKE_ADMIN,
    as_json: Json = False,
) -> None:
    """Hit ratio, warm-up, latency, WAN bytes and money."""
    from hubspoke.report.source import load_report

    try:
        document = load_report(source)
    except HubSpokeError as e:
        _fail("report", e, 1)
    if as_json:
        _print_json(document)
        return
    from rich.console import Console

    from hubspoke.report.render import render_report

    Console().print(render_report(document))


@app.command()
def status(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="A spoke's admin port.")
    ] = SPOKE_ADMIN,
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON document on stdout; with --watch one on each line."),
    ] = False,
) -> None:
    """A spoke now: hit ratio, streams, WAN rate, lease."""
    from hubspoke.report.source import StatusSource

    try:
        source = StatusSource(url)
        if as_json:
            _print_status(source, watch)
        else:
            _show_status(source, watch)
    except HubSpokeError as e:
        _fail("status", e, 1)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # `| head`: who read the lines has what it wanted
        sys.stdout = None  # or the interpreter flushes it once more at its end, and complains


def _print_status(source: Any, watch: bool) -> None:
    import json

    if not watch:
        time.sleep(WATCH_S / 2)
        _print_json(source.now())
        return
    while True:
        time.sleep(WATCH_S)
        print(json.dumps(source.now()), flush=True)


def _show_status(source: Any, watch: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from hubspoke.report.render_status import render_status

    if not watch:
        time.sleep(WATCH_S / 2)
        Console().print(render_status(source.now()))
        return
    with Live(screen=False, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(render_status(source.now()), refresh=True)


@app.command()
def warm(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="BUCKET, BUCKET/KEY or a pattern; none: list the jobs."
        ),
    ] = None,
    source: Annotated[
        str | None, _option("--from", "FILE", "More paths, one a line; - is standard input.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow until all of it is there.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only tell how much is cached.")] = False,
    evict: Annotated[bool, typer.Option("--evict", help="Drop what is not in use.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="As much as fits, and drop data not read yet.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, max=1024, help="Pieces at a time.", show_default=False
        ),
    ] = None,
    cancel: Annotated[
        str | None, _option("--cancel", "ID", "Stop a job; what has arrived stays.")
    ] = None,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="The spoke's admin port.")
    ] = SPOKE_ADMIN,
    as_json: Json = False,
) -> None:
    """Bring objects into a spoke's cache, in the background unless --wait.

    A PATH is BUCKET, BUCKET/KEY (that object, or everything below it) or a pattern for whole keys:
    * and ? stay between slashes, ** does not. Behind reads and predictions; what is not read yet
    is not dropped for it. Exit status: 0 everything is there (--wait, --check) or on its way, 1
    not, 2 a path or flag makes no sense.
    """
    from hubspoke.report.warm import WarmRequest, read_list
    from hubspoke.report.warm_command import WarmCommand

    try:
        if check and evict:
            raise ConfigError("--check, --evict: expected one of them")
        named = [*(paths or []), *(read_list(source) if source is not None else [])]
        command = WarmCommand(url, as_json=as_json)
        if cancel is not None:
            raise SystemExit(command.cancel(cancel))
        if not named:
            if source is not None or check or evict or wait:
                raise ConfigError("no path: expected BUCKET, BUCKET/KEY or a pattern")
            raise SystemExit(command.jobs())
        action: Any = "check" if check else "evict" if evict else "warm"
        request = WarmRequest(action, named, force, threads)
        raise SystemExit(command.run(request, wait=wait or action != "warm"))
    except ConfigError as e:
        _fail("warm", e, 2)
    except HubSpokeError as e:
        _fail("warm", e, 1)


@app.command()
def demo(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Keeps the data set between runs.")
    ] = "out/data",
    out: Annotated[
        str | None, _option("--out", "DIR", "For results and picture (a new folder in ./out).")
    ] = None,
    text: Annotated[
        list[str] | None,
        _option("--text", "PATH", "Text to tokenize (this Python's own sources); repeatable."),
    ] = None,
    wan: Annotated[
        str,
        typer.Option(
            "--wan", metavar="relay|tun", help="relay: no root needed; tun: kernel TCP, needs root."
        ),
    ] = "relay",
    rtt_ms: Annotated[
        str, typer.Option("--rtt-ms", metavar="MS", help="Round trip, 0 to 2000.")
    ] = "60",
    price: Annotated[
        str | None, _option("--price", "USD[/USD]", "Per GB, hub to spoke / spoke to hub.")
    ] = None,
    as_json: Json = False,
) -> None:
    """A job 60 ms from its data, side by side.

    Builds a data set from text on this machine, starts hub, emulated WAN and spoke, and runs a
    training job hub-local, remote, with a cold and with a warm spoke. Needs the
    extra lab: `pip install '.[lab]'` in a checkout.
    """
    from pathlib import Path

    from hubspoke.lab.demo import DemoConfig, run_demo

    config = DemoConfig(
        data=Path(data),
        out=None if out is None else Path(out),
        text=tuple(map(Path, text or ())),
        wan=wan,
        rtt_ms=rtt_ms,
        price=price,
        as_json=as_json,
    )
    raise SystemExit(run_demo(config))


def main() -> None:
    """Entry point of the command `hubspoke`."""
    app(prog_name="hubspoke")
