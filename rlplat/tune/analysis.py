"""What came out of an experiment.

analysis = tune.run(...)                      # or, of an earlier one or one that is still going:
analysis = tune.load("runs/my-experiment")
analysis.best_config, analysis.best_value, analysis.best_checkpoint
analysis.dataframe()                          # a row per trial: trial, state, ..., config/alpha, ..., accuracy
analysis.history()                            # a row per report
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplat.errors import ConfigError, MissingExtra, RlplatError
from rlplat.paths import expanded
from rlplat.tune.lines import OWN_COLUMNS, holding, metric_columns, read_reports, trial_row
from rlplat.tune.roster import split_at_front
from rlplat.tune.trial import Trial, TrialState, last_line

if TYPE_CHECKING:
    from pandas import DataFrame

MIN_TRIALS = 20
"""With fewer there is nothing to be said of importances."""


class Analysis:
    def __init__(
        self,
        trials: Iterable[Trial] | Callable[[], Iterable[Trial]],
        metric: Sequence[str],
        mode: Sequence[str],
        directory: Path | None = None,
        name: str = "",
    ) -> None:
        """trials: all of them, or a function that reads them when they are first asked for; mode: "max" or "min" for
        each metric; directory: the experiment's."""
        self._trials = trials
        self.metric, self.mode = tuple(metric), tuple(mode)
        self.directory = directory
        self.name = name or (directory.name if directory else "")

    @cached_property
    def trials(self) -> list[Trial]:
        """All, by number."""
        trials = self._trials() if callable(self._trials) else self._trials
        return sorted(trials, key=lambda trial: trial.number)

    @cached_property
    def ranked(self) -> list[Trial]:
        """Those that count, best first: not failed, and with a finite value of the (first) metric."""
        return sorted(filter(self.counts, self.trials), key=self.score, reverse=True)

    @property
    def best_trial(self) -> Trial:
        """RlplatError where no trial has a value; ConfigError where there are several objectives."""
        if len(self.metric) > 1:
            raise ConfigError(
                f"{self._title} has {len(self.metric)} objectives ({', '.join(self.metric)}): "
                "there is no single best trial; see pareto_front"
            )
        if not self.ranked:
            raise RlplatError(self.why_none())
        return self.ranked[0]

    @property
    def best_config(self) -> dict[str, Any]:
        return self.best_trial.config

    @property
    def best_value(self) -> float:
        return self.best_trial.values[0]

    @property
    def best_checkpoint(self) -> Path | None:
        """The newest checkpoint of the best trial, as far as it has one."""
        return self.checkpoint_of(self.best_trial)

    def checkpoint_of(self, trial: Trial) -> Path | None:
        if trial.checkpoint is None or self.directory is None:
            return None
        return self.directory / "trials" / trial.directory_name / "checkpoints" / trial.checkpoint.name

    @cached_property
    def pareto_front(self) -> list[Trial]:
        """The trials that no other one beats in one objective without being worse in another, best first by the first
        objective. With a single objective: the best ones."""
        return split_at_front([trial for trial in self.trials if self.counts(trial)], self._signs)[0]

    def score(self, trial: Trial) -> float:
        """Higher is better; of the first objective."""
        return self._signs[0] * trial.values[0]

    def dataframe(self) -> DataFrame:
        """A row per trial, by number: trial, state, step (reports), progress, run_s, failures, error; a column
        `config/<dotted name>` for each parameter; the metrics of the last report by their own names. The columns of
        `results.csv`."""
        pandas = _pandas("Analysis.dataframe()")
        rows = [trial_row(trial) for trial in self.trials]
        return pandas.DataFrame(rows, columns=_ordered(rows))

    def history(self) -> DataFrame:
        """A row per report, in the order in which they came: trial, step, progress, run_s, time (UTC), the parameters
        at that time (PBT changes them) as `config/...`, the metrics. From `results.jsonl`."""
        pandas = _pandas("Analysis.history()")
        if self.directory is None:
            raise ConfigError("history() reads the experiment's directory, and this one has none")
        params: dict[int, dict[str, Any]] = {}
        rows = []
        for report in holding(read_reports(self.directory / "results.jsonl")):
            number = report["trial"]
            if "params" in report:
                params[number] = {f"config/{name}": value for name, value in report["params"].items()}
            row = {name: report.get(name) for name in ("trial", "step", "progress", "run_s", "time")}
            rows.append({**row, **params.get(number, {}), **metric_columns(report.get("metrics", {}))})
        frame = pandas.DataFrame(rows, columns=_ordered(rows, ("trial", "step", "progress", "run_s", "time")))
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    @cached_property
    def judged(self) -> list[Trial]:
        """What pictures and importances are made of: trials that have ended with a value, stopped ones included; while
        there are none, those that run."""
        counting = [trial for trial in self.trials if self.counts(trial)]
        return [trial for trial in counting if trial.state.has_ended] or counting

    @cached_property
    def importances(self) -> dict[str, float]:
        """How much each parameter matters for the (first) metric, by name: shares, the largest first; empty where fewer
        than MIN_TRIALS trials have ended with a value. What was stopped early counts with the value it had."""
        from rlplat.tune.samplers import importances

        trials = self.judged
        if len(trials) < MIN_TRIALS or not trials[0].state.has_ended:
            return {}
        return importances(trials, self.mode, self.domains)

    @cached_property
    def domains(self) -> dict[str, Any]:
        """Of the parameters, by experiment.yaml."""
        from rlplat.config import load_yaml
        from rlplat.tune.space import Space

        if self.directory is None or not (self.directory / "experiment.yaml").exists():
            return {}
        try:
            settings = load_yaml(self.directory / "experiment.yaml").values
            return dict(Space.parse(without_code(settings.get("config") or {})).domains)
        except ConfigError:
            return {}

    def __repr__(self) -> str:
        best = ""
        if len(self.metric) == 1 and self.ranked:
            best = f", best {self.metric[0]} {self.best_value:g} of trial {self.best_trial.number}"
        return f"<Analysis of {self._title}: {len(self.trials)} trials{best}>"

    @property
    def _title(self) -> str:
        return f"the experiment {self.name}".rstrip()

    def counts(self, trial: Trial) -> bool:
        """Whether it can be the best: not failed, and with a finite value of each metric."""
        return (
            trial.state is not TrialState.FAILED
            and len(trial.values) == len(self.metric) > 0
            and all(map(math.isfinite, trial.values))
        )

    @cached_property
    def _signs(self) -> list[float]:
        return [1.0 if mode == "max" else -1.0 for mode in self.mode]

    def why_none(self) -> str:
        if not self.metric:
            return f"{self._title} has no metric: name the one that says which trial is best, metric=..."
        failed = [trial for trial in self.trials if trial.state is TrialState.FAILED]
        why = f"no trial of {self._title} has a value of '{self.metric[0]}': {len(self.trials)} trials"
        if failed:
            why += f", {len(failed)} failed, the last one with: {last_line(failed[-1].error)}"
        return why


