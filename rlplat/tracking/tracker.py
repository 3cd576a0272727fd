"""What a tracker does, and trackers by name.

The copier calls it like this, in one thread, in a process of its own:

    tracker = SomeTracker()
    held = tracker.open(run)                # begins the tracker's run, or finds the one of that key again
    tracker.log(rows)                       # any number of times; a row is never given twice, but after kill -9
    tracker.log_file(path, "videos", 2048)
    tracker.finish("finished")

Any of them may raise: the call is repeated with a new tracker, from what that one holds. A tracker is announced in the
entry-point group `rlplat.trackers`, or named as `pkg.module:Class`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlplat.config import closest
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.class_path import load_class
from rlplat.rl.run.registry import announced
from rlplat.tracking.history import Row

GROUP = "rlplat.trackers"


@dataclass(frozen=True)
class TrackedRun:
    """The run as a tracker is to show it."""

    key: str
    """Unique, and the same whenever this run is opened: an id where the tracker takes one, else a tag."""
    name: str
    group: str
    """Runs of one directory that a resume has parted have the same group."""
    project: str
    """Empty: the tracker's own default (its environment variable)."""
    config: Mapping[str, Any]
    """config.yaml, flat: `stop.env_steps` -> 200000."""
    began_s: float
    """When the run began, in seconds since 1970."""
    directory: Path


class Tracker(Protocol):
    package: str
    """The package that it needs, for the message where that is missing."""

    def open(self, run: TrackedRun) -> int | None:
        """Begin, or continue the one with this key. The highest env steps that it holds, 0 for none; None where it
        cannot say: then the copier's own cursor is believed."""
        ...

    def log(self, rows: Sequence[Row]) -> None:
        """Rows in order. Returns when they are safe; raises where they may not be."""
        ...

    def log_file(self, path: Path, kind: str, env_steps: int) -> None:
        """kind: `videos` or `checkpoints` (a directory). Where the tracker takes no files: nothing."""
        ...

    def finish(self, state: str) -> None:
        """state: finished, interrupted or failed."""
        ...


def load_tracker(name: str) -> type[Tracker]:
    """The class of a tracker; a UsageError where there is none of that name, or its package is not installed."""
    homes = announced(GROUP)
    home = homes.get(name) or (name if ":" in name else None)
    if home is None:
        raise ConfigError(
            f"unknown tracker '{name}'{closest(name, homes)}\ntrackers: {', '.join(sorted(homes))}, or pkg.module:Class"
        )
    found: type[Tracker] = load_class(home)
    if not all(hasattr(found, each) for each in ("open", "log", "log_file", "finish")):
        raise ConfigError(f"tracker '{name}': {home} needs the methods open, log, log_file and finish")
    package = getattr(found, "package", "")
    if package and importlib.util.find_spec(package) is None:
        raise UsageError(f"tracker '{name}' needs {package}: pip install {package}")
    return found
