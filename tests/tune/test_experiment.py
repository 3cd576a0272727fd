"""`Experiment`: events in, actions out; and whole experiments on made-up trials, killed at every point."""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlplat.errors import ConfigError
from rlplat.tune.events import (
    Abort,
    Action,
    Advance,
    Begin,
    CopyCheckpoint,
    Crashed,
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
from rlplat.tune.experiment import Experiment
from rlplat.tune.schedulers import FIFO, Continue, Due, Exploit, Pause, Resume, Stop, Verdict
from rlplat.tune.search import Suggestion
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import CheckpointMark, Trial, TrialState


class Numbered:
    """Suggests `{"x": number}`, `num_trials` times."""

    def __init__(self, num_trials: int) -> None:
        self.num_trials: int | None = num_trials

    def suggest(self, number: int) -> Suggestion | None:
        assert self.num_trials is not None
        return Suggestion({"x": number}, {"x": number}) if number < self.num_trials else None

    def add(self, trial: Trial) -> None:
        pass

    def end(self, trial: Trial) -> None:
        pass


class Scripted(FIFO):
    """Gives the verdicts of a dict (trial, step) -> verdict, and once the `due` of a list."""

    def __init__(self, verdicts: dict[tuple[int, int], Verdict], due: list[tuple[int, Due]] | None = None) -> None:
        super().__init__()
        self.verdicts, self._due = verdicts, due or []

    def judge(self, trial: Trial) -> Verdict:
        return self.verdicts.get((trial.number, trial.step), Continue())

    def due(self) -> list[tuple[int, Due]]:
        due, self._due = self._due, []
        return due


def make(num_trials: int = 2, scheduler: Any = None, **settings: Any) -> Experiment:
    spec = ExperimentSpec(trainable=None, **{"metric": ("acc",), "mode": ("max",), **settings})
    return Experiment(spec, Numbered(num_trials), scheduler or FIFO(), trial_seed=lambda number: 100 + number)


def kinds(actions: list[Action]) -> list[type]:
    """Without what only the log is told."""
    return [type(action) for action in actions if not (isinstance(action, Say) and action.to_log_only)]


def begun(experiment: Experiment) -> Trial:
    actions = experiment.next_trial()
    assert kinds(actions)[-1] is Begin
    trial = actions[-1].trial  # type: ignore[union-attr]
    assert isinstance(trial, Trial)
    return trial


def report(
    experiment: Experiment, number: int, acc: float, *, can_save: bool = True, run_s: float = 1.0
) -> list[Action]:
    return experiment.handle(Reported(number, {"acc": acc}, run_s, can_save))


def test_a_trial_is_recorded_then_begun_and_each_report_is_recorded_before_it_goes_on() -> None:
    experiment = make(1)
    first = experiment.next_trial()
    assert kinds(first) == [RecordTrial, Begin]
    trial = first[1].trial  # type: ignore[union-attr]
    assert (trial.number, trial.config, trial.seed, trial.state) == (0, {"x": 0}, 100, TrialState.RUNNING)
    assert experiment.next_trial() == []
    assert kinds(report(experiment, 0, 0.5)) == [RecordReport, Advance]
    assert (trial.step, trial.values, trial.history, trial.run_s) == (1, (0.5,), [(1.0, 0.5)], 1.0)
    assert not experiment.is_done
    assert kinds(experiment.handle(Returned(0))) == [RecordEnd, Release]
    assert experiment.is_done
    assert experiment.roster.counts[TrialState.COMPLETE] == 1


def test_a_lower_metric_is_a_higher_score_and_stops_from_above() -> None:
    experiment = make(1, metric=("loss",), mode=("min",), stop={"loss": 0.1})
    trial = begun(experiment)
    experiment.handle(Reported(0, {"loss": 0.5}, 1.0))
    assert trial.history == [(1.0, -0.5)]
    assert kinds(experiment.handle(Reported(0, {"loss": 0.1}, 1.0))) == [RecordReport, RecordEnd, Release]
    assert trial.state is TrialState.COMPLETE
    assert trial.notes["ended"] == "loss 0.1 <= 0.1"


@pytest.mark.parametrize(
    ("stop", "reason"),
    [({"acc": 0.9}, "acc 0.95 >= 0.9"), ({"step": 1}, "step 1 >= 1"), ({"wall_s": 2}, "wall_s 2 >= 2")],
)
def test_stop_rules(stop: dict[str, float], reason: str) -> None:
    experiment = make(1, stop=stop)
    trial = begun(experiment)
    report(experiment, 0, 0.95, run_s=2.0, can_save=False)
    assert trial.state is TrialState.COMPLETE
    assert trial.notes["ended"] == reason


def test_a_complete_trial_keeps_its_last_state() -> None:
    experiment = make(1, stop={"acc": 0.9})
    trial = begun(experiment)
    told = report(experiment, 0, 0.95)
    assert kinds(told) == [RecordReport, Say, Save]
    assert "complete at its first report, by the stop rule acc 0.95 >= 0.9" in told[1].text
    assert not experiment.is_done
    assert kinds(experiment.handle(Saved(0, "step_1", 1))) == [RecordEnd, Release]
    assert (trial.state, trial.checkpoint) == (TrialState.COMPLETE, CheckpointMark(1, "step_1", 1.0))


def test_a_trial_that_dies_over_its_last_checkpoint_begins_again() -> None:
    experiment = make(1, stop={"acc": 0.9})
    trial = begun(experiment)
    report(experiment, 0, 0.95)
    experiment.handle(Crashed(0, "full disk"))
    assert begun(experiment) is trial
    assert kinds(report(experiment, 0, 0.5)) == [RecordReport, Advance]


def test_a_stopped_trial_gives_its_slot_back() -> None:
    experiment = make(2, Scripted({(0, 1): Stop("too slow")}))
    trial = begun(experiment)
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, RecordEnd, Release]
    assert trial.state is TrialState.STOPPED
    assert begun(experiment).number == 1


