"""Whole experiments without processes and files: what the tuner performs is done at once, in memory.

The tuner may be killed between any two actions: `Population(..., kill_after=n)` raises `Killed` after n actions, and
`restored()` goes on from what was recorded.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rlplat.tune import events as ex
from rlplat.tune.experiment import Experiment
from rlplat.tune.schedulers import TrialScheduler
from rlplat.tune.search import Searcher, make_searcher
from rlplat.tune.space import Space
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import Trial


class Model(Protocol):
    """What is trained; `copy.deepcopy` of its `__dict__` is its checkpoint."""

    config: dict[str, Any]

    def step(self) -> dict[str, Any]: ...


class Killed(Exception):
    pass


class Population:
    def __init__(
        self,
        model: Callable[[dict[str, Any], int], Model],
        space: Mapping[str, Any],
        scheduler: Callable[[], TrialScheduler],
        *,
        num_samples: int,
        slots: int,
        seed: int = 0,
        order: int | None = None,
        crash: Callable[[int, int], bool] = lambda number, step: False,
        refuse: Callable[[int, int], bool] = lambda number, step: False,
        **settings: Any,
    ) -> None:
        """model(config, seed of the trial). order: seed of the order in which the hosts answer; None: by turns.
        crash, refuse: whether a trial (by number) dies over this step, whether the disk refuses its checkpoint."""
        self.model, self.space, self.make_scheduler = model, Space.parse(space), scheduler
        self.slots, self.seed, self.crash, self.refuse = slots, seed, crash, refuse
        self.rng = random.Random(order) if order is not None else None
        self.spec = ExperimentSpec(
            trainable=None,
            config=dict(space),
            num_samples=num_samples,
            seed=seed,
            **{"metric": ("score",), "mode": ("max",), **settings},
        )
        self.stored: dict[int, Trial] = {}
        self.files: dict[tuple[int, str], dict[str, Any]] = {}
        """(trial, name of the checkpoint) -> state."""
        self.copies: list[tuple[int, int, str]] = []
        """(target, source, name of the copy)."""
        self.said: list[str] = []
        self.most_at_once = 0
        self.kill_after: int | None = None
        self._start([])

    def _start(self, trials: list[Trial]) -> None:
        self.running: dict[int, Model] = {}
        self.steps: dict[int, int] = {}
        self.events: list[ex.Event] = []
        scheduler = self.make_scheduler()
        scheduler.open(self.seed, self.space)
        searcher = make_searcher(
            Searcher(), self.space, seed=self.seed, num_samples=self.spec.num_samples, modes=("max",)
        )
        self.experiment = Experiment(self.spec, searcher, scheduler, trial_seed=lambda n: 1000 + n)
        if trials:
            self.perform(self.experiment.restore(trials))

    def restored(self) -> Population:
        """A new tuner on what the killed one recorded."""
        self.kill_after = None
        self._start([copy.deepcopy(self.stored[number]) for number in sorted(self.stored)])
        return self

    def run(self, kill_after: int | None = None) -> Population:
        if kill_after is not None:
            self.kill_after = kill_after
        while True:
            while len(self.running) < self.slots:
                actions = self.experiment.next_trial()
                self.perform(actions)
                if not any(isinstance(action, ex.Begin) for action in actions):
                    break
            if self.experiment.is_done:
                return self
            at = 0
            if self.rng is not None:  # any trial's oldest answer
                number = self.rng.choice(sorted({event.number for event in self.events}))  # type: ignore[union-attr]
                at = next(i for i, e in enumerate(self.events) if e.number == number)  # type: ignore[union-attr]
            self.perform(self.experiment.handle(self.events.pop(at)))

    def perform(self, actions: list[ex.Action]) -> None:
        for action in actions:
            if self.kill_after is not None:
                self.kill_after -= 1
                if self.kill_after < 0:
                    raise Killed
            self._do(action)

    def _do(self, action: ex.Action) -> None:
        if isinstance(action, ex.RecordTrial | ex.RecordReport | ex.RecordChange | ex.RecordEnd):
            self.stored[action.trial.number] = copy.deepcopy(action.trial)
        elif isinstance(action, ex.CopyCheckpoint):
            self.copies.append((action.target, action.source, action.name))
            self.files[action.target, action.name] = copy.deepcopy(self.files[action.source, action.mark.name])
        elif isinstance(action, ex.Begin):
            trial = action.trial
            assert self.stored[trial.number].checkpoint == trial.checkpoint, "recorded before it is begun"
            model = self.model(trial.config, trial.seed)
            if trial.checkpoint:
                model.__dict__.update(copy.deepcopy(self.files[trial.number, trial.checkpoint.name]))
                model.config = trial.config
            self.running[trial.number] = model
            self.steps[trial.number] = trial.step
            self.events = [e for e in self.events if e.number != trial.number]  # type: ignore[union-attr]
            self.most_at_once = max(self.most_at_once, len(self.running))
            self._step(trial.number)
        elif isinstance(action, ex.Advance):
            self._step(action.number)
        elif isinstance(action, ex.Save):
            number, step = action.number, self.steps[action.number]
            if self.refuse(number, step):
                self.events.append(ex.Saved(number, None, step, error="x/checkpoints: OSError: no space"))
                return
            self.files[number, f"step_{step}"] = copy.deepcopy(self.running[number].__dict__)
            self.events.append(ex.Saved(number, f"step_{step}", step))
        elif isinstance(action, ex.Release):
            self.running.pop(action.number, None)
            self.events = [e for e in self.events if e.number != action.number]  # type: ignore[union-attr]
        elif isinstance(action, ex.Say):
            self.said.append(action.text)
        elif isinstance(action, ex.Abort):
            raise action.error

    def _step(self, number: int) -> None:
        self.steps[number] += 1
        if self.crash(number, self.steps[number]):
            self.events.append(ex.Crashed(number, "bad luck"))
        else:
            self.events.append(ex.Reported(number, self.running[number].step(), 1.0, True))

    @property
    def trials(self) -> list[Trial]:
        return [self.stored[number] for number in sorted(self.stored)]
