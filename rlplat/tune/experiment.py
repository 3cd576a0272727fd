"""`Experiment`: which trial runs when, from where, and what becomes of it. Pure: events in, actions out.

    while (begin := experiment.next_trial()) is not None: ...      # for every free slot
    actions = experiment.handle(Reported(3, {"accuracy": 0.7}, run_s=1.2))

Rules
1. Whatever an action makes visible outside is recorded before it: the `Record...` actions of one event come first;
   only what they name, a copied checkpoint, is there before them.
2. A trial is blocked between its report and the answer to it, so a verdict takes effect exactly there.
3. A trial that goes on from a checkpoint forgets what it reported beyond it: those steps will be reported again.
4. A trial scheduler sees single scores, higher is better; a searcher sees recorded trials only.
5. A checkpoint that cannot be written costs the trial nothing while it runs, and what it reported beyond the one before
   it where it must go on from there: after a pause (nobody judges the same reports twice), a crash or a restart.
6. Ended trials are counted and the best ten kept; the rest of them lives in the study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.events import (
    Abort,
    Action,
    Advance,
    Begin,
    CopyCheckpoint,
    Crashed,
    Event,
    Interrupted,
    NotBegun,
    RecordChange,
    RecordEnd,
    RecordReport,
    RecordTrial,
    Release,
    Reported,
    Returned,
    Save,
    Saved,
    Say,
)
from rlplat.tune.roster import Live, Roster, Snapshot
from rlplat.tune.schedulers import Continue, Due, Exploit, Pause, Stop, TrialScheduler, Verdict
from rlplat.tune.searchers import Suggests
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import (
    CheckpointMark,
    Trial,
    TrialState,
    first_line,
    in_few_lines,
    reports_before_copy,
    schedule_of,
)

NUM_HOPELESS = 3
"""So many trials fail before the first report of any: then it is not their configs."""
CHECKPOINT_SHARE = 0.1
"""Of a trial's time that its checkpoints may take where `checkpoint_period` is not set."""
FIRST_CHECKPOINT_S = 5.0
"""Seconds of running that are worth a checkpoint."""


