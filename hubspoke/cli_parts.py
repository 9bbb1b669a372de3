"""What the modules of the command line share: how an option is written, how a command fails."""

import json
import sys
from typing import Annotated, Any, NoReturn

import typer

from hubspoke.errors import HubSpokeError

SPOKE_ADMIN = "http://127.0.0.1:8081"


def option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]


def fail(command: str, error: HubSpokeError | OSError, status: int) -> NoReturn:
    print(f"hubspoke {command}: {error}", file=sys.stderr)
    raise SystemExit(status)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))
