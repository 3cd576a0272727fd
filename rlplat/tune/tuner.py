"""The shell around `Experiment`: trial hosts, refs, files, signals.

One turn of the loop: take what a host has answered → `experiment.handle` → record it and tell the hosts → flush. What
the records of a killed tuner do not have, its trials repeat from their checkpoints, of which two are kept.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import rlplat
from rlplat.errors import CheckpointError, ConfigError, RlplatError, TaskError, UsageError
from rlplat.rl.run.interruption import Interrupted as Signalled
from rlplat.rl.run.interruption import Interruption
from rlplat.tune import events
from rlplat.tune.analysis import Analysis
from rlplat.tune.directory import ExperimentDirectory
from rlplat.tune.experiment import Experiment
from rlplat.tune.roster import View
from rlplat.tune.slots import END, READY, Call, Demand, Slot, Slots, room
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.study import Study
from rlplat.tune.trial import Trial, TrialState, remote_text
from rlplat.tune.trials import StillRunning
from rlplat.tune.trials.checkpoints import copy_checkpoint, why_not_copied
from rlplat.tune.trials.host import Order, SavedTurn, TrialHost, Turn
from rlplat.tune.trials.programs import CLOSE_S
from rlplat.tune.trials.trainables import TrainableKind

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef, PlacementGroup

INTERRUPTED_S = 20.0
"""After the first signal: who has not reported by then is ended where it is. SLURM and Kubernetes kill after 30 s."""
INTERRUPTED_CLOSE_S = 5.0
"""... and so long trials have for their ends."""
_MISTAKES = (AttributeError, ImportError, NameError, SyntaxError, TypeError)
"""Raised before a trial's first report, they are mistakes in its code: running it again only costs time."""


