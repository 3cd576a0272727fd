"""Tuning: many trials of one trainable, their configs drawn from a search space.

    from rlplat import tune

    def train(config, report):
        for step in range(100):
            report(accuracy=config["alpha"] * step / (config["beta"] + step))

    analysis = tune.run(train, {"alpha": tune.grid([0.2, 0.4, 0.6]), "beta": tune.grid([1, 2])}, metric="accuracy")
    print(analysis.best_config)

Names are imported when they are first used, as in `rlplat` itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplat.tune.results.analysis import Analysis, load
    from rlplat.tune.run_experiment import run
    from rlplat.tune.schedulers.asha import ASHA
    from rlplat.tune.schedulers.fifo import FIFO
    from rlplat.tune.schedulers.hyperband import HyperBand
    from rlplat.tune.schedulers.median import MedianStopping
    from rlplat.tune.schedulers.pb2 import PB2
    from rlplat.tune.schedulers.pbt import PBT
    from rlplat.tune.search.search import Searcher
    from rlplat.tune.space.space import (
        choice,
        grid,
        lograndint,
        loguniform,
        normal,
        qloguniform,
        qnormal,
        quniform,
        randint,
        sample_from,
        uniform,
    )
    from rlplat.tune.trials.program import TrialContext
    from rlplat.tune.trials.thread import TrialStopped

_HOMES = {
    "rlplat.tune.run_experiment": "run",
    "rlplat.tune.results.analysis": "Analysis load",
    "rlplat.tune.space.space": (
        "choice grid lograndint loguniform normal qloguniform qnormal quniform randint sample_from uniform"
    ),
    "rlplat.tune.search.search": "Searcher",
    "rlplat.tune.trials.program": "TrialContext",
    "rlplat.tune.trials.thread": "TrialStopped",
    "rlplat.tune.schedulers.fifo": "FIFO",
    "rlplat.tune.schedulers.median": "MedianStopping",
    "rlplat.tune.schedulers.asha": "ASHA",
    "rlplat.tune.schedulers.hyperband": "HyperBand",
    "rlplat.tune.schedulers.pbt": "PBT",
    "rlplat.tune.schedulers.pb2": "PB2",
}
_NAMES_OF_RAY = {
    "grid_search": "tune.grid",
    "report": "the second argument of the trial, def trial(config, report)",
    "get_checkpoint": "report.checkpoint",
    "get_context": "report.seed and report.directory",
    "Tuner": "tune.run(trainable, space, ...)",
    "TuneConfig": "arguments of tune.run",
    "RunConfig": "arguments of tune.run",
    "Trainable": "a class with __init__(config), step, save and load",
    "with_resources": "tune.run(..., resources={'cpu': 1})",
    "with_parameters": "a closure",
}
"""What Ray Tune calls otherwise."""
_HOME_BY_NAME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ASHA",
    "FIFO",
    "PB2",
    "PBT",
    "Analysis",
    "HyperBand",
    "MedianStopping",
    "Searcher",
    "TrialContext",
    "TrialStopped",
    "choice",
    "grid",
    "load",
    "lograndint",
    "loguniform",
    "normal",
    "qloguniform",
    "qnormal",
    "quniform",
    "randint",
    "run",
    "sample_from",
    "uniform",
]


def __getattr__(name: str) -> Any:
    home = _HOME_BY_NAME.get(name)
    if name in _NAMES_OF_RAY:  # an AttributeError would lose its text in `from rlplat.tune import ...`
        raise ImportError(f"rlplat.tune has no {name!r}; here it is {_NAMES_OF_RAY[name]}")
    if home is None:
        raise AttributeError(f"module 'rlplat.tune' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_BY_NAME])
