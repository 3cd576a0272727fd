"""The search space: configs from domains at any depth, grids, conditions, and what is refused."""

from __future__ import annotations

import enum
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat import tune
from rlplat.errors import ConfigError
from rlplat.tune.space import Space, as_yaml, is_domain


def first(name, domain):
    """The lowest value, the first option."""
    return domain.at(0.0)


def draw(space: Space, seed: int = 0):
    rng = np.random.default_rng(seed)
    return space.draw(lambda name, domain: domain.sample(rng), rng)


def test_domains_are_drawn_wherever_they_are_and_constants_stay():
    space = Space.parse(
        {
            "alpha": tune.uniform(1, 2),
            "net": {"layers": [{"width": tune.randint(8, 64)}, {"width": 5}], "activation": "relu"},
            "shape": tune.choice([[64, 64], [32]]),
            "pair": (1, 2),
        }
    )
    suggestion = space.draw(first)
    assert suggestion.config == {
        "alpha": 1.0,
        "net": {"layers": [{"width": 8}, {"width": 5}], "activation": "relu"},
        "shape": [64, 64],
        "pair": [1, 2],
    }
    assert suggestion.params == {"alpha": 1.0, "net.layers.0.width": 8, "shape": "[64, 64]"}
    assert list(space.domains) == ["alpha", "net.layers.0.width", "shape"]


def test_a_space_of_constants_only_has_one_point():
    space = Space.parse({"a": 1, "b": {"c": []}})
    assert space.grid_size == 1
    assert space.grid_point(0) == {}
    assert space.draw(first).config == {"a": 1, "b": {"c": []}}
    assert Space.parse({}).draw(first).config == {}


def test_configs_share_nothing_that_a_trial_could_change():
    space = Space.parse({"a": [1], "b": tune.choice([{"c": [2]}])})
    one = space.draw(first).config
    one["a"].append(5)
    one["b"]["c"].append(5)
    assert space.draw(first).config == {"a": [1], "b": {"c": [2]}}


def test_what_yaml_writes_is_what_python_writes():
    written = Space.parse(
        {
            "a": {"uniform": [0, 1]},
            "b": {"choice": [{"name": "sgd", "m": {"uniform": [0, 0.9]}}, {"name": "adam"}]},
            "c": {"grid": [1, 2]},
            "d": {"loguniform": [1e-4, 1e-2]},
            "e": {"randint": [1, 10]},
            "f": {"quniform": [0, 1, 0.5]},
            "g": {"lograndint": [1, 10]},
            "j": {"normal": [0, 0.1]},
            "i": {"qnormal": [5, 10, 5]},
            "h": {"qloguniform": [1, 10, 1]},
        }
    )
    made = Space.parse(
        {
            "a": tune.uniform(0, 1),
            "b": tune.choice([{"name": "sgd", "m": tune.uniform(0, 0.9)}, {"name": "adam"}]),
            "c": tune.grid([1, 2]),
            "d": tune.loguniform(1e-4, 1e-2),
            "e": tune.randint(1, 10),
            "f": tune.quniform(0, 1, 0.5),
            "g": tune.lograndint(1, 10),
            "j": tune.normal(0, 0.1),
            "i": tune.qnormal(5, 10, 5),
            "h": tune.qloguniform(1, 10, 1),
        }
    )
    assert [draw(written, seed) for seed in range(20)] == [draw(made, seed) for seed in range(20)]
    assert list(written.domains) == list(made.domains)


@pytest.mark.parametrize(
    "domain",
    [
        tune.uniform(0, 1),
        tune.quniform(0, 1, 0.5),
        tune.lograndint(1, 9),
        tune.normal(0, 0.1),
        tune.qnormal(0, 10, 5),
        tune.choice(["a", [1]]),
        tune.grid([1, 2]),
    ],
)
def test_a_domain_as_yaml_is_read_as_the_same_domain(domain):
    written = as_yaml(domain)
    assert is_domain(written)
    assert json.loads(json.dumps(written)) == written
    (read,) = Space.parse({"x": written}).domains.values()
    (same,) = Space.parse({"x": domain}).domains.values()
    assert read == same


def test_a_mapping_meant_literally():
    space = Space.parse({"env": {"constant": {"grid": [5, 5]}}, "other": {"grid_size": [5, 5]}})
    assert space.draw(first).config == {"env": {"grid": [5, 5]}, "other": {"grid_size": [5, 5]}}
    assert space.grid_size == 1


