"""Searchers with a model: what they are shown, that they find better values, and that a restart changes nothing."""

from __future__ import annotations

import statistics
import warnings

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat import tune
from rlplat.errors import ConfigError
from rlplat.tune.address import shown
from rlplat.tune.samplers import ModelSearch, distribution
from rlplat.tune.search import Searcher, make_searcher
from rlplat.tune.searchers import History, Outcome
from rlplat.tune.space import Space
from rlplat.tune.trial import TrialState
from tests.tune.postgres import PASSWORD, postgres_server
from tests.tune.searching import BRANIN, Play, best_regret, branin
from tests.tune.studies import as_optuna_sees

CONDITIONAL = Space.parse(
    {
        "x": tune.uniform(-5, 10),
        "o": tune.choice(
            [
                {"name": "sgd", "m": tune.uniform(0, 1)},
                {"name": "adam", "b": tune.uniform(0, 1), "k": tune.randint(1, 9)},
            ]
        ),
        "shape": tune.choice([[64], [8, 8]]),
        "lr": tune.loguniform(1e-5, 1e-1),
        "q": tune.quniform(0, 1, 0.1),
        "ql": tune.qloguniform(1, 50, 1),
        "n": tune.normal(3, 0.5),
        "g": tune.grid(["p", "q"]),
    }
)
SETTINGS = {
    "random": Searcher("random"),
    "qmc": Searcher("qmc"),
    "tpe": Searcher("tpe", {"n_startup_trials": 5}),
    "tpe alone": Searcher("tpe", {"n_startup_trials": 5, "multivariate": False}),
    "gp": Searcher("gp", {"n_startup_trials": 6}),
    "cmaes": Searcher("cmaes", {"population_size": 4}),
    "nsga2": Searcher("nsga2", {"population_size": 4}),
}


def bumpy(config):
    inner = config["o"].get("m", 0.0) + 2 * config["o"].get("b", 0.0)
    return -((config["x"] - 3) ** 2) + inner + (config["g"] == "q")


def two_objectives(config):
    return bumpy(config), config["lr"]


# --------------------------------------------------------------------------------------------------------- a restart


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_restart_gives_the_suggestions_of_an_uninterrupted_run(tmp_path, name):
    space, objective, modes, half = CONDITIONAL, bumpy, ["max"], 10
    if name == "gp":  # which takes a tenth of a second for each group of parameters
        space, objective, modes, half = BRANIN, branin, ["min"], 7
    straight = Play(tmp_path / "a", SETTINGS[name], space, objective, modes=modes)
    wanted = straight.go_on(2 * half)
    straight.close()
    broken = Play(tmp_path / "b", SETTINGS[name], space, objective, modes=modes)
    got = broken.go_on(half)
    broken.reopen()
    got += broken.go_on(2 * half)
    broken.close()
    assert got == wanted
    assert len({str(suggestion.params) for suggestion in wanted}) == 2 * half


@pytest.mark.parametrize("name", ["tpe", "cmaes", "nsga2"])
def test_a_restart_among_running_failed_and_stopped_trials(tmp_path, name):
    ends = [
        TrialState.COMPLETE,
        TrialState.COMPLETE,
        TrialState.FAILED,
        TrialState.STOPPED,
        TrialState.COMPLETE,
    ]

    def go(play, upto):  # three at a time; those that end first began last but one
        while play.number < upto:
            suggestions.append(play.begin())
            if len(play.running) == 3:
                number = sorted(play.running)[1]
                play.end(number, ends[number % len(ends)])

    suggestions = []
    straight = Play(tmp_path / "a", SETTINGS[name], CONDITIONAL, bumpy)
    go(straight, 40)
    straight.close()
    wanted, suggestions = suggestions, []
    broken = Play(tmp_path / "b", SETTINGS[name], CONDITIONAL, bumpy)
    for upto in (7, 8, 20, 21, 33, 40):
        go(broken, upto)
        broken.reopen()
    broken.close()
    assert suggestions == wanted


