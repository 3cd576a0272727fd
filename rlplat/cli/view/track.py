"""`rlplat track`: a run as a copy in an experiment tracker."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rlplat.cli.parser import command
from rlplat.errors import ConfigError

_HELP = """\
Copy a run (metrics, settings, evaluation, videos) to an experiment tracker, until the run ends.

RUN  a run directory
--to! TRACKER  wandb, mlflow, trackio, aim, or pkg.module:Class
--project NAME:  default: the tracker's own, else rlplat
--name NAME:  name of the run in the tracker (default: its directory)
--no-videos  metrics and settings only
--checkpoints  at the end also the best and the newest checkpoint
--patience-s S:600  how long a tracker may fail after the run has ended; while it trains: without limit

examples:
  rlplat train --algo ppo --env CartPole-v1 --track wandb    starts this command in parallel
  rlplat track runs/demo --to wandb --project cartpole       of a run that trains, or has ended
  rlplat track runs/demo --to mlflow                         MLFLOW_TRACKING_URI says where
  rlplat track runs/demo --to ./my_tracker.py:MyTracker      one of your own (docs/tracking.md)

Killed, or without a network, it sends the rest when it is run again. Nothing is sent twice.
"""


@command("track", _HELP)
def run(options: argparse.Namespace) -> int:
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
