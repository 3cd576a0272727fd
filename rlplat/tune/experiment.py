"""`Experiment`: which trial runs when, from where, and what becomes of it. Pure: events in, actions out.

    while (begin := experiment.next_trial()) is not None: ...      # for every free slot
    actions = experiment.handle(Reported(3, {"accuracy": 0.7}, run_s=1.2))

Rules
1. Whatever an action makes visible outside is recorded before it: the `Record...` actions of one event come first;
   only what they name, a copied checkpoint, is there before them.
2. A trial is blocked between its report and the answer to it, so a verdict takes effect exactly there.
3. A trial that goes on from a checkpoint forgets what it reported beyond it: those steps will be reported again.
4. A trial scheduler sees single scores, higher is better; a searcher sees recorded trials only.
5. Trials of other tuners of the same study are learnt from and waited for; they do not count as live here.
6. Ended trials are counted and the best ten kept; the rest of them lives in the study.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from rlplat.tune.schedulers import Continue, Due, Exploit, Pause, Stop, TrialScheduler, Verdict
from rlplat.tune.search import Suggests
from rlplat.tune.snapshot import Snapshot
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import CheckpointMark, Trial, TrialState

NUM_BEST = 10
NUM_HOPELESS = 3
"""So many trials fail before the first report of any: then it is not their configs."""
CHECKPOINT_SHARE = 0.1
"""Of a trial's time that its checkpoints may take where `checkpoint_period` is not set."""
MAX_FREE_REPORTS = 1_000
FIRST_CHECKPOINT_S = 5.0
"""Seconds of running that are worth a checkpoint."""