@pytest.mark.parametrize("seed", range(6))
def test_nsga2_goes_on_when_trials_of_a_generation_end_late_or_badly(tmp_path, seed):
    """Three at a time, of which two in five fail or are stopped: generations overlap."""
    play = Play(tmp_path, SETTINGS["nsga2"], BRANIN, branin, modes=["min"], seed=seed)
    for _ in range(40):
        config = play.begin().config
        assert -5 <= config["x"] <= 10 and 0 <= config["y"] <= 15
        if len(play.running) == 3:
            number = sorted(play.running)[1]
            play.end(number, {2: TrialState.FAILED, 3: TrialState.STOPPED}.get(number % 5, TrialState.COMPLETE))
    assert len(play.study.load()) == 40 and len(play.running) == 2
    play.close()


@pytest.mark.parametrize("name", ["tpe", "nsga2", "random"])
def test_several_objectives(tmp_path, name):
    straight = Play(tmp_path / "a", SETTINGS[name], CONDITIONAL, two_objectives, modes=["max", "min"])
    wanted = straight.go_on(25)
    straight.close()
    broken = Play(tmp_path / "b", SETTINGS[name], CONDITIONAL, two_objectives, modes=["max", "min"])
    got = broken.go_on(12)
    broken.reopen()
    assert got + broken.go_on(25) == wanted
    broken.close()


