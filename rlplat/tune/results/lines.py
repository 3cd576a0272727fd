"""What is derived of an experiment's reports for people and their tools: `results.jsonl` and `results.csv`.

A line of `results.jsonl` is one report; `params` stand in a trial's first line and wherever they changed (PBT):

    {"trial": 7, "step": 1, "progress": 1, "run_s": 0.21, "time": 1795283000.1, "params": {"alpha": 0.2}, "metrics": {"accuracy": 0.31}}
    {"trial": 7, "step": 2, "progress": 2, "run_s": 0.40, "time": 1795283000.3, "metrics": {"accuracy": 0.52}}

A trial that goes on from an older checkpoint repeats some steps: the later line of a (trial, step) holds, and
`forget_superseded` leaves only that one when the experiment ends or goes on after a crash. `results.csv` has one row per
ended trial. The study is the truth: both can be lost without loss.
"""  # noqa: E501

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlplat.errors import ConfigError
from rlplat.metrics import Appender, CsvWriter, replace_file
from rlplat.tune.core.trial import Trial, last_line

OWN_COLUMNS = ("trial", "state", "step", "progress", "run_s", "failures", "error")
"""Of a table with a row per trial; params follow as `config/<dotted name>`, then the metrics by their own names."""


class ReportLines:
    """Appends to `results.jsonl`; what is recorded is written by `flush`, in one piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Appender(path)
        self._pending: list[str] = []
        self._params: dict[int, dict[str, Any]] = {}
        """Last written params of the trials that have not ended."""
        self._steps: dict[int, int] = {}
        self.has_superseded = False
        """Whether a (trial, step) may be there twice."""

    def record(self, trial: Trial, metrics: Mapping[str, Any], time_s: float | None = None) -> None:
        """One report. time_s: seconds since 1970; None: now."""
        number = trial.number
        if trial.step <= self._steps.get(number, 0):
            self.has_superseded = True
        self._steps[number] = trial.step
        line: dict[str, Any] = {
            "trial": number,
            "step": trial.step,
            "progress": trial.progress,
            "run_s": round(trial.run_s, 4),
            "time": round(time.time() if time_s is None else time_s, 3),
        }
        if self._params.get(number) != trial.params:
            self._params[number] = dict(trial.params)
            line["params"] = as_json(trial.params)
        line["metrics"] = {name: as_json(value) for name, value in metrics.items()}
        self._pending.append(json.dumps(line))

    def end(self, trial: Trial) -> None:
        self._params.pop(trial.number, None)
        self._steps.pop(trial.number, None)

    def forget(self) -> None:
        """After the file was rewritten: it is another one now, and params are written anew."""
        self._file.close()
        self._file = Appender(self.path)
        self._params.clear()
        self._steps.clear()
        self.has_superseded = False

    def flush(self) -> None:
        """OSError when the disk refuses: then the pending lines are dropped, and nothing of them is in the file."""
        if not self._pending:
            return
        data = ("\n".join(self._pending) + "\n").encode()
        self._pending.clear()
        self._file.append(data)

    def close(self) -> None:
        self._file.close()


class TrialRows:
    """Appends to `results.csv` one row per ended trial."""

    def __init__(self, path: Path) -> None:
        self._writer = CsvWriter(path)

    def write(self, trial: Trial) -> None:
        self._writer.write(trial_row(trial))

    def close(self) -> None:
        self._writer.close()


def trial_row(trial: Trial) -> dict[str, Any]:
    """Column -> value, of `results.csv` and `Analysis.dataframe()`: OWN_COLUMNS, `config/<name>` for each param, and
    the metrics of the last report; a metric with the name of one of our columns is `metrics/<name>`."""
    row: dict[str, Any] = {
        "trial": trial.number,
        "state": str(trial.state),
        "step": trial.step,
        "progress": trial.progress,
        "run_s": round(trial.run_s, 4),
        "failures": trial.failures,
        "error": last_line(trial.error or trial.notes.get("not_saved", "")),
    }
    row.update((f"config/{name}", value) for name, value in trial.params.items())
    row.update(metric_columns(trial.last))
    return row


def metric_columns(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {metric_column(name): as_json(value) for name, value in metrics.items()}


def metric_column(name: str) -> str:
    """Its column beside our own."""
    return f"metrics/{name}" if name in OWN_COLUMNS or name == "time" else name


def read_reports(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a `results.jsonl`, also while it grows; a half-written last one is left out."""
    try:
        file = open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        for line in file:
            try:
                report = json.loads(line)
            except ValueError:
                continue
            kinds = {"trial": int, "step": int, "metrics": dict}
            if isinstance(report, dict) and all(type(report.get(key)) is kind for key, kind in kinds.items()):
                yield report


def holding(
    reports: Iterable[dict[str, Any]], last_steps: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """Those that hold: where a trial went back to step s, what it had reported beyond s before is gone. `params` are in
    the first line that is left of a trial, and where they change.

    last_steps: the last step of each trial that is to stay; trials not in it go entirely. None: whatever holds.
    """
    params: dict[int, Any] = {}
    lines: list[tuple[dict[str, Any], Any]] = []
    for report in reports:
        if "params" in report:
            params[report["trial"]] = report["params"]
        if last_steps is None or report["step"] <= last_steps.get(report["trial"], 0):
            lines.append((report, params.get(report["trial"])))
    kept: list[tuple[dict[str, Any], Any]] = []
    next_step: dict[int, int] = {}
    for report, its_params in reversed(lines):
        if report["step"] < next_step.get(report["trial"], 1 << 62):
            next_step[report["trial"]] = report["step"]
            kept.append((report, its_params))
    held: list[dict[str, Any]] = []
    written: dict[int, Any] = {}
    for report, its_params in reversed(kept):
        line = {name: value for name, value in report.items() if name not in ("params", "metrics")}
        if report["trial"] not in written or written[report["trial"]] != its_params:
            written[report["trial"]] = line["params"] = its_params
        line["metrics"] = report.get("metrics", {})
        held.append(line)
    return held


def forget_superseded(path: Path, last_steps: Mapping[int, int] | None = None) -> None:
    """Leave one line for each (trial, step) in the file; last_steps: as for `holding`."""
    held = holding(read_reports(path), last_steps)
    replace_file(path, "".join(json.dumps(report) + "\n" for report in held))


def as_json(value: Any) -> Any:
    """A value that JSON can hold: not-a-number and infinities are null, numpy's scalars and arrays plain numbers and
    lists, what has no JSON form its repr."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is int or kind is str or kind is bool or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(name): as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if hasattr(value, "tolist"):
        return as_json(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int | str):
        return kind.__base__(value) if kind.__base__ in (int, str) else str(value)
    return repr(value)
