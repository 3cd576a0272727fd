"""`rlplat tune --join`: a tuner that shares its study with others (docs/decisions/0010).

It differs from the only tuner of a study in four places: it makes a trial only in its turn, it reads what the others
have reported, it takes over the trials of those that are gone, and it lets go of what others took from itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlplat.errors import ConfigError
from rlplat.tune.core import events
from rlplat.tune.core.trial import Trial
from rlplat.tune.schedulers.registry import make_scheduler
from rlplat.tune.settings.spec import ExperimentSpec
from rlplat.tune.storage.address import is_url
from rlplat.tune.trials.checkpoints import copy_checkpoint
from rlplat.tune.trials.trainables import check_trainable
from rlplat.tune.tuner import Tuner

if TYPE_CHECKING:
    from rlplat.tune.storage.shared_study import SharedStudy

LEARN_S = 1.0
"""Between two looks at what the others have reported; there is one before each new trial, too."""


def check_join(spec: ExperimentSpec) -> None:
    """ConfigError where several tuners cannot share this experiment. spec: a checked one."""
    if not is_url(spec.storage):
        raise ConfigError(
            "--join (join=True): tuners share an experiment through a database: add --storage "
            "postgresql://user@host/database"
        )
    scheduler = make_scheduler(spec.scheduler, check_trainable(spec.trainable).unit, stop=spec.stop)
    if scheduler.needs_checkpoints:
        raise ConfigError(
            f"--join (join=True): the trial scheduler {scheduler.name}{spec.where('scheduler')} pauses or copies "
            "trials, and cannot do so with those of other tuners: take fifo, median or asha (variant stopping), or one "
            "tuner on a cluster of all the machines"
        )


class JoinedTuner(Tuner):
    study: SharedStudy
    _next_look = 0.0
    _orphans: list[int]
    _ended: dict[int, Trial]
    """Since the study was last in order: what others take is taken back."""

    def _restore(self) -> None:
        self._ended, self._orphans = {}, []
        self.directory.reconcile(self._learn())

    def _learn(self) -> list[Trial]:
        while True:
            self._let_go()
            trials, self._orphans = self.study.others(
                self.experiment.num_trials, self.experiment.roster.others
            )
            if not self.study.lost:
                break  # else these are not all the others
        self.experiment.learn(trials)
        self._note_best()
        self._next_look = time.monotonic() + LEARN_S
        return trials

    def _turn(self) -> None:
        super()._turn()
        self._let_go()
        self._ended.clear()  # the study has them
        if time.monotonic() >= self._next_look:
            self._look()

    def _look(self) -> None:
        for trial in self._learn():
            if trial.state.has_ended:
                self.directory.row(trial)

    def _begin_next(self) -> None:
        """What is left of others first; then a trial that waits here; then a new one."""
        self._take_over()
        if not self.experiment.suggests:
            self._perform(self.experiment.next_trial())
            return
        with self.study.turn() as is_mine:
            if is_mine:
                self._look()
                if self.experiment.suggests:
                    self._perform(self.experiment.next_trial())
        self._let_go()

    def _take_over(self) -> None:
        while self._orphans and not (self.experiment.interrupted or self.experiment.roster.has_waiting):
            number = self._orphans.pop(0)
            if (trial := self.study.take(number)) is None:
                continue
            self._fetch_checkpoint(trial)
            where = f"from its report {trial.checkpoint.step}" if trial.checkpoint else "from the beginning"
            said = f"trial {number} of another tuner goes on here, {where}"
            self._perform([events.Say(said), *self.experiment.adopt([trial])])
        self._let_go()  # to take one may have needed a new connection

    def _fetch_checkpoint(self, trial: Trial) -> None:
        """Where its last tuner's directory can be seen from here; else the trial has none."""
        theirs, own = Path(trial.notes["directory"]), self._place
        trial.notes["directory"] = str(own)
        if trial.checkpoint is None or theirs == own:
            return
        inside = Path("trials", trial.directory_name, "checkpoints", trial.checkpoint.name)
        try:
            copy_checkpoint(theirs / inside, own / inside)
        except OSError:
            trial.checkpoint = None

    def _let_go(self) -> None:
        """Of trials that others took while the database was out of reach."""
        for number in self.study.let_go():
            live = self.experiment.roster.live.get(number)
            trial = live.trial if live else self._ended.get(number)
            if trial is None:
                continue
            slot = self._slots.by_trial.get(number)
            if slot is not None and slot.calls:
                self._slots.renew(slot)  # else the next trial in it would wait, and answer, for this one
            else:
                self._slots.release(number)
            if trial in self._to_begin:
                self._to_begin.remove(trial)
            self.experiment.lose(trial)
            self.directory.log(
                f"trial {number} is another tuner's: the database was out of reach for too long"
            )

    def _perform(self, actions: Sequence[events.Action]) -> None:
        for action in actions:
            if isinstance(action, events.RecordTrial):
                action.trial.notes["directory"] = str(self._place)
            elif isinstance(action, events.RecordEnd):
                self._ended[action.trial.number] = action.trial
        super()._perform(actions)

    @property
    def _place(self) -> Path:
        return self.directory.path.resolve()
