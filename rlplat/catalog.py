"""The runs and the experiments below a directory, a row of their latest metrics each: what `rlplat runs` and the
dashboard list."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any


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
    from rlplat.tune.lines import metric_column

    try:
        settings = load_yaml(directory / "experiment.yaml").values
    except ConfigError:
        settings = {}
    metric, mode = settings.get("metric"), settings.get("mode")
    table = directory / "results.csv"
    rows, values = ended_trials(directory), []
    for row in rows:
        value = _finite(row.get(metric_column(metric))) if isinstance(metric, str) else None
        if value is not None and row.get("state") != "failed":
            values.append(value)
    updated_s = (table if table.exists() else directory / "experiment.yaml").stat().st_mtime
    return {
        "kind": "experiment",
        "run": str(directory),
        "trainable": settings.get("trainable"),
        "searcher": _name_of(settings.get("searcher")),
        "scheduler": _name_of(settings.get("scheduler")),
        "metric": metric,
        "trials_ended": len(rows),
        "trials": _num_trials(settings),
        "best": (min(values) if mode == "min" else max(values)) if values else None,
        "is_running": is_running(directory),
        "updated": datetime.fromtimestamp(updated_s).isoformat(" ", "seconds"),
    }


def ended_trials(directory: Path) -> list[dict[str, str]]:
    """The rows of an experiment's results.csv; of a damaged one those that can be read."""
    rows: list[dict[str, str]] = []
    try:
        with open(directory / "results.csv", newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.DictReader(file, restval=""):
                row.pop(None, None)  # what a damaged line has beyond the columns
                if (row.get("trial") or "").isdecimal():
                    rows.append(row)
    except (OSError, csv.Error):
        pass
    return rows


def _num_trials(settings: dict[str, Any]) -> int | None:
    """How many there are to be: samples times the points of the grids."""
    from rlplat.errors import ConfigError
    from rlplat.tune.analysis import without_code
    from rlplat.tune.space import Space

    try:
        return int(settings["num_samples"]) * Space.parse(without_code(settings.get("config") or {})).grid_size
    except (ConfigError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _name_of(setting: Any) -> Any:
    return setting.get("name") if isinstance(setting, dict) else setting


def _finite(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def settings_of(directory: Path) -> dict[str, Any]:
    """A run's config.yaml, without the digests of the user's files; nothing where it cannot be read."""
    from rlplat.config import load_yaml
    from rlplat.errors import ConfigError

    try:
        values = load_yaml(directory / "config.yaml").values
        return {key: value for key, value in values.items() if key != "code"}
    except ConfigError:
        return {}


def describe_run(directory: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The last figures of one run; what it does not have is None. settings: its config.yaml, where it was read."""
    from rlplat.metrics import last_record
    from rlplat.rl.run.run_directory import is_running

    settings = settings_of(directory) if settings is None else settings
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


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"stop": {"env_steps": 1}} -> {"stop.env_steps": 1}; lists stay as they are."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
