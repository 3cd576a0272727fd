"""Population based training: verdicts on worked examples, and whole experiments in memory."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ConfigError
from rlplat.tune.domains import (
    choice,
    grid,
    loguniform,
    normal,
    qnormal,
    quniform,
    randint,
    sample_from,
    uniform,
)
from rlplat.tune.schedulers import FIFO, Continue, Exploit, Pause, Resume, make_scheduler
from rlplat.tune.schedulers.pbt import PBT, mutated, mutations_of
from rlplat.tune.space import Space
from rlplat.tune.trial import CheckpointMark, Trial, TrialState, schedule_of
from tests.tune.population import Killed, Population

LR = {"lr": loguniform(1e-4, 1.0)}


def scheduler(space: dict[str, Any] | None = None, seed: int = 0, **settings: Any) -> PBT:
    made = PBT(**{"perturbation_period": 4, **settings})
    made.open(seed, Space.parse(space or LR))
    return made


def members(pbt: PBT, num: int, *, all_there: bool = True) -> list[Trial]:
    trials = [
        Trial(n, {"lr": 0.1 + n / 100}, {"lr": 0.1 + n / 100}, seed=n, state=TrialState.RUNNING) for n in range(num)
    ]
    for trial in trials:
        pbt.add(trial)
    if all_there:
        pbt.no_more_trials()
    return trials


def come_to(pbt: PBT, trial: Trial, progress: int, score: float, *, saved: bool = True) -> Any:
    """The trial reports each step up to `progress`; the verdict on the last one, carried out if it is to save."""
    for step in range(int(trial.progress) + 1, progress + 1):
        trial.step += 1
        trial.progress = float(step)
        trial.history.append((float(step), score))
        pbt.record(trial, trial.progress, score)
    verdict = pbt.judge(trial)
    if saved and isinstance(verdict, Continue) and verdict.save:
        trial.checkpoint = CheckpointMark(trial.step, f"step_{trial.step}", trial.progress)
    return verdict


# ---------------------------------------------------------------- ranking


def test_the_lowest_quarter_copies_one_of_the_highest_and_all_others_save() -> None:
    pbt = scheduler()
    trials = members(pbt, 8)
    scores = [0.5, 0.9, 0.3, 0.8, 0.4, 0.6, 0.1, 0.2]  # the highest two: 1 and 3; the lowest two: 6 and 7
    verdicts = [come_to(pbt, trial, 4, score) for trial, score in zip(trials, scores, strict=True)]
    assert verdicts[:2] == [Continue(save=True)] * 2
    assert isinstance(verdicts[2], Exploit)  # the lowest of the three that had come so far
    assert verdicts[3] == verdicts[5] == Continue(save=True)
    for verdict in verdicts[6:]:
        assert isinstance(verdict, Exploit) and verdict.source in (1, 3)
        assert verdict.config == verdict.params
    sources = set()
    for seed in range(20):
        again = scheduler(seed=seed)
        for trial in trials:
            again.add(trial)
            again.record(trial, 4.0, scores[trial.number])
        again.no_more_trials()
        found = again.judge(trials[6])
        assert isinstance(found, Exploit)
        sources.add(found.source)
    assert sources == {1, 3}


def test_between_two_boundaries_nothing_happens_and_the_first_report_beyond_one_counts() -> None:
    pbt = scheduler(perturbation_period=10)
    (trial, _) = members(pbt, 2)
    verdicts = []
    for progress in (7, 13, 19, 24, 51):
        trial.step += 1
        pbt.record(trial, progress, 0.5)
        verdicts.append(pbt.judge(trial))
    no, save = Continue(), Continue(save=True)
    assert verdicts == [no, save, no, save, save]
    assert trial.notes["boundary"] == [5, 51, 0.5]


def test_the_same_question_has_the_same_answer_until_it_is_carried_out() -> None:
    pbt = scheduler()
    first, second = members(pbt, 2)
    come_to(pbt, first, 4, 0.9)
    verdict = come_to(pbt, second, 4, 0.1)
    assert isinstance(verdict, Exploit)
    assert pbt.judge(second) == verdict
    second.notes["exploits"] = [{"step": 4, "score": 0.9, "progress": 4.0}]
    assert pbt.judge(second) == Continue()


def test_only_a_checkpoint_of_the_last_ranked_report_is_copied() -> None:
    pbt = scheduler()
    first, second = members(pbt, 2)
    come_to(pbt, first, 4, 0.9)
    come_to(pbt, first, 8, 0.9, saved=False)  # the checkpoint of 8 is still being written
    assert come_to(pbt, second, 4, 0.1) == Pause()  # and is waited for
    second.state, second.checkpoint = TrialState.PAUSED, CheckpointMark(4, "step_4", 4.0)
    assert pbt.due() == []
    first.checkpoint = CheckpointMark(8, "step_8", 8.0)
    ((number, verdict),) = pbt.due()
    assert number == 1 and isinstance(verdict, Exploit)


def test_a_checkpoint_that_does_not_come_is_not_waited_for_longer_than_a_report() -> None:
    pbt = scheduler()
    first, second = members(pbt, 2)
    come_to(pbt, first, 4, 0.9, saved=False)
    assert come_to(pbt, second, 4, 0.1) == Pause()
    second.state, second.checkpoint = TrialState.PAUSED, CheckpointMark(4, "step_4", 4.0)
    come_to(pbt, first, 5, 0.9)
    assert pbt.due() == [(1, Resume())]
    assert pbt.judge(second) == Continue()  # it went on, and is not ranked here again


def test_a_copy_is_worth_what_its_source_was_and_is_no_source_before_it_has_tried() -> None:
    pbt = scheduler(quantile=0.5)
    best, copy, worst = members(pbt, 3)
    come_to(pbt, best, 4, 0.9)
    assert isinstance(come_to(pbt, copy, 4, 0.1), Exploit)
    copy.notes["exploits"] = [{"step": 4, "score": 0.9, "progress": 4.0, "reports": 4}]
    copy.checkpoint = CheckpointMark(4, "exploit_1", 4.0)
    best.state = TrialState.COMPLETE
    pbt.end(best)
    assert come_to(pbt, worst, 4, 0.5) == Continue(save=True)  # lower than 0.9, but nobody can be copied
    assert come_to(pbt, copy, 8, 0.95) == Continue(save=True)
    verdict = come_to(pbt, worst, 8, 0.6)
    assert isinstance(verdict, Exploit) and verdict.source == copy.number


def test_who_is_behind_is_compared_with_what_the_others_were_at_its_place() -> None:
    pbt = scheduler()
    trials = members(pbt, 4)
    for trial, (early, late) in zip(trials[:3], [(0.3, 0.9), (0.1, 0.7), (0.2, 0.8)], strict=True):
        come_to(pbt, trial, 4, early)
        come_to(pbt, trial, 8, late)
    assert come_to(pbt, trials[3], 4, 0.15) == Continue(save=True)  # better than trial 1 was at 4
    pbt = scheduler()
    again = members(pbt, 4)
    for trial, before in zip(again[:3], trials, strict=False):
        come_to(pbt, trial, 4, before.history[3][1])
        come_to(pbt, trial, 8, before.history[7][1])
    verdict = come_to(pbt, again[3], 4, 0.05)
    assert isinstance(verdict, Exploit) and verdict.source == 0


def test_nobody_copies_before_the_burn_in() -> None:
    pbt = scheduler(burn_in=8)
    first, second = members(pbt, 2)
    assert come_to(pbt, first, 4, 0.9) == come_to(pbt, second, 4, 0.1) == Continue()
    come_to(pbt, first, 8, 0.9)
    assert isinstance(come_to(pbt, second, 8, 0.1), Exploit)


def test_after_a_crash_a_boundary_that_is_passed_again_counts_again() -> None:
    pbt = scheduler()
    trial, _ = members(pbt, 2)
    assert come_to(pbt, trial, 4, 0.5) == Continue(save=True)
    come_to(pbt, trial, 8, 0.5, saved=False)
    trial.step, trial.progress = 4, 4.0  # back to its checkpoint
    assert come_to(pbt, trial, 7, 0.6) == Continue()
    assert come_to(pbt, trial, 8, 0.7) == Continue(save=True)
    assert trial.notes["boundary"] == [8, 8.0, 0.7]


def test_where_others_wait_for_a_slot_a_trial_pauses_and_is_ranked_when_all_are_there() -> None:
    pbt = scheduler()
    first, second = members(pbt, 2, all_there=False)
    for trial, score in ((first, 0.9), (second, 0.1)):
        assert come_to(pbt, trial, 4, score) == Pause()  # more trials are to come
        trial.state = TrialState.PAUSED
        trial.checkpoint = CheckpointMark(4, "step_4", 4.0)
    assert pbt.due() == []
    pbt.no_more_trials()
    (two, exploit), (one, resume) = pbt.due()  # copies first
    assert (one, resume, two) == (0, Resume(), 1)
    assert isinstance(exploit, Exploit) and exploit.source == 0


# ---------------------------------------------------------------- explore


def changes(value: Any, mutation: Any, resample_probability: float = 0.0, num: int = 400, **space: Any) -> Counter[Any]:
    domain = Space.parse({"p": mutation} | space).domains["p"]
    how = mutations_of("pbt", ["p"], Space.parse({"p": mutation}))["p"]
    rng = np.random.default_rng(0)
    return Counter(mutated(value, how, domain, [0.8, 1.2], resample_probability, rng) for _ in range(num))


def test_numbers_are_multiplied_with_a_factor_within_their_bounds() -> None:
    seen = changes(0.1, loguniform(1e-4, 1.0))
    assert set(seen) == {0.1 * 0.8, 0.1 * 1.2}
    assert min(seen.values()) > 150
    assert set(changes(0.9, uniform(0.8, 1.0))) == {0.8, math.nextafter(1.0, 0.0)}
    assert set(changes(-0.5, uniform(-1.0, 1.0))) == {-0.4, -0.6}
    assert set(changes(5.0, normal(4.0, 1.0))) == {4.0, 6.0}
    assert set(changes(-11.0, normal(0.0, 1.5))) == {-8.8, -12.0}
    assert len(changes(0.0, uniform(-1.0, 1.0))) == 400  # no factor moves a zero: it is drawn


def test_integers_and_steps_move_by_one_at_least() -> None:
    assert set(changes(10, randint(1, 100))) == {8, 12}
    assert set(changes(2, randint(1, 100))) == {1, 3}
    assert set(changes(1, randint(1, 100))) == {1, 2}
    assert all(type(value) is int for value in changes(10, randint(1, 100)))
    assert set(changes(0.1, quniform(0.0, 1.0, 0.1))) == {0.0, 0.2}
    assert set(changes(-5, qnormal(0.0, 20.0, 5.0))) == {-10.0, 0.0}


def test_numbers_to_choose_from_have_neighbours_and_others_are_drawn() -> None:
    assert set(changes(32, choice([128, 16, 32, 64]))) == {16, 64}
    assert set(changes(128, grid([16, 32, 64, 128]))) == {64}
    assert set(changes("relu", choice(["relu", "tanh", "elu"]))) == {"relu"}
    drawn = changes("relu", choice(["relu", "tanh", "elu"]), 1.0)
    assert set(drawn) == {"relu", "tanh", "elu"} and min(drawn.values()) > 90
    space = Space.parse({"p": choice(["s", "m", "l"])})
    how = mutations_of("pbt", {"p": ["s", "m", "l"]}, space)["p"]  # a list has an order
    rng = np.random.default_rng(0)
    assert {mutated("m", how, space.domains["p"], [0.8], 0.0, rng) for _ in range(50)} == {"s", "l"}


def test_a_share_is_drawn_anew() -> None:
    seen = changes(0.1, loguniform(1e-4, 1.0), 0.25, num=2000)
    perturbed = seen[0.1 * 0.8] + seen[0.1 * 1.2]
    assert 1430 < perturbed < 1570
    assert len(seen) == 2 + 2000 - perturbed


def test_what_changes_can_be_said_by_name_domain_list_and_function() -> None:
    space = {
        "lr": loguniform(1e-4, 1.0),
        "gamma": uniform(0.9, 1.0),
        "batch": choice([32, 64]),
        "layers": choice([[64], [64, 64]]),
    }
    assert set(mutations_of("pbt", None, Space.parse(space))) == {"lr", "gamma", "batch"}
    given = {"lr": {"loguniform": [1e-3, 1e-2]}, "gamma": lambda value, rng: value - 0.01}
    pbt = scheduler(space, mutations=given, resample_probability=1.0)
    source = Trial(0, {}, {"lr": 0.5, "gamma": 0.95, "batch": 32, "layers": "[64]"}, 0)
    explored = pbt.explore(source, source, ["lr", "gamma"], np.random.default_rng(0))
    assert 1e-3 <= explored["lr"] < 1e-2
    assert explored["gamma"] == pytest.approx(0.94)


def test_a_copy_has_the_sources_values_computed_ones_and_those_of_a_branch_it_has_not_taken() -> None:
    space = {
        "lr": uniform(0.0, 1.0),
        "twice": sample_from(lambda config: 2 * config["lr"]),
        "size": choice([[64], [64, 64]]),
        "optimizer": choice(["sgd", {"adam": {"beta": uniform(0.8, 1.0)}}]),
    }
    pbt = scheduler(space, mutations={"lr": uniform(0.2, 0.4), "optimizer": lambda value, rng: "adam"})
    first, second = members(pbt, 2)
    first.params = {"lr": 0.3, "size": "[64, 64]", "optimizer": "sgd"}
    come_to(pbt, first, 4, 0.9)
    verdict = come_to(pbt, second, 4, 0.1)
    assert isinstance(verdict, Exploit)
    assert verdict.config["lr"] in (0.3 * 0.8, 0.3 * 1.2) or 0.2 <= verdict.config["lr"] < 0.4
    assert verdict.config["twice"] == 2 * verdict.config["lr"]
    assert verdict.config["size"] == [64, 64]
    assert 0.8 <= verdict.config["optimizer"]["adam"]["beta"] < 1.0
    assert f"copy of trial 0 (0.9, itself 0.1 at step 4): lr 0.3 -> {verdict.config['lr']:.4g}" in verdict.reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"perturbation_period": None}, "needs perturbation_period"),
        ({"perturbation_period": 0}, "bad value for 'perturbation_period'"),
        ({"quantile": 0.6}, "bad value for 'quantile'"),
        ({"resample_probability": 2}, "bad value for 'resample_probability'"),
        ({"perturb_factors": []}, "bad value for 'perturb_factors'"),
        ({"perturb_factors": [0.8, -1]}, "bad value for 'perturb_factors'"),
        ({"synch": "maybe"}, "bad value for 'synch'"),
        (
            {"mutations": ["lrr"]},
            "mutations name 'lrr', which is no parameter of the space; did you mean 'lr'?",
        ),
        (
            {"mutations": {"lr": 3}},
            "mutations of 'lr' must be a domain, a list, or function(value, rng), not 3",
        ),
        ({"mutations": {"act": ["a", "c"]}}, "mutations of 'act' must stay among ['a', 'b']"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        scheduler({"lr": loguniform(1e-4, 1.0), "act": choice(["a", "b"])}, **settings)
    assert message in str(error.value)


def test_a_space_without_anything_to_change() -> None:
    with pytest.raises(ConfigError, match="nothing to change"):
        scheduler({"layers": choice([[64], [64, 64]])})


def test_by_name() -> None:
    made = make_scheduler({"name": "pbt", "perturbation_period": 10, "quantile": 0.2}, "env_steps")
    assert isinstance(made, PBT) and (made.unit, made.quantile) == ("env_steps", 0.2)


# ---------------------------------------------------------------- whole experiments


class Climber:
    """Gains `lr` each step, and remembers how it came about; a random number shows whether the copy is exact."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.config, self.rng = config, np.random.default_rng(seed)
        self.total = 0.0
        self.path: list[float] = []

    def step(self) -> dict[str, Any]:
        self.total += self.config["lr"] + 0.01 * self.rng.standard_normal()
        self.path.append(self.config["lr"])
        return {"score": self.total, "path": list(self.path)}