def test_a_paused_trial_is_saved_first_and_goes_on_when_it_is_due() -> None:
    scheduler = Scripted({(0, 1): Pause()})
    experiment = make(2, scheduler)
    trial = begun(experiment)
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, Save]
    scheduler._due = []
    assert kinds(experiment.handle(Saved(0, "step_1", 1))) == [RecordChange, RecordChange, Release]
    assert trial.state is TrialState.PAUSED
    assert trial.checkpoint == CheckpointMark(1, "step_1", 1.0)
    other = begun(experiment)
    scheduler._due = [(0, Resume())]
    actions = experiment.handle(Returned(other.number))  # it never reported: failed; what is due is looked at
    assert other.state is TrialState.FAILED
    assert trial.state is TrialState.WAITING
    assert kinds(actions)[0] is RecordEnd
    assert begun(experiment) is trial
    assert trial.step == 1


def test_a_trial_that_crashes_before_it_is_paused_begins_again_once_whatever_is_due() -> None:
    scheduler = Scripted({(0, 1): Pause()})
    experiment = make(2, scheduler)
    trial, other = begun(experiment), begun(experiment)
    assert kinds(report(experiment, 0, 0.5)) == [RecordReport, Save]
    experiment.handle(Crashed(0, "killed"))
    scheduler._due = [(0, Resume())]
    experiment.handle(Returned(other.number))
    assert begun(experiment) is trial
    assert experiment.next_trial() == []


def test_pausing_without_a_checkpoint_ends_the_experiment_with_what_to_do() -> None:
    experiment = make(2, Scripted({(0, 1): Pause()}))
    begun(experiment)
    actions = report(experiment, 0, 0.1, can_save=False)
    assert isinstance(actions[-1], Abort)
    assert "gave no checkpoint" in str(actions[-1].error)


def test_a_verdict_may_ask_for_a_checkpoint() -> None:
    experiment = make(1, Scripted({(0, 2): Continue(save=True)}))
    trial = begun(experiment)
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, Advance]
    assert kinds(report(experiment, 0, 0.2)) == [RecordReport, Save, Advance]
    report(experiment, 0, 0.3)  # the answer to `save` may come after the next report
    assert kinds(experiment.handle(Saved(0, "step_2", 2))) == [RecordChange]
    assert trial.checkpoint == CheckpointMark(2, "step_2", 2.0)


def test_what_a_scheduler_notes_is_recorded_with_the_report() -> None:
    class Noting(FIFO):
        def judge(self, trial: Trial) -> Verdict:
            trial.notes["seen"] = min(trial.step, 2)
            return Continue()

    experiment = make(1, Noting())
    begun(experiment)
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, RecordChange, Advance]
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, RecordChange, Advance]
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, Advance]


