"""Trial schedulers of three houses behind one face, for the simulation in tune_simulation.py.

judge = make_judge("ray", "asha", max_progress=81, seed=1)
number = judge.next()                                       # a worker is free: which trial runs on it
fate = judge.report(number, progress=4, score=0.3)          # GO, STOP or PAUSE; only paused trials come back by `next`
judge.end(number, is_complete=True)                         # it ended by itself: at max_progress, or it failed

- rlplat: the schedulers as they are; the experiment's own rules for who runs next (what was paused first, new ones
  then).
- optuna: a real study in memory by ask, report, should_prune, tell. Optuna cannot pause, so its HyperBand is a mixture
  of successive halvings, as its documentation says.
- ray: the scheduler classes of Ray Tune under a stand-in for its controller: it holds the list of trials, keeps up to
  16 pending as Ray does on a small cluster, and asks `choose_trial_to_run`. Pausing and going on cost nothing.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import Any, ClassVar, Protocol

import numpy as np

from rlplat.tune.schedulers import Continue, Resume, Stop
from rlplat.tune.schedulers.registry import make_scheduler
from rlplat.tune.trial import Trial, TrialState

GO, STOP, PAUSE = "go", "stop", "pause"
METHODS = {
    "rlplat": ("random", "median", "asha", "asha promotion", "asha, min_progress R/9", "hyperband"),
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
    SETTINGS: ClassVar[dict[str, dict[str, Any]]] = {
        "random": {"name": "fifo"},
        "asha promotion": {"name": "asha", "variant": "promotion"},
    }

    def __init__(self, method: str, max_progress: int, seed: int) -> None:
        settings = self.SETTINGS.get(method, {"name": method})
        if method == "asha, min_progress R/9":
            settings = {"name": "asha", "min_progress": max_progress / 9}
        self.scheduler = make_scheduler(settings, stop={"step": max_progress})
        self.scheduler.open(seed, None)
        self._trials: dict[int, Trial] = {}
        self._num_trials = 0
        self._waiting: deque[int] = deque()

    def next(self) -> int:
        if self._waiting:
            number = self._waiting.popleft()
            self._trials[number].state = TrialState.RUNNING
            return number
        trial = self._trials[self._num_trials] = Trial(self._num_trials, {}, {}, 0, state=TrialState.RUNNING)
        self._num_trials += 1
        self.scheduler.add(trial)
        return trial.number

    def report(self, number: int, progress: int, score: float) -> str:
        trial = self._trials[number]
        trial.values, trial.progress = (score,), progress
        self.scheduler.record(trial, progress, score)
        verdict = self.scheduler.judge(trial)
        if isinstance(verdict, Stop):
            self.end(number, verdict.is_complete)
            return STOP
        if not isinstance(verdict, Continue):
            trial.state = TrialState.PAUSED
        self._carry_out_due()
        return GO if isinstance(verdict, Continue) else PAUSE

    def end(self, number: int, is_complete: bool) -> None:
        trial = self._trials.pop(number)
        trial.state = TrialState.COMPLETE if is_complete else TrialState.STOPPED
        self.scheduler.end(trial)
        self._carry_out_due()

    def _carry_out_due(self) -> None:
        for number, verdict in self.scheduler.due():
            if isinstance(verdict, Resume):
                self._trials[number].state = TrialState.WAITING
                self._waiting.append(number)
            else:
                self.end(number, is_complete=False)


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
        self._study = optuna.create_study(
            direction="maximize", pruner=pruners[method](), study_name=f"seed {seed}"
        )
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
