"""`rlplat runs`: the runs below a directory with their last figures, newest last."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from pathlib import Path
from typing import Any

_EPILOG = """\
examples:
  rlplat runs                     those in ./runs
  rlplat runs /data/runs --json
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlplat runs",
        description="List runs with their last figures, the most recent one last.",
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
    found = [describe_run(path.parent) for path in options.directory.glob("**/config.yaml")]
    found.sort(key=lambda row: row["updated"])
    if options.json:
        print(json.dumps(found))
    elif not found:
        print(f"no runs in {options.directory}; start one: rlplat train --algo ppo --env CartPole-v1")
    else:
        print(table([_cells(row) for row in found], header=_HEADER))
    return 0


def describe_run(directory: Path) -> dict[str, Any]:
    """The last figures of one run; what it does not have is None."""
    from rlplat.config import load_yaml
    from rlplat.errors import ConfigError
    from rlplat.metrics import last_record
    from rlplat.rl.run_directory import is_running

    try:
        settings = load_yaml(directory / "config.yaml").values
    except ConfigError:
        settings = {}
    metrics = directory / "metrics.jsonl"
    record = last_record(metrics) or {}
    updated_s = (metrics if metrics.exists() else directory / "config.yaml").stat().st_mtime
    return {
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


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _number(value: Any, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if isinstance(value, int | float) else "-"


def table(rows: list[list[str]], header: list[str]) -> str:
    """Columns side by side; those of numbers are right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    numeric = {"seed", "env steps", "return", "eval", "wall"}
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.rjust(width) if name in numeric else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
