"""Searchers that learn nothing: random, grid, quasi-random; points to try first; settings that are refused."""

from __future__ import annotations

import collections

import pytest

from rlplat import tune
from rlplat.errors import ConfigError
from rlplat.tune.search import Searcher, make_searcher, number_of_trials
from rlplat.tune.space import Space

SPACE = Space.parse({"x": tune.uniform(0, 1), "n": tune.randint(0, 10)})
GRID = Space.parse({"a": tune.grid([1, 2, 3]), "b": tune.grid(["p", "q"]), "x": tune.uniform(0, 1)})


def search(name="random", space=SPACE, seed=1, num_samples=10, modes=("max",), **settings):
    return make_searcher(Searcher(name, **settings), space, seed=seed, num_samples=num_samples, modes=modes)


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_a_trial_has_its_suggestion_whatever_was_asked_before(name):
    in_order = [search(name).suggest(number) for number in range(10)]
    searcher = search(name)
    backwards = [searcher.suggest(number) for number in reversed(range(10))]
    assert backwards[::-1] == in_order
    assert searcher.suggest(3) == searcher.suggest(3) == in_order[3]
    assert len({suggestion.params["x"] for suggestion in in_order}) == 10


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_another_seed_gives_other_suggestions(name):
    assert search(name, seed=2).suggest(0) != search(name, seed=1).suggest(0)


def test_random_numbers_stay_the_same_from_release_to_release():
    assert search(seed=7).suggest(3).params == {"x": 0.9750335537195014, "n": 8}


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_it_ends_after_num_samples(name):
    searcher = search(name, num_samples=4)
    assert searcher.num_trials == 4
    assert searcher.suggest(3) is not None
    assert searcher.suggest(4) is None


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_a_grid_is_tried_in_full_num_samples_times_and_the_rest_is_drawn_anew(name):
    searcher = search(name, GRID, num_samples=3)
    assert searcher.num_trials == 18
    suggestions = [searcher.suggest(number) for number in range(18)]
    assert searcher.suggest(18) is None
    points = [(s.config["a"], s.config["b"]) for s in suggestions]
    assert set(collections.Counter(points).values()) == {3}
    assert points[:6] == points[6:12] == points[12:]
    assert len({s.config["x"] for s in suggestions}) == 18


def test_searcher_grid_wants_grids_only():
    with pytest.raises(ConfigError, match="searcher grid: 'x' is no grid"):
        search("grid", GRID)
    space = Space.parse({"a": tune.grid([1, 2])})
    assert [search("grid", space, num_samples=1).suggest(number).config for number in (0, 1)] == [
        {"a": 1},
        {"a": 2},
    ]


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "nsga2"])
def test_with_grids_alone_every_searcher_walks_through_them(name):
    space = Space.parse({"a": tune.grid([1, 2]), "c": 5})
    assert search(name, space, num_samples=1).suggest(1).config == {"a": 2, "c": 5}


def test_a_grid_too_large_is_refused_with_its_size_and_its_axes():
    space = Space.parse({"a": tune.grid(list(range(1000))), "b": {"c": tune.grid(list(range(500)))}})
    with pytest.raises(ConfigError) as caught:
        number_of_trials(space, 2)
    assert str(caught.value) == (
        "the grid a (1000) x b.c (500) has 500,000 points; with num_samples=2 there are 1,000,000 trials, more than "
        "100,000: use choice instead of grid for some of them"
    )
    assert number_of_trials(space, 2, limit=1_000_000) == 1_000_000
    with pytest.raises(ConfigError, match="make num_samples smaller"):
        number_of_trials(SPACE, 100_001)


# ------------------------------------------------------------------------------------------------------ quasi-random


@pytest.mark.parametrize("grid_size", [1, 2, 3])
def test_sobol_points_fill_each_cell_once(grid_size):
    """64 points of a (0, 6, 2)-net in base 2: one in each of 8 x 8 cells, for each point of the grid."""
    space = Space.parse({"g": tune.grid(list(range(grid_size))), "x": tune.uniform(0, 8), "y": tune.uniform(0, 8)})
    searcher = search("qmc", space, num_samples=64)
    configs = [searcher.suggest(number).config for number in range(64 * grid_size)]
    cells = {(int(config["x"]), int(config["y"])) for config in configs if config["g"] == 0}
    assert len(cells) == 64
    for g in range(grid_size):  # a shifted net: no cell is exact any more, but each eighth has an eighth
        eighths = collections.Counter(int(config["x"]) for config in configs if config["g"] == g)
        assert all(6 <= eighths[eighth] <= 10 for eighth in range(8))


def test_halton_and_no_scrambling():
    searcher = search("qmc", options={"sequence": "halton", "scramble": False})
    xs = [searcher.suggest(number).params["x"] for number in range(1, 5)]
    assert xs == pytest.approx([1 / 2, 1 / 4, 3 / 4, 1 / 8])  # van der Corput in base 2
    with pytest.raises(ConfigError, match="bad value for 'sequence': 'lattice'"):
        search("qmc", options={"sequence": "lattice"})


