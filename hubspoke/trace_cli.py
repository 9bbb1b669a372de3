"""`hubspoke trace`: traces of reads recorded, shown, converted and replayed.

Like cli.py it imports nothing heavy before it knows the command.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from hubspoke.cli_parts import Json, fail, print_json
from hubspoke.errors import HubSpokeError

trace = typer.Typer(help="Record, show, convert and replay what was read.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace, .hstrace.")]


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


def _print_lines(documents: Iterable[object]) -> None:
    import json

    try:
        for document in documents:
            print(json.dumps(document))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head`
        sys.stdout = None
