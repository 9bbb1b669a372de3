"""`hubspoke model`: the access-pattern model trained, evaluated and explained.

Like cli.py it imports nothing heavy before it knows the command.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hubspoke.cli_parts import SPOKE_ADMIN, Json, fail, option, print_json
from hubspoke.errors import ConfigError, HubSpokeError

RUNS_TRAINED, RUNS_HELD_OUT = 6, 6

model = typer.Typer(
    help="Train, evaluate and explain the access-pattern model.", no_args_is_help=True
)

Folder = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Of the model (the one installed)."),
]


@model.command()
def train(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="For the model's files.")],
    examples: Annotated[
        Path | None,
        option("--examples", "FILE", "Fit to these instead of making new ones, .examples.npz."),
    ] = None,
    runs: Annotated[
        int,
        typer.Option("--runs", metavar="N", min=1, max=1_000, help="Of each pattern, simulated."),
    ] = RUNS_TRAINED,
    as_json: Json = False,
) -> None:
    """Train the model: simulated runs, examples, trees.

    The same examples give the same bytes. Minutes with new examples, seconds with --examples. The
    model is off for every pattern until `hubspoke model evaluate --write`.
    """
    # Sums in the order of one thread, or the last bit would depend on how many there are.
    os.environ["OMP_NUM_THREADS"] = "1"
    from hubspoke.adapters.model_file import NAME
    from hubspoke.learn.examples import gather, read, save
    from hubspoke.learn.train import train as fit
    from hubspoke.learn.variants import trained

    try:
        out.mkdir(parents=True, exist_ok=True)
        if examples is None:
            found = gather(trained(runs), runs)
            save(found, out / f"{NAME}.examples.npz")
        else:
            found = read(examples)
        document = fit(found, out)
    except ConfigError as e:
        fail("model train", e, 2)
    except (HubSpokeError, OSError) as e:
        fail("model train", e, 1)
    if as_json:
        print_json(document)
    else:
        print(f"{out / NAME}.npz: {len(found)} examples, sha256:{document['sha256']}")


@model.command()
def evaluate(
    folder: Folder = None,
    runs: Annotated[
        int,
        typer.Option("--runs", metavar="N", min=2, max=1_000, help="Held-out runs of a pattern."),
    ] = RUNS_HELD_OUT,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the card, and for which patterns the model is on."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the model with rules, read-ahead, Leap and a stride table.

    On workloads that it was not trained on, in the simulator; takes minutes.
    """
    from dataclasses import asdict

    from hubspoke.adapters.model_file import NAME, installed, load, load_document
    from hubspoke.learn.card import card
    from hubspoke.learn.evaluate import evaluate as compare
    from hubspoke.learn.train import write_document

    place = folder or installed()
    try:
        found, document = load(place), load_document(place)
        result = compare(found, runs, lambda done: print(f"{done}: done", file=sys.stderr))
        text = card(found, document["trained"], result)
        if write:
            write_document(place, {**document, "on": result.on})
            (place / f"{NAME}.md").write_text(text)
    except (HubSpokeError, OSError) as e:
        fail("model evaluate", e, 1)
    if as_json:
        print_json({"sha256": found.sha256, "on": result.on, **asdict(result)})
    else:
        print(text)


@model.command()
def explain(
    source: Annotated[
        str, typer.Argument(metavar="[URL|TRACE]", help="A spoke's admin port, or an .hstrace.")
    ] = SPOKE_ADMIN,
    stream: Annotated[
        int | None,
        typer.Option("--stream", metavar="ID", help="Only this one, as /v1/streams has it."),
    ] = None,
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """Say which features move the model's opinion of each stream.

    Of a running spoke's last predictions, or of a trace read again in the simulator. Outcomes at
    the spoke correct the probability shown; /v1/model has both.
    """
    from hubspoke.adapters.model_file import installed, load
    from hubspoke.learn.explain import of_spoke, of_trace
    from hubspoke.report.source import admin_url, get_json

    try:
        known = load(folder or installed())
        url = admin_url(source)
        found = (
            of_trace(known, Path(source), None)
            if url is None
            else of_spoke(known, get_json(f"{url}/v1/model"))
        )
    except ConfigError as e:
        fail("model explain", e, 2)
    except (HubSpokeError, OSError) as e:
        fail("model explain", e, 1)
    chosen = [one for one in found if stream is None or one.stream == stream]
    if as_json:
        print_json({"explained": [one.document() for one in chosen]})
        return
    for one in chosen:
        print("\n".join(one.lines()))
    if not chosen:
        print("hubspoke model explain: nothing was proposed for such a stream", file=sys.stderr)
