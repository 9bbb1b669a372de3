"""Run seeds of the simulated fleet and print what was violated.

python bench/simulation.py [--profile storm|calm] [--first N] [--seeds N] [--processes N]

storm: all kinds of trouble. calm: few troubles and many rounds (a change that was acknowledged,
then GET, HEAD and LIST of it at each spoke).
"""

import argparse
import logging
import os
import time

from hubspoke.sim import campaign, scenario

PROFILES = {"storm": scenario.STORM, "calm": scenario.CALM}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", choices=PROFILES, default="storm")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    logging.disable(logging.ERROR)  # the fleet complains all the time, as it should
    began = time.monotonic()
    seeds = range(args.first, args.first + args.seeds)
    violations, counts = campaign.run(seeds, PROFILES[args.profile], processes=args.processes)
    for violation in violations:
        print(violation)
    for what, n in sorted(counts.items()):
        print(f"{what:24} {n}")
    print(f"{args.seeds} seeds, {len(violations)} violations, {time.monotonic() - began:.0f} s")
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()
