"""`rlplat runs`: the runs and the experiments below a directory with their latest metrics, newest last."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from rlplat.catalog import describe_experiment, describe_run, find
from rlplat.cli.look.cluster_view import plain_table
from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.errors import ConfigError
from rlplat.figures import figure
from rlplat.given.spelling import spelled

_HELP = """\
List runs and experiments with their latest metrics, the most recent one last. The trials of an experiment are one
row; those of DIR itself are listed when it is an experiment.

directory@DIR?runs  where they are
--json  print one JSON array

examples:
  rlplat runs                     those in ./runs
  rlplat runs /data/runs --json
  rlplat runs runs/my-experiment  the trials of an experiment, where each is a run of its own
"""


@command("runs", _HELP)
def run(options: argparse.Namespace) -> int:
    if not options.directory.is_dir() and str(options.directory) != "runs":
        raise ConfigError(f"there is no directory {options.directory}")
    found = [
        describe_run(path) if kind == "run" else describe_experiment(path) for kind, path in find(options.directory)
    ]
    found.sort(key=lambda row: row["updated"])
    runs = [row for row in found if row["kind"] == "run"]
    experiments = [row for row in found if row["kind"] == "experiment"]
    if options.json:
        print_json(found)
    elif not found:
        print(spelled(f"no runs in {options.directory}; start one: rlplat train --algo ppo --env CartPole-v1"))
    if not options.json and runs:
        print(table([_cells(row) for row in runs], header=_HEADER))
    if not options.json and experiments:
        print(("\n" if runs else "") + table([_experiment_cells(row) for row in experiments], _EXPERIMENT_HEADER))
    return 0


_HEADER = ["run", "algo", "env", "seed", "env steps", "return", "eval", "wall", "state", "updated"]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["run"],
        cell(row["algo"]),
        cell(row["env"]).rpartition(os.sep)[2] if _is_file(row["env"]) else cell(row["env"]),
        cell(row["seed"]),
        cell(row["env_steps"], "{:,d}".format),
        cell(row["episode_return_mean"], figure),
        cell(row["eval_return_mean"], figure),
        cell(row["wall_s"], "{:.1f} s".format),
        "running" if row["is_running"] else "ended",
        row["updated"],
    ]


_EXPERIMENT_HEADER = "experiment trainable searcher scheduler trials metric best state updated".split()


def _experiment_cells(row: dict[str, Any]) -> list[str]:
    metric = row["metric"]
    has_all = row["trials"] is None or row["trials_ended"] >= row["trials"]
    return [
        row["run"],
        cell(row["trainable"]),
        cell(row["searcher"]),
        cell(row["scheduler"]),
        f"{row['trials_ended']}/{row['trials'] if row['trials'] is not None else '?'}",
        ", ".join(metric) if isinstance(metric, list) else cell(metric),
        cell(row["best"], figure),
        "running" if row["is_running"] else "ended" if has_all else "unfinished",
        row["updated"],
    ]


def _is_file(env: Any) -> bool:
    return isinstance(env, str) and ".py:" in env


def cell(value: Any, write: Callable[[Any], str] = str) -> str:
    """`-` for what is not there, or is no number where one is to be written."""
    is_there = value is not None if write is str else isinstance(value, int | float)
    return write(value) if is_there else "-"


def table(rows: list[list[str]], header: list[str]) -> str:
    """Columns of numbers are right-aligned."""
    numeric = {"seed", "env steps", "return", "eval", "wall", "trials", "best"}
    return "\n".join(plain_table([header, *rows], [name in numeric for name in header]))