def test_only_the_drawn_option_is_drawn():
    space = Space.parse(
        {
            "optimizer": tune.choice(
                [
                    {"name": "sgd", "momentum": tune.uniform(0, 1)},
                    {"name": "adam", "beta": tune.uniform(0.9, 1)},
                ]
            )
        }
    )
    assert list(space.domains) == ["optimizer", "optimizer.momentum", "optimizer.beta"]
    names = {tuple(draw(space, seed).params) for seed in range(30)}
    assert names == {("optimizer", "optimizer.momentum"), ("optimizer", "optimizer.beta")}
    for seed in range(30):
        suggestion = draw(space, seed)
        assert suggestion.config["optimizer"]["name"] == suggestion.params["optimizer"]
        assert len(suggestion.config["optimizer"]) == 2


def test_options_with_different_domains_at_one_place_give_different_names():
    space = Space.parse(
        {
            "o": tune.choice(
                [
                    {"name": "sgd", "lr": tune.uniform(0, 1), "decay": tune.uniform(0, 1)},
                    {"name": "adam", "lr": tune.uniform(2, 3), "decay": tune.uniform(0, 1)},
                ]
            )
        }
    )
    assert list(space.domains) == ["o", "o[sgd].lr", "o.decay", "o[adam].lr"]
    for seed in range(10):
        suggestion = draw(space, seed)
        name = suggestion.params["o"]
        assert suggestion.config["o"]["lr"] == suggestion.params[f"o[{name}].lr"]
        assert suggestion.config["o"]["decay"] == suggestion.params["o.decay"]


def test_an_option_may_be_a_domain_itself_or_a_choice_again():
    space = Space.parse({"x": tune.choice([0, tune.uniform(1, 2), tune.choice(["a", {"deep": tune.randint(5, 6)}])])})
    values = [draw(space, seed).config["x"] for seed in range(60)]
    assert {type(value) for value in values} == {int, float, str, dict}
    assert all(1 <= value < 2 for value in values if isinstance(value, float))
    assert {"deep": 5} in values


def test_conditions_say_what_is_drawn_together():
    space = Space.parse(
        {
            "a": tune.uniform(0, 1),
            "o": tune.choice(
                [
                    {"n": 1, "b": tune.uniform(0, 1), "c": tune.uniform(0, 1)},
                    {"n": 2, "d": tune.uniform(0, 1)},
                ]
            ),
        }
    )
    conditions = space.conditions
    assert conditions["a"] == conditions["o"] == ()
    assert conditions["o.b"] == conditions["o.c"] != ()
    assert conditions["o.d"] not in ((), conditions["o.b"])


# -------------------------------------------------------------------------------------------------------- sample_from


def test_sample_from_sees_what_was_drawn_and_what_was_computed_before():
    space = Space.parse(
        {
            "first": tune.sample_from(lambda config: config["x"] * 2),
            "x": tune.uniform(3, 4),
            "deep": {"second": tune.sample_from(lambda config: config["first"] + 1), "list": [0, {"k": 1}]},
        }
    )
    suggestion = space.draw(first)
    assert suggestion.config["first"] == 6.0
    assert suggestion.config["deep"]["second"] == 7.0
    assert suggestion.params == {"x": 3.0}


def test_sample_from_in_lists_and_options():
    space = Space.parse(
        {
            "l": [tune.sample_from(lambda config: 7), 8],
            "o": tune.choice([{"v": tune.sample_from(lambda config: 9)}]),
        }
    )
    assert space.draw(first).config == {"l": [7, 8], "o": {"v": 9}}


def test_sample_from_with_random_numbers_of_the_trial():
    space = Space.parse({"x": tune.sample_from(lambda config, rng: rng.integers(1_000_000))})
    values = [draw(space, seed).config["x"] for seed in (1, 2, 1)]
    assert values[0] == values[2] != values[1]
    assert type(values[0]) is int


def test_sample_from_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text("def double(config):\n    return 2 * config['x']\n")
    space = Space.parse({"x": {"uniform": [3, 4]}, "y": {"sample_from": "./rules.py:double"}})
    assert space.draw(first).config == {"x": 3.0, "y": 6.0}


def test_an_error_in_sample_from_names_the_key():
    space = Space.parse({"lr": 1, "y": tune.sample_from(lambda config: config["learning_rate"])})
    with pytest.raises(ConfigError, match=r"'y': sample_from raised KeyError: 'learning_rate'"):
        space.draw(first)
    with pytest.raises(ConfigError, match="'y': sample_from raised TypeError"):
        Space.parse({"y": tune.sample_from(lambda config: object())}).draw(first)