def test_what_was_reported_beyond_a_checkpoint_counts_no_more() -> None:
    experiment = make(1, mode=("min",), max_failures=1)
    trial = begun(experiment)
    report(experiment, 0, 0.5)
    experiment.handle(Saved(0, "step_1", 1))
    report(experiment, 0, 0.2)
    assert experiment.roster.best()[0].values == (0.2,)
    experiment.handle(Crashed(0, "bad luck"))
    assert trial.values == (0.5,) and trial.history == [(1, -0.5)]
    begun(experiment)
    experiment.handle(Returned(0))
    assert trial.state is TrialState.COMPLETE and trial.values == (0.5,)


def test_names_are_looked_for_in_the_first_report_only() -> None:
    experiment = make(1)
    begun(experiment)
    assert kinds(experiment.handle(Reported(0, {"acc": None, "loss": 1.0}, 1.0))) == [RecordReport, Advance]
    assert kinds(experiment.handle(Reported(0, {"epoch": 2}, 1.0))) == [RecordReport, Advance]


def test_checkpoints_by_period_and_by_their_price() -> None:
    every_third = make(1, checkpoint_period=3)
    begun(every_third)
    assert [Save in kinds(report(every_third, 0, 0.1)) for _ in range(6)] == [False, False, True] * 2

    by_price = make(1)
    begun(by_price)
    saves = []
    for step in range(1, 31):
        saves.append(Save in kinds(report(by_price, 0, 0.1, run_s=1.0)))
        if saves[-1]:
            by_price.handle(Saved(0, f"step_{step}", step, seconds=1.0))  # a tenth of the time: every ten seconds
    assert [step for step, saved in enumerate(saves, start=1) if saved] == [5, 15, 25]


def test_a_crashed_trial_begins_again_from_its_checkpoint_and_then_has_failed() -> None:
    experiment = make(1, max_failures=1, checkpoint_period=2)
    trial = begun(experiment)
    report(experiment, 0, 0.1)
    report(experiment, 0, 0.2)
    experiment.handle(Saved(0, "step_2", 2))
    report(experiment, 0, 0.3)
    assert kinds(experiment.handle(Crashed(0, "boom"))) == [Say, RecordChange, Release]
    assert (trial.state, trial.step, trial.history) == (TrialState.WAITING, 2, [(1.0, 0.1), (2.0, 0.2)])
    assert begun(experiment) is trial
    actions = experiment.handle(Crashed(0, "boom again"))
    assert kinds(actions) == [RecordEnd, Say, Release]
    assert (trial.state, trial.error) == (TrialState.FAILED, "boom again")
    assert experiment.next_trial() == []
    assert experiment.is_done


def test_trials_that_cannot_reach_their_first_report_end_the_experiment_when_none_could() -> None:
    experiment = make(5, max_failures=0)
    for number in range(3):  # one or two may be unlucky with their configs
        begun(experiment)
        actions = experiment.handle(Crashed(number, "NameError: name 'lr' is not defined"))
        assert (Abort in kinds(actions)) == (number == 2)
    assert isinstance(actions[-1], Abort)
    assert "name 'lr' is not defined" in str(actions[-1].error)
    alone = make(1, max_failures=0)
    begun(alone)
    assert Abort in kinds(alone.handle(Crashed(0, "boom")))
    later = make(5, max_failures=0)
    begun(later), begun(later)
    report(later, 1, 0.5)
    assert Abort not in kinds(later.handle(Crashed(0, "boom")))


def test_nan_fails_the_trial_and_no_other() -> None:
    experiment = make(2)
    trial, other = begun(experiment), begun(experiment)
    assert kinds(report(experiment, 0, float("nan"))) == [RecordReport, RecordEnd, Say, Release]
    assert trial.error == "it reported acc = nan in its report 1"
    report(experiment, 1, 0.5)
    experiment.handle(Returned(1))
    assert [best.number for best in experiment.roster.best()] == [other.number]


def test_an_unknown_metric_names_what_was_reported() -> None:
    experiment = make(1)
    begun(experiment)
    actions = experiment.handle(Reported(0, {"accc": 1.0, "loss": 2.0}, 1.0))
    assert isinstance(actions[-1], Abort) and isinstance(actions[-1].error, ConfigError)
    text = str(actions[-1].error)
    assert "no metric 'acc'" in text and "did you mean 'accc'?" in text and "accc, loss" in text


