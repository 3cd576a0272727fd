"""Rows and files of one run directory to one tracker, each once.

    copier = Copier(directory, load_tracker("wandb"), "wandb", ...)
    while copier.turn():                       # raises what the tracker raises: close, wait, open again
        ...

What was copied stands in `RUN/tracking/<name>.json`, written after the tracker has said that it is safe. Killed in
between, the next copier asks the tracker what it holds and omits that much. A resume that takes back copied rows begins
another run in the tracker, in the same group, which holds the whole curve: trackers cannot remove a row.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import msgspec

from rlplat.catalog import flat, settings_of
from rlplat.metrics import replace_file
from rlplat.rl.run.run_directory import is_running
from rlplat.tracking.history import Place, TakenBack, read_rows
from rlplat.tracking.tracker import TrackedRun, Tracker

FOLDER = "tracking"


class Copied(msgspec.Struct):
    """RUN/tracking/<name>.json"""

    key: str
    began_s: float
    """When the run began, in seconds since 1970: kept, so that a row has the same time whenever it is sent."""
    part: int = 1
    """Counts the runs in the tracker: a resume that takes rows back begins the next one."""
    place: Place = msgspec.field(default_factory=Place)
    files: list[str] = []
    """What was copied besides rows: paths in the run directory with the time of their last change."""
    ended: str = ""
    """The state that the tracker was told at the end; empty while it waits for more."""


class Copier:
    def __init__(
        self,
        directory: Path,
        tracker: type[Tracker],
        name: str,
        *,
        run_name: str = "",
        project: str = "",
        videos: bool = True,
        checkpoints: bool = False,
    ) -> None:
        self._directory, self._tracker_class, self._name = directory, tracker, name
        self._run_name, self._project = run_name or directory.resolve().name, project
        self._videos, self._checkpoints = videos, checkpoints
        self._path = directory / FOLDER / f"{file_name(name)}.json"
        self._tracker: Tracker | None = None
        self._held = 0
        self.copied = self._load()
        self.num_sent = 0
        """Rows that this copier has sent."""
        self.num_skipped = 0

    def _load(self) -> Copied:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Copied)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return Copied(uuid.uuid4().hex[:12], os.stat(self._directory / "config.yaml").st_mtime)

    def _save(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        replace_file(self._path, msgspec.json.encode(self.copied).decode())

    def turn(self) -> bool:
        """Copy what is new, at most one batch of rows. Whether more may be waiting."""
        try:
            found = read_rows(self._directory / "metrics.jsonl", self.copied.place)
        except TakenBack:
            self._part()
            return True
        self.num_skipped += found.skipped
        if found.rows:
            tracker = self._opened()
            if self.copied.place.env_steps > self._held:  # an older state of the tracker's came back
                self.copied.place = Place()
                return True
            rows = [row for row in found.rows if row.env_steps > self._held or row.is_closing]
            if rows:
                tracker.log(rows)
            self._held = max(self._held, found.place.env_steps)
            self.num_sent += len(rows)
        if found.place != self.copied.place:
            self.copied.place = found.place
            self._save()
        if found.is_end and self.copied.place.digest and self._videos:
            self._send_new("videos", sorted(self._directory.glob("videos/[!.]*")))
        return not found.is_end

    def _opened(self) -> Tracker:
        if self._tracker is None:
            self._save()  # the key before the tracker knows it: killed in between, it is used again
            tracker = self._tracker_class()
            held = tracker.open(self.tracked_run())
            self._held = self.copied.place.env_steps if held is None else held
            self._tracker, self.copied.ended = tracker, ""
        return self._tracker

    def tracked_run(self) -> TrackedRun:
        part = f" ({self.copied.part})" if self.copied.part > 1 else ""
        return TrackedRun(
            key=f"{self.copied.key}-{self.copied.part}",
            name=self._run_name + part,
            group=f"{self._run_name}-{self.copied.key}",
            project=self._project,
            config=flat(settings_of(self._directory)),
            began_s=self.copied.began_s,
            directory=self._directory,
        )

    def _part(self) -> None:
        """The rows copied last are no longer the run's: end that run of the tracker and begin another one."""
        self._opened().finish("interrupted")
        self._tracker = None
        self.copied = Copied(self.copied.key, self.copied.began_s, self.copied.part + 1)
        self._save()

    def _send_new(self, kind: str, paths: list[Path]) -> None:
        for path in paths:
            entry = f"{path.relative_to(self._directory)} {path.stat().st_mtime_ns}"
            if entry not in self.copied.files:
                self._opened().log_file(path, kind, self.copied.place.env_steps)
                self.copied.files.append(entry)
                self._save()

    def finish(self, state: str) -> None:
        """After the last turn of a run that has ended."""
        if not self.copied.place.digest:
            return  # a run without a row never was in the tracker
        if self._checkpoints:
            kept = sorted(self._directory.glob("checkpoints/step_*"), key=lambda path: path.stat().st_mtime)
            best = self._directory / "checkpoints" / "best"
            self._send_new("checkpoints", [*kept[-1:], *([best] if best.is_dir() else [])])
        if self.copied.ended != state:
            self._opened().finish(state)
            self.copied.ended = state
            self._save()
        self._tracker = None

    def drop(self) -> None:
        """Forget the tracker after it has failed: the next turn opens a new one."""
        self._tracker = None


def file_name(tracker: str) -> str:
    return tracker.replace(":", ".").replace("/", ".")


def state_of(directory: Path) -> str:
    """running, finished, interrupted or failed: by the lock of log.txt and its last line."""
    if is_running(directory):
        return "running"
    try:
        with open(directory / "log.txt", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    last = lines[-1][len("2026-01-01 00:00:00  ") :] if lines else ""
    if last == "done":
        return "finished"
    return "interrupted" if last.startswith("ended by ") else "failed"
