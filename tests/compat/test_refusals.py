"""What a Ray program asks for in vain is refused in a line that says what is here; nothing is ignored."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import rlplat.compat.ray as ray
from rlplat.compat.ray import serve, train, tune, util
from rlplat.compat.ray.tune import schedulers
from rlplat.compat.ray.tune.search import BayesOptSearch
from rlplat.errors import ConfigError, OptionError


def run(**arguments: Any) -> Any:
    return tune.run(lambda config: {"loss": 1.0}, verbose=0, **arguments)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: ray.init(job_config={"a": 1}), "job_config"),
        (lambda: ray.init(num_cpu=2), "num_cpu"),
        (lambda: ray.init("ray://host:10001"), "ray://"),
        (lambda: ray.init("a:1", redis_address="b:1"), "redis_address"),
        (lambda: ray.remote(num_return_vals=2, num_returns=2), "num_return_vals"),
        (lambda: run(callbacks=[print]), "callbacks"),
        (lambda: run(num_sample=2), "num_sample"),
        (lambda: run(raise_on_faild_trial=False), "raise_on_faild_trial"),
        (lambda: run(resources_per_trial=lambda config: {"cpu": 1}), "resources_per_trial"),
        (lambda: run(resume="PROMPT"), "resume"),
        (lambda: run(metric="a", scheduler=schedulers.ASHAScheduler(metric="b", mode="max")), "metric"),
        (lambda: run(scheduler=schedulers.ASHAScheduler()), "metric="),
        (lambda: run(config={"x": {"eval": "1"}}), "eval"),
        (lambda: tune.run("PPO", config={"env": "CartPole-v0"}), "PPO"),
        (lambda: schedulers.ASHAScheduler(brackets=3), "brackets"),
        (lambda: schedulers.ASHAScheduler(grace_perod=3), "grace_perod"),
        (lambda: schedulers.HyperBandScheduler(metric="a", reward_attr="b"), "reward_attr"),
        (lambda: schedulers.PopulationBasedTraining(custom_explore_fn=dict), "custom_explore_fn"),
        (lambda: BayesOptSearch(utility_kwargs={"kind": "ucb"}), "utility_kwargs"),
        (lambda: train.TorchTrainer(lambda: None, datasets={"train": 1}), "datasets"),
        (lambda: serve.deployment(ray_actor_options={"memory": 1}), "memory"),
        (lambda: serve.deployment(max_ongoing=3), "max_ongoing"),
        (lambda: tune.run_experiments({"a": {"config": {}}}), "run"),
        (
            lambda: run(
                config={"a": tune.uniform(0, 1), "b": tune.sample_from(lambda spec: spec.config.a)},
                scheduler=schedulers.PopulationBasedTraining(metric="x", hyperparam_mutations={"b": [1, 2]}),
            ),
            "config b",
        ),
    ],
)
def test_an_argument_is_refused(call: Callable[[], Any], key: str) -> None:
    with pytest.raises((OptionError, ConfigError), match=key) as refused:
        call()
    assert len(str(refused.value).splitlines()) == 1


class Counter:
    def add(self) -> None: ...


def test_bind_names_what_makes_a_graph_here() -> None:
    method = ray.remote(Counter)._code.target.add
    for target in (ray.remote(lambda: 1), ray.remote(Counter), ray.remote(method)):
        with pytest.raises(AttributeError, match=r"no attribute 'bind'; .* arguments of \.remote"):
            target.bind(1)
    assert not hasattr(ray.remote(method), "_nothing")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (ray, "rllib"),
        (serve, "init"),
        (serve, "create_endpoint"),
        (tune, "Callback"),
        (util, "collective"),
        (train, "get_dataset_shard"),
    ],
)
def test_a_name_is_refused_with_what_is_here(module: Any, name: str) -> None:
    with pytest.raises(AttributeError, match="; here: "):
        getattr(module, name)
    with pytest.raises(ImportError, match="; here: "):
        exec(f"from {module.__name__} import {name}", {})


@pytest.mark.parametrize("module", ["rllib.agents.ppo", "data", "tune.stopper", "util.joblib"])
def test_a_module_is_refused_with_what_is_here(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="; here: "):
        importlib.import_module(f"rlplat.compat.ray.{module}")


def test_a_report_outside_of_a_trial_is_an_error() -> None:
    with pytest.raises(Exception, match="trial"):
        tune.report(loss=1)


def test_old_module_paths_lead_to_the_same_classes() -> None:
    for path, name, home in (
        ("tune.async_hyperband", "AsyncHyperBandScheduler", schedulers),
        ("tune.schedulers.pbt", "PopulationBasedTraining", schedulers),
        ("tune.suggest.bayesopt", "BayesOptSearch", tune.search),
        ("tune.registry", "register_trainable", tune),
    ):
        assert getattr(importlib.import_module(f"rlplat.compat.ray.{path}"), name) is getattr(home, name)


def test_what_changes_nothing_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        schedulers.MedianStoppingRule(metric="a", hard_stop=True)
    assert capsys.readouterr().err.count("hard_stop") == 1


def test_all_names_of_the_schedulers_are_schedulers() -> None:
    names: dict[str, Any] = {}
    exec("from rlplat.compat.ray.tune.schedulers import *", names)
    assert {name for name in names if not name.startswith("__")} == set(schedulers.__all__)
