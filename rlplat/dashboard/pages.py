"""`Pages(root)`: the data of each page, as plain JSON values. Reads files, keeps what it has read in bounded memory.

A run is named by its path below `root`; a name that leads elsewhere, or to no run, is `NoSuchRun`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlplat.catalog import describe_experiment, describe_run, ended_trials, find, flat, settings_of
from rlplat.dashboard.bands import Curve, band, curve_of, improvements, summary
from rlplat.dashboard.follow import Cursor, columns, read_since, thinned
from rlplat.dashboard.hints import hints
from rlplat.errors import UsageError

MAX_POINTS = 2_000
"""Rows of a curve that are sent at first; new ones are all sent."""
MAX_LOG_BYTES = 64 * 1024
MAX_TEXT_BYTES = 1 << 20
"""Of a config that is shown."""
NOT_COMPARED = ("seed", "out", "expect", "stop", "evaluation")
"""Settings in which runs of one group may differ, besides the seed: when they end and how they are looked at."""
_READ = ("config.yaml", "metrics.jsonl", "log.txt", "experiment.yaml", "results.csv")
"""Files of a run or an experiment that a page reads."""
_QUICK_S = 0.1
"""Of a look at the whole tree; a longer one is answered again for nine times as long, to all pages: on a network disk
that walk is what open pages cost."""
_MAX_ROWS_KEPT = 20_000
_MAX_CURVES_KEPT = 500
"""Of 32 KB each."""


class NoSuchRun(UsageError):
    """No run, experiment or file of this name is below the directory that is shown."""


class Pages:
    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._lock = threading.RLock()
        """Requests come in several threads."""
        self._walking = threading.Lock()
        self._list: tuple[float, dict[str, Any]] = (-math.inf, {})
        """The last answer of `runs`, and until when it is given again (monotonic)."""
        self._described: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._rows: OrderedDict[Path, tuple[Cursor, list[dict[str, Any]]]] = OrderedDict()
        self._num_rows = 0
        self._curves: OrderedDict[tuple[Path, str, str], tuple[tuple[int, int, int], Curve, list[str]]] = OrderedDict()

    def runs(self) -> dict[str, Any]:
        """Every run and experiment below the root, the most recent one first."""
        with self._walking:
            began = time.monotonic()
            if began >= self._list[0]:
                listed = self._walked()
                ended = time.monotonic()
                took = ended - began
                self._list = (ended + 9 * took if took > _QUICK_S else -math.inf, listed)
            return self._list[1]

    def _walked(self) -> dict[str, Any]:
        found, seen = [], set()
        for kind, path in find(self.root):
            seen.add(path)
            if self._stranger_in(path):
                continue
            try:
                found.append(self._described_once(kind, path))
            except OSError:  # removed or renamed while we looked
                continue
        with self._lock:
            self._described = {path: row for path, row in self._described.items() if path in seen}
        found.sort(key=lambda row: (row["updated"], row["run"]), reverse=True)
        return {"root": str(self.root), "runs": found}

    def _described_once(self, kind: str, path: Path) -> dict[str, Any]:
        """As `rlplat runs --json` has it, with `group`; read again only when a file of it has changed."""
        names = ("config.yaml", "metrics.jsonl") if kind == "run" else ("experiment.yaml", "results.csv")
        state = tuple(number for name in names for number in _state_of(path / name))
        before = self._described.get(path)
        if before is not None and before[0] == state and not before[1]["is_running"]:
            return before[1]
        if kind == "run":
            settings = settings_of(path)
            row = {**describe_run(path, settings), "group": group_of(settings)}
        else:
            row = {**describe_experiment(path), "group": None}
        name = str(path.relative_to(self.root))
        row["run"] = name.encode(errors="replace").decode()  # the bytes of a name may be no text
        self._described[path] = (state, row)
        return row

    def run(self, name: str) -> dict[str, Any]:
        path = self._directory(name, "config.yaml")
        settings, rows = settings_of(path), self._all_rows(path)
        return {
            **describe_run(path, settings),
            "run": name,
            "config": _text(path / "config.yaml"),
            "names": list(columns(rows[-50:])),
            "checkpoints": sorted(p.name for p in (path / "checkpoints").glob("*") if not p.is_symlink()),
            "videos": videos_of(path),
            "hints": [asdict(hint) for hint in hints(rows, settings)],
        }

    def metrics(self, name: str, cursor: str = "", names: list[str] | None = None) -> dict[str, Any]:
        """The columns of a run's metrics after a cursor of an earlier answer; all of them, thinned, without."""
        path = self._directory(name, "config.yaml")
        records = read_since(path / "metrics.jsonl", Cursor.parse(cursor))
        rows = thinned(records.rows, MAX_POINTS) if records.reset else records.rows
        return {
            "cursor": str(records.cursor),
            "reset": records.reset,
            "skipped": records.skipped,
            "columns": columns(rows, names),
        }

    def log(self, name: str, offset: int = 0) -> dict[str, Any]:
        """What log.txt has from an offset in bytes, its last 64 KiB at most, in whole lines."""
        path = self._directory(name, "config.yaml") / "log.txt"
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = offset if 0 <= offset <= size else 0
                cut = size - start > MAX_LOG_BYTES
                start = max(start, size - MAX_LOG_BYTES)
                file.seek(start)
                data = file.read(MAX_LOG_BYTES)
        except FileNotFoundError:
            return {"offset": 0, "text": ""}
        if cut:
            skipped = data.find(b"\n") + 1
            start, data = start + skipped, data[skipped:]
        whole = data[: data.rfind(b"\n") + 1]
        return {"offset": start + len(whole), "text": whole.decode("utf-8", "replace")}

    def compare(self, names: Iterable[str], metric: str, x: str) -> dict[str, Any]:
        """Runs in one plot: of each group of seeds one band of `metric` over `x`, a summary of its last values, as in
        `rlplat compare`, how often one group is better, and the settings that differ."""
        groups: dict[str, list[str]] = {}
        settings: dict[str, dict[str, Any]] = {}
        points: dict[str, Curve] = {}
        known: set[str] = set()
        for name in names:
            path = self._directory(name, "config.yaml")
            own = settings_of(path)
            settings[name] = flat(own)
            points[name], names_of_run = self._curve_once(path, metric, x)
            known.update(names_of_run)
            groups.setdefault(group_of(own), []).append(name)
        curves = []
        scores: dict[str, list[float]] = {}
        for members in groups.values():
            found = band([points[name] for name in members])
            label = _label(members, settings)
            if last := [float(points[name][1][-1]) for name in members if len(points[name][1])]:
                scores[label] = last
            numbers = {name: array.tolist() for name, array in vars(found).items()}
            curves.append({"runs": members, "label": label, **numbers})
        return {
            "curves": curves,
            "groups": [{"label": label, **summary(last)} for label, last in scores.items()],
            "better": improvements(scores),
            "names": sorted(known),
            "differences": differences(settings),
        }

    def _curve_once(self, path: Path, metric: str, x: str) -> tuple[Curve, list[str]]:
        """A run's curve and the names that its newest rows have; made again only when its file has changed."""
        state = _state_of(path / "metrics.jsonl")
        with self._lock:
            before = self._curves.pop((path, metric, x), None)
            if before is None or before[0] != state:
                rows = self._all_rows(path)
                before = (state, _curve(rows, metric, x), list(columns(rows[-50:])))
            self._curves[path, metric, x] = before
            while len(self._curves) > _MAX_CURVES_KEPT:
                self._curves.popitem(last=False)
            return before[1], before[2]

    def experiment(self, name: str) -> dict[str, Any]:
        """An experiment's trials: number, state, parameters, metrics, and the run of each where it is one."""
        path = self._directory(name, "experiment.yaml")
        rows = ended_trials(path)
        for row in rows:
            trial = path / "trials" / row["trial"].zfill(5)
            row["run"] = f"{name}/trials/{trial.name}" if (trial / "config.yaml").exists() else ""
        return {
            **describe_experiment(path),
            "run": name,
            "settings": _text(path / "experiment.yaml"),
            "rows": rows,
        }

    def video(self, name: str, file: str) -> Path:
        path = self._directory(name, "config.yaml")
        if file not in {video["file"] for video in videos_of(path)}:
            raise NoSuchRun(f"{name} has no video {file}")
        return path / "videos" / file

    # ---------------------------------------------------------------- files

    def _directory(self, name: str, marker: str) -> Path:
        try:
            path = (self.root / name).resolve()
            if path.is_relative_to(self.root) and (path / marker).is_file():
                if stranger := self._stranger_in(path):
                    raise NoSuchRun(f"{name!r:.300} is not shown: {stranger} in it is no file of {self.root}")
                return path
        except (OSError, ValueError):  # too long for a name, or with a zero byte in it
            pass
        what = "run" if marker == "config.yaml" else "experiment"
        raise NoSuchRun(f"there is no {what} {name!r:.300} in {self.root}")

    def _stranger_in(self, path: Path) -> str:
        """The name of what is not to be read there, or "": a link that leads out of the root (whoever may write into a
        shared folder could show any file of this user), a pipe."""
        for name in _READ:
            file = path / name
            if file.is_symlink() and not file.resolve().is_relative_to(self.root):
                return name
            if file.exists() and not file.is_file():
                return name
        return ""

    def _all_rows(self, path: Path) -> list[dict[str, Any]]:
        """All records of a run; those of the runs looked at last stay in memory."""
        with self._lock:
            cursor, rows = self._rows.pop(path, (Cursor(), []))
            self._num_rows -= len(rows)
            records = read_since(path / "metrics.jsonl", cursor)
            rows = records.rows if records.reset else rows + records.rows
            if len(rows) > _MAX_ROWS_KEPT:  # a run that is watched while it grows
                rows = rows[:-1:2] + rows[-1:]
            self._rows[path] = (records.cursor, rows)
            self._num_rows += len(rows)
            while self._num_rows > _MAX_ROWS_KEPT and len(self._rows) > 1:
                _, (_, oldest) = self._rows.popitem(last=False)
                self._num_rows -= len(oldest)
            return rows