class Experiment:
    def __init__(
        self,
        spec: ExperimentSpec,
        searcher: Suggests,
        scheduler: TrialScheduler,
        *,
        trial_seed: Callable[[int], int],
        is_algorithm: bool = False,
    ) -> None:
        """trial_seed: number -> seed; is_algorithm: its metrics may come late (evaluations), so that one which is not
        in the first report is no mistake yet."""
        self.spec = spec
        self._ends_trials = False
        self.interrupted = ""
        """Why nothing begins any more."""
        self.num_trials = 0
        """Suggested so far."""
        self._searcher = searcher
        self._scheduler = scheduler
        self._trial_seed = trial_seed
        self._is_algorithm = is_algorithm
        self._is_exhausted = False
        self._metric_seen = self._has_told_of_rules = False
        signs = [1.0 if mode == "max" else -1.0 for mode in spec.mode]
        self._signs = dict(zip(spec.metric, signs, strict=True))
        self.roster = Roster(signs)
        """Where each trial is."""

    # ------------------------------------------------------------ from outside

    def restore(self, trials: Iterable[Trial]) -> list[Action]:
        """Trials of the storage, by number: the state that the experiment had, as far as it was recorded. Those that
        have not ended go on from their checkpoints."""
        going_on: list[Trial] = []
        for trial in trials:
            self.num_trials = max(self.num_trials, trial.number + 1)
            self._scheduler.add(trial)
            self._searcher.add(trial)
            for progress, score in trial.history:
                self._scheduler.record(trial, progress, score)
            self._metric_seen = self._metric_seen or bool(trial.history)
            if trial.state.has_ended:
                self.roster.ended_before(trial)
                self._scheduler.end(trial)
                self._searcher.end(trial)
            else:
                going_on.append(trial)
        self._look_whether_all_are_there()
        for trial in going_on:
            self.roster.enter(trial, saved_run_s=trial.run_s)
        actions: list[Action] = []
        for trial in going_on:
            if trial.state is not TrialState.PAUSED:
                actions += self._begin_again(trial)
        return _copies_first(actions + self._give_due())

    def _begin_again(self, trial: Trial) -> list[Action]:
        """After a restart, with the verdict that was not carried out any more."""
        if trial.checkpoint and trial.checkpoint.step == trial.step and trial.history:
            verdict = self._scheduler.judge(trial)
            if isinstance(verdict, Stop):
                return self._stop(trial, verdict)
            if isinstance(verdict, Pause):
                self.roster.move(trial, TrialState.PAUSED)
                return [RecordChange(trial)]
            if isinstance(verdict, Exploit):
                return self._exploit(trial, verdict, in_its_slot=False) or self._wait_again(trial)
        return self._wait_again(trial)

    def next_trial(self) -> list[Action]:
        """For a free slot: [..., Begin], or [] where nothing is to begin now."""
        if self.interrupted:
            return []
        if waiting := self.roster.take_waiting():
            return [RecordChange(waiting), Begin(waiting)]
        if self._is_exhausted:
            return self._wake_forgotten()
        number = self.num_trials
        suggestion = self._searcher.suggest(number)
        if suggestion is None:
            self._no_more_trials()
            return _copies_first(self._give_due()) + self.next_trial()
        trial = Trial(number, suggestion.config, suggestion.params, self._trial_seed(number))
        trial.state = TrialState.RUNNING
        if suggestion.notes:
            trial.notes["searcher"] = suggestion.notes
        self.num_trials += 1
        self.roster.enter(trial)
        self._scheduler.add(trial)
        self._searcher.add(trial)
        self._look_whether_all_are_there()
        return _copies_first([RecordTrial(trial), *self._give_due(), Begin(trial)])

    def handle(self, event: Event) -> list[Action]:
        return _copies_first(self._handle(event))

    def _handle(self, event: Event) -> list[Action]:
        if isinstance(event, Interrupted):
            self.interrupted = self.interrupted or event.reason
            self._ends_trials = self._ends_trials or event.ends_trials
            return []
        live = self.roster.live.get(event.number)
        if live is None:
            return []
        if isinstance(event, Reported):
            return self._reported(live, event)
        if isinstance(event, Saved):
            return self._saved(live, event)
        if isinstance(event, Returned):
            return self._returned(live, event)
        if isinstance(event, NotBegun):
            return self._wait_again(live.trial)
        return self._crashed(live, event)

    @property
    def is_done(self) -> bool:
        """Nothing runs, and nothing is to begin."""
        roster = self.roster
        if roster.counts[TrialState.RUNNING]:
            return False
        return bool(self.interrupted) or (self._is_exhausted and not roster.live)

    @property
    def num_expected(self) -> int | None:
        return self.num_trials if self._is_exhausted else self._searcher.num_trials

    def snapshot(self, wall_s: float, slots: tuple[int, int]) -> Snapshot:
        return Snapshot(
            name=self.spec.name,
            metric=self.spec.metric,
            counts=dict(self.roster.counts),
            num_trials=self.num_expected,
            live=self.roster.live_trials(),
            best=self.roster.best(),
            wall_s=wall_s,
            slots=slots,
        )

    # ------------------------------------------------------------ events

    def _reported(self, live: Live, event: Reported) -> list[Action]:
        trial = live.trial
        trial.step += 1
        trial.run_s += event.run_s
        trial.last = event.metrics
        try:
            self._read(trial, event.metrics)
        except ConfigError as error:
            return [*self._wait_again(trial), Release(trial.number), Abort(error)]
        except BadReport as error:
            return [RecordReport(trial), *self._fail(trial, str(error))]
        actions: list[Action] = [RecordReport(trial)]
        if rule := rule_reached(trial, self._steps(trial), self.spec.stop, self._signs):
            if trial.step == 1 and not self._has_told_of_rules and not rule.startswith(("step ", "wall_s ")):
                self._has_told_of_rules = True
                text = f"trial {trial.number} is complete at its first report, by the stop rule {rule}"
                actions.append(Say(f"{text} (<= is meant only of a metric with mode min)"))
            return actions + self._complete(live, rule, event.can_save)
        verdict: Verdict = Continue()
        has_score = trial.values and trial.history and trial.history[-1][0] == trial.progress
        if has_score and trial.progress > live.catch_up:
            notes = dict(trial.notes)
            verdict = self._scheduler.judge(trial)
            if trial.notes != notes:
                actions.append(RecordChange(trial))
        if isinstance(verdict, Stop) and verdict.is_complete:
            return actions + self._complete(live, verdict.reason, event.can_save)
        if isinstance(verdict, Stop):
            return [*actions, *self._stop(trial, verdict), Release(trial.number)]
        if self._ends_trials and trial.values and not event.can_save:
            return [*actions, *self._end(trial, TrialState.STOPPED, self.interrupted), Release(trial.number)]
        if self.interrupted or isinstance(verdict, Pause):
            live.pausing = True
            if event.can_save:
                return [*actions, Save(trial.number)]
            told = [] if self.interrupted else actions  # without a checkpoint it will be reported again
            return told + self._saved(live, Saved(trial.number, None, trial.step))
        if isinstance(verdict, Exploit):
            return actions + (self._exploit(trial, verdict, in_its_slot=True) or [Advance(trial.number)])
        is_due = event.can_save and self._is_checkpoint_due(live)
        if event.can_save and (is_due or (isinstance(verdict, Continue) and verdict.save)):
            actions.append(Save(trial.number))
        return [*actions, Advance(trial.number), *self._give_due_to_paused()]

    def _saved(self, live: Live, event: Saved) -> list[Action]:
        trial = live.trial
        actions: list[Action] = []
        if event.name is not None:
            progress = trial.progress if event.step == trial.step else self._progress_at(trial, event.step)
            trial.checkpoint = CheckpointMark(event.step, event.name, progress)
        if event.name is not None or event.error:
            live.saved_run_s, live.save_s = trial.run_s, event.seconds
        if event.error:
            actions += self._not_saved(live, event)
        if live.completing:  # its last checkpoint and its end are one record: nobody goes on from it
            return [*actions, *self._end(trial, TrialState.COMPLETE, live.completing), Release(trial.number)]
        if event.name is not None or event.error:
            actions.append(RecordChange(trial))
        if not live.pausing:
            return actions + self._give_due_to_paused()
        live.pausing = False
        if self._ends_trials and trial.values and event.error:
            return [*actions, *self._end(trial, TrialState.STOPPED, self.interrupted), Release(trial.number)]
        if self.interrupted:
            actions += self._wait_again(trial)
        elif event.name is None and not event.error:
            error = ConfigError(
                f"the trial scheduler '{self._scheduler.name}' pauses trials, and trial {trial.number} gave no "
                "checkpoint to continue from: report(..., checkpoint=state), or save() and load() of a class; "
                "or take asha or median, which never pause"
            )
            return [*actions, *self._wait_again(trial), Release(trial.number), Abort(error)]
        else:
            self.roster.move(trial, TrialState.PAUSED)
            actions.append(RecordChange(trial))
        actions.append(Release(trial.number))
        due, live.due = live.due, None
        if due is not None and trial.state is TrialState.PAUSED:
            actions += self._carry_out(live, due)
        return actions + self._give_due()

    def _not_saved(self, live: Live, event: Saved) -> list[Action]:
        """It is told once of each trial: a full disk refuses the next checkpoint as well."""
        if live.save_has_failed:
            return []
        trial, live.save_has_failed = live.trial, True
        trial.notes["not_saved"] = f"not saved at report {event.step} in {first_line(event.error)}"
        kept = f"its checkpoint of report {trial.checkpoint.step} stays" if trial.checkpoint else "it has none yet"
        then = "" if live.completing else " and goes on"
        text = f"trial {trial.number} could not be saved at its report {event.step}{then}; {kept}"
        return [Say(f"{text}: {in_few_lines(event.error)}")]

    def _complete(self, live: Live, reason: str, can_save: bool) -> list[Action]:
        """The result of a complete trial is kept with it, where it can be saved."""
        if not live.trial.values:
            return self._fail(live.trial, self._why_without_values(live.trial))
        if can_save:
            live.completing = reason
            return [Save(live.trial.number)]
        return [*self._end(live.trial, TrialState.COMPLETE, reason), Release(live.trial.number)]

    def _returned(self, live: Live, event: Returned) -> list[Action]:
        trial = live.trial
        trial.run_s += event.run_s
        if trial.values:
            return [*self._end(trial, TrialState.COMPLETE, "its own end"), Release(trial.number)]
        return self._fail(trial, self._why_without_values(trial))

    def _why_without_values(self, trial: Trial) -> str:
        names = ", ".join(repr(name) for name in self.spec.metric)
        if trial.step == 0:
            return (
                f"it returned nothing and reported nothing: call report({self.spec.metric[0]}=...), yield or return "
                f"a dict with {names}"
            )
        if all(name in trial.last for name in self.spec.metric):
            return f"it reported {names} as None only: it has no value"
        return f"it never reported {names}; it reported {listed(trial.last)}"

    def _crashed(self, live: Live, event: Crashed) -> list[Action]:
        trial = live.trial
        live.pausing, live.due, live.completing = False, None, ""
        trial.failures += 1
        trial.error = event.error
        if event.can_retry and trial.failures <= self.spec.max_failures:
            again = f"restarts from {'its checkpoint' if trial.checkpoint else 'the beginning'}"
            said = Say(f"trial {trial.number} {again}: {first_line(event.error)}")
            return [said, *self._wait_again(trial), Release(trial.number)]
        return self._fail(trial, event.error)

    def _fail(self, trial: Trial, error: str) -> list[Action]:
        actions = [*self._end(trial, TrialState.FAILED, error), Release(trial.number)]
        if self._is_hopeless():
            never = "a value to report" if trial.step else "come to its first report"
            text = f"no trial has {never}; trial {trial.number}: {in_few_lines(error)}"
            actions.append(Abort(ConfigError(text)))
        return actions

    def _is_hopeless(self) -> bool:
        """No value was ever reported, and enough trials have failed."""
        num_failed = self.roster.counts[TrialState.FAILED]
        enough = min(NUM_HOPELESS, self.num_expected or NUM_HOPELESS)
        return not self._metric_seen and num_failed == self.roster.num_ended and num_failed >= enough

    # ------------------------------------------------------------ judgements

    def _exploit(self, trial: Trial, verdict: Exploit, *, in_its_slot: bool) -> list[Action]:
        """Go on from another trial's checkpoint: at once where the trial has a slot, else when its turn comes.
        [] where there is no such checkpoint."""
        source = self.roster.live.get(verdict.source)
        mark = source.trial.checkpoint if source else None
        if source is None or mark is None:
            return []
        name = copy_of(trial, source.trial, mark, verdict)
        live = self.roster.live[trial.number]
        live.saved_run_s, live.catch_up = trial.run_s, -math.inf
        actions: list[Action] = [CopyCheckpoint(verdict.source, mark, trial.number, name)]
        if in_its_slot:
            actions += [RecordChange(trial), Begin(trial)]
        else:
            actions += self._wait_again(trial)
        return [*actions, Say(f"trial {trial.number}: {verdict.reason}")]

    def _give_due_to_paused(self) -> list[Action]:
        """After what concerns paused trials only as somebody whom they wait for."""
        return self._give_due() if self.roster.counts[TrialState.PAUSED] else []

    def _give_due(self) -> list[Action]:
        """Carry out the scheduler's verdicts on paused trials."""
        actions: list[Action] = []
        while due := self._scheduler.due():
            for number, verdict in due:
                live = self.roster.live[number]
                if live.pausing:
                    live.due = verdict
                elif live.trial.state is TrialState.PAUSED:
                    # Else it crashed before it was paused, begins again anyway, and will be judged at its next report.
                    actions += self._carry_out(live, verdict)
        return actions

    def _carry_out(self, live: Live, verdict: Due) -> list[Action]:
        if isinstance(verdict, Stop):
            return self._stop(live.trial, verdict)
        if isinstance(verdict, Exploit):
            return self._exploit(live.trial, verdict, in_its_slot=False) or self._wait_again(live.trial)
        return self._wait_again(live.trial)

    def _wake_forgotten(self) -> list[Action]:
        """Where only paused trials are left and nobody will judge them any more, they go on."""
        if self.roster.counts[TrialState.RUNNING] or not self.roster.live:
            return []
        actions = [action for trial in self.roster.live_trials() for action in self._wait_again(trial)]
        return actions + self.next_trial()

    def _read(self, trial: Trial, metrics: dict[str, Any]) -> None:
        """Take the metrics of a report into the trial. Raises what those of `readings` do."""
        trial.progress = progress_in(metrics, self._scheduler.unit, trial)
        if trial.step == 1 and not self._metric_seen:
            check_names(metrics, self.spec, trial, self._is_algorithm)
        values = values_in(metrics, self.spec.metric, trial)
        if values is None:
            return
        self._metric_seen = True
        trial.values = values
        score = values[0] * self._signs[self.spec.metric[0]]
        trial.history.append((trial.progress, score))
        self._scheduler.record(trial, trial.progress, score)

    def _steps(self, trial: Trial) -> float:
        """`step` of the stop rules: reports of the weights that it has, even where they are another's up to some
        point."""
        return trial.progress if self._scheduler.unit == "step" else trial.step

    def _is_checkpoint_due(self, live: Live) -> bool:
        if self.spec.checkpoint_period is not None:
            return live.trial.step % self.spec.checkpoint_period == 0
        since = live.trial.run_s - live.saved_run_s
        return since >= max(FIRST_CHECKPOINT_S, live.save_s / CHECKPOINT_SHARE)

    # ------------------------------------------------------------ states

    def _wait_again(self, trial: Trial) -> list[Action]:
        """To begin again from the checkpoint; what was reported beyond it is forgotten."""
        mark = trial.checkpoint
        if trial.state is TrialState.PAUSED and (mark is None or mark.progress < trial.progress):
            self.roster.live[trial.number].catch_up = trial.progress
        self.roster.move(trial, TrialState.WAITING)
        trial.step = mark.step if mark else 0
        trial.progress = mark.progress if mark else 0.0
        # Before a copy the trial may have been further than the copy is: that much stays.
        kept = reports_before_copy(trial)
        num_reports = len(trial.history)
        while len(trial.history) > kept and (mark is None or trial.history[-1][0] > mark.progress):
            trial.history.pop()
        if not trial.history:
            trial.values = ()
        elif len(trial.history) < num_reports and len(self._signs) == 1:
            trial.values = (trial.history[-1][1] * self._signs[self.spec.metric[0]],)
        return [RecordChange(trial)]

    def _look_whether_all_are_there(self) -> None:
        """So that the scheduler knows it when the last one begins, not when a slot is free after that."""
        expected = self._searcher.num_trials
        if expected is not None and self.num_trials >= expected and not self._is_exhausted:
            self._no_more_trials()

    def _no_more_trials(self) -> None:
        self._is_exhausted = True
        self._scheduler.no_more_trials()

    def _stop(self, trial: Trial, verdict: Stop) -> list[Action]:
        state = TrialState.COMPLETE if verdict.is_complete else TrialState.STOPPED
        return self._end(trial, state, verdict.reason)

    def _end(self, trial: Trial, state: TrialState, reason: str) -> list[Action]:
        self.roster.end(trial, state)
        if state is TrialState.FAILED:
            trial.error = reason
        else:
            trial.notes["ended"] = reason
        self._scheduler.end(trial)
        self._searcher.end(trial)
        actions: list[Action] = [RecordEnd(trial)]
        is_failed = state is TrialState.FAILED
        text = f"trial {trial.number} {state}: {first_line(reason)}"
        actions.append(Say(text, to_log_only=not is_failed))
        return actions + self._give_due()

    def _progress_at(self, trial: Trial, step: int) -> float:
        """Of an earlier report: the history has the reports with values, the newest ones last."""
        behind = trial.step - step
        return trial.history[-1 - behind][0] if behind < len(trial.history) else trial.progress


