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

from typing import TYPE_CHECKING

from rlplat.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlplat.tune.analysis import Analysis as Analysis, load as load
    from rlplat.tune.domains import (
        choice as choice,
        grid as grid,
        lograndint as lograndint,
        loguniform as loguniform,
        normal as normal,
        qloguniform as qloguniform,
        qnormal as qnormal,
        quniform as quniform,
        randint as randint,
        sample_from as sample_from,
        uniform as uniform,
    )
    from rlplat.tune.run_experiment import run as run
    from rlplat.tune.schedulers import FIFO as FIFO
    from rlplat.tune.schedulers.halving import ASHA as ASHA, HyperBand as HyperBand
    from rlplat.tune.schedulers.median import MedianStopping as MedianStopping
    from rlplat.tune.schedulers.pb2 import PB2 as PB2
    from rlplat.tune.schedulers.pbt import PBT as PBT
    from rlplat.tune.search import Searcher as Searcher
    from rlplat.tune.trials import TrialContext as TrialContext
    from rlplat.tune.trials.thread import TrialStopped as TrialStopped
else:
    _HOMES = {
        "analysis": "Analysis load",
        "domains": "choice grid sample_from lograndint loguniform normal qloguniform qnormal quniform randint uniform",
        "run_experiment": "run",
        "schedulers": "FIFO",
        "schedulers.halving": "ASHA HyperBand",
        "schedulers.median": "MedianStopping",
        "schedulers.pb2": "PB2",
        "schedulers.pbt": "PBT",
        "search": "Searcher",
        "trials": "TrialContext",
        "trials.thread": "TrialStopped",
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
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES, refused=_NAMES_OF_RAY)