def test_quasi_random_points_in_conditions():
    space = Space.parse({"o": tune.choice([{"k": 1, "a": tune.uniform(0, 1)}, {"k": 2, "b": tune.uniform(0, 1)}])})
    searcher = search("qmc", space, num_samples=32)
    params = [searcher.suggest(number).params for number in range(32)]
    assert collections.Counter(one["o"] for one in params) == {"k=1": 16, "k=2": 16}
    assert {tuple(one) for one in params} == {("o", "o.a"), ("o", "o.b")}


# ------------------------------------------------------------------------------------------------------------ points

CONDITIONAL = Space.parse(
    {
        "net": {"shape": tune.choice([[64, 64], [32]])},
        "o": tune.choice([{"name": "sgd", "m": tune.uniform(0, 1)}, {"name": "adam"}]),
        "x": tune.uniform(0, 1),
    }
)


@pytest.mark.parametrize("name", ["random", "qmc", "tpe"])
def test_points_come_first_and_what_they_leave_open_is_drawn(name):
    points = [{"x": 0.25, "net": {"shape": [32]}, "o": "sgd", "o.m": 0.5}, {"o": "adam"}]
    searcher = search(name, CONDITIONAL, points=points)
    assert searcher.num_trials == 10
    assert searcher.suggest(0).config == {"net": {"shape": [32]}, "o": {"name": "sgd", "m": 0.5}, "x": 0.25}
    assert searcher.suggest(1).config["o"] == {"name": "adam"}
    assert 0 < searcher.suggest(1).config["x"] < 1
    if name != "tpe":
        assert searcher.suggest(2) == search(name, CONDITIONAL).suggest(2)
    assert search(name, CONDITIONAL, options={"points": points}).suggest(0) == searcher.suggest(0)


def test_points_and_grids():
    searcher = search("random", GRID, num_samples=1, points=[{"x": 0.5}, {"x": 0.25}])
    assert [searcher.suggest(number).config for number in range(2)] == [
        {"a": 1, "b": "p", "x": 0.5},
        {"a": 1, "b": "q", "x": 0.25},
    ]
    assert searcher.suggest(6) is None


@pytest.mark.parametrize(
    ("point", "complaint"),
    [
        ({"y": 1}, "point 0: the space has no parameter 'y'; there are net.shape, o, o.m, x"),
        ({"net": {"shap": 1}}, "no parameter 'net.shap'; did you mean 'net.shape'"),
        ({"x": 1.5}, r"point 0: 'x' is 1.5, which is not in uniform\(0, 1\)"),
        ({"o": "rmsprop"}, r"'o' is 'rmsprop', which is not in choice\(\['sgd', 'adam'\]\)"),
        ({"net": {"shape": [16]}}, r"'net.shape' is \[16\], which is not in choice"),
    ],
)
def test_a_point_outside_the_space_is_refused(point, complaint):
    with pytest.raises(ConfigError, match=complaint):
        search("random", CONDITIONAL, points=[point])


def test_a_point_in_a_grid_is_refused():
    with pytest.raises(ConfigError, match="point 1: 'a' is a grid"):
        search("random", GRID, points=[{}, {"a": 1}])


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("tpa", {}, "no searcher 'tpa'; did you mean 'tpe'"),
        ("x", {}, "no searcher 'x': there are random, grid, tpe, gp, cmaes, qmc, nsga2"),
        (
            "tpe",
            {"options": {"n_startup": 5}},
            "tpe: unknown key 'n_startup'; did you mean 'n_startup_trials'",
        ),
        ("random", {"options": {"seed": 5}}, "searcher random: unknown key 'seed'"),
        ("tpe", {"options": {"n_startup_trials": 0}}, "bad value for 'n_startup_trials'"),
        ("tpe", {"options": {"multivariate": "maybe"}}, "bad value for 'multivariate'"),
        ("nsga2", {"options": {"crossover_prob": 2}}, "bad value for 'crossover_prob'"),
        ("nsga2", {"options": {"population_size": 1}}, "searcher nsga2: bad value for 'population_size'"),
        ("cmaes", {"options": {"population_size": 1}}, "bad value for 'population_size'"),
        ("cmaes", {"options": {"sigma": 0}}, "bad value for 'sigma'"),
        (
            "cmaes",
            {"modes": ("max", "min")},
            "searcher cmaes has one objective; random, grid, qmc, tpe, gp, nsga2",
        ),
        ("qmc", {"warm_start": ["runs/x"]}, "searcher qmc: unknown key 'warm_start'; it learns nothing"),
        ("random", {"max_history": 50}, "searcher random: unknown key 'max_history'; it learns nothing"),
        ("tpe", {"max_history": 0}, "bad value for 'max_history'"),
        ("tpe", {"max_history": 5}, "max_history is 5; a model needs 10"),
        ("tpe", {"warm_start": ["nowhere"]}, "warm_start: there is no nowhere"),
    ],
)
def test_settings_that_are_refused(name, settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        search(name, **settings)


def test_cmaes_wants_a_number():
    with pytest.raises(ConfigError, match="searcher cmaes needs a number"):
        search("cmaes", Space.parse({"a": tune.choice([1, 2])}))


@pytest.mark.parametrize(("name", "what"), [("cmaes", "net.shape, o, o.m"), ("nsga2", "o.m"), ("tpe", "")])
def test_a_searcher_says_what_it_draws_at_random(name, what):
    assert search(name, CONDITIONAL).notice == (f"searcher {name} draws {what} at random" if what else "")
    assert search(name, SPACE).notice == ""