def _copies_first(actions: list[Action]) -> list[Action]:
    """A record shows the trial as it is after the event: with the copied checkpoint, which must be there by then."""
    return sorted(actions, key=lambda action: not isinstance(action, CopyCheckpoint))


def copy_of(trial: Trial, source: Trial, mark: CheckpointMark, verdict: Exploit) -> str:
    """`trial` goes on from checkpoint `mark` of `source`: its notes, config, params, progress and checkpoint say so.
    Returns the name that the copied checkpoint is to have.

    `trial.step` stays the trial's own count of reports, so that no report takes the place of another and the rule
    `step` is an exact budget; `trial.progress` is the copied checkpoint's.
    """
    scores = [score for progress, score in source.history if progress <= mark.progress]
    exploits = trial.notes.setdefault("exploits", [])
    name = f"exploit_{len(exploits) + 1}_from_{verdict.source}_{mark.name}"
    trial.notes["schedule"] = [
        *(past for past in schedule_of(source) if past[0] < mark.progress),
        [mark.progress, verdict.params],
    ]
    exploits.append(
        {
            "step": trial.step,
            "reports": len(trial.history),
            "source": verdict.source,
            "progress": mark.progress,
            "score": scores[-1] if scores else None,
            "before": trial.params,
            "params": verdict.params,
        }
    )
    trial.checkpoint = CheckpointMark(trial.step, name, mark.progress)
    trial.config, trial.params, trial.progress = verdict.config, verdict.params, mark.progress
    return name


