"""TensorBoard's view of an experiment: curves of each trial, and what its HPARAMS page makes a table and plots of.

    EXP/tensorboard/00007/events...    trial 7: its parameters, its scalars by report, how it ended

`tensorboard --logdir EXP` shows it, and below `trials/` the full curves of trials that write TensorBoard files of
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
_SUCCESS, _FAILURE = 1, 2


class ExperimentCurves:
    """Keeps records in memory and no file open: thousands of paused trials cost no descriptor."""

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
        if trial.step <= file.step or (
            trial.step > 1 and not file.step
        ):  # it repeats, or another tuner began it
            file.pending.append(purge_record(trial.step))
        file.step = trial.step
        if file.has_own_curves:
            metrics = {name: metrics[name] for name in self._objectives if name in metrics}
        if values := scalars(_plain(metrics)):
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


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_json(value) for name, value in metrics.items()}


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