def climb(**settings: Any) -> Population:
    pbt = settings.pop("pbt", {})
    made: dict[str, Any] = {"num_samples": 6, "slots": 6, "stop": {"step": 12}} | settings
    return Population(Climber, LR, lambda: PBT(**{"perturbation_period": 3} | pbt), **made)


def outcome(population: Population) -> list[Any]:
    return [(t.state, t.step, t.progress, t.values, t.config, t.notes) for t in population.trials]


def has_its_lineage(trial: Trial) -> bool:
    """Whether the weights came about as the trial's schedule says."""
    path, schedule = trial.last["path"], schedule_of(trial)
    planned = [[p["lr"] for begin, p in schedule if begin <= step][-1] for step in range(len(path))]
    return bool(path == planned) and len(path) == trial.progress


@pytest.mark.parametrize("slots", [1, 2, 6])
@pytest.mark.parametrize("synch", [False, True])
def test_every_trial_comes_round_with_few_slots_and_its_schedule_is_what_happened(slots: int, synch: bool) -> None:
    for order in range(5):
        population = climb(slots=slots, order=order, pbt={"synch": synch}).run()
        assert population.most_at_once == slots
        assert all(trial.state is TrialState.COMPLETE for trial in population.trials)
        assert all(trial.progress == 12 for trial in population.trials)
        assert all(has_its_lineage(trial) for trial in population.trials)
        assert population.copies


