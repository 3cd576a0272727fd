"""`tune.run`: from settings to an analysis. The shell around `Experiment`: trial hosts, refs, files, signals.

One turn of the loop: take what the hosts have answered → `experiment.handle` → record (study, results) → flush → tell
the hosts. Nothing is told before what it follows from is recorded, so a tuner that is killed at any moment can go on.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.errors import CheckpointError, ConfigError, RlplatError, TaskError, UsageError
from rlplat.rl.interruption import Interrupted as Signalled
from rlplat.rl.interruption import Interruption
from rlplat.tune import events
from rlplat.tune.analysis import Analysis
from rlplat.tune.directory import ExperimentDirectory, refuse_existing, take_back
from rlplat.tune.experiment import Experiment
from rlplat.tune.experiment_file import refuse_changes, searcher_of, settings_of
from rlplat.tune.program import StillRunning
from rlplat.tune.programs import GRACE_S
from rlplat.tune.samplers import distributions
from rlplat.tune.schedulers.registry import make_scheduler
from rlplat.tune.search import Searcher, make_searcher
from rlplat.tune.slots import READY, Call, Demand, Slot, Slots
from rlplat.tune.snapshot import View
from rlplat.tune.space import Space
from rlplat.tune.spec import ExperimentSpec, check_demand
from rlplat.tune.study import Study, shown
from rlplat.tune.table import open_view
from rlplat.tune.trainables import TrainableKind, check_trainable
from rlplat.tune.trial import Trial
from rlplat.tune.trial_host import Order, SavedTurn, TrialHost, Turn

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef, PlacementGroup


def run(
    trainable: Any,
    space: Mapping[str, Any],
    *,
    metric: str | Sequence[str] | None = None,
    mode: str | Sequence[str] = "max",
    num_samples: int = 1,
    stop: Mapping[str, float] | None = None,
    resources: Mapping[str, float] | None = None,
    searcher: str | Mapping[str, Any] | Searcher = "random",
    scheduler: Any = "fifo",
    max_concurrent: int | None = None,
    seed: int = 0,
    seeds_per_trial: int = 1,
    max_failures: int = 2,
    max_silence_s: float | None = None,
    checkpoint_period: int | None = None,
    time_budget_s: float | None = None,
    name: str = "",
    out: str | os.PathLike[str] | None = None,
    storage: str = "",
    resume: bool = False,
    join: bool = False,
    progress: bool = True,
) -> Analysis:
    """Run trials of `trainable` with configs from `space`; returns when all have ended. Settings: `ExperimentSpec`.

    trainable: `f(config)`, `f(config, report)`, a generator function, a class with `step` (and `save`, `load`), an
    algorithm's name, or "./file.py:name". space: a config with domains in it, `{"lr": tune.loguniform(1e-5, 1e-1)}`.
    resume: go on with the experiment in `out`. join: share its trials with other tuners that are given the same
    experiment and `storage` (postgresql://...), each with an `out` of its own; the first one begins it.
    progress: show a table (on a terminal) or lines.
    Ctrl-C once saves what runs at its next report and raises `KeyboardInterrupt`; the experiment can be resumed.
    """
    spec = ExperimentSpec(
        trainable=trainable,
        space=space,
        metric=_names(metric),
        mode=_names(mode),  # type: ignore[arg-type]
        num_samples=num_samples,
        stop={} if stop is None else stop,
        resources=resources,
        searcher=searcher_of(searcher),
        scheduler=scheduler,
        max_concurrent=max_concurrent,
        seed=seed,
        seeds_per_trial=seeds_per_trial,
        max_failures=max_failures,
        max_silence_s=max_silence_s,
        checkpoint_period=checkpoint_period,
        time_budget_s=time_budget_s,
        name=name,
        out=Path(out) if out is not None else Path(),
        storage=storage,
    )
    return run_experiment(spec, resume=resume, join=join, progress=progress)


def run_experiment(
    spec: ExperimentSpec, *, resume: bool = False, join: bool = False, progress: bool = True
) -> Analysis:
    """`run` on settings that are put together already."""
    spec = spec.checked()
    if join:
        from rlplat.tune.joined_tuner import check_join

        check_join(spec)
    if not resume:
        refuse_existing(spec.out)
    kind = check_trainable(spec.trainable)
    owns_runtime = not rlplat.is_initialized()
    view = open_view(progress)
    if owns_runtime:
        with view.taking_output():
            rlplat.init(preload=("torch",) if kind.is_algorithm else ())
    try:
        check_demand(kind.demand(spec.resources, spec.sample_config()), rlplat.cluster_resources(), spec)
        return _run_on_cluster(spec, kind, resume, join, view)
    except UsageError:
        if not resume:
            take_back(spec.out)
        raise
    finally:
        if owns_runtime:
            rlplat.shutdown()
        view.finish()


def _run_on_cluster(
    spec: ExperimentSpec, kind: TrainableKind, resume: bool, join: bool, view: View
) -> Analysis:
    space = Space.parse(spec.space)
    scheduler = make_scheduler(spec.scheduler, kind.unit, stop=spec.stop)
    scheduler.open(spec.seed, space)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(ExperimentDirectory.open(spec.out, spec, resume=resume, say=view.say))
        study = _open_study(spec, directory, resume, join, view)
        stack.callback(study.close)
        in_optunas_terms = distributions(space)
        study.distributions = lambda params: {name: in_optunas_terms[name] for name in params}
        searcher = make_searcher(
            spec.searcher,
            space,
            seed=spec.seed,
            num_samples=spec.num_samples,
            modes=spec.mode,
        )
        for note in [*kind.notes(spec.sample_config()), *([searcher.notice] if searcher.notice else [])]:
            view.say(note)
            directory.log(note)
        experiment = Experiment(
            spec,
            searcher,
            scheduler,
            trial_seed=lambda number: trial_seed(spec.seed, number),
            is_algorithm=kind.is_algorithm,
        )
        tuner: type[Tuner] = Tuner
        if join:
            from rlplat.tune import joined_tuner

            tuner = joined_tuner.JoinedTuner
        return tuner(spec, kind, experiment, study, directory, view).run(resume=resume or join)


def _open_study(
    spec: ExperimentSpec, directory: ExperimentDirectory, resume: bool, join: bool, view: View
) -> Study:
    """The study, new or with the same settings as before."""
    kind: type[Study] = Study
    storage = directory.storage
    if join:
        from rlplat.tune import shared_study

        kind = shared_study.SharedStudy
    study = kind.open(storage, spec.name, list(spec.mode), resume=resume, say=view.say)
    try:
        with study.settling() as known:
            if "experiment" in known:
                refuse_changes(spec, known["experiment"], shown(storage))
                if join is not bool(known.get("is_shared")):
                    raise ConfigError(
                        f"the experiment {spec.name!r} in {shown(storage)} "
                        + (
                            "has one tuner only: go on with --resume and without --join, or give the new one another "
                            "name (--set name=...)"
                            if join
                            else "is shared by several tuners: add --join"
                        )
                    )
            elif directory.has_results:  # they follow from the study: without it they would be dropped
                raise ConfigError(
                    f"{directory.path} has results of an experiment, and {shown(storage)} holds no {spec.name!r}: "
                    "resume it with the storage and the name that it had, or begin a new one with --out"
                )
            settings = {"experiment": settings_of(spec)}
            study.settle({}, may_change={**settings, "is_shared": True} if join else settings)
            study.sync()  # before there can be results of it
    except BaseException:
        study.close()
        raise
    return study


def trial_seed(seed: int, number: int) -> int:
    """32 bits for trial `number` of an experiment with this seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])


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
        self._slots = Slots(self._make_host, rlplat.cluster_resources())
        self._to_begin: deque[Trial] = deque()
        """Trials for which no slot of their size is free yet."""
        self._best: tuple[int, tuple[float, ...]] | None = None
        self._abort: Exception | None = None
        self._started = time.monotonic()

    def run(self, *, resume: bool) -> Analysis:
        is_in_order = False
        try:
            with Interruption(self.view.say) as interruption, interruption.deferred():
                if resume:
                    self._restore()
                while not self._is_over():
                    if interruption.signal_number:
                        self._perform(self.experiment.handle(events.Interrupted("interrupted")))
                    self._check_time()
                    self._fill()
                    self._turn()
                is_in_order = True
                if interruption.signal_number and self._abort is None:
                    raise Signalled(interruption.signal_number)
        finally:
            self._close(GRACE_S + 1 if is_in_order else 0.5)
        if self._abort is not None:
            raise self._abort
        return Analysis(self.study.load(), self.spec.metric, self.spec.mode, self.directory.path)

    # ------------------------------------------------------------ one turn

    def _is_over(self) -> bool:
        return self._abort is not None or (self.experiment.is_done and not self._to_begin)

    def _restore(self) -> None:
        trials = self.study.load()
        actions = self.experiment.restore(trials)
        self.directory.reconcile(trials)
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
            self._begin_next()
            if not self._to_begin:
                break
        self._slots.clean()

    def _begin_next(self) -> None:
        self._perform(self.experiment.next_trial())

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
            saved = events.Saved(number, answer.name, answer.step, answer.seconds)
            self._perform(self.experiment.handle(saved))
        elif isinstance(answer, Turn):
            self._reported(slot, number, answer)

    def _reported(self, slot: Slot, number: int, turn: Turn) -> None:
        for place, (metrics, run_s) in enumerate(turn.reports, start=1):
            is_last = place == len(turn.reports) and not turn.has_ended
            event = events.Reported(number, metrics, run_s, is_last and turn.can_save, goes_on=not is_last)
            self._perform(self.experiment.handle(event))
            if slot.trial != number or self._abort is not None:  # it failed: a NaN
                return
        if turn.has_ended:
            self._perform(self.experiment.handle(events.Returned(number, turn.end_s)))

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
        if is_stuck or not isinstance(error, TaskError):
            self._slots.renew(slot)
        if number is None or number not in self.experiment.live_numbers:
            return
        is_before = call.number != number and call.method != READY
        if is_before or (is_stuck and call.method == "begin"):
            self._to_begin.append(self.experiment.live_numbers[number])  # the trial before it did that
            return
        can_retry = not isinstance(cause, UsageError)  # a bad config, a damaged checkpoint: the same again
        text = _remote_text(error) if can_retry else str(cause)
        self._perform(self.experiment.handle(events.Crashed(number, text, can_retry)))

    def _find_silent(self) -> None:
        limit = self.spec.max_silence_s
        if limit is None:
            return
        for slot in self._slots.silent(limit):
            call, number = slot.calls[0], slot.trial
            self._slots.renew(slot)
            if number is None:
                continue
            if call.number != number:  # the trial before it hangs in its end
                self._to_begin.append(self.experiment.live_numbers[number])
                continue
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
                num_reports = self.experiment.num_free_reports(action.number)
                self._slots.by_trial[action.number].call("advance", num_reports)
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
        self._slots.assign(slot, trial.number)
        slot.call("begin", order, self.experiment.num_free_reports(trial.number))

    def _copy(self, action: events.CopyCheckpoint) -> None:
        source = self.directory.trial_directory(action.source) / "checkpoints" / action.mark.name
        target = self.directory.trial_directory(action.target) / "checkpoints" / action.name
        copy_checkpoint(source, target)

    def _note_best(self) -> None:
        best = self.experiment.best()
        if best and (best[0].number, best[0].values) != self._best:
            self._best = (best[0].number, best[0].values)
            self.directory.best(best[0], self.kind.document(best[0].config, best[0].seed))

    def _make_host(self, group: PlacementGroup) -> ActorHandle:
        strategy = rlplat.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        num_gpus = self.kind.host_gpus(group.bundle_specs[0])
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


def copy_checkpoint(source: Path, target: Path) -> None:
    """Hard links under a temporary name, then a rename: whole or absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".copying-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, copy_function=os.link)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(temporary, target)


def _remote_text(error: BaseException) -> str:
    """What user code raised, with its traceback; or how the process died."""
    cause = getattr(error, "cause", None) or error.__cause__
    if cause is not None:
        return f"{type(cause).__name__}: {cause}\n{error}"
    notes = getattr(error, "__notes__", ())  # of an error of ours that user code raised: where
    return "\n".join([f"{type(error).__name__}: {error}" if notes else str(error), *notes])


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)
