"""`python -m tests.simulation --seeds 2000`, and `--seed N --trace` to see one of them happen again."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from multiprocessing import get_context

from tests.simulation.run import Outcome, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=200, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--loans", action="store_true", help="programs that pass refs on, processes that die doing it")
    parser.add_argument("--machines", action="store_true", help="two or three, and the network between them")
    parser.add_argument("--trace", action="store_true", help="print everything that happens (with --seed)")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    run = partial(run_seed, about_loans=args.loans, about_machines=args.machines)
    if args.seed is not None:
        outcome = run(args.seed, keep_trace=args.trace)
        print("\n".join(outcome.trace))
        print(outcome.details or "all invariants held", f"({outcome.num_events} events)")
        return 1 if outcome.failure else 0
    began = time.monotonic()
    outcomes: list[Outcome] = []
    seeds = range(args.first, args.first + args.seeds)
    with get_context("fork").Pool(args.processes) as pool:
        for outcome in pool.imap_unordered(run, seeds, chunksize=8):
            outcomes.append(outcome)
            if outcome.failure:
                print(f"seed {outcome.seed}: {outcome.failure[:300]}", flush=True)
    failed = sorted(outcome.seed for outcome in outcomes if outcome.failure)
    print(
        f"{len(outcomes)} seeds in {time.monotonic() - began:.1f} s: {len(failed)} failed; "
        f"{sum(o.num_events for o in outcomes):,} events, {sum(o.num_crashes for o in outcomes):,} crashes, "
        f"{sum(o.num_results for o in outcomes):,} results and {sum(o.num_errors for o in outcomes):,} errors checked, "
        f"{sum(o.virtual_s for o in outcomes):,.0f} s of virtual time"
    )
    if failed:
        print(f"replay one: python -m tests.simulation --seed {failed[0]} --trace")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
