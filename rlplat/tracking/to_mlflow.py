"""MLflow: a database, or a server at MLFLOW_TRACKING_URI.

A row sent twice is kept once: MLflow drops a metric of the same name, step, time and value, and the time of a row is
the run's beginning and its `wall_s`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rlplat.tracking.history import Row
from rlplat.tracking.tracker import TrackedRun

KEY_TAG = "rlplat.key"
MOST_METRICS = 1000
"""Of one request."""
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    package = "mlflow"

    def open(self, run: TrackedRun) -> int | None:
        from mlflow.entities import ViewType
        from mlflow.tracking import MlflowClient

        self._client, self._began_s = MlflowClient(), run.began_s
        name = run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME", "rlplat")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{run.key}'", ViewType.ALL)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return int(found[0].data.metrics.get("env_steps", 0))
        tags = {KEY_TAG: run.key, "rlplat.group": run.group, "rlplat.directory": str(run.directory)}
        self._id = self._client.create_run(experiment_id, tags=tags, run_name=run.name).info.run_id
        from mlflow.entities import Param

        params = [Param(key, str(value)[:6000]) for key, value in run.config.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._id, params=params[start : start + 100])
        return 0

    def log(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round((self._began_s + row.wall_s) * 1000), row.step_of(name))
            for row in rows
            for name, value in sorted(row.values.items(), key=lambda item: item[0] == "env_steps")
        ]  # env_steps last of its row: what a half-sent batch holds of the last row is sent again
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._id, metrics[start : start + MOST_METRICS])

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._id, str(path), f"{kind}/{path.name}")
        else:
            self._client.log_artifact(self._id, str(path), kind)

    def finish(self, state: str) -> None:
        self._client.set_terminated(self._id, _STATUS[state])