def load(directory: str | Path) -> Analysis:
    """An experiment that has ended or is still going, from its study; nothing is written and no lock is taken.

    ConfigError where there is none.
    """
    from rlplat.config import load_yaml
    from rlplat.tune.study import Study

    path = expanded(directory)
    if not (path / "experiment.yaml").exists():
        raise ConfigError(f"there is no experiment in {path}: it has no experiment.yaml")
    settings = load_yaml(path / "experiment.yaml").values
    modes, metrics = _listed(settings.get("mode")), _listed(settings.get("metric"))
    is_whole = modes and all(mode in ("min", "max") for mode in modes)
    if not is_whole or not all(isinstance(metric, str) for metric in metrics):
        raise ConfigError(f"{path / 'experiment.yaml'} is damaged: it has metric {metrics} with mode {modes}")
    name = str(settings.get("name") or path.name)
    storage = settings.get("storage") or str(path / "study.journal")
    return Analysis(
        lambda: Study.read(storage, name),
        metrics,
        modes,
        path,
        name,
    )


def _listed(value: Any) -> list[str]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


def without_code(value: Any) -> Any:
    """A search space of a file without its `sample_from`s: to look at it must not run somebody's code."""
    if isinstance(value, dict):
        return None if set(value) == {"sample_from"} else {k: without_code(v) for k, v in value.items()}
    return [without_code(inner) for inner in value] if isinstance(value, list) else value


def _ordered(rows: Sequence[dict[str, Any]], first: Sequence[str] = OWN_COLUMNS) -> list[str]:
    """Our own columns, the parameters, the metrics."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    own = [name for name in first if name in names or not rows]
    params = [name for name in names if name.startswith("config/")]
    return [*own, *params, *(name for name in names if name not in own and not name.startswith("config/"))]


def _pandas(needed_by: str) -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingExtra("pandas", "plots", needed_by) from None
    return pandas
