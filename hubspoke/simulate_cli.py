"""`hubspoke simulate`, a part of `cli`; imports nothing heavy before it knows the command."""

from typing import Annotated

import typer

from hubspoke.cli_parts import Json, fail, option
from hubspoke.errors import ConfigError, HubSpokeError


def simulate(
    workloads: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD", help="Such as W1; none: all of them.")
    ] = None,
    scale: Annotated[
        int, typer.Option("--scale", metavar="N", help="1/N of counts, cache, demand and rates.")
    ] = 1,
    prefetch: Annotated[
        str, typer.Option("--prefetch", metavar="on|off", help="With prediction, or without.")
    ] = "on",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Added to the workloads' own seeds.")
    ] = 0,
    plot: Annotated[
        str | None, option("--plot", "DIR", "A picture of each run (needs the extra lab).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run training jobs against a spoke in virtual time.

    The spoke's own decisions, on a simulated path (60 ms, 1 GB/s) and drive (3 GB/s); objects are
    sizes without bytes. Shows hits against what an oracle could have, traffic, and utilisation.
    """
    from pathlib import Path

    from hubspoke.sim.prediction.command import simulate

    try:
        simulate(
            workloads or (),
            part=scale,
            prefetch=prefetch,
            seed=seed,
            as_json=as_json,
            plots=None if plot is None else Path(plot),
        )
    except ConfigError as e:
        fail("simulate", e, 2)
    except (HubSpokeError, OSError) as e:
        fail("simulate", e, 1)