class Tuner:
    def __init__(
        self,
        spec: ExperimentSpec,
        kind: TrainableKind,
        experiment: Experiment,
        study: Study,
        directory: ExperimentDirectory,
        view: View,
    ) -> None:
        self.spec, self.kind, self.experiment = spec, kind, experiment
        self.study, self.directory, self.view = study, directory, view
        self._slots = Slots(self._make_host, room())
        self._to_begin: deque[Trial] = deque()
        """Trials for which no slot of their size is free yet."""
        self._best: tuple[int, tuple[float, ...], TrialState] | None = None
        """As best.yaml says it."""
        self._abort: Exception | None = None
        self._ends_apart = kind.closes or spec.max_silence_s is not None
        """Whether a trial is ended by a call of its own, so that the next one does not answer for its end."""
        self._started = time.monotonic()
        self._interrupted_s: float | None = None

    def run(self, *, resume: bool) -> Analysis:
        is_in_order = False
        try:
            with Interruption(self.view.say) as interruption, interruption.deferred():
                if resume:
                    self._restore()
                while not self._is_over():
                    if interruption.signal_number:
                        self._perform(self.experiment.handle(events.Interrupted("interrupted")))
                        if not self._may_finish():
                            break
                    self._check_time()
                    self._fill()
                    self._turn()
                else:
                    is_in_order = True
                if interruption.signal_number and self._abort is None:
                    raise Signalled(interruption.signal_number)
        finally:
            limit_s = CLOSE_S if self._interrupted_s is None else INTERRUPTED_CLOSE_S
            self._close(limit_s if is_in_order else 0.5)
        if self._abort is not None:
            raise self._abort
        return Analysis(self.study.load(), self.spec.metric, self.spec.mode, self.directory.path)

    # ------------------------------------------------------------ one turn

    def _is_over(self) -> bool:
        return self._abort is not None or (self.experiment.is_done and not self._to_begin)

    def _may_finish(self) -> bool:
        """Whether trials that run when a signal came have time left for their next report."""
        self._interrupted_s = self._interrupted_s or time.monotonic()
        if time.monotonic() < self._interrupted_s + INTERRUPTED_S:
            return True
        late = ", ".join(map(str, sorted(self._slots.by_trial)))
        text = f"no report within {INTERRUPTED_S:g} s of the signal from trial {late}: ended where it is; --resume "
        self._perform([events.Say(f"{text}repeats it from its last checkpoint")])
        return False

    def _restore(self) -> None:
        trials = self.study.load()
        self.directory.refuse_cut_study([trial.number for trial in trials])
        self.directory.recall(trials)
        actions = self.experiment.restore(trials)
        ending = {action.trial.number for action in actions if isinstance(action, events.RecordEnd)}
        self.directory.reconcile(trials, ending)
        self._note_best()  # the last one may not have been written
        self._perform(actions)

    def _check_time(self) -> None:
        budget = self.spec.time_budget_s
        if budget is not None and time.monotonic() - self._started >= budget:
            spent = events.Interrupted(f"the time budget of {budget:g} s is spent", ends_trials=True)
            self._perform(self.experiment.handle(spent))

    def _fill(self) -> None:
        """Give every free slot a trial, and open slots as long as there is room and somebody for them."""
        if self.experiment.interrupted:
            for trial in self._to_begin:
                self._perform(self.experiment.handle(events.NotBegun(trial.number)))
            self._to_begin.clear()
        limit = self.spec.max_concurrent or math.inf
        while True:
            while self._to_begin and (slot := self._slots.free(self._demand(self._to_begin[0]))):
                self._begin(slot, self._to_begin.popleft())
            if self._to_begin:
                self._slots.open(self._demand(self._to_begin[0]))
                break
            if len(self._slots.by_trial) >= limit or not self._has_room():
                break
            self._perform(self.experiment.next_trial())
            if not self._to_begin:
                break
        self._slots.clean()

    def _has_room(self) -> bool:
        """Whether a trial of the usual size could begin now."""
        return any(slot.is_free for slot in self._slots.all) or self._slots.fits(
            self.kind.demand(self.spec.resources, {})
        )

    def _demand(self, trial: Trial) -> Demand:
        return self.kind.demand(self.spec.resources, trial.config)

    def _turn(self) -> None:
        """Wait for an answer and take it."""
        refs = {ref: slot for slot in self._slots.all if (ref := slot.waits_for) is not None}
        if refs:
            for ref in rlplat.wait(list(refs), num_returns=1, timeout=self._patience())[0]:
                self._slots.to_the_back(refs[ref])  # so that others get their turn
                self._answered(refs[ref], ref)
            self._find_silent()
        elif not self._is_over():
            time.sleep(0.05)  # nothing runs: somebody else's trial has the room
        self.directory.flush()
        self.study.sync()
        if self.view.is_due():
            slots = (len(self._slots.by_trial), len(self._slots.all))
            self.view.show(self.experiment.snapshot(time.monotonic() - self._started, slots))

    def _patience(self) -> float:
        """Seconds until something other than an answer is to be done."""
        patience = 0.25
        if self.spec.max_silence_s is not None:
            patience = min(patience, self.spec.max_silence_s / 4)
        return patience

    def _answered(self, slot: Slot, ref: ObjectRef) -> None:
        if ref is slot.opening:
            self._slots.opened(slot)
            return
        call = slot.take()
        number = call.number
        try:
            answer = rlplat.get(ref)
        except (RlplatError, KeyboardInterrupt, SystemExit) as error:
            self._lost(slot, call, error)
            return
        if number is None or number != slot.trial:
            return
        if isinstance(answer, SavedTurn):
            self._perform(self.experiment.handle(events.Saved(number, *answer)))
        elif isinstance(answer, Turn):
            event = (
                events.Returned(number, answer.run_s)
                if answer.metrics is None
                else events.Reported(number, answer.metrics, answer.run_s, answer.can_save)
            )
            self._perform(self.experiment.handle(event))

    def _lost(self, slot: Slot, call: Call, error: BaseException) -> None:
        """A call failed: user code raised, or the host died; a host that may be damaged is replaced."""
        cause = getattr(error, "cause", None) or error.__cause__ or error
        if isinstance(cause, CheckpointError) and call.method == "save":  # no trial's state can be kept
            self._perform([events.Abort(cause)])
            return
        slot.calls.clear()
        number = slot.trial
        is_stuck = isinstance(error, StillRunning)
        if call.method == READY and number is None:
            self._slots.close(slot)  # not again and again: the next trial opens one, and pays for it
            return
        is_before = call.method == END or (call.number != number and call.method != READY)
        if is_stuck or is_before or not isinstance(error, TaskError):
            self._slots.renew(slot)
        if number is None or number not in self.experiment.roster.live:
            return
        if is_before or (is_stuck and call.method == "begin"):
            self._to_begin.append(self.experiment.roster.live[number].trial)  # the trial before it did that
            return
        trial = self.experiment.roster.live[number].trial
        # A bad config, a damaged checkpoint, a typo: the same again.
        can_retry = not isinstance(cause, UsageError) and bool(trial.step or not isinstance(cause, _MISTAKES))
        text = str(cause) if isinstance(cause, UsageError) else remote_text(error)
        self._perform(self.experiment.handle(events.Crashed(number, text, can_retry)))

    def _find_silent(self) -> None:
        limit = self.spec.max_silence_s or math.inf
        for slot in self._slots.silent(limit, CLOSE_S):
            call, number = slot.calls[0], slot.trial
            self._slots.renew(slot)
            if call.method == END:
                text = f"trial {call.number} did not come to its end within {CLOSE_S:g} s: its process was killed"
                self._perform([events.Say(text)])
                if number is not None:
                    self._to_begin.append(self.experiment.roster.live[number].trial)
                continue
            assert number is not None, "only `end` is sent without a trial"
            text = f"no report for {limit:g} s (max_silence_s): it hangs, and its process was killed"
            self._perform(self.experiment.handle(events.Crashed(number, text)))

    # ------------------------------------------------------------ actions

    def _perform(self, actions: Sequence[events.Action]) -> None:
        """In their order: an experiment names records before what follows from them."""
        for action in actions:
            if isinstance(action, events.RecordReport):
                self.study.report(action.trial)
                self.directory.record(action.trial, action.trial.last)
            elif isinstance(action, events.Advance):
                self._slots.by_trial[action.number].call("advance")
            elif isinstance(action, events.RecordTrial):
                self.study.create(action.trial)
            elif isinstance(action, events.RecordChange):
                self.study.note(action.trial)
            elif isinstance(action, events.RecordEnd):
                self.directory.flush()
                self.study.end(action.trial)
                self.directory.end(action.trial)
                self._note_best()
            elif isinstance(action, events.Begin):
                slot = self._slots.by_trial.get(action.trial.number)
                if slot is None:
                    self._to_begin.append(action.trial)
                else:
                    self._begin(slot, action.trial)
            elif isinstance(action, events.Save):
                self._slots.by_trial[action.number].call("save")
            elif isinstance(action, events.Release):
                self._slots.release(action.number)
            elif isinstance(action, events.CopyCheckpoint):
                self._copy(action)
            elif isinstance(action, events.Say):
                self.directory.log(action.text)
                if not action.to_log_only:
                    self.view.say(action.text)
            elif self._abort is None:
                self._abort = action.error

    def _begin(self, slot: Slot, trial: Trial) -> None:
        checkpoint = trial.checkpoint.name if trial.checkpoint else ""
        order = Order(trial.number, trial.config, trial.seed, trial.failures, trial.step, checkpoint)
        if self._ends_apart and (slot.left is not None or slot.trial is not None):
            slot.end()
        self._slots.assign(slot, trial.number)
        slot.call("begin", order)

    def _copy(self, action: events.CopyCheckpoint) -> None:
        """ConfigError where the disk refuses: then nothing was recorded of what follows from the copy."""
        try:
            source = self.directory.trial_directory(action.source) / "checkpoints" / action.mark.name
            target = self.directory.trial_directory(action.target) / "checkpoints" / action.name
            copy_checkpoint(source, target)
        except OSError as error:
            raise ConfigError(
                f"{self.directory.trials}: cannot copy checkpoint {action.mark.name} of trial {action.source} to trial "
                f"{action.target}: {why_not_copied(error)}: fix it, then continue with --resume (in Python resume=True)"
            ) from None

    def _note_best(self) -> None:
        best = self.experiment.roster.best()
        if best and (mark := (best[0].number, best[0].values, best[0].state)) != self._best:
            self._best = mark
            self.directory.best(best[0], self.kind.document(best[0].config, best[0].seed, self.directory.path))

    def _make_host(self, group: PlacementGroup, demand: Demand) -> ActorHandle:
        strategy = rlplat.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        num_gpus = self.kind.host_gpus(demand)
        host = rlplat.remote(TrialHost).options(num_cpus=0, num_gpus=num_gpus, scheduling_strategy=strategy)
        trials, metric = str(self.directory.trials), self.spec.metric[0]
        return host.remote(self.spec.trainable, trials, metric, self.spec.seeds_per_trial)

    def _close(self, within_s: float) -> None:
        """Whatever ended the loop: what runs is ended, what was recorded is on the disk."""
        try:
            self._slots.close_all(within_s)
            self.study.sync()
        finally:
            snapshot = self.experiment.snapshot(time.monotonic() - self._started, (0, 0))
            self.view.close(snapshot)
