"""`rlplat track`: a run as a copy in an experiment tracker."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rlplat.cli.parser import Parser
from rlplat.errors import ConfigError
from rlplat.paths import expanded

_EPILOG = """\
examples:
  rlplat train --algo ppo --env CartPole-v1 --track wandb    starts this command in parallel
  rlplat track runs/demo --to wandb --project cartpole       of a run that trains, or has ended
  rlplat track runs/demo --to mlflow                         MLFLOW_TRACKING_URI says where
  rlplat track runs/demo --to ./my_tracker.py:MyTracker      one of your own (docs/tracking.md)

Killed, or without a network, it sends the rest when it is run again. Nothing is sent twice.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rlplat track",
        description="Copy a run (metrics, settings, evaluation, videos) to an experiment tracker, until the run ends.",
        epilog=_EPILOG,
    )
    parser.add_argument("run", metavar="RUN", type=expanded, help="a run directory")
    parser.add_argument(
        "--to", metavar="TRACKER", required=True, help="wandb, mlflow, trackio, aim, or pkg.module:Class"
    )
    parser.add_argument("--project", default="", help="default: the tracker's own, else rlplat")
    parser.add_argument("--name", default="", help="name of the run in the tracker (default: its directory)")
    parser.add_argument("--no-videos", action="store_true", help="metrics and settings only")
    parser.add_argument(
        "--checkpoints", action="store_true", help="at the end also the best and the newest checkpoint"
    )
    parser.add_argument(
        "--patience-s",
        type=float,
        default=600.0,
        metavar="S",
        help="how long a tracker may fail after the run has ended (600); while it trains: without limit",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def run(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    directory: Path = options.run
    from rlplat.rl.run.run_directory import not_a_run
    from rlplat.tracking.copying import Copier
    from rlplat.tracking.sidecar import follow, only_one
    from rlplat.tracking.tracker import load_tracker

    if not (directory / "config.yaml").exists():
        raise ConfigError(not_a_run(directory))
    tracker = load_tracker(options.to)
    os.nice(10)  # the CPUs belong to the training
    copier = Copier(
        directory,
        tracker,
        options.to,
        run_name=options.name,
        project=options.project,
        videos=not options.no_videos,
        checkpoints=options.checkpoints,
    )
    with only_one(directory, options.to):
        state = follow(
            copier,
            directory,
            lambda text: print(f"{options.to}: {text}", file=sys.stderr, flush=True),
            patience_s=options.patience_s,
        )
    skipped = f"; {copier.num_skipped} damaged lines omitted" if copier.num_skipped else ""
    print(f"{copier.num_sent:,} rows of {directory} sent to {options.to}; the run has {state}{skipped}")
    return 0
