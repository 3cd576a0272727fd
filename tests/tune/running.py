"""Small experiments in tests: run one, and look at what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlplat import tune
from rlplat.tune.analysis import Analysis


def run(trainable: Any, space: dict[str, Any], tmp_path: Path, **settings: Any) -> Analysis:
    """`tune.run` in `tmp_path / "e"`, by the metric x, silently."""
    return tune.run(trainable, space, **{"metric": "x", "out": tmp_path / "e", "progress": False} | settings)


def states(analysis: Analysis) -> list[str]:
    return [str(trial.state) for trial in analysis.trials]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