def test_with_few_slots_nobody_gets_more_than_one_period_ahead_of_who_waits() -> None:
    population = climb(slots=2)
    perform = population.perform
    spread = []

    def watched(actions: Any) -> None:
        perform(actions)
        trials = population.experiment.roster.live_trials()
        if len(trials) == 6 and population.experiment.num_trials == 6:
            spread.append(max(t.progress for t in trials) - min(t.progress for t in trials))

    population.perform = watched  # type: ignore[method-assign]
    population.run()
    assert max(spread) <= 2 * 3


def test_together_the_result_depends_neither_on_who_is_faster_nor_on_the_slots() -> None:
    expected = outcome(climb(pbt={"synch": True}).run())
    for order, slots in ((1, 6), (2, 3), (3, 1)):
        assert outcome(climb(order=order, slots=slots, pbt={"synch": True}).run()) == expected
    assert outcome(climb(pbt={"synch": True}, seed=1).run()) != expected


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 6])
def test_together_a_tuner_killed_at_any_action_comes_to_the_same_result(slots: int) -> None:
    whole = climb(slots=slots, order=0, pbt={"synch": True}).run()
    for kill_after in range(1, 400, 7):
        population = climb(slots=slots, order=0, pbt={"synch": True})
        try:
            population.run(kill_after)
        except Killed:
            population.restored().run()
        assert outcome(population) == outcome(whole)
        assert all(has_its_lineage(trial) for trial in population.trials)