# --------------------------------------------------------------------------------------------------------------- grids


def test_a_grid_is_the_product_with_the_last_axis_fastest():
    space = Space.parse({"a": tune.grid([0.2, 0.4, 0.6]), "n": {"b": tune.grid([1, 2])}, "c": tune.uniform(0, 1)})
    assert space.grid_size == 6
    assert space.grid_axes == {"a": 3, "n.b": 2}
    points = [space.grid_point(index) for index in range(6)]
    assert [(point["a"], point["n.b"]) for point in points] == list(itertools.product([0.2, 0.4, 0.6], [1, 2]))
    for index in (-1, 6):
        with pytest.raises(IndexError):
            space.grid_point(index)


def test_a_grid_in_an_option_counts_only_with_that_option():
    space = Space.parse(
        {
            "o": tune.grid([{"name": "sgd", "m": tune.grid([1, 2, 3])}, {"name": "adam"}]),
            "k": tune.grid(["x", "y"]),
        }
    )
    assert space.grid_size == (3 + 1) * 2
    assert [tuple(space.grid_point(index).values()) for index in range(8)] == [
        ("x", "sgd", 1), ("y", "sgd", 1), ("x", "sgd", 2), ("y", "sgd", 2), ("x", "sgd", 3), ("y", "sgd", 3),
        ("x", "adam"), ("y", "adam"),
    ]  # fmt: skip


GRIDS = st.recursive(
    st.integers(0, 3).map(lambda value: ("constant", value)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda items: ("grid", items)),
        st.lists(inner, min_size=0, max_size=3).map(lambda items: ("dict", items)),
    ),
    max_leaves=12,
)


def as_space(tree, path="r"):
    kind, items = tree
    if kind == "constant":
        return items
    children = [as_space(item, f"{path}{index}") for index, item in enumerate(items)]
    if kind == "dict":
        return {f"k{index}": child for index, child in enumerate(children)}
    return tune.grid([{f"name_{path}": index, "inner": child} for index, child in enumerate(children)])


def every_config(value):
    """All configs of a space of grids, by brute force."""
    if isinstance(value, tune.domains.Grid):
        return [config for option in value.options for config in every_config(option)]
    if isinstance(value, dict):
        parts = [every_config(inner) for inner in value.values()]
        return [dict(zip(value, chosen, strict=True)) for chosen in itertools.product(*parts)]
    return [value]


@given(st.lists(GRIDS, max_size=3).map(lambda items: as_space(("dict", items))))
def test_the_points_of_nested_grids_are_those_of_brute_force(config):
    space = Space.parse(config)
    wanted = every_config(config)
    assert space.grid_size == len(wanted)
    for index, config_wanted in enumerate(wanted[:200]):
        point = space.grid_point(index)
        suggestion = space.draw(lambda name, domain, point=point: point[name])
        assert suggestion.config == config_wanted
        assert suggestion.params == point


def test_a_point_of_a_huge_grid_is_found_without_making_the_grid():
    space = Space.parse({f"a{index}": tune.grid(list(range(1000))) for index in range(20)})
    assert space.grid_size == 1000**20
    point = space.grid_point(1000**20 - 2)
    assert list(point.values()) == [998, *[999] * 19]  # the last axis first: it changes fastest


# -------------------------------------------------------------------------------------------------------------- values


