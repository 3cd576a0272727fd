"""Trial schedulers of three houses behind one face, for the simulation in tune_simulation.py.

judge = make_judge("ray", "asha", max_progress=81, seed=1)
number = judge.next()                                       # a worker is free: which trial runs on it
fate = judge.report(number, progress=4, score=0.3)          # GO, STOP or PAUSE; only paused trials come back by `next`
judge.end(number, is_complete=True)                         # it ended by itself: at max_progress, or it failed

- rlplat: the real `Experiment` with the real scheduler; only storage, processes and training are missing.
- optuna: a real study in memory by ask, report, should_prune, tell. Optuna cannot pause, so its HyperBand is a mixture
  of successive halvings, as its documentation says.
- ray: the scheduler classes of Ray Tune under a stand-in for its controller: it holds the list of trials, keeps up to
  16 pending as Ray does on a small cluster, and asks `choose_trial_to_run`. Pausing and going on cost nothing.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Protocol

import numpy as np

from rlplat.tune.events import Advance, Begin, Crashed, Reported, Returned, Save, Saved
from rlplat.tune.experiment import Experiment
from rlplat.tune.schedulers import make_scheduler
from rlplat.tune.search import Suggestion
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import Trial

GO, STOP, PAUSE = "go", "stop", "pause"
METHODS = {
    "rlplat": ("random", "median", "asha", "asha, min_progress R/9", "hyperband"),
    "optuna": ("median", "asha", "hyperband"),
    "ray": ("median", "asha", "hyperband"),
}


class Judge(Protocol):
    def next(self) -> int: ...

    def report(self, number: int, progress: int, score: float) -> str: ...

    def end(self, number: int, is_complete: bool) -> None: ...


def make_judge(house: str, method: str, max_progress: int, seed: int) -> Judge:
    kinds: dict[str, Any] = {"rlplat": RlplatJudge, "optuna": OptunaJudge, "ray": RayJudge}
    judge: Judge = kinds[house](method, max_progress, seed)
    return judge


class RlplatJudge:
    def __init__(self, method: str, max_progress: int, seed: int) -> None:
        self.scheduler = make_scheduler(settings_of(method, max_progress), stop={"step": max_progress})
        self.scheduler.open(seed, None)
        spec = ExperimentSpec(
            trainable=None,
            metric="score",
            mode=("max",),
            stop={"step": max_progress},
            checkpoint_period=10**9,
        )
        self._experiment = Experiment(spec, Endless(), self.scheduler, trial_seed=lambda number: number)

    def next(self) -> int:
        for action in self._experiment.next_trial():
            if isinstance(action, Begin):
                return action.trial.number
        raise RuntimeError("the experiment begins no trial")

    def report(self, number: int, progress: int, score: float) -> str:
        actions = self._experiment.handle(Reported(number, {"score": score}, run_s=1.0, can_save=True))
        if Advance(number) in actions:
            return GO
        if Save(number) not in actions:
            return STOP
        self._experiment.handle(Saved(number, f"step_{progress}", progress))
        return PAUSE

    def end(self, number: int, is_complete: bool) -> None:
        self._experiment.handle(Returned(number) if is_complete else Crashed(number, "not finite", can_retry=False))


def settings_of(method: str, max_progress: int) -> dict[str, Any]:
    """What stands in an experiment file."""
    known: dict[str, dict[str, Any]] = {
        "random": {"name": "fifo"},
        "asha, min_progress R/9": {"name": "asha", "min_progress": max_progress / 9},
    }
    return known.get(method, {"name": method})


class Endless:
    """A searcher whose configs are elsewhere: trial n is the n-th curve of the seed."""

    num_trials: int | None = None
    notice = ""

    def suggest(self, number: int) -> Suggestion:
        return Suggestion({}, {})

    def add(self, trial: Trial) -> None:
        pass

    def end(self, trial: Trial) -> None:
        pass


class OptunaJudge:
    def __init__(self, method: str, max_progress: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruners: dict[str, Any] = {
            "median": optuna.pruners.MedianPruner,
            "asha": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=1, max_resource=max_progress),
        }
        # HyperbandPruner hashes the study's name: each seed has brackets of its own.
        self._study = optuna.create_study(direction="maximize", pruner=pruners[method](), study_name=f"seed {seed}")
        self._pruned, self._failed = optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL
        self._trials: dict[int, Any] = {}
        self._scores: dict[int, float] = {}

    def next(self) -> int:
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return int(trial.number)

    def report(self, number: int, progress: int, score: float) -> str:
        trial = self._trials[number]
        trial.report(score, progress)
        self._scores[number] = score
        if not trial.should_prune():
            return GO
        self._study.tell(trial, state=self._pruned)
        del self._trials[number], self._scores[number]
        return STOP

    def end(self, number: int, is_complete: bool) -> None:
        trial, score = self._trials.pop(number), self._scores.pop(number, 0.0)
        if is_complete:
            self._study.tell(trial, score)
        else:
            self._study.tell(trial, state=self._failed)


class RayTrial:
    """What Ray's schedulers look at."""

    is_saving = False

    def __init__(self, number: int, status: str) -> None:
        self.number, self.trial_id, self.status = number, f"{number:05d}", status
        self.last_result: dict[str, float] = {}