@pytest.mark.parametrize("seed", range(12))
def test_a_tuner_killed_again_and_again_and_crashing_trials_lose_and_repeat_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = climb(
        slots=int(rng.integers(1, 7)), order=seed, max_failures=1000, crash=lambda n, s: rng.random() < 0.03
    )
    for _ in range(1000):
        try:
            population.run(int(rng.integers(10, 120)))
            break
        except Killed:
            population.restored()
    for trial in population.trials:
        assert trial.state is TrialState.COMPLETE and trial.progress == 12
        assert has_its_lineage(trial)
        exploits = trial.notes.get("exploits", [])
        names = {name for target, _, name in population.copies if target == trial.number}
        assert len(names) >= len(exploits)
        assert [e["step"] for e in exploits] == sorted({e["step"] for e in exploits})


def test_failed_trials_leave_the_population_and_nobody_waits_for_them() -> None:
    population = climb(pbt={"synch": True}, max_failures=0, crash=lambda n, s: n == 2 and s == 5).run()
    assert [t.number for t in population.trials if t.state is TrialState.FAILED] == [2]
    assert all(t.progress == 12 for t in population.trials if t.number != 2)


class Toy:
    """Figure 2 of the paper: maximise 1.2 - a^2 - b^2 by the gradient of 1.2 - h0 a^2 - h1 b^2, from (0.9, 0.9)."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.config, self.theta = config, np.array([0.9, 0.9])

    def step(self) -> dict[str, Any]:
        h = np.array([1.0, 0.0] if self.config["h"] == "(1, 0)" else [0.0, 1.0])
        self.theta = self.theta - 0.02 * 2 * h * self.theta
        return {"score": float(1.2 - (self.theta**2).sum())}


def test_the_papers_toy_needs_both_values_in_turns() -> None:
    space = {"h": grid(["(1, 0)", "(0, 1)"])}
    settings: dict[str, Any] = {"num_samples": 2, "slots": 4, "stop": {"step": 200}}
    fixed = Population(Toy, space, FIFO, **settings).run().experiment.roster.best()[0]
    assert fixed.values[0] == pytest.approx(1.2 - 0.9**2, abs=1e-4)  # 0.39: one of the two never moves
    pbt = (
        Population(Toy, space, lambda: PBT(4, resample_probability=0.5, synch=True), **settings)
        .run()
        .experiment.roster.best()[0]
    )
    assert pbt.values[0] > 1.15
    assert {params["h"] for _, params in schedule_of(pbt)} == {"(1, 0)", "(0, 1)"}
