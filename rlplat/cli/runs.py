"""`rlplat runs`: the runs and the experiments below a directory with their latest metrics, newest last."""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rlplat.errors import ConfigError

_EPILOG = """\
examples:
  rlplat runs                     those in ./runs
  rlplat runs /data/runs --json
  rlplat runs runs/my-experiment  the trials of an experiment, where each is a run of its own
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlplat runs",
        description="List runs and experiments with their latest metrics, the most recent one last. The trials of an "
        "experiment are one row; those of DIR itself are listed when it is an experiment.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="default: runs"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def run(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    if not options.directory.is_dir() and str(options.directory) != "runs":
        raise ConfigError(f"there is no directory {options.directory}")
    found = [
        describe_run(path) if kind == "run" else describe_experiment(path)
        for kind, path in find(options.directory)
    ]
    found.sort(key=lambda row: row["updated"])
    runs = [row for row in found if row["kind"] == "run"]
    experiments = [row for row in found if row["kind"] == "experiment"]
    if options.json:
        print(json.dumps(found))
    elif not found:
        print(f"no runs in {options.directory}; start one: rlplat train --algo ppo --env CartPole-v1")
    if not options.json and runs:
        print(table([_cells(row) for row in runs], header=_HEADER))
    if not options.json and experiments:
        print(
            ("\n" if runs else "")
            + table([_experiment_cells(row) for row in experiments], _EXPERIMENT_HEADER)
        )
    return 0


def find(directory: Path) -> Iterator[tuple[str, Path]]:
    """("run" or "experiment", its directory) of each below this directory; not what is inside of an experiment."""
    for place, folders, files in os.walk(directory):
        path = Path(place)
        if "experiment.yaml" in files and path != directory:
            folders.clear()
            yield "experiment", path
        elif "config.yaml" in files:
            yield "run", path
        folders[:] = [name for name in folders if name not in ("checkpoints", "tensorboard", "videos")]


def describe_experiment(directory: Path) -> dict[str, Any]:
    """From experiment.yaml and results.csv, so that a long list takes no time; what there is not is None."""
    from rlplat.config import load_yaml
    from rlplat.errors import ConfigError
    from rlplat.rl.run.run_directory import is_running
    from rlplat.tune.results.lines import metric_column

    try:
        settings = load_yaml(directory / "experiment.yaml").values
    except ConfigError:
        settings = {}
    metric, mode = settings.get("metric"), settings.get("mode")
    table = directory / "results.csv"
    num_ended, values = 0, []
    if table.exists():
        with open(table, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                num_ended += 1
                value = _finite(row.get(metric_column(metric))) if isinstance(metric, str) else None
                if value is not None and row["state"] != "failed":
                    values.append(value)
    updated_s = (table if table.exists() else directory / "experiment.yaml").stat().st_mtime
    return {
        "kind": "experiment",
        "run": str(directory),
        "trainable": settings.get("trainable"),
        "searcher": _name_of(settings.get("searcher")),
        "scheduler": _name_of(settings.get("scheduler")),
        "metric": metric,
        "trials_ended": num_ended,
        "trials": _num_trials(settings),
        "best": (min(values) if mode == "min" else max(values)) if values else None,
        "is_running": is_running(directory),
        "updated": datetime.fromtimestamp(updated_s).isoformat(" ", "seconds"),
    }


def _num_trials(settings: dict[str, Any]) -> int | None:
    """How many there are to be: samples times the points of the grids."""
    from rlplat.errors import ConfigError
    from rlplat.tune.results.analysis import without_code
    from rlplat.tune.space.space import Space

    try:
        return (
            int(settings["num_samples"]) * Space.parse(without_code(settings.get("config") or {})).grid_size
        )
    except (ConfigError, KeyError, TypeError, ValueError):
        return None


def _name_of(setting: Any) -> Any:
    return setting.get("name") if isinstance(setting, dict) else setting


def _finite(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def describe_run(directory: Path) -> dict[str, Any]:
    """The last figures of one run; what it does not have is None."""
    from rlplat.config import load_yaml
    from rlplat.errors import ConfigError
    from rlplat.metrics import last_record
    from rlplat.rl.run.run_directory import is_running

    try:
        settings = load_yaml(directory / "config.yaml").values
    except ConfigError:
        settings = {}
    metrics = directory / "metrics.jsonl"
    record = last_record(metrics) or {}
    updated_s = (metrics if metrics.exists() else directory / "config.yaml").stat().st_mtime
    return {
        "kind": "run",
        "run": str(directory),
        "algo": settings.get("algo"),
        "env": settings.get("env"),
        "seed": settings.get("seed"),
        "env_steps": record.get("env_steps"),
        "env_steps_per_s": record.get("env_steps_per_s"),
        "episode_return_mean": record.get("episode_return_mean"),
        "eval_return_mean": record.get("eval/return_mean"),
        "wall_s": record.get("wall_s"),
        "is_running": is_running(directory),
        "updated": datetime.fromtimestamp(updated_s).isoformat(" ", "seconds"),
    }


_HEADER = ["run", "algo", "env", "seed", "env steps", "return", "eval", "wall", "state", "updated"]


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["run"],
        _text(row["algo"]),
        _text(row["env"]),
        _text(row["seed"]),
        _number(row["env_steps"], ",d"),
        _number(row["episode_return_mean"], ".1f"),
        _number(row["eval_return_mean"], ".1f"),
        _number(row["wall_s"], ".1f", " s"),
        "running" if row["is_running"] else "ended",
        row["updated"],
    ]


_EXPERIMENT_HEADER = [
    "experiment",
    "trainable",
    "searcher",
    "scheduler",
    "trials",
    "metric",
    "best",
    "state",
    "updated",
]


def _experiment_cells(row: dict[str, Any]) -> list[str]:
    metric = row["metric"]
    has_all = row["trials"] is None or row["trials_ended"] >= row["trials"]
    return [
        row["run"],
        _text(row["trainable"]),
        _text(row["searcher"]),
        _text(row["scheduler"]),
        f"{row['trials_ended']}/{row['trials'] if row['trials'] is not None else '?'}",
        ", ".join(metric) if isinstance(metric, list) else _text(metric),
        _number(row["best"], ".4g"),
        "running" if row["is_running"] else "ended" if has_all else "unfinished",
        row["updated"],
    ]


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _number(value: Any, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if isinstance(value, int | float) else "-"


def table(rows: list[list[str]], header: list[str]) -> str:
    """Columns side by side; those of numbers are right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    numeric = {"seed", "env steps", "return", "eval", "wall", "trials", "best"}
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.rjust(width) if name in numeric else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
