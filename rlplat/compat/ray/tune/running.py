"""`tune.run`, `run_experiments` and `Tuner` over `rlplat.tune.run`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rlplat
from rlplat import tune
from rlplat.compat.ray.refusals import check
from rlplat.compat.ray.train import CheckpointConfig, RunConfig
from rlplat.compat.ray.tune.results import ExperimentAnalysis, ResultGrid, Trial
from rlplat.compat.ray.tune.schedulers import FIFOScheduler, TrialScheduler
from rlplat.compat.ray.tune.search import Searcher
from rlplat.compat.ray.tune.space import split
from rlplat.compat.ray.tune.trainables import of_class, of_function, resolved
from rlplat.errors import ConfigError, OptionError
from rlplat.paths import expanded

UNLIMITED = 1_000_000
"""max_failures=-1."""
_NOT_HERE = {
    "callbacks": "print in the trial, or read analysis.dataframe()",
    "upload_dir": "local_dir, on a shared disk",
    "restore": "resume=True continues an experiment",
    "fail_fast": "max_failures=0; an experiment whose first three trials fail ends",
    "env": "RLlib's; rlplat.tune.run('ppo', {'env': ...})",
}
_NO_EFFECT = (
    "queue_trials reuse_actors global_checkpoint_period keep_checkpoints_num checkpoint_score_attr log_to_file "
    "server_port with_server loggers progress_reporter sync_config sync_to_cloud trial_name_creator "
    "trial_dirname_creator trial_name_string trial_executor chdir_to_trial_dir"
).split()
"""Trials always wait for room, share processes and are numbered; the newest two checkpoints of each are kept."""
_COUNTERS = ("training_iteration", "time_total_s", "timesteps_total", "episodes_total")


class TuneError(rlplat.errors.RlplatError):
    """A trial has failed."""


def run(
    run_or_experiment: Any,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: float | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    local_dir: str | None = None,
    storage_path: str | None = None,
    search_alg: Searcher | None = None,
    scheduler: TrialScheduler | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool | None = False,
    verbose: int | bool = 1,
    resume: bool | str = False,
    raise_on_failed_trial: bool = True,
    max_concurrent_trials: int | None = None,
    max_failures: int = 0,
    **others: Any,
) -> ExperimentAnalysis:
    """The experiment is in `local_dir` (runs) / `name`; where that is taken, in `name-2`, ..."""
    check("tune.run", others, _NOT_HERE, _NO_EFFECT)
    trainable = resolved(run_or_experiment)
    space, constants = split(config or {})
    rules, ends = (dict(stop or {}), None) if not callable(stop) else ({}, stop)
    if ends is not None and not inspect.isroutine(ends):
        raise OptionError(
            "stop is a dict, or function(trial_id, result); a Stopper with a state of its own is not here"
        )
    make = scheduler.opened(dict(space)) if scheduler is not None else (tune.FIFO(), space, dict)
    chosen, space, begin = make
    if scheduler is not None:
        for key, most in scheduler.stop.items():
            rules[key] = min(most, rules.get(key, most))
    points = [
        *(search_alg.points if search_alg else []),
        *([begin() for _ in range(num_samples)] if begin() else []),
    ]
    searcher: dict[str, Any] = {"name": search_alg.name if search_alg else "random"}
    if points:
        searcher["points"] = points
    metric, mode, is_named = _objective(metric, mode, scheduler, search_alg, rules)
    is_class = inspect.isclass(trainable)
    wrapped = (of_class if is_class else of_function)(trainable, constants, ends)
    called = getattr(trainable, "__name__", type(trainable).__name__)
    wrapped.__name__ = wrapped.__qualname__ = "trial" if called == "<lambda>" else called
    out, is_resumed = _place(local_dir or storage_path, name, wrapped.__name__, resume)
    saves_each = not is_class or checkpoint_at_end
    analysis = tune.run(
        wrapped,
        space,
        metric=metric,
        mode=mode,
        num_samples=num_samples,
        stop=rules,
        resources=_resources(trainable, resources_per_trial),
        searcher=searcher,
        scheduler=chosen,
        max_concurrent=max_concurrent_trials or (search_alg.max_concurrent if search_alg else None),
        max_failures=UNLIMITED if max_failures < 0 else max_failures,
        checkpoint_period=checkpoint_freq or (1 if saves_each else None),
        time_budget_s=time_budget_s,
        name=out.name,
        out=out,
        resume=is_resumed,
        progress=bool(verbose),
    )
    found = ExperimentAnalysis(analysis, metric if is_named else None, mode)
    failed = [trial for trial in found.trials if trial.status == "ERROR"]
    if failed and raise_on_failed_trial:
        raise TuneError(
            f"{len(failed)} of {len(found.trials)} trials failed, the first one: {failed[0].error.splitlines()[0]}"
        )
    return found


def _objective(
    metric: str | None, mode: str | None, scheduler: Any, searcher: Any, rules: Mapping[str, Any]
) -> tuple[str, str, bool]:
    """(metric, mode, whether the program names it). Ray needs none to run trials: then it is one of the stop rules, or
    the number of reports."""
    givers = [one for one in (scheduler, searcher) if one is not None]
    for what, given in (("metric", metric), ("mode", mode)):
        said = {value for value in (given, *(getattr(one, what) for one in givers)) if value}
        if len(said) > 1:
            raise OptionError(f"tune.run has several values of {what}, {', '.join(sorted(said))}: give one of them")
    metric = metric or next((one.metric for one in givers if one.metric), None)
    mode = mode or next((one.mode for one in givers if one.mode), None)
    if metric is None and scheduler is not None and not isinstance(scheduler, FIFOScheduler):
        raise OptionError(f"{type(scheduler).__name__} needs metric= and mode=")
    if metric is not None:
        return metric, mode or "max", True
    return next((name for name in rules if name not in _COUNTERS), "training_iteration"), mode or "max", False


def _resources(trainable: Any, given: Any) -> dict[str, float] | None:
    given = getattr(trainable, "resources", None) if given is None else given
    if given is None:
        if hasattr(trainable, "default_resource_request"):
            raise OptionError(f"{trainable.__name__}.default_resource_request is not here: resources_per_trial={{...}}")
        return None
    if callable(given) or not isinstance(given, Mapping):
        raise OptionError("resources_per_trial is a dict, {'cpu': 2, 'gpu': 1}: of the trial and all that it starts")
    total: dict[str, float] = {}
    for name, amount in {**given, **given.get("custom_resources", {})}.items():
        if name != "custom_resources":
            key = name.removeprefix("extra_")
            total[key] = total.get(key, 0) + amount
    return {"cpu": 1, **total}


def _place(local_dir: str | None, name: str | None, function: str, resume: bool | str) -> tuple[Path, bool]:
    """(the experiment's directory, whether it goes on)."""
    if resume not in (True, False, "AUTO", "LOCAL"):
        raise OptionError(f"resume={resume!r}: True, False or 'AUTO'")
    if resume and not name:
        raise OptionError("resume needs the experiment's name=")
    parent = expanded(local_dir) if local_dir else Path("runs")
    path = parent / (name or function)
    if resume and (resume != "AUTO" or path.exists()):
        return path, True
    number = 1
    while path.exists():
        number += 1
        path = parent / f"{name or function}-{number}"
    return path, False


def Experiment(name: str, run: Any, **spec: Any) -> dict[str, Any]:
    return _arguments(name, {"run": run, **spec})


def _arguments(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Of `run`, from an experiment's dict of 2017 to 2020."""
    spec = dict(spec)
    if "run" not in spec:
        raise ConfigError(f"experiment {name}: 'run' is missing: a trainable, or the name that it is registered as")
    for old, new in (
        ("repeat", "num_samples"),
        ("resources", "resources_per_trial"),
        ("trial_resources", "resources_per_trial"),
    ):
        if old in spec:
            spec[new] = spec.pop(old)
    return {"name": name, "run_or_experiment": spec.pop("run"), **spec}


def run_experiments(experiments: Any, scheduler: TrialScheduler | None = None, **settings: Any) -> list[Trial]:
    """Experiments by name, {"run": ..., "stop": ..., "config": ...} each; one after the other. -> all their trials."""
    if isinstance(experiments, Mapping) and "run_or_experiment" not in experiments:
        experiments = [_arguments(name, spec) for name, spec in experiments.items()]
    listed = [experiments] if isinstance(experiments, Mapping) else experiments
    return [trial for one in listed for trial in run(**one, scheduler=scheduler, **settings).trials]


@dataclass
class TuneConfig:
    metric: str | None = None
    mode: str | None = None
    search_alg: Searcher | None = None
    scheduler: TrialScheduler | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | None = None
    reuse_actors: bool | None = None


@dataclass
class Tuner:
    trainable: Any
    param_space: Mapping[str, Any] = field(default_factory=dict)
    tune_config: TuneConfig = field(default_factory=TuneConfig)
    run_config: RunConfig = field(default_factory=RunConfig)

    def fit(self) -> ResultGrid:
        where, saving = self.run_config, self.run_config.checkpoint_config or CheckpointConfig()
        analysis = run(
            self.trainable,
            name=where.name,
            storage_path=where.storage_path,
            stop=where.stop,
            verbose=1 if where.verbose is None else where.verbose,
            max_failures=where.failure_config.max_failures if where.failure_config else 0,
            checkpoint_freq=saving.checkpoint_frequency,
            checkpoint_at_end=saving.checkpoint_at_end,
            config=self.param_space,
            raise_on_failed_trial=False,
            **vars(self.tune_config),
        )
        return ResultGrid(analysis)
