"""A tracker that keeps what it is told in a file, believes everything, and fails when it is asked to.

FAKE_TRACKER is its directory: `<key>.jsonl` what each run was told, `fail` a number of calls that will raise.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlplat.tracking.history import Row
from rlplat.tracking.tracker import TrackedRun


class FakeTracker:
    package = ""

    def open(self, run: TrackedRun) -> int | None:
        self.home = Path(os.environ["FAKE_TRACKER"])
        self._count("opened")
        self.file = self.home / f"{run.key}.jsonl"
        if not self.file.exists():
            self.write({"name": run.name, "group": run.group, "config": dict(run.config)})
        return max([0, *(line["env_steps"] for line in told(self.file) if "env_steps" in line)])

    def _count(self, name: str) -> int:
        path = self.home / name
        number = int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(number))
        return number

    def write(self, line: dict[str, Any]) -> None:
        with open(self.file, "a") as file:
            file.write(json.dumps(line) + "\n")

    def log(self, rows: Sequence[Row]) -> None:
        refusals = self.home / "fail"
        if refusals.exists() and int(refusals.read_text()):
            refusals.write_text(str(int(refusals.read_text()) - 1))
            raise ConnectionError("no route to host")
        for row in rows:
            self.write({"env_steps": row.env_steps, "values": row.values, "closing": row.is_closing})
        if (self.home / "die").exists():  # after it was told, before that can be noted
            (self.home / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        self.write({"file": path.name, "kind": kind})

    def finish(self, state: str) -> None:
        self.write({"state": state})


def told(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def env_steps_of(file: Path) -> list[int]:
    """Of its rows, without the closing ones."""
    return [line["env_steps"] for line in told(file) if line.get("closing") is False]