def test_a_stop_rule_on_what_nobody_reports_is_refused_at_the_first_report() -> None:
    experiment = make(1, stop={"step": 9, "wall_s": 9, "training_iteration": 3})
    begun(experiment)
    actions = experiment.handle(Reported(0, {"acc": 1.0, "iteration": 1}, 1.0))
    assert isinstance(actions[-1], Abort)
    text = str(actions[-1].error)
    assert "stop: no metric 'training_iteration'" in text and "reported: acc, iteration (one" in text
    experiment = make(1, stop={"step": 2, "late": 3})  # None until it is known, and later left out
    begun(experiment)
    assert isinstance(experiment.handle(Reported(0, {"acc": 1.0, "late": None}, 1.0))[-1], Advance)
    actions = experiment.handle(Reported(0, {"acc": 1.0}, 1.0))
    assert isinstance(actions[-1], Release) and experiment.roster.best()[0].state is TrialState.COMPLETE


def test_only_grouped_metrics_of_an_algorithm_may_be_missing_at_first() -> None:
    reported = {"episode_return_mean": None, "learner/entropy": 1.0}
    for metric, is_known in (("episode_reward_mean", False), ("eval/return_mean", True)):
        spec = ExperimentSpec(trainable="ppo", metric=metric, mode=("max",), num_samples=1, stop={"step": 2})
        experiment = Experiment(spec, Numbered(1), FIFO(), trial_seed=lambda n: n, is_algorithm=True)
        begun(experiment)
        last = experiment.handle(Reported(0, reported, 1.0))[-1]
        assert isinstance(last, Advance) is is_known
        assert is_known or "did you mean 'episode_return_mean'?" in str(last.error)
    # it is never reported: the trial that its stop rule ends has no result
    actions = experiment.handle(Reported(0, reported, 1.0))
    assert isinstance(actions[-1], Abort) and "it never reported 'eval/return_mean'" in str(actions[-1].error)
    assert experiment.roster.counts[TrialState.FAILED] == 1


def test_a_metric_may_come_later_as_none_and_without_any_value_the_trial_fails() -> None:
    experiment = make(1)
    trial = begun(experiment)
    assert kinds(experiment.handle(Reported(0, {"acc": None}, 1.0))) == [RecordReport, Advance]
    assert trial.history == []
    experiment.handle(Returned(0))
    assert trial.state is TrialState.FAILED
    assert trial.error == "it reported 'acc' as None only: it has no value"


def test_interrupted_trials_are_saved_at_their_next_report_and_wait() -> None:
    experiment = make(3, max_failures=0)
    trial, second = begun(experiment), begun(experiment)
    experiment.handle(Interrupted("Ctrl-C"))
    assert experiment.next_trial() == []
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, Save]
    experiment.handle(Saved(0, "step_1", 1))
    assert (trial.state, trial.step) == (TrialState.WAITING, 1)
    assert not experiment.is_done
    experiment.handle(NotBegun(1))
    assert second.state is TrialState.WAITING
    assert experiment.is_done


def test_an_interrupted_trial_without_a_checkpoint_reports_its_steps_again() -> None:
    experiment = make(1)
    trial = begun(experiment)
    experiment.handle(Interrupted("Ctrl-C"))
    assert kinds(experiment.handle(Reported(0, {"acc": 0.5}, 1.0, can_save=False))) == [RecordChange, Release]
    assert (trial.state, trial.step, trial.history) == (TrialState.WAITING, 0, [])
    assert experiment.is_done


def test_when_the_time_budget_is_spent_the_last_report_is_the_result() -> None:
    experiment = make(4)
    trial, second, third = begun(experiment), begun(experiment), begun(experiment)
    experiment.handle(Interrupted("the budget is spent", ends_trials=True))
    actions = experiment.handle(Reported(0, {"acc": 0.1}, 1.0, can_save=False))
    assert kinds(actions) == [RecordReport, RecordEnd, Release]
    assert (trial.state, trial.values) == (TrialState.STOPPED, (0.1,))
    assert trial.notes["ended"] == "the budget is spent"
    experiment.handle(Reported(1, {"acc": None}, 1.0))  # it has no result yet
    assert kinds(experiment.handle(Reported(2, {"acc": 0.3}, 1.0, can_save=True))) == [RecordReport, Save]
    experiment.handle(Saved(2, "step_1", 1))  # more time may be given to it
    assert (second.state, third.state, third.values) == (TrialState.WAITING, TrialState.WAITING, (0.3,))
    assert experiment.is_done


