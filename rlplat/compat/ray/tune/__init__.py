"""`ray.tune`, of 2017 to today: docs/from-ray.md says what is called how."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from rlplat.compat.ray import session
from rlplat.compat.ray import session as track
from rlplat.compat.ray.refusals import refusing
from rlplat.compat.ray.session import Checkpoint, get_checkpoint, get_context, report, trial_dir, trial_name
from rlplat.compat.ray.train import CheckpointConfig, FailureConfig, RunConfig
from rlplat.compat.ray.tune import schedulers, search
from rlplat.compat.ray.tune.results import ExperimentAnalysis, ResultGrid
from rlplat.compat.ray.tune.running import Experiment, TuneConfig, TuneError, Tuner, run, run_experiments
from rlplat.compat.ray.tune.space import (
    grid_search,
    loguniform,
    qrandint,
    qrandn,
    randint,
    randn,
    sample_from,
)
from rlplat.compat.ray.tune.trainables import Reporter, Trainable, method_of, register_trainable
from rlplat.tune import choice, lograndint, qloguniform, quniform, uniform

__all__ = [  # type checkers take no other import for a name of the module
    "Analysis", "CLIReporter", "Checkpoint", "CheckpointConfig", "Experiment", "ExperimentAnalysis",
    "FailureConfig", "JupyterNotebookReporter", "ResultGrid", "RunConfig", "Trainable", "TuneConfig",
    "TuneError", "Tuner", "checkpoint_dir", "choice", "get_checkpoint", "get_context", "get_trial_dir",
    "get_trial_id", "get_trial_name", "grid_search", "lograndint", "loguniform", "qloguniform", "qrandint",
    "qrandn", "quniform", "randint", "randn", "register_trainable", "report", "run", "run_experiments",
    "sample_from", "schedulers", "search", "session", "track", "trial_dir", "trial_name", "uniform",
    "with_parameters", "with_resources",
]  # fmt: skip

Analysis = ExperimentAnalysis
_MODULES_ELSEWHERE = {
    schedulers: "async_hyperband hyperband median_stopping_rule pbt schedulers.async_hyperband schedulers.hyperband "
    "schedulers.median_stopping_rule schedulers.pb2 schedulers.pbt",
    search: "suggest suggest.basic_variant suggest.bayesopt suggest.hyperopt suggest.optuna search.basic_variant "
    "search.bayesopt search.hyperopt search.optuna",
    session: "track",
    sys.modules[__name__]: "registry result_grid trainable tune tuner variant_generator",
}
for _module, _names in _MODULES_ELSEWHERE.items():  # where Ray's programs of some year import them from
    for _name in _names.split():
        sys.modules[f"{__name__}.{_name}"] = _module


def checkpoint_dir(step: int) -> Any:
    """`with tune.checkpoint_dir(step=1) as path:` write into it; the next report takes it as its checkpoint."""
    trial = session.current()
    assert isinstance(trial, Reporter)
    return trial.checkpoint_dir(step)


get_trial_dir, get_trial_id, get_trial_name = trial_dir, trial_name, trial_name


class CLIReporter:
    """What it was told changes nothing: there is one table."""

    def __init__(self, **settings: Any) -> None:
        pass


JupyterNotebookReporter = CLIReporter


def with_parameters(trainable: Any, **values: Any) -> Any:
    """The trainable with further arguments, sent with it."""
    if isinstance(trainable, type):
        setup: Any = method_of(trainable, "setup")
        return type(trainable.__name__, (trainable,), {"setup": functools.partialmethod(setup, **values)})
    bound: Any = functools.partial(trainable, **values)
    bound.__name__ = trainable.__name__
    return bound


def with_resources(trainable: Any, resources: Mapping[str, float]) -> Any:
    is_class = isinstance(trainable, type)
    made: Any = type(trainable.__name__, (trainable,), {}) if is_class else with_parameters(trainable)
    made.resources = dict(resources)
    return made


__getattr__ = refusing(__name__)
