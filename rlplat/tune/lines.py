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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplat.errors import ConfigError
from rlplat.metrics import Appender, replace_file
from rlplat.tensorboard_events import (
    bytes_field,
    double_field,
    event_file_name,
    purge_record,
    scalars,
    summary_record,
    varint_field,
    version_record,
)
from rlplat.tune.trial import Trial, TrialState, last_line

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

    def record(self, trial: Trial, metrics: Mapping[str, Any]) -> None:
        number = trial.number
        if trial.step <= self._steps.get(number, 0):
            self.has_superseded = True
        self._steps[number] = trial.step
        line: dict[str, Any] = {
            "trial": number,
            "step": trial.step,
            "progress": trial.progress,
            "run_s": round(trial.run_s, 4),
            "time": round(time.time(), 3),
        }
        if self._params.get(number) != trial.params:
            self._params[number] = dict(trial.params)
            line["params"] = as_json(trial.params)
        line["metrics"] = {name: as_json(value) for name, value in metrics.items()}
        self._pending.append(json.dumps(line))

    def end(self, trial: Trial) -> None:
        self._params.pop(trial.number, None)
        self._steps.pop(trial.number, None)

    def flush(self) -> None:
        """OSError when the disk refuses: then the pending lines are dropped, and nothing of them is in the file."""
        if not self._pending:
            return
        data = ("\n".join(self._pending) + "\n").encode()
        self._pending.clear()
        self._file.append(data)

    def close(self) -> None:
        self._file.close()


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


def holding(reports: Iterable[dict[str, Any]], last_steps: Mapping[int, int] | None = None) -> list[dict[str, Any]]:
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


# -------------------------------------------------------------------------------- TensorBoard's view

WRITE_PERIOD_S = 2.0
_SUCCESS, _FAILURE = 1, 2


class ExperimentCurves:
    """TensorBoard's view of an experiment: curves of each trial, and what its HPARAMS page makes a table and plots of.

        EXP/tensorboard/00007/events...    trial 7: its parameters, its scalars by report, how it ended

    `tensorboard --logdir EXP` shows it, and below `trials/` the full curves of trials that write TensorBoard files of
    their own, as those of algorithms do: of them only the objective is repeated here, as the HPARAMS page needs it.
    Messages: tensorboard/plugins/hparams/{plugin_data,api}.proto; no tensorboard is imported.

    It keeps records in memory and no file open: thousands of paused trials cost no descriptor.
    """

    def __init__(self, directory: Path, trials_directory: Path, objectives: Sequence[str]) -> None:
        """directory: EXP/tensorboard; objectives: the metrics in question."""
        self._directory, self._trials_directory = directory, trials_directory
        self._objectives = tuple(objectives)
        self._open: dict[int, _TrialFile] = {}
        self._next_write_s = 0.0

    def record(self, trial: Trial, metrics: Mapping[str, Any]) -> None:
        file = self._open.get(trial.number)
        if file is None:
            file = self._open[trial.number] = self._begin(trial)
        if trial.step <= file.step or (trial.step > 1 and not file.step):  # it repeats, or another tuner began it
            file.pending.append(purge_record(trial.step))
        file.step = trial.step
        if file.has_own_curves:
            metrics = {name: metrics[name] for name in self._objectives if name in metrics}
        if values := scalars({name: as_json(value) for name, value in metrics.items()}):
            file.pending.append(summary_record(time.time(), trial.step, values))

    def end(self, trial: Trial) -> None:
        """Closes the trial's session; OSError when the disk refuses."""
        file = self._open.pop(trial.number, None) or self._begin(trial)
        status = _FAILURE if trial.state is TrialState.FAILED else _SUCCESS
        end = varint_field(1, status) + double_field(2, time.time())
        file.pending.append(_hparams_record("_hparams_/session_end_info", 4, end))
        file.write()

    def flush(self) -> None:
        """Writes every other second; OSError when the disk refuses."""
        if (now := time.monotonic()) < self._next_write_s:
            return
        self._next_write_s = now + WRITE_PERIOD_S
        self._write_all()

    def close(self) -> None:
        self._write_all()

    def _write_all(self) -> None:
        """Each of them is tried: what a full disk refuses must not pile up in memory."""
        refused: OSError | None = None
        for file in self._open.values():
            try:
                file.write()
            except OSError as error:
                refused = error
        if refused is not None:
            raise refused

    def _begin(self, trial: Trial) -> _TrialFile:
        file = _TrialFile(
            self._directory / trial.directory_name,
            has_own_curves=(self._trials_directory / trial.directory_name / "tensorboard").is_dir(),
        )
        params = b"".join(
            bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, _protobuf_value(value)))
            for name, value in trial.params.items()
        )
        start = params + bytes_field(4, trial.directory_name.encode()) + double_field(5, time.time())
        file.pending.append(_hparams_record("_hparams_/session_start_info", 3, start))
        return file


class _TrialFile:
    def __init__(self, directory: Path, *, has_own_curves: bool) -> None:
        self.path = directory / event_file_name()
        self.has_own_curves = has_own_curves
        self.pending = [version_record()]
        self.step = 0

    def write(self) -> None:
        """OSError when the disk refuses: what was pending is dropped."""
        if not self.pending:
            return
        data = b"".join(self.pending)
        self.pending.clear()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = Appender(self.path)
        try:
            file.append(data)
        finally:
            file.close()


def _protobuf_value(value: Any) -> bytes:
    """A google.protobuf.Value."""
    value = as_json(value)
    if isinstance(value, bool):
        return varint_field(4, int(value))
    if isinstance(value, int | float):
        return double_field(2, value)
    text = value if isinstance(value, str) else json.dumps(value)
    return bytes_field(3, text.encode())


def _hparams_record(tag: str, field: int, content: bytes) -> bytes:
    """A summary without a figure, whose metadata hold an HParamsPluginData."""
    plugin_data = bytes_field(1, b"hparams") + bytes_field(2, bytes_field(field, content))
    value = bytes_field(1, tag.encode()) + bytes_field(9, bytes_field(1, plugin_data))
    return summary_record(time.time(), 0, bytes_field(1, value))