class RayJudge:
    MAX_PENDING = 16

    def __init__(self, method: str, max_progress: int, seed: int) -> None:
        os.environ.setdefault("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
        from ray.tune import schedulers
        from ray.tune.experiment import Trial as Status

        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        np.random.seed(seed)  # AsyncHyperBandScheduler draws brackets from it
        names: dict[str, Any] = {"metric": "score", "mode": "max", "time_attr": "training_iteration"}
        kinds: dict[str, Any] = {
            "median": lambda: schedulers.MedianStoppingRule(grace_period=1, **names),
            "asha": lambda: schedulers.ASHAScheduler(max_t=max_progress, grace_period=1, **names),
            "hyperband": lambda: schedulers.HyperBandScheduler(max_t=max_progress, **names),
        }
        self._scheduler = kinds[method]()
        self._status = Status
        self._live: dict[int, RayTrial] = {}
        self._num_trials = 0

    # -- what the scheduler sees as its controller

    def get_trials(self) -> list[RayTrial]:
        return list(self._live.values())

    get_live_trials = get_trials

    def stop_trial(self, trial: RayTrial) -> None:
        """Of a paused trial, by the scheduler."""
        trial.status = self._status.TERMINATED
        self._live.pop(trial.number, None)
        self._scheduler.on_trial_remove(self, trial)

    # -- what the simulation sees

    def next(self) -> int:
        self._refill()
        while (trial := self._scheduler.choose_trial_to_run(self)) is None:
            self._refill(self._num_pending() + 1)
        trial.status = self._status.RUNNING
        return int(trial.number)

    def report(self, number: int, progress: int, score: float) -> str:
        trial = self._live[number]
        trial.last_result = {"training_iteration": progress, "score": score}
        fate = self._scheduler.on_trial_result(self, trial, trial.last_result)
        if fate == "STOP":
            trial.status = self._status.TERMINATED
            self._live.pop(number, None)
            self._scheduler.on_trial_complete(self, trial, trial.last_result)
            return STOP
        if fate == "PAUSE":
            trial.status = self._status.PAUSED
            return PAUSE
        return GO

    def end(self, number: int, is_complete: bool) -> None:
        trial = self._live.pop(number)
        trial.status = self._status.TERMINATED if is_complete else self._status.ERROR
        if is_complete:
            self._scheduler.on_trial_complete(self, trial, trial.last_result)
        else:
            self._scheduler.on_trial_error(self, trial)

    def _num_pending(self) -> int:
        return sum(trial.status == self._status.PENDING for trial in self._live.values())

    def _refill(self, wanted: int = MAX_PENDING) -> None:
        for _ in range(wanted - self._num_pending()):
            trial = self._live[self._num_trials] = RayTrial(self._num_trials, self._status.PENDING)
            self._num_trials += 1
            self._scheduler.on_trial_add(self, trial)