# -------------------------------------------------------------------------------- what a report says


class BadReport(Exception):
    """The trial has failed with it; the experiment continues."""


def progress_in(metrics: Mapping[str, Any], unit: str, trial: Trial) -> float:
    """In the trial scheduler's unit. ConfigError: no trial will report such a number."""
    progress = trial.progress + 1 if unit == "step" else metrics.get(unit)
    if progress is None or isinstance(progress, bool) or not isinstance(progress, int | float):
        raise ConfigError(
            f"the trial scheduler counts in '{unit}', and trial {trial.number} reported no number of that name"
            f"{closest(unit, metrics)}\nreported: {listed(metrics)}"
        )
    return float(progress)


def check_names(metrics: Mapping[str, Any], spec: ExperimentSpec, trial: Trial, is_algorithm: bool) -> None:
    """Of a first report. ConfigError: the experiment asks for what nobody reports, so trials would run for nothing, or
    without end. Metrics in groups (eval/return_mean) of an algorithm may come later."""
    for key, names in (("metric", spec.metric), ("stop", spec.stop)):
        always = ("step", "wall_s") if key == "stop" else ()
        for name in names:
            if name in metrics or name in always or (is_algorithm and "/" in name):
                continue
            where = spec.where(key if key == "metric" else f"stop.{name}")
            raise ConfigError(
                f"{key}{where}: no metric '{name}' in the first report of trial {trial.number}"
                f"{closest(name, [*metrics, *always])}\nreported: {listed(metrics)} (one that comes later is "
                "reported as None until then)"
            )