def test_values_are_plain():
    class Color(enum.StrEnum):
        RED = "red"

    space = Space.parse(
        {
            "a": np.float32(0.5),
            "b": np.arange(3),
            "c": Color.RED,
            "d": tune.choice([np.int64(1), np.int64(2)]),
            "e": tune.uniform(np.float64(0), np.float64(1)),
            "f": tune.sample_from(lambda config: np.int64(4)),
        }
    )
    suggestion = draw(space)
    assert [type(suggestion.config[key]) for key in "abcdef"] == [float, list, str, int, float, int]
    assert json.loads(json.dumps(suggestion.config)) == suggestion.config
    assert [type(value) for value in suggestion.params.values()] == [int, float]


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (tune.uniform(1, 0), r"uniform: the range is empty: low \(1\) must be below high \(0\)"),
        (tune.uniform(float("nan"), 1), "low is nan"),
        (tune.uniform(0, float("inf")), "high is inf"),
        (tune.uniform("0", 1), "low is '0', not a number"),
        (tune.uniform(False, 1), "low is False, not a number"),
        (tune.loguniform(0, 1), "low is 0, and only positive numbers have a logarithm"),
        (tune.lograndint(0, 5), "only positive"),
        (tune.randint(1.5, 3), "low is 1.5, not an integer"),
        (tune.randint(3, 3), "the range is empty"),
        (tune.quniform(0, 1, 0), "the step between two values is 0"),
        (tune.quniform(0, 1, 3), "the step 3 is larger than the range"),
        (tune.normal(0, 0), "normal: the standard deviation is 0, not a positive number"),
        (tune.normal(0, -1), "the standard deviation is -1, not a positive number"),
        (tune.normal(0, float("inf")), "deviation is inf, which is no finite number"),
        (tune.normal("0", 1), "mean is '0', not a number"),
        (tune.normal(1e9, 1e-9), "the standard deviation 1e-09 is nothing beside the mean 1e"),
        (tune.qnormal(0, 1, 0), "the step between two values is 0"),
        (tune.qnormal(0, 1, 20), "the step 20 is larger than all that is drawn"),
        (tune.qnormal(0, 0, 1), "the standard deviation is 0"),
        ({"normal": [0]}, r"normal: \[0\]: normal takes \[mean, deviation\]"),
        ({"qnormal": [0, 1]}, r"qnormal takes \[mean, deviation, q\]"),
        ({"randn": [0, 1]}, "there is no domain 'randn'; did you mean 'normal'"),
        (tune.choice([]), "nothing to choose from"),
        (tune.choice([1, 2, 1]), "1 is in the list twice"),
        (tune.choice([1, True]), "in the list twice"),
        (tune.choice([float("nan")]), "NaN"),
        (tune.choice([tune.uniform(2, 1)]), "the range is empty"),
        (tune.choice([{"a": tune.grid([1])}]), "a grid inside an option of the choice 'x'"),
        (tune.choice([tune.sample_from(len)]), "an option cannot be a sample_from"),
        (tune.sample_from(3), "3 cannot be called"),
        ({"uniform": [1]}, r"uniform: \[1\]: uniform takes \[low, high\]"),
        ({"uniform": 3}, "uniform takes a list"),
        (
            {"uniform": [0, 1], "grid": [3]},
            "uniform and grid: one domain is wanted; a mapping meant literally is",
        ),
        ({"sample_from": 3}, "sample_from takes ./file.py:function"),
        ({"sample_from": "./nowhere.py:f"}, "there is no file nowhere.py"),
        ({"unifrom": [0, 1]}, "there is no domain 'unifrom'; did you mean 'uniform'"),
        ({"choices": [0, 1]}, "did you mean 'choice'"),
        (object(), "is of type object"),
        ({1: 2}, "a key must be text, not 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(value, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        Space.parse({"fine": tune.uniform(0, 1), "x": value})
    assert str(caught.value).startswith("'x")


def test_legitimate_mappings_with_one_key_are_left_alone():
    config = {
        "a": {"observations": [1, 2]},
        "b": {"layers": [64]},
        "c": {"range": 5},
        "d": {"sizes": ["uniform"]},
    }
    assert Space.parse(config).draw(first).config == config


def test_all_complaints_come_at_once_with_file_and_line():
    lines = {("a",): "exp.yaml:3", ("b", "c"): "exp.yaml:7"}
    with pytest.raises(ConfigError) as caught:
        Space.parse(
            {"a": {"uniform": [1, 0]}, "b": {"c": {"choice": [{"d": {"uniform": [1, 0]}}]}}},
            where=lambda path: next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), ""),
        )
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "'a' in exp.yaml:3",
        "'b.c.d' in exp.yaml:7",
    ]


def test_two_parameters_cannot_have_one_name():
    with pytest.raises(ConfigError, match=r"two parameters are called 'a\.b'"):
        Space.parse({"a": {"b": tune.uniform(0, 1)}, "a.b": tune.uniform(0, 1)})


def test_a_key_with_a_dot_beside_an_option_has_another_name():
    options = [{"n": 1, "b": tune.uniform(0, 1)}, {"n": 2}]
    space = Space.parse({"o": tune.choice(options), "o.b": tune.uniform(0, 1)})
    assert list(space.domains) == ["o", "o[n=1].b", "o.b"]


def test_a_space_is_a_dict():
    with pytest.raises(ConfigError, match="a search space is a dict"):
        Space.parse([tune.uniform(0, 1)])
