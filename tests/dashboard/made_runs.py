"""Run directories as a training leaves them, made without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def make_run(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    """config.yaml, metrics.jsonl and log.txt of a run of PPO on CartPole-v1."""
    path.mkdir(parents=True)
    config = {"algo": "ppo", "env": "CartPole-v1", "seed": 0, "learning_rate": 3e-4, **settings}
    (path / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items()))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "log.txt").write_text("started\ndone\n")
    return path


def learning(num: int = 30, **changed: Any) -> list[dict[str, Any]]:
    """Records of a run that learns; changed: name -> value, or a function of the iteration."""
    rows = []
    for index in range(num):
        row = {
            "iteration": index + 1,
            "env_steps": 1024 * (index + 1),
            "wall_s": 0.5 * (index + 1),
            "episodes": 10 * (index + 1),
            "episode_return_mean": 20.0 + 10.0 * index,
            "learner/approx_kl": 0.01,
            "learner/clip_fraction": 0.1,
            "learner/entropy": 0.69 - 0.01 * index,
            "learner/explained_variance": 0.6,
            "learner/gradient_norm": 0.4,
            "learner/learning_rate": 3e-4,
            "learner/skipped_minibatches": 0,
        }
        row.update({name: value(index) if callable(value) else value for name, value in changed.items()})
        rows.append(row)
    return rows