def values_in(metrics: Mapping[str, Any], names: Sequence[str], trial: Trial) -> tuple[float, ...] | None:
    """Of the experiment's metrics; None: they are not known yet. ConfigError: one is no number. BadReport: a value is
    not finite."""
    values = []
    for name in names:
        value = metrics.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"metric '{name}' of trial {trial.number} is {value!r}, not a number")
        if not math.isfinite(value):
            raise BadReport(f"it reported {name} = {value} in its report {trial.step}")
        values.append(float(value))
    return tuple(values)


def rule_reached(trial: Trial, steps: float, stop: Mapping[str, float], signs: Mapping[str, float]) -> str:
    """`accuracy 0.97 >= 0.95` for the first stop rule that holds after the last report, or the empty string.

    steps: what rule `step` counts. signs: by metric; -1 where lower is better.
    """
    for name, limit in stop.items():
        value = {"step": steps, "wall_s": trial.run_s}.get(name, trial.last.get(name))
        if value is None or isinstance(value, bool | str):
            continue
        lower_is_better = signs.get(name, 1.0) < 0
        if value <= limit if lower_is_better else value >= limit:
            return f"{name} {value:,.6g} {'<=' if lower_is_better else '>='} {limit:,.6g}"
    return ""


def listed(metrics: Mapping[str, Any]) -> str:
    return ", ".join(metrics) or "nothing"
