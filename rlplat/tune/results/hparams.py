"""TensorBoard's view of an experiment: curves of each trial, and the table and plots of its HPARAMS page.

    EXP/tensorboard/events...          what the experiment is: parameters with their domains, metrics
    EXP/tensorboard/00007/events...    trial 7: its parameters, its scalars by report, how it ended

`tensorboard --logdir EXP` shows both, and below `trials/` the full curves of trials that write TensorBoard files of
their own, as those of algorithms do: of them only the objective is repeated here, as the HPARAMS page needs it.
Messages: tensorboard/plugins/hparams/{plugin_data,api}.proto; no tensorboard is imported.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlplat.metrics import Appender
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
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.results.lines import as_json

WRITE_PERIOD_S = 2.0
_STRING, _BOOL, _FLOAT = 1, 2, 3
_SUCCESS, _FAILURE, _RUNNING = 1, 2, 3


class ExperimentCurves:
    """Keeps records in memory and no file open: thousands of paused trials cost no descriptor."""

    def __init__(
        self,
        directory: Path,
        trials_directory: Path,
        objectives: Sequence[str],
        name: str,
        domains: Mapping[str, Sequence[Any] | None] | None = None,
    ) -> None:
        """directory: EXP/tensorboard; objectives: the metrics in question; domains: for each parameter its values where
        it has finitely many, else None."""
        self._directory, self._trials_directory = directory, trials_directory
        self._objectives, self._name = tuple(objectives), name
        self._domains = dict(domains or {})
        self._described = not self._domains or any(
            directory.glob("events.*")
        )  # else TensorBoard finds them out
        self._summary: list[_TrialFile] = []
        """What is still to be written of the experiment itself."""
        self._open: dict[int, _TrialFile] = {}
        self._next_write_s = 0.0

    def repeat(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """A report of `results.jsonl` of a trial that goes on after a crash: its file of before is hidden, as it lacks
        what was not written yet and may hold what is forgotten."""
        file = self._open.get(trial.number)
        if file is None:
            file = self._open[trial.number] = self._begin(trial)
            file.pending.append(purge_record(1))
        self._add(file, report["step"], report["time"], report.get("metrics", {}))

    def record(self, trial: Trial, metrics: Mapping[str, Any]) -> None:
        file = self._open.get(trial.number)
        if file is None:
            file = self._open[trial.number] = self._begin(trial)
        elif trial.step <= file.step:
            file.pending.append(purge_record(trial.step))
        if not self._described:
            self._described = True
            self._describe({} if file.has_own_curves else metrics)
        self._add(file, trial.step, time.time(), metrics)

    def _add(self, file: _TrialFile, step: int, time_s: float, metrics: Mapping[str, Any]) -> None:
        file.step = step
        if file.has_own_curves:
            metrics = {name: metrics[name] for name in self._objectives if name in metrics}
        if values := scalars(_plain(metrics)):
            file.pending.append(summary_record(time_s, step, values))

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
        for file in [*self._summary, *self._open.values()]:
            try:
                file.write()
            except OSError as error:
                refused = error
        self._summary.clear()
        if refused is not None:
            raise refused

    def _begin(self, trial: Trial) -> _TrialFile:
        file = _TrialFile(
            self._directory / trial.directory_name,
            has_own_curves=(self._trials_directory / trial.directory_name / "tensorboard").is_dir(),
        )
        params = b"".join(
            bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, self._value(name, value)))
            for name, value in trial.params.items()
        )
        start = params + bytes_field(4, trial.directory_name.encode()) + double_field(5, time.time())
        file.pending.append(_hparams_record("_hparams_/session_start_info", 3, start))
        return file

    def _describe(self, metrics: Mapping[str, Any]) -> None:
        """Metrics: the objectives, then whatever else of the first report is written."""
        names = dict.fromkeys(
            [*self._objectives, *(name for name, value in metrics.items() if scalars(_plain({name: value})))]
        )
        content = (
            bytes_field(6, self._name.encode())
            + double_field(3, time.time())
            + b"".join(
                bytes_field(4, self._parameter(name, values)) for name, values in self._domains.items()
            )
            + b"".join(bytes_field(5, bytes_field(1, bytes_field(2, name.encode()))) for name in names)
        )
        file = _TrialFile(self._directory, has_own_curves=False)
        file.pending.append(_hparams_record("_hparams_/experiment", 2, content))
        self._summary.append(file)

    def _parameter(self, name: str, values: Sequence[Any] | None) -> bytes:
        """An HParamInfo."""
        info = bytes_field(1, name.encode()) + varint_field(4, self._kind(name))
        if values is not None:
            listed = b"".join(bytes_field(1, self._value(name, value)) for value in values)
            info += bytes_field(5, listed)
        return info

    def _kind(self, name: str) -> int:
        values = self._domains.get(name)
        if values is None:
            return _FLOAT
        if all(isinstance(value, bool) for value in values):
            return _BOOL
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        return _FLOAT if numbers else _STRING

    def _value(self, name: str, value: Any) -> bytes:
        """A google.protobuf.Value of the parameter's kind."""
        return _protobuf_value(value, as_text=name in self._domains and self._kind(name) == _STRING)


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


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_json(value) for name, value in metrics.items()}


def _protobuf_value(value: Any, *, as_text: bool) -> bytes:
    value = as_json(value)
    if isinstance(value, bool) and not as_text:
        return varint_field(4, int(value))
    if isinstance(value, int | float) and not as_text:
        return double_field(2, value)
    text = value if isinstance(value, str) else json.dumps(value)
    return bytes_field(3, text.encode())


def _hparams_record(tag: str, field: int, content: bytes) -> bytes:
    """A summary without a figure, whose metadata hold an HParamsPluginData."""
    plugin_data = bytes_field(1, b"hparams") + bytes_field(2, bytes_field(field, content))
    value = bytes_field(1, tag.encode()) + bytes_field(9, bytes_field(1, plugin_data))
    return summary_record(time.time(), 0, bytes_field(1, value))
