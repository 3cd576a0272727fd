"""Weights & Biases, online or offline (WANDB_MODE=offline, then `wandb sync`).

`env_steps` is the step, the run's key its id: a run that is opened again continues where the server says it stands.
Offline there is no server to ask, and the cursor beside the run is believed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlplat.tracking.history import Row
from rlplat.tracking.tracker import TrackedRun


class WandbTracker:
    package = "wandb"

    def open(self, run: TrackedRun) -> int | None:
        import wandb

        self._run: Any = wandb.init(
            id=run.key,
            resume="allow",
            project=run.project or os.environ.get("WANDB_PROJECT", "rlplat"),
            name=run.name,
            group=run.group,
            config=dict(run.config),
            dir=run.directory / "tracking",
            settings=wandb.Settings(console="off", x_disable_stats=True, silent=True),
        )
        if self._run.offline:
            return None
        return max(0, int(self._run.step) - 1)  # `step` is that of the next row

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:  # the step stays open until the next one, so a closing row joins the last
            self._run.log(row.values, step=row.env_steps)

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        import wandb

        if kind == "videos":
            self._run.log({f"videos/{path.stem}": wandb.Video(str(path), format="mp4")}, step=env_steps)
            return
        artifact = wandb.Artifact(f"{self._run.id}-{path.name}", type="checkpoint")
        artifact.add_dir(str(path))
        self._run.log_artifact(artifact)

    def finish(self, state: str) -> None:
        self._run.finish(exit_code=0 if state != "failed" else 1)
