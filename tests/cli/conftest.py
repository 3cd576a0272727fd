"""Runs as they lie on the disk, without a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def write_run(path: Path, seed: int, *, rate: float = 1e-3, offset: float = 0.0) -> None:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(f"algo: ppo\nenv: X\nlearning_rate: {rate}\nseed: {seed}\n")
    rows: list[dict[str, Any]] = [
        {"iteration": i, "env_steps": 100 * i, "wall_s": float(i), "episode_return_mean": seed + offset + i}
        for i in range(1, 11)
    ]
    rows[4] |= {"eval/return_mean": 7.0 * seed, "eval/env_steps": 250}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        write_run(tmp_path / "runs" / f"a-{seed}", seed)
        write_run(tmp_path / "runs" / f"b-{seed}", seed, rate=1e-4, offset=50.0)
    return tmp_path
