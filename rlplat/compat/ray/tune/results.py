"""What an experiment came to, in Ray's words: `ExperimentAnalysis`, `Trial`, `ResultGrid`, `Result`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlplat import tune
from rlplat.compat.ray.session import Checkpoint
from rlplat.compat.ray.train import Result
from rlplat.errors import OptionError, RlplatError

_STATUS = {"complete": "TERMINATED", "stopped": "TERMINATED", "failed": "ERROR", "waiting": "PENDING"}


class Trial:
    def __init__(self, trial: Any, analysis: tune.Analysis) -> None:
        self._trial, self._analysis = trial, analysis
        self.trial_id = trial.directory_name
        self.config, self.last_result, self.error = trial.config, trial.last, trial.error
        self.status = _STATUS.get(str(trial.state), str(trial.state).upper())
        assert analysis.directory is not None
        self.logdir = self.local_path = str(analysis.directory.resolve() / "trials" / trial.directory_name)

    @property
    def checkpoint_path(self) -> str | None:
        """The directory that the trial saved last; None: it saved none."""
        path = self._analysis.checkpoint_of(self._trial)
        return None if path is None else str(next((path.resolve() / "files" / "0").glob("*"), path.resolve()))

    @property
    def checkpoint(self) -> Any:
        """`.value`, of 2020; `.path`, of today."""
        path = self.checkpoint_path
        return None if path is None else SimpleNamespace(value=path, path=path)

    def __repr__(self) -> str:
        return f"Trial({self.trial_id}, {self.status})"


class ExperimentAnalysis:
    def __init__(self, analysis: tune.Analysis, metric: str | None, mode: str | None) -> None:
        self._analysis, self.default_metric, self.default_mode = analysis, metric, mode

    @cached_property
    def trials(self) -> list[Trial]:
        return [Trial(trial, self._analysis) for trial in self._analysis.trials]

    def get_best_trial(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Trial:
        """scope: "last" report of each trial, "all", or their "avg"."""
        metric, mode = (
            metric or self.default_metric,
            mode or (self.default_mode if metric is None else None) or "max",
        )
        if metric is None:
            raise OptionError("which trial is best? metric= and mode= here, or of tune.run")
        if mode not in ("max", "min") or scope not in ("last", "all", "avg"):
            raise OptionError(f"mode={mode!r}, scope={scope!r}: mode is max or min, scope is last, all or avg")
        values = {}
        for trial in self.trials:
            rows = [trial.last_result] if scope == "last" else self._reports[trial.trial_id].to_dict("records")
            numbers = [row[metric] for row in rows if row.get(metric) is not None and row[metric] == row[metric]]
            if numbers:
                fold: Callable[[list[float]], float] = {"max": max, "min": min}[mode]
                values[trial.trial_id] = sum(numbers) / len(numbers) if scope == "avg" else fold(numbers)
        if not values:
            known = sorted({name for trial in self.trials for name in trial.last_result})
            raise RlplatError(f"no trial reported {metric!r}; they reported {', '.join(known) or 'nothing'}")
        best = (max if mode == "max" else min)(values, key=lambda one: values[one])
        return next(trial for trial in self.trials if trial.trial_id == best)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        return self.get_best_trial(metric, mode, scope).config

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str:
        return self.get_best_trial(metric, mode, scope).logdir

    def get_best_checkpoint(self, trial: Trial, metric: str | None = None, mode: str | None = None) -> str | None:
        """Its newest one."""
        return trial.checkpoint_path

    @property
    def best_trial(self) -> Trial:
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        return self.best_trial.last_result

    @property
    def best_logdir(self) -> str:
        return self.best_trial.logdir

    @property
    def best_checkpoint(self) -> Any:
        return self.best_trial.checkpoint

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> Any:
        """A row per trial: its last report, or that with the best `metric`."""
        frame = self._analysis.dataframe()
        if metric is not None:
            pick = "idxmin" if (mode or self.default_mode) == "min" else "idxmax"
            rows = [one.loc[getattr(one[metric], pick)()] for one in self._reports.values() if metric in one]
            frame = type(frame)(rows).reset_index(drop=True)
        ids = [f"{number:05d}" for number in frame["trial"]]
        logdirs = {trial.trial_id: trial.logdir for trial in self.trials}
        return frame.assign(trial_id=ids, logdir=[logdirs[one] for one in ids])

    @cached_property
    def _reports(self) -> dict[str, Any]:
        history = self._analysis.history()
        return {f"{number:05d}": rows.reset_index(drop=True) for number, rows in history.groupby("trial")}

    @property
    def trial_dataframes(self) -> dict[str, Any]:
        """The reports of each trial, by its directory."""
        return {trial.logdir: self._reports[trial.trial_id] for trial in self.trials if trial.trial_id in self._reports}

    def fetch_trial_dataframes(self) -> dict[str, Any]:
        return self.trial_dataframes

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        return {trial.trial_id: trial.last_result for trial in self.trials}

    @property
    def results_df(self) -> Any:
        return self.dataframe()

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        return {trial.logdir: trial.config for trial in self.trials}


class ResultGrid:
    def __init__(self, analysis: ExperimentAnalysis) -> None:
        self._analysis = analysis

    def _result(self, trial: Trial) -> Result:
        frames = self._analysis.trial_dataframes
        path = trial.checkpoint_path
        return Result(
            metrics={**trial.last_result, "config": trial.config},
            checkpoint=Checkpoint(path) if path else None,
            path=trial.logdir,
            error=RlplatError(trial.error) if trial.status == "ERROR" else None,
            config=trial.config,
            metrics_dataframe=frames.get(trial.logdir),
        )

    def get_best_result(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Result:
        return self._result(self._analysis.get_best_trial(metric, mode, scope))

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> Any:
        return self._analysis.dataframe(filter_metric, filter_mode)

    @property
    def experiment_path(self) -> str:
        return str(Path(self._analysis.trials[0].logdir).parent.parent)

    @property
    def errors(self) -> list[Exception]:
        return [result.error for result in self if result.error is not None]

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        return sum(trial.status == "TERMINATED" for trial in self._analysis.trials)

    def __len__(self) -> int:
        return len(self._analysis.trials)

    def __getitem__(self, index: int) -> Result:
        return self._result(self._analysis.trials[index])

    def __iter__(self) -> Iterator[Result]:
        return (self[index] for index in range(len(self)))
