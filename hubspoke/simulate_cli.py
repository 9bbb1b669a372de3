"""`hubspoke simulate`, a part of `cli`; imports nothing heavy before it knows the command."""

import sys
from typing import Annotated

import typer

from hubspoke.cli_parts import Json, fail, option
from hubspoke.errors import ConfigError, HubSpokeError

Plot = Annotated[
    str | None, option("--plot", "DIR", "A picture of each run (needs the extra lab).")
]
Runway = Annotated[
    float, typer.Option("--runway", metavar="S", help="Of reading to have ahead, as the spoke.")
]
InferOrder = Annotated[
    list[str] | None,
    option("--infer-order", "on|off", "Find seeds of shuffles (on); twice for both."),
]
SearchSeconds = Annotated[
    float | None, option("--search-seconds", "S", "What trying all 2^32 seeds takes (210).")
]


def simulate(
    workloads: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD", help="Such as W1; none: all of them.")
    ] = None,
    scale: Annotated[
        int, typer.Option("--scale", metavar="N", help="1/N of counts, cache, demand and path.")
    ] = 1,
    prefetch: Annotated[
        str | None,
        option("--prefetch", "on|off", "With prediction or without (on; a trace: as it was)."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Added to the workloads' own seeds.")
    ] = 0,
    trace: Annotated[
        str | None, option("--trace", "FILE", "A recorded trace instead of workloads, .hstrace.")
    ] = None,
    cache_size: Annotated[
        str | None,
        option("--cache-size", "SIZE", "Of the trace's cache (as recorded, or all its data)."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        option(
            "--policy",
            "NAME",
            "Of another cache in the spoke's place, or hubspoke; again for more: none, lru, "
            "s3fifo, pinned, belady, readahead, leap, stride.",
        ),
    ] = None,
    infer_order: InferOrder = None,
    search_seconds: SearchSeconds = None,
    runway: Runway = 0.0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Run training jobs against a spoke in virtual time.

    The spoke's own decisions, on a simulated path (60 ms, 1 GB/s) and drive (3 GB/s); objects are
    sizes without bytes. Shows hits against what an oracle could have, traffic, and utilisation.
    """
    from pathlib import Path

    from hubspoke.sim.prediction import command
    from hubspoke.sim.prediction.order_answers import SEARCH_S

    try:
        command.simulate(
            command.Request(
                names=workloads or (),
                part=scale,
                prefetch=prefetch,
                seed=seed,
                trace=None if trace is None else Path(trace),
                capacity=None if cache_size is None else _size(cache_size),
                plots=None if plot is None else Path(plot),
                as_json=as_json,
                policies=policy or (),
                infer_order=infer_order or (),
                search_s=SEARCH_S if search_seconds is None else search_seconds,
                runway_s=runway,
            )
        )
    except ConfigError as e:
        fail("simulate", e, 2)
    except BrokenPipeError:  # `| head`
        sys.stdout = None
    except (HubSpokeError, OSError) as e:
        fail("simulate", e, 1)


def _size(text: str) -> int:
    from hubspoke.values import parse_size

    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigError(f"--cache-size {text}: a size such as 10GiB")
    return size
