"""Aim: its repository on this machine (AIM_REPO, by default `.aim` in this folder); `aim up` shows it.

Aim gives its runs their ids, so the id is kept in the run directory: tracking/aim-KEY. A row sent twice is kept once: a
metric has one value at a step. What was sent is in the repository also after a kill -9 (tried with aim 3.29).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlplat.tracking.history import Row
from rlplat.tracking.tracker import TrackedRun


class AimTracker:
    package = "aim"

    def open(self, run: TrackedRun) -> int | None:
        from aim import Run

        note = run.directory / "tracking" / f"aim-{run.key}"
        known = note.read_text() if note.exists() else None
        options: dict[str, Any] = {
            "repo": os.environ.get("AIM_REPO", "."),
            "experiment": run.project or os.environ.get("AIM_EXPERIMENT", "rlplat"),
            "system_tracking_interval": None,
            "log_system_params": False,
            "capture_terminal_logs": False,
        }
        if known is not None:  # of a copy that was killed the lock is left; that no other one runs is known
            self._run: Any = Run(known, force_resume=True, **options)
            return self._held()
        self._run = Run(**options)
        self._run.name = run.name
        self._run["rlplat"] = {"key": run.key, "group": run.group, "directory": str(run.directory)}
        self._run["config"] = {key: str(value) for key, value in run.config.items()}
        note.parent.mkdir(exist_ok=True)
        note.write_text(self._run.hash)
        return 0

    def _held(self) -> int:
        from aim.storage.context import Context

        metric = self._run.get_metric("env_steps", Context({}))
        _, values = metric.values.sparse_numpy() if metric is not None else ((), ())
        return int(max(values, default=0))

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:  # env_steps last: what is half sent of a row is sent again
            others = {name: value for name, value in row.values.items() if name != "env_steps"}
            for step in sorted({row.step_of(name) for name in others}):
                at_step = {name: value for name, value in others.items() if row.step_of(name) == step}
                self._run.track(at_step, step=step)
            self._run.track(float(row.env_steps), name="env_steps", step=row.env_steps)

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        """Aim has no videos, and artifacts only where a storage for them is set up: they stay in the run directory."""

    def finish(self, state: str) -> None:
        self._run["state"] = state
        self._run.close()
