"""`hubspoke trace`: traces of reads recorded, shown, converted and replayed.

Like cli.py it imports nothing heavy before it knows the command.
"""

import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from hubspoke.cli_parts import SPOKE_ADMIN, Json, fail, option, print_json
from hubspoke.errors import ConfigError, HubSpokeError

SPOKE_DATA = "http://127.0.0.1:8080"
SECONDS_MAX = 30 * 86_400.0

trace = typer.Typer(help="Record, show, convert and replay what was read.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace, .hstrace.")]


@trace.command()
def record(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new file, .hstrace.")],
    spoke: Annotated[
        str, typer.Option("--spoke", metavar="URL", help="The spoke's admin port.")
    ] = SPOKE_ADMIN,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="N", help="End after N seconds.", show_default=False),
    ] = None,
    reads: Annotated[
        int | None,
        typer.Option("--reads", metavar="N", min=1, help="End after N reads.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Record what a spoke's readers read, until Ctrl-C or a bound.

    No read waits for it: a recorder that does not keep up loses reads, and says how many. After a
    kill the file is good up to its last chunk: 65,536 reads or 5 seconds.
    """
    from dataclasses import asdict

    from hubspoke.report.source import admin_url
    from hubspoke.traces import record as recorder

    base = admin_url(spoke)
    if base is None:
        error = ConfigError(f"--spoke: {spoke!r}: expected the URL of a spoke's admin port")
        fail("trace record", error, 2)
    if seconds is not None and not 0 < seconds <= SECONDS_MAX:
        error = ConfigError(
            f"--seconds: {seconds:g}: expected more than 0, at most {SECONDS_MAX:g}"
        )
        fail("trace record", error, 2)
    try:
        found = recorder.record(base, out, seconds=seconds, reads=reads, stopped=_signalled())
    except HubSpokeError as e:
        fail("trace record", e, 1)
    if as_json:
        print_json(asdict(found))
        return
    each = f"{found.file_bytes / found.reads:.1f} B a read" if found.reads else "no reads"
    print(f"{out}: {found.reads} reads in {found.seconds:.1f} s, {found.file_bytes} B, {each}")
    if found.dropped_reads:
        print(f"hubspoke trace record: {found.dropped_reads} reads are missing", file=sys.stderr)


def _signalled() -> Callable[[], bool]:
    """Whether SIGINT or SIGTERM has come; the second one ends the process as usual."""
    came = False

    def note(number: int, _frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return lambda: came


@trace.command()
def show(
    file: File,
    reads: Annotated[
        int | None,
        typer.Option(
            "--reads",
            metavar="N",
            min=1,
            help="The first N reads, a JSON document on each line.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What is in a trace: objects, reads, clients, hits, sizes."""
    from hubspoke.traces.format import read_trace
    from hubspoke.traces.summary import rows, summary

    try:
        found = read_trace(file)
    except HubSpokeError as e:
        fail("trace show", e, 1)
    if reads is not None:
        _print_lines(rows(found, reads))
    elif as_json:
        print_json(summary(found))
    else:
        from rich.console import Console

        from hubspoke.report.render_trace import render_summary

        Console().print(render_summary(summary(found), str(file)))


@trace.command(name="convert")
def convert_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="What to read; the last one is written.")
    ],
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="NAME", help="Of the objects' names.")
    ] = "trace",
    root: Annotated[
        str | None,
        option("--root", "DIR", "DFTracer: only files below it, named relative to it."),
    ] = None,
    params: Annotated[
        str | None,
        option(
            "--params",
            "TEXT",
            "CSV: as libCacheSim's -t: time-col=1,obj-id-col=2,obj-size-col=3,delimiter=,,"
            "has-header=true (and offset-col, client-col).",
        ),
    ] = None,
) -> None:
    """Turn traces of other tools into ours, and ours into CSV.

    In: DFTracer or DLIO (.pfw, .pfw.gz; all files of a run), libCacheSim CSV (.csv, .csv.gz,
    .txt), .hstrace. Out: .hstrace or .csv.
    """
    from hubspoke.traces.convert import convert

    try:
        if len(files) < 2:
            raise ConfigError("one file, expected what to read and what to write")
        found = convert(files[:-1], files[-1], bucket=bucket, root=root, params=params)
    except ConfigError as e:
        fail("trace convert", e, 2)
    except HubSpokeError as e:
        fail("trace convert", e, 1)
    print(f"{files[-1]}: {len(found)} reads of {len(found.names)} objects, {found.seconds:.1f} s")


@trace.command(name="replay")
def replay_(
    file: File,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="URL", help="A spoke's data port.")
    ] = SPOKE_DATA,
    speed: Annotated[
        float, typer.Option("--speed", metavar="X", help="Times the recorded pace.")
    ] = 1.0,
    fast: Annotated[
        bool, typer.Option("--as-fast-as-possible", help="Without pace, in each client's order.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read from a spoke, or any S3 endpoint without credentials, what a trace has read.

    Each recorded client is a connection. Exit status: 0 all was read, 1 objects are missing or
    reads failed, 130 left by Ctrl-C, with what had been read.
    """
    from hubspoke.traces.format import read_trace
    from hubspoke.traces.replay import ReplayConfig, replay

    try:
        config = ReplayConfig(endpoint, None if fast else speed)
        found = replay(read_trace(file), config)
    except ConfigError as e:
        fail("trace replay", e, 2)
    except HubSpokeError as e:
        fail("trace replay", e, 1)
    if as_json:
        print_json(found.document())
    else:
        from rich.console import Console

        from hubspoke.report.render_trace import render_replay

        Console().print(render_replay(found.document(), endpoint))
    if found.missing_objects:
        names = ", ".join(found.missing)
        text = (
            f"{found.missing_objects} objects are missing, {found.missing_requests} reads: {names}"
        )
        print(f"hubspoke trace replay: {text}", file=sys.stderr)
    if found.failed_requests:
        text = f"{found.failed_requests} reads failed; the first: {found.failure}"
        print(f"hubspoke trace replay: {text}", file=sys.stderr)
    if found.interrupted:
        raise SystemExit(130)
    if found.missing_requests or found.failed_requests:
        raise SystemExit(1)


def _print_lines(documents: Iterable[object]) -> None:
    import json

    try:
        for document in documents:
            print(json.dumps(document))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`
        sys.stdout = None