@dataclass
class _Live:
    """What is known of a trial only while it lives."""

    trial: Trial
    pausing: bool = False
    """Its checkpoint is under way, and then its slot is given back."""
    due: Due | None = None
    """What the scheduler wants of it once that is done."""
    completing: str = ""
    """Why it is complete, while its last checkpoint is under way."""
    saved_run_s: float = 0.0
    """`trial.run_s` at its last checkpoint."""
    save_s: float = 0.0
    """What the last checkpoint took."""


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
        self.counts = dict.fromkeys(TrialState, 0)
        self.num_trials = 0
        """Suggested so far."""
        self._searcher = searcher
        self._scheduler = scheduler
        self._trial_seed = trial_seed
        self._is_algorithm = is_algorithm
        self._live: dict[int, _Live] = {}
        self._others: dict[int, Trial] = {}
        self._waiting: deque[int] = deque()
        self._best: list[Trial] = []
        self._is_exhausted = False
        self._metric_seen = False
        self._signs = tuple(1.0 if mode == "max" else -1.0 for mode in spec.mode)

    # ------------------------------------------------------------ from outside

    def restore(self, trials: Iterable[Trial]) -> list[Action]:
        """Trials of the storage, by number: the state that the experiment had, as far as it was recorded."""
        self.learn(trials)
        return self.adopt(list(self._others.values()))

    def learn(self, trials: Iterable[Trial]) -> None:
        """What other tuners of the same study have done. trials: by number, those from `num_trials` on, and the
        `others` as they are now; one of these that is missing was never written."""
        known, self._others = self._others, {}
        for trial in trials:
            self.num_trials = max(self.num_trials, trial.number + 1)
            before = known.pop(trial.number, None)
            if before is None:
                self._scheduler.add(trial)
                self._searcher.add(trial)
            self._record_news(before, trial)
            if trial.state.has_ended:
                self.counts[trial.state] += 1
                self._scheduler.end(trial)
                self._searcher.end(trial)
                self._keep_best(trial)
            else:
                self._others[trial.number] = trial
        for number, trial in known.items():
            trial.state = TrialState.FAILED
            self._scheduler.end(trial)
            self._searcher.end(trial)
            self.num_trials, self._is_exhausted = min(self.num_trials, number), False
        self._look_whether_all_are_there()

    def _record_news(self, before: Trial | None, trial: Trial) -> None:
        """Where it went back to a checkpoint in between, schedulers ignore what they know already."""
        for progress, score in trial.history[len(before.history) if before else 0 :]:
            self._scheduler.record(trial, progress, score)
        self._metric_seen = self._metric_seen or bool(trial.history)

    def adopt(self, trials: Iterable[Trial]) -> list[Action]:
        """Some of the `others` are this tuner's from now on, to go on from their checkpoints; as they are now."""
        actions: list[Action] = []
        interrupted: list[Trial] = []
        for trial in trials:
            self._record_news(self._others.pop(trial.number), trial)
            self.counts[trial.state] += 1
            self._live[trial.number] = _Live(trial, saved_run_s=trial.run_s)
            if trial.state is not TrialState.PAUSED:
                interrupted.append(trial)
        for trial in interrupted:
            if trial.checkpoint and trial.checkpoint.step == trial.step and trial.history:
                verdict = self._scheduler.judge(trial)
                if isinstance(verdict, Stop):
                    actions += self._stop(trial, verdict)
                    continue
                if isinstance(verdict, Pause):
                    self._move(trial, TrialState.PAUSED)
                    actions.append(RecordChange(trial))
                    continue
                if isinstance(verdict, Exploit):
                    actions += self._exploit(trial, verdict, in_its_slot=False) or self._wait_again(trial)
                    continue
            actions += self._wait_again(trial)
        return _copies_first(actions + self._give_due())

    def lose(self, trial: Trial) -> None:
        """Another tuner has it now (or it was never written), whatever became of it here."""
        self.counts[trial.state] -= 1
        if self._live.pop(trial.number, None) is None:  # it had ended here
            self._best = [best for best in self._best if best is not trial]
            self._scheduler.add(trial)
            self._searcher.add(trial)
        if trial.number in self._waiting:
            self._waiting.remove(trial.number)
        trial.state = TrialState.WAITING
        self._others[trial.number] = trial

    @property
    def has_waiting(self) -> bool:
        """Trials that `next_trial` gives before it makes one."""
        return bool(self._waiting)

    @property
    def suggests(self) -> bool:
        """Whether `next_trial` will ask the searcher."""
        return not (self.interrupted or self._waiting or self._is_exhausted)

    def next_trial(self) -> list[Action]:
        """For a free slot: [..., Begin], or [] where nothing is to begin now."""
        if self.interrupted:
            return []
        if self._waiting:
            trial = self._live[self._waiting.popleft()].trial
            self._move(trial, TrialState.RUNNING)
            return [RecordChange(trial), Begin(trial)]
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
        self.counts[TrialState.RUNNING] += 1
        self.num_trials += 1
        self._live[number] = _Live(trial)
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
        live = self._live.get(event.number)
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
        if self.counts[TrialState.RUNNING]:
            return False
        return bool(self.interrupted) or (self._is_exhausted and not self._live and not self._others)

    def num_free_reports(self, number: int) -> int:
        """So many reports of this trial may come at once, because nothing is decided before the last of them: where
        that is known, so that quick trials need not wait for an answer after each report."""
        trial = self._live[number].trial
        until = self._scheduler.judges_at(trial) - trial.progress if self._scheduler.unit == "step" else 1.0
        if self.spec.checkpoint_period is not None:
            until = min(until, self.spec.checkpoint_period - trial.step % self.spec.checkpoint_period)
        for name, limit in self.spec.stop.items():
            until = min(until, limit - self._steps(trial) if name == "step" else 1.0)
        return max(math.ceil(min(until, MAX_FREE_REPORTS) - 1e-6), 1)

    @property
    def num_expected(self) -> int | None:
        return self.num_trials if self._is_exhausted else self._searcher.num_trials

    def best(self) -> list[Trial]:
        """The best ones, ended or running; best first."""
        running = [trial for trial in [*self.live_trials(), *self._others.values()] if trial.values]
        return self._ranked([*self._best, *running])[:NUM_BEST]

    @property
    def others(self) -> list[int]:
        """Trials of other tuners, as far as they have not ended."""
        return list(self._others)

    @property
    def live_numbers(self) -> dict[int, Trial]:
        return {number: live.trial for number, live in self._live.items()}

    def live_trials(self) -> list[Trial]:
        return [live.trial for live in self._live.values()]

    def snapshot(self, wall_s: float, slots: tuple[int, int]) -> Snapshot:
        counts = dict(self.counts)
        for trial in self._others.values():
            counts[trial.state] += 1
        return Snapshot(
            name=self.spec.name,
            metric=self.spec.metric,
            counts=counts,
            num_trials=self.num_expected,
            live=self.live_trials(),
            best=self.best(),
            wall_s=wall_s,
            slots=slots,
        )

    # ------------------------------------------------------------ events

    def _reported(self, live: _Live, event: Reported) -> list[Action]:
        trial = live.trial
        trial.step += 1
        trial.run_s += event.run_s
        trial.last = event.metrics
        problem = self._read_values(trial, event.metrics)
        if isinstance(problem, Exception):
            return [*self._wait_again(trial), Release(trial.number), Abort(problem)]
        if problem:
            return [RecordReport(trial), *self._fail(trial, problem)]
        actions: list[Action] = [RecordReport(trial)]
        if rule := self._stop_rule(trial):
            return actions + self._complete(live, rule, event.can_save)
        if event.goes_on:
            return actions
        verdict: Verdict = Continue()
        if trial.values and trial.history and trial.history[-1][0] == trial.progress:
            verdict = self._scheduler.judge(trial)
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

    def _saved(self, live: _Live, event: Saved) -> list[Action]:
        trial = live.trial
        actions: list[Action] = []
        if event.name is not None:
            progress = trial.progress if event.step == trial.step else self._progress_at(trial, event.step)
            trial.checkpoint = CheckpointMark(event.step, event.name, progress)
            live.saved_run_s, live.save_s = trial.run_s, event.seconds
        if live.completing:  # its last checkpoint and its end are one record: nobody goes on from it
            return [*self._end(trial, TrialState.COMPLETE, live.completing), Release(trial.number)]
        if event.name is not None:
            actions.append(RecordChange(trial))
        if not live.pausing:
            return actions + self._give_due_to_paused()
        live.pausing = False
        if self.interrupted:
            actions += self._wait_again(trial)
        elif event.name is None:
            error = ConfigError(
                f"the trial scheduler '{self._scheduler.name}' pauses trials, and trial {trial.number} gave no "
                "checkpoint to go on from: report(..., checkpoint=state), or save() and load() of a class; "
                "or take asha or median, which never pause"
            )
            return [*actions, *self._wait_again(trial), Release(trial.number), Abort(error)]
        else:
            self._move(trial, TrialState.PAUSED)
            actions.append(RecordChange(trial))
        actions.append(Release(trial.number))
        due, live.due = live.due, None
        if due is not None and trial.state is TrialState.PAUSED:
            actions += self._carry_out(live, due)
        return actions + self._give_due()

    def _complete(self, live: _Live, reason: str, can_save: bool) -> list[Action]:
        """The result of a complete trial is kept with it, where it can be saved."""
        if can_save:
            live.completing = reason
            return [Save(live.trial.number)]
        return [*self._end(live.trial, TrialState.COMPLETE, reason), Release(live.trial.number)]

    def _returned(self, live: _Live, event: Returned) -> list[Action]:
        trial = live.trial
        trial.run_s += event.run_s
        if trial.values:
            return [*self._end(trial, TrialState.COMPLETE, "its own end"), Release(trial.number)]
        names = ", ".join(repr(name) for name in self.spec.metric)
        if trial.step == 0:
            problem = (
                f"it returned nothing and reported nothing: call report({self.spec.metric[0]}=...), yield or return "
                f"a dict with {names}"
            )
        else:
            problem = f"it never reported {names}; it reported {_listed(trial.last)}"
        return self._fail(trial, problem)

    def _crashed(self, live: _Live, event: Crashed) -> list[Action]:
        trial = live.trial
        live.pausing, live.due, live.completing = False, None, ""
        trial.failures += 1
        trial.error = event.error
        if event.can_retry and trial.failures <= self.spec.max_failures:
            again = f"begins again from {'its checkpoint' if trial.checkpoint else 'the beginning'}"
            said = Say(f"trial {trial.number} {again}: {_first_line(event.error)}")
            return [said, *self._wait_again(trial), Release(trial.number)]
        return self._fail(trial, event.error)

    def _fail(self, trial: Trial, error: str) -> list[Action]:
        actions = [*self._end(trial, TrialState.FAILED, error), Release(trial.number)]
        if self._is_hopeless():
            never = "a value to report" if trial.step else "come to its first report"
            text = f"no trial has {never}; trial {trial.number}: {_shortened(error)}"
            actions.append(Abort(ConfigError(text)))
        return actions

    def _is_hopeless(self) -> bool:
        """No value was ever reported, and enough trials have failed."""
        num_failed = self.counts[TrialState.FAILED]
        enough = min(NUM_HOPELESS, self.num_expected or NUM_HOPELESS)
        return not self._metric_seen and num_failed == self._num_ended() and num_failed >= enough

    # ------------------------------------------------------------ judgements

    def _exploit(self, trial: Trial, verdict: Exploit, *, in_its_slot: bool) -> list[Action]:
        """Go on from another trial's checkpoint: at once where the trial has a slot, else when its turn comes.
        [] where there is no such checkpoint.

        `trial.step` stays the trial's own count of reports, so that no report takes the place of another and the rule
        `step` is an exact budget; `trial.progress` is the copied checkpoint's.
        """
        source = self._live.get(verdict.source)
        mark = source.trial.checkpoint if source else None
        if source is None or mark is None:
            return []
        scores = [score for progress, score in source.trial.history if progress <= mark.progress]
        exploits = trial.notes.setdefault("exploits", [])
        name = f"exploit_{len(exploits) + 1}_from_{verdict.source}_{mark.name}"
        trial.notes["schedule"] = [
            *(past for past in _schedule(source.trial) if past[0] < mark.progress),
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
        live = self._live[trial.number]
        live.saved_run_s = trial.run_s
        actions: list[Action] = [CopyCheckpoint(verdict.source, mark, trial.number, name)]
        if in_its_slot:
            actions += [RecordChange(trial), Begin(trial)]
        else:
            actions += self._wait_again(trial)
        return [*actions, Say(f"trial {trial.number}: {verdict.reason}")]

    def _give_due_to_paused(self) -> list[Action]:
        """After what concerns paused trials only as somebody whom they wait for."""
        return self._give_due() if self.counts[TrialState.PAUSED] else []

    def _give_due(self) -> list[Action]:
        """Carry out the scheduler's verdicts on paused trials."""
        actions: list[Action] = []
        while due := self._scheduler.due():
            for number, verdict in due:
                live = self._live[number]
                if live.pausing:
                    live.due = verdict
                elif live.trial.state is TrialState.PAUSED:
                    # Else it crashed before it was paused, begins again anyway, and will be judged at its next report.
                    actions += self._carry_out(live, verdict)
        return actions

    def _carry_out(self, live: _Live, verdict: Due) -> list[Action]:
        if isinstance(verdict, Stop):
            return self._stop(live.trial, verdict)
        if isinstance(verdict, Exploit):
            return self._exploit(live.trial, verdict, in_its_slot=False) or self._wait_again(live.trial)
        return self._wait_again(live.trial)

    def _wake_forgotten(self) -> list[Action]:
        """Where only paused trials are left and nobody will judge them any more, they go on."""
        if self.counts[TrialState.RUNNING] or not self._live:
            return []
        actions = [action for trial in self.live_trials() for action in self._wait_again(trial)]
        return actions + self.next_trial()

    def _read_values(self, trial: Trial, metrics: dict[str, Any]) -> str | Exception:
        """Take the metrics of a report into the trial; the empty string, why the trial failed, or what is wrong with
        the experiment."""
        unit = self._scheduler.unit
        progress = trial.progress + 1 if unit == "step" else metrics.get(unit)
        if progress is None or isinstance(progress, bool) or not isinstance(progress, int | float):
            return ConfigError(
                f"the trial scheduler counts in '{unit}', and trial {trial.number} reported no number of that name"
                f"{closest(unit, metrics)}; reported: {_listed(metrics)}"
            )
        trial.progress = float(progress)
        values = []
        for name in self.spec.metric:
            if name not in metrics:
                if self._metric_seen or self._is_algorithm:
                    return ""
                return ConfigError(
                    f"no metric '{name}' in the first report of trial {trial.number}{closest(name, metrics)}; "
                    f"reported: {_listed(metrics)} (one that comes later is reported as None until then)"
                )
            value = metrics[name]
            if value is None:
                return ""
            if isinstance(value, bool) or not isinstance(value, int | float):
                return ConfigError(f"metric '{name}' of trial {trial.number} is {value!r}, not a number")
            if not math.isfinite(value):
                return f"it reported {name} = {value} in its report {trial.step}"
            values.append(float(value))
        self._metric_seen = True
        trial.values = tuple(values)
        score = values[0] * self._signs[0]
        trial.history.append((trial.progress, score))
        self._scheduler.record(trial, trial.progress, score)
        return ""

    def _stop_rule(self, trial: Trial) -> str:
        """`accuracy 0.97 >= 0.95` for the first rule that holds."""
        for name, limit in self.spec.stop.items():
            value = {"step": self._steps(trial), "wall_s": trial.run_s}.get(name, trial.last.get(name))
            if value is None or isinstance(value, bool | str):
                continue
            lower_is_better = name in self.spec.metric and self._signs[self.spec.metric.index(name)] < 0
            if value <= limit if lower_is_better else value >= limit:
                return f"{name} {value:,.6g} {'<=' if lower_is_better else '>='} {limit:,.6g}"
        return ""

    def _steps(self, trial: Trial) -> float:
        """`step` of the stop rules: reports of the weights that it has, even where they are another's up to some
        point."""
        return trial.progress if self._scheduler.unit == "step" else trial.step

    def _is_checkpoint_due(self, live: _Live) -> bool:
        if self.spec.checkpoint_period is not None:
            return live.trial.step % self.spec.checkpoint_period == 0
        since = live.trial.run_s - live.saved_run_s
        return since >= max(FIRST_CHECKPOINT_S, live.save_s / CHECKPOINT_SHARE)

    # ------------------------------------------------------------ states

    def _move(self, trial: Trial, state: TrialState) -> None:
        self.counts[trial.state] -= 1
        self.counts[state] += 1
        trial.state = state

    def _wait_again(self, trial: Trial) -> list[Action]:
        """To begin again from the checkpoint; what was reported beyond it is forgotten."""
        self._move(trial, TrialState.WAITING)
        mark = trial.checkpoint
        trial.step = mark.step if mark else 0
        trial.progress = mark.progress if mark else 0.0
        # Before a copy the trial may have been further than the copy is: that much stays.
        kept = trial.notes["exploits"][-1]["reports"] if trial.notes.get("exploits") else 0
        while len(trial.history) > kept and (mark is None or trial.history[-1][0] > mark.progress):
            trial.history.pop()
        if not trial.history:
            trial.values = ()
        self._waiting.append(trial.number)
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
        self._move(trial, state)
        if state is TrialState.FAILED:
            trial.error = reason
        else:
            trial.notes["ended"] = reason
        del self._live[trial.number]
        self._scheduler.end(trial)
        self._searcher.end(trial)
        self._keep_best(trial)
        actions: list[Action] = [RecordEnd(trial)]
        is_failed = state is TrialState.FAILED
        text = f"trial {trial.number} {state}: {_first_line(reason)}"
        actions.append(Say(text, to_log_only=not is_failed))
        return actions + self._give_due()

    def _keep_best(self, trial: Trial) -> None:
        if trial.values and trial.state is not TrialState.FAILED:
            self._best = self._ranked([*self._best, trial])[:NUM_BEST]

    def _ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Best first; with several objectives those that no other one beats in all of them come first."""

        def scores(trial: Trial) -> tuple[float, ...]:
            return tuple(sign * value for sign, value in zip(self._signs, trial.values, strict=True))

        ordered = sorted(trials, key=lambda trial: (*(-score for score in scores(trial)), trial.number))
        if len(self._signs) == 1:
            return ordered
        front: list[Trial] = []
        rest: list[Trial] = []
        for trial in ordered:
            beaten = any(all(a >= b for a, b in zip(scores(o), scores(trial), strict=True)) for o in front)
            (rest if beaten else front).append(trial)
        return front + rest

    def _num_ended(self) -> int:
        return sum(count for state, count in self.counts.items() if state.has_ended)

    def _progress_at(self, trial: Trial, step: int) -> float:
        """Of an earlier report: the history has the reports with values, the newest ones last."""
        behind = trial.step - step
        return trial.history[-1 - behind][0] if behind < len(trial.history) else trial.progress


def _copies_first(actions: list[Action]) -> list[Action]:
    """A record shows the trial as it is after the event: with the copied checkpoint, which must be there by then."""
    return sorted(actions, key=lambda action: not isinstance(action, CopyCheckpoint))


def _schedule(trial: Trial) -> list[Any]:
    """[[progress from which on, params], ...] of the weights that the trial has."""
    return list(trial.notes.get("schedule", [[0.0, trial.params]]))


def _shortened(error: str) -> str:
    """What was raised, and where in the user's code: an error with its traceback in a few lines."""
    frames = re.findall(r'^ *File "([^"]+)", line (\d+), in (.+)$', error, re.MULTILINE)
    places = [
        f"  in {file}:{line}, {name}"
        for file, line, name in frames
        if not re.search("/rlplat/(tune|runtime|rl)/", file)
    ]
    return "\n".join([_first_line(error), *places[-3:]])


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _listed(metrics: dict[str, Any]) -> str:
    return ", ".join(metrics) or "nothing"