def group_of(settings: Mapping[str, Any]) -> str:
    """The same for runs that differ only by their seed (and by `NOT_COMPARED`)."""
    kept = {key: value for key, value in settings.items() if key not in NOT_COMPARED}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:12]


def differences(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """setting -> run -> value, of the settings that are not the same in all runs; None where a run has none."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    found = {key: {run: _shown(values.get(key)) for run, values in settings.items()} for key in keys}
    return {
        key: values for key, values in found.items() if len({json.dumps(v, default=str) for v in values.values()}) > 1
    }


def _shown(value: Any) -> Any:
    """JSON has no infinity: there it would be the null of a run that has no such setting."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def videos_of(path: Path) -> list[dict[str, Any]]:
    """[{file, env_steps}] of the videos of evaluations, in the order of their steps; of others env_steps is None."""
    found = []
    for video in (path / "videos").glob("*.mp4"):
        if video.is_symlink() or not video.is_file() or (path / "videos").is_symlink():
            continue  # see `Pages._stranger_in`
        match = re.fullmatch(r"eval_(\d+)\.mp4", video.name)
        found.append({"file": video.name, "env_steps": int(match.group(1)) if match else None})
    return sorted(found, key=lambda row: (row["env_steps"] is None, row["env_steps"] or 0, row["file"]))


def _curve(rows: list[dict[str, Any]], metric: str, x: str) -> Curve:
    kept = thinned(rows, MAX_POINTS)
    chosen = columns(kept, [x, metric, "env_steps", "eval/env_steps"])
    return curve_of([dict(zip(chosen, row, strict=True)) for row in zip(*chosen.values(), strict=True)], metric, x)


def _label(members: list[str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    if len(members) == 1:
        return members[0]
    first = settings[members[0]]
    return f"{first.get('algo')} {first.get('env')}, {len(members)} runs: {members[0]}, ..."


def _state_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _text(path: Path) -> str:
    """Its first MAX_TEXT_BYTES."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
