"""Trackio: its database on this machine (TRACKIO_DIR); `trackio show` reads it, `trackio.sync` uploads it.

A row sent twice is kept once: its id is made of the run's key and its env steps. Rows go to the database itself, not
through `trackio.log`, which returns before they are safe and gives each call a new id.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rlplat.tracking.history import Row
from rlplat.tracking.tracker import TrackedRun


class TrackioTracker:
    package = "trackio"

    def open(self, run: TrackedRun) -> int | None:
        from trackio.sqlite_storage import SQLiteStorage

        self._storage, self._run = SQLiteStorage, run
        self._project = run.project or os.environ.get("TRACKIO_PROJECT", "rlplat")
        held = SQLiteStorage.get_last_step(self._project, run_id=run.key)
        return held or 0

    def log(self, rows: Sequence[Row]) -> None:
        run = self._run
        times = [datetime.fromtimestamp(run.began_s + row.wall_s, UTC).isoformat() for row in rows]
        self._storage.bulk_log(
            self._project,
            run.name,
            [row.values for row in rows],
            steps=[row.env_steps for row in rows],
            timestamps=times,
            config={**run.config, "_Group": run.group},
            log_ids=[f"{run.key}-{row.env_steps}{'-end' * row.is_closing}" for row in rows],
            run_id=run.key,
        )

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        """Trackio's files belong to a run that the same process logs: they stay in the run directory."""

    def finish(self, state: str) -> None:
        pass  # its runs have no state