def test_an_exploit_copies_records_and_begins_in_that_order() -> None:
    verdict = Exploit(1, {"x": 9}, {"x": 9}, "from 1")
    experiment = make(2, Scripted({(0, 2): verdict}), checkpoint_period=3)
    trial, _source = begun(experiment), begun(experiment)
    for acc in (0.7, 0.8, 0.9):
        report(experiment, 1, acc)
    experiment.handle(Saved(1, "step_3", 3))
    report(experiment, 1, 1.0)
    report(experiment, 0, 0.1)
    actions = report(experiment, 0, 0.2)
    assert kinds(actions) == [CopyCheckpoint, RecordReport, RecordChange, Begin, Say]
    assert actions[0] == CopyCheckpoint(1, CheckpointMark(3, "step_3", 3.0), 0, "exploit_1_from_1_step_3")
    assert (trial.config, trial.params) == ({"x": 9}, {"x": 9})
    # progress is the copy's, the count of reports is the trial's own
    assert (trial.step, trial.progress) == (2, 3.0)
    assert trial.checkpoint == CheckpointMark(2, "exploit_1_from_1_step_3", 3.0)
    (exploit,) = trial.notes["exploits"]
    assert (exploit["step"], exploit["reports"], exploit["source"]) == (2, 2, 1)
    assert (exploit["progress"], exploit["score"]) == (3.0, 0.9)
    assert (exploit["before"], exploit["params"]) == ({"x": 0}, {"x": 9})
    assert trial.notes["schedule"] == [[0.0, {"x": 1}], [3.0, {"x": 9}]]
    report(experiment, 0, 0.95)
    assert trial.history == [(1.0, 0.1), (2.0, 0.2), (4.0, 0.95)]


def test_a_copy_of_younger_weights_keeps_what_its_trial_reported_before() -> None:
    verdict = Exploit(1, {"x": 9}, {"x": 9}, "from 1")
    experiment = make(2, Scripted({(0, 3): verdict}), checkpoint_period=1)
    trial, _source = begun(experiment), begun(experiment)
    report(experiment, 1, 0.9)
    experiment.handle(Saved(1, "step_1", 1))
    for acc in (0.1, 0.2, 0.3):
        report(experiment, 0, acc)
    assert (trial.step, trial.progress) == (3, 1.0)
    report(experiment, 0, 0.92)
    experiment.handle(Crashed(0, "boom"))
    assert (trial.step, trial.progress) == (3, 1.0)
    assert trial.history == [(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)]


def test_without_a_checkpoint_to_copy_the_trial_goes_on() -> None:
    experiment = make(2, Scripted({(0, 1): Exploit(1, {"x": 9}, {"x": 9}, "from 1")}))
    trial, _source = begun(experiment), begun(experiment)
    assert kinds(report(experiment, 0, 0.1)) == [RecordReport, Advance]
    assert (trial.config, trial.notes) == ({"x": 0}, {})


def test_a_paused_trial_may_go_on_as_a_copy() -> None:
    scheduler = Scripted({(0, 1): Pause()})
    experiment = make(2, scheduler, checkpoint_period=1)
    trial, _source = begun(experiment), begun(experiment)
    report(experiment, 1, 0.9)
    experiment.handle(Saved(1, "step_1", 1))
    report(experiment, 0, 0.1)
    scheduler._due = [(0, Exploit(1, {"x": 9}, {"x": 9}, "from 1"))]
    actions = experiment.handle(Saved(0, "step_1", 1))
    assert kinds(actions) == [CopyCheckpoint, RecordChange, RecordChange, Release, RecordChange, Say]
    assert (trial.state, trial.config) == (TrialState.WAITING, {"x": 9})
    assert begun(experiment) is trial


def test_the_front_of_two_objectives() -> None:
    experiment = make(4, metric=("acc", "cost"), mode=("max", "min"))
    for number, (acc, cost) in enumerate([(0.5, 1.0), (0.9, 5.0), (0.4, 2.0), (0.9, 4.0)]):
        begun(experiment)
        experiment.handle(Reported(number, {"acc": acc, "cost": cost}, 1.0))
        experiment.handle(Returned(number))
    assert [trial.number for trial in experiment.roster.best()] == [3, 0, 1, 2]


# ---------------------------------------------------------------- whole experiments