def test_nsga2_comes_nearer_to_the_pareto_front_than_random(tmp_path):
    """Two parabolas (Schaffer's first problem): the front is x in [0, 2], y = 0."""
    space = Space.parse({"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)})

    def both(config):
        return config["x"] ** 2 + config["y"] ** 2, (config["x"] - 2) ** 2 + config["y"] ** 2

    def near(name):
        play = Play(tmp_path / name, Searcher(name), space, both, modes=["min", "min"], num_samples=200)
        suggestions = play.go_on(200)
        play.close()
        return sum(abs(s.params["x"] - 1) < 2 and abs(s.params["y"]) < 1 for s in suggestions[100:])

    assert near("nsga2") > 5 * max(near("random"), 1)


# --------------------------------------------------------------------------------------------------- it finds better


@pytest.mark.parametrize("name", ["tpe", "cmaes", "qmc"])
def test_better_than_random_on_branin(tmp_path, name):
    regrets = {
        kind: statistics.median(best_regret(tmp_path / f"{kind}{seed}", Searcher(kind), seed, 40) for seed in range(10))
        for kind in ("random", name)
    }
    assert regrets[name] < regrets["random"]


@pytest.mark.slow
def test_gp_finds_the_optimum_of_branin(tmp_path):
    """Random search has a regret above 0.9 after 40 trials for eight seeds of ten."""
    assert best_regret(tmp_path, Searcher("gp"), 0, 25) < 0.05


def test_a_model_learns_within_the_options_of_a_choice(tmp_path):
    space = Space.parse(
        {"o": tune.choice([{"name": "bad", "m": tune.uniform(0, 1)}, {"name": "good", "b": tune.uniform(0, 1)}])}
    )
    play = Play(tmp_path, Searcher("tpe"), space, lambda config: -abs(config["o"].get("b", -9.0) - 0.8))
    late = play.go_on(80)[50:]
    play.close()
    good = [suggestion.params["o.b"] for suggestion in late if suggestion.params["o"] == "good"]
    assert len(good) > 20
    assert abs(statistics.median(good) - 0.8) < 0.1


NORMALS = Space.parse({"a": tune.normal(100, 5), "b": tune.qnormal(0, 10, 5)})


@pytest.mark.parametrize("name", SETTINGS)
def test_normals_are_searched_and_recorded_as_they_are(tmp_path, name):
    """The best value is beside the mean: a searcher that learns moves towards it."""
    num = 10 if name == "gp" else 60
    play = Play(tmp_path, SETTINGS[name], NORMALS, lambda config: -abs(config["a"] - 106))
    suggestions = play.go_on(num)
    params = [one.params for one in suggestions]
    assert [trial.params for trial in play.study.load()] == params
    assert [trial.params for trial in as_optuna_sees(play.study).trials] == params
    play.close()
    assert all(one.config == one.params for one in suggestions)
    assert all(60 <= one["a"] <= 140 and one["b"] % 5 == 0 for one in params)
    assert len({one["a"] for one in params}) > num / 3 and len({one["b"] for one in params}) > 3
    late = statistics.median(one["a"] for one in params[num // 2 :])
    if name not in ("random", "qmc", "gp"):
        assert 103 < late < 109
    elif name != "gp":  # ten trials say nothing
        assert abs(late - 100) < 2.5


def test_normals_of_an_earlier_experiment(tmp_path):
    old = earlier(tmp_path / "old", lambda config: abs(config["a"] - 108), NORMALS, num_trials=60)
    settings = Searcher("tpe", warm_start=[old])
    play = Play(tmp_path / "new", settings, NORMALS, branin, modes=["min"])
    assert "learns from 60 of 60" in play.searcher.notice
    first = [play.begin().params["a"] for _ in range(5)]
    play.close()
    assert abs(statistics.median(first) - 108) < 4


def test_a_grid_with_a_model_is_still_tried_in_full(tmp_path):
    play = Play(tmp_path, SETTINGS["tpe"], CONDITIONAL, bumpy, num_samples=8)
    suggestions = play.go_on(16)
    play.close()
    assert [suggestion.config["g"] for suggestion in suggestions] == ["p", "q"] * 8


def test_points_teach_cmaes_and_nsga2(tmp_path):
    for name in ("cmaes", "nsga2"):
        points = [{"x": value} for value in (1.0, 2.0, 3.0, 4.0)]
        settings = Searcher(name, {"population_size": 4, "points": points})
        play = Play(tmp_path / name, settings, Space.parse({"x": tune.uniform(0, 5)}), lambda config: config["x"])
        play.go_on(4)
        notes = play.begin().notes
        play.close()
        assert notes.get("generation", notes.get("trial", {}).get("NSGAIISampler:generation")) == 1


# -------------------------------------------------------------------------------------------------- what it is shown


class Spy(optuna.samplers.RandomSampler):
    """Writes down what it is shown; knows nothing."""

    seen: list

    def sample_relative(self, study, trial, search_space):
        shown = [(one.number, one.state.name) for one in study.get_trials(deepcopy=False)]
        self.seen.append((trial.number, sorted(search_space), shown, study.directions[0].name))
        return {}


def spied(play, max_history=100, earlier=()):
    """The play's searcher becomes one with a spy; returns what it sees."""
    Spy.seen = []
    play.searcher = ModelSearch(
        play.space,
        0,
        1000,
        [play.modes[0] == "max"],
        lambda seed: Spy(seed),
        max_history=max_history,
        earlier=earlier,
    )
    return Spy.seen


def test_a_sampler_is_shown_what_has_ended_and_what_runs(tmp_path):
    play = Play(tmp_path, Searcher("tpe"), BRANIN, branin, modes=["min"])
    seen = spied(play)
    for _ in range(4):
        play.begin()
    play.end(1)
    play.end(2, TrialState.FAILED)
    play.end(3, TrialState.STOPPED)
    play.begin()
    play.close()
    assert seen[-1] == (
        4, ["x", "y"], [(1, "COMPLETE"), (3, "PRUNED"), (0, "RUNNING"), (4, "RUNNING")], "MINIMIZE",
    )  # fmt: skip


def test_a_conditional_parameter_is_asked_for_with_the_trials_that_had_it(tmp_path):
    space = Space.parse({"o": tune.choice([{"n": "a", "m": tune.uniform(0, 1), "k": tune.uniform(0, 1)}, {"n": "b"}])})
    play = Play(tmp_path, Searcher("tpe"), space, lambda config: 0.0)
    seen = spied(play)
    suggestions = play.go_on(12)
    play.close()
    had = [number for number, suggestion in enumerate(suggestions) if suggestion.params["o"] == "a"]
    assert 2 < len(had) < 10
    asked = [(number, [n for n, _ in shown[:-1]]) for number, names, shown, _ in seen if names == ["o.k", "o.m"]]
    assert asked == [(number, [n for n in had if n < number]) for number in had]


def test_each_question_has_random_numbers_of_its_own(tmp_path):
    """The same for a trial whenever it is asked about, others for another trial, group of parameters and experiment."""

    def seeds_of(seed):
        seeds = []

        def make(sampler_seed):
            seeds.append(sampler_seed)
            return Spy(sampler_seed)

        Spy.seen = []
        searcher = ModelSearch(play.space, seed, 9, [True], make, max_history=10)
        for number in range(9):
            searcher.suggest(number)
        return seeds

    play = Play(tmp_path, Searcher("random"), CONDITIONAL, bumpy)
    assert seeds_of(1) == seeds_of(1)
    assert len(set(seeds_of(1) + seeds_of(2))) == 2 * 18  # two groups in each trial: always drawn, and the option's
    play.close()


def test_suggesting_writes_nothing(tmp_path):
    play = Play(tmp_path, SETTINGS["nsga2"], BRANIN, branin, modes=["min"])
    play.go_on(8)
    play.study.sync()
    size_bytes = (tmp_path / "study.journal").stat().st_size
    play.searcher.suggest(8)
    play.study.sync()
    assert (tmp_path / "study.journal").stat().st_size == size_bytes
    assert len(as_optuna_sees(play.study).trials) == 8
    play.close()


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "nsga2"])
def test_no_warning_and_no_line_of_optunas(tmp_path, name, caplog, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play = Play(tmp_path, SETTINGS[name], CONDITIONAL, bumpy)
        play.go_on(8)
        play.close()
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def outcome(number, *scores, state="complete", step=0):
    return Outcome(number, {}, state, scores, step)


def numbers(history):
    return [one.number for one in history.outcomes]


def test_a_history_keeps_the_best_quarter_and_the_newest():
    history = History(40)
    for number in range(1000):
        history.add(outcome(number, -float(number)))  # each is worse than all before
        assert len(history.outcomes) <= 45
    assert numbers(history)[:10] == list(range(10))
    assert numbers(history)[-30:] == list(range(970, 1000))
    history.add(outcome(1000, state="failed"))
    assert numbers(history)[-1] == 999


def test_a_history_prefers_complete_trials_and_those_that_came_further():
    history = History(12)
    history.add(outcome(0, 5.0))
    history.add(outcome(1, 99.0, state="stopped", step=2))
    history.add(outcome(2, 7.0, state="stopped", step=3))
    for number in range(3, 50):
        history.add(outcome(number, 8.0, state="stopped", step=1))
    assert numbers(history)[:3] == [0, 1, 2]


def test_a_history_of_several_objectives_keeps_the_pareto_front():
    history = History(12)
    for number, scores in enumerate([(9.0, 0.0), (0.0, 9.0), (6.0, 6.0)]):
        history.add(outcome(number, *scores))
    for number in range(3, 60):
        history.add(outcome(number, 5.0 - number / 100, 5.0 - number / 100))
    assert numbers(history)[:3] == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ earlier experiments


def earlier(path, objective=branin, space=BRANIN, modes=("min",), num_trials=30):
    play = Play(path, Searcher("random"), space, objective, modes=modes, seed=99)
    play.go_on(num_trials)
    play.close()
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "nsga2"])
def test_the_first_suggestion_knows_what_an_earlier_experiment_found(tmp_path, name):
    space = Space.parse({"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)})
    old = earlier(tmp_path / "old", lambda config: abs(config["x"] - 0.8), space, num_trials=60)
    first = []
    for seed in range(5):
        settings = Searcher(name, warm_start=[old], options={"population_size": 6} if name == "nsga2" else {})
        play = Play(tmp_path / f"new{seed}", settings, space, branin, modes=["min"], seed=seed)
        assert play.searcher.notice.startswith(f"searcher {name} learns from 60 of 60 trials of {old}")
        first.append(play.begin().params["x"])
        assert [trial.number for trial in play.study.load()] == [0]
        play.close()
    assert abs(statistics.median(first) - 0.8) < 0.15


def test_earlier_trials_come_before_this_experiments(tmp_path):
    old = earlier(tmp_path / "old", num_trials=3)
    play = Play(tmp_path / "new", Searcher("tpe", warm_start=[old, old]), BRANIN, branin, modes=["min"])
    assert play.searcher.notice.count("learns from 3 of 3") == 2
    values = {"x": 1.0, "y": 2.0}
    seen = spied(play, earlier=[Outcome(number, values, "complete", (0.0,)) for number in (-2, -1)])
    play.go_on(2)
    play.close()
    assert [number for number, _ in seen[-1][2]] == [-2, -1, 0, 1]


def test_only_trials_that_fit_are_taken(tmp_path):
    wide = Space.parse({"x": tune.uniform(-5, 25), "y": tune.uniform(0, 15), "z": tune.choice([1, 2])})
    old = earlier(tmp_path / "old", branin, wide)
    play = Play(tmp_path / "new", Searcher("tpe", warm_start=[old]), BRANIN, branin, modes=["min"])
    told = play.searcher.notice
    play.close()
    taken = int(told.split()[4])
    assert told == f"searcher tpe learns from {taken} of 30 trials of {old}"
    assert 5 < taken < 25  # about half of them are in -5 <= x < 10


def test_an_experiment_of_optunas_own(tmp_path):
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "theirs.journal"))
    theirs = optuna.create_study(study_name="s", storage=optuna.storages.JournalStorage(backend), direction="minimize")
    theirs.optimize(
        lambda trial: branin({"x": trial.suggest_float("x", -5, 9), "y": trial.suggest_float("y", 0, 15)}),
        n_trials=12,
    )
    settings = Searcher("tpe", {"warm_start": str(tmp_path / "theirs.journal")})
    searcher = make_searcher(settings, BRANIN, seed=0, num_samples=5, modes=["min"])
    assert "learns from 12 of 12 trials" in searcher.notice


def test_earlier_experiments_that_do_not_fit_are_refused(tmp_path):
    old = earlier(tmp_path / "old")

    def refused(message, space=BRANIN, modes=("min",), place=old):
        with pytest.raises(ConfigError, match=message):
            make_searcher(Searcher("tpe", warm_start=[place]), space, seed=0, num_samples=5, modes=list(modes))

    refused("has minimize for its metric", modes=["max"])
    refused("none of the 30 trials in .* has alpha", space=Space.parse({"alpha": tune.uniform(0, 1)}))
    refused("warm_start: there is no .*nowhere", place=str(tmp_path / "nowhere"))
    (tmp_path / "broken.journal").write_text("no json\n{}\n")
    refused("warm_start: .*broken.journal is damaged in line 1", place=str(tmp_path / "broken.journal"))
    refused("warm_start: storage cannot be reached", place="postgresql://nobody@127.0.0.1:1/nothing")
    refused("leave the password out", place="postgresql://somebody:secret@127.0.0.1:1/nothing")


@pytest.mark.process
def test_a_restart_and_an_earlier_experiment_in_a_database(tmp_path, monkeypatch):
    with postgres_server() as server:
        straight = Play(tmp_path / "a", SETTINGS["nsga2"], CONDITIONAL, bumpy, storage=server.url)
        wanted = straight.go_on(14)
        straight.close()
        broken = Play(tmp_path / "b", SETTINGS["nsga2"], CONDITIONAL, bumpy, storage=server.url)
        got = broken.go_on(7)
        broken.reopen()
        assert got + broken.go_on(14) == wanted
        broken.close()

        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        place = shown(server.url)
        searcher = make_searcher(Searcher("tpe", warm_start=[f"{place}#a"]), CONDITIONAL, seed=0, num_samples=5)
        assert "learns from 14 of 14 trials" in searcher.notice
        with pytest.raises(ConfigError, match=r"warm_start: .* holds 'a', 'b', not 'c'"):
            make_searcher(Searcher("tpe", warm_start=[f"{place}#c"]), CONDITIONAL, seed=0, num_samples=5)


# ----------------------------------------------------------------------------------------------------- distributions

DOMAINS = st.sampled_from(
    [
        tune.uniform(-3, 5), tune.loguniform(1e-6, 10), tune.quniform(0, 1, 0.1), tune.quniform(0.05, 1, 0.3),
        tune.qloguniform(1, 100, 1), tune.randint(-3, 9), tune.lograndint(1, 1000),
        tune.choice(["a", None, 3, 0.5, True]), tune.grid([[1, 2], {"a": 1}]),
    ]
)  # fmt: skip


@given(DOMAINS, st.floats(0, 1, exclude_max=True))
def test_what_is_drawn_can_be_recorded_and_comes_back_as_it_was(domain, share):
    value = domain.at(share)
    known = distribution(domain)
    internal = known.to_internal_repr(value)
    assert known._contains(internal)
    assert known.to_external_repr(internal) == value
    assert domain.contains(known.to_external_repr(internal))