@dataclass
class World:
    """Storage, hosts and files of an experiment whose tuner may die between any two actions."""

    experiment: Experiment
    slots: int
    rng: random.Random
    stored: dict[int, Trial] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    """Trial -> the step that its host has computed."""
    events: deque[Any] = field(default_factory=deque)
    begins: list[tuple[int, int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    length: int = 6

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, RecordTrial | RecordReport | RecordChange | RecordEnd):
                trial = action.trial
                assert (trial.number in self.stored) is not isinstance(action, RecordTrial)
                if isinstance(action, RecordEnd):
                    assert trial.number not in self.ended, "a trial ends once"
                    self.ended.append(trial.number)
                self.stored[trial.number] = copy.deepcopy(trial)
            elif isinstance(action, Begin):
                assert self.stored[action.trial.number].state is TrialState.RUNNING, "recorded before it is begun"
                self.begins.append((action.trial.number, action.trial.step))
                self.running[action.trial.number] = action.trial.step
                self.compute(action.trial.number)
            elif isinstance(action, Advance):
                self.compute(action.number)
            elif isinstance(action, Save):
                step = self.running[action.number]
                self.events.append(Saved(action.number, f"step_{step}", step))
            elif isinstance(action, Release):
                self.running.pop(action.number, None)
                self.events = deque(event for event in self.events if event.number != action.number)

    def compute(self, number: int) -> None:
        """To the next report."""
        if self.running[number] >= self.length:
            self.events.append(Returned(number, 0.1))
            return
        self.running[number] += 1
        if self.rng.random() < 0.05:
            self.events.append(Crashed(number, "bad luck"))
            return
        acc = number / 100 + self.running[number] / 10
        self.events.append(Reported(number, {"acc": acc}, 1.0, can_save=True))

    def go(self, num_events: int) -> bool:
        """Whether the experiment came to its end within so many events."""
        for _ in range(num_events):
            while len(self.running) < self.slots:
                actions = self.experiment.next_trial()
                self.perform(actions)
                if not any(isinstance(action, Begin) for action in actions):
                    break
            if self.experiment.is_done:
                return True
            oldest = self.events[0].number
            pick = self.rng.choice([event.number for event in self.events] or [oldest])
            event = next(event for event in self.events if event.number == pick)  # in order within a trial
            self.events.remove(event)
            self.perform(self.experiment.handle(event))
        return False


class PauseHalf(FIFO):
    """Pauses every even trial at step 2 until all trials are there, then lets it go on; stops every fifth at step 4."""

    def __init__(self) -> None:
        super().__init__()
        self._paused: list[int] = []
        self._all_there = False

    def judge(self, trial: Trial) -> Verdict:
        if trial.step == 2 and trial.number % 2 == 0 and not trial.notes.get("went_on"):
            trial.notes["went_on"] = True
            if not self._all_there:
                self._paused.append(trial.number)
                return Pause()
        return Stop("fifth") if trial.step == 4 and trial.number % 5 == 0 else Continue(save=trial.step == 3)

    def due(self) -> list[tuple[int, Due]]:
        due: list[tuple[int, Due]] = [(number, Resume()) for number in self._paused] if self._all_there else []
        self._paused = self._paused if not due else []
        return due

    def no_more_trials(self) -> None:
        self._all_there = True


@pytest.mark.parametrize("seed", range(60))
def test_a_tuner_killed_at_any_event_goes_on_and_every_trial_ends_once(seed: int) -> None:
    rng = random.Random(seed)
    num_trials = 12
    world = World(make(num_trials, PauseHalf(), max_failures=50), slots=3, rng=rng)
    kills = 0
    while not world.go(rng.randrange(1, 60)):
        kills += 1
        assert kills < 1000
        restored = make(num_trials, PauseHalf(), max_failures=50)
        world = World(restored, 3, rng, world.stored, ended=world.ended, begins=world.begins)
        world.perform(restored.restore([copy.deepcopy(world.stored[n]) for n in sorted(world.stored)]))
    assert sorted(world.ended) == list(range(num_trials))
    states = [world.stored[number].state for number in range(num_trials)]
    assert [state is TrialState.STOPPED for state in states] == [number % 5 == 0 for number in range(num_trials)]
    for number, trial in world.stored.items():
        assert trial.step == (4 if number % 5 == 0 else world.length)
        assert [progress for progress, _ in trial.history] == list(map(float, range(1, trial.step + 1)))
