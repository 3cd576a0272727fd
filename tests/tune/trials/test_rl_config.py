"""Configs of trials as settings of algorithms."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlplat.errors import ConfigError, UsageError
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trials.rl_config import (
    check_configs,
    check_mutations,
    check_seeds,
    demand_of,
    plan_trial,
)


def test_the_tuned_config_is_the_base_and_how_it_is_tested_is_not() -> None:
    plan = plan_trial("ppo", {"env": "CartPole-v1", "learning_rate": 0.5}, seed=9)
    config = plan.config
    assert (config.num_envs_per_worker, config.gae_lambda) == (32, 0.8)  # configs/ppo/CartPole-v1.yaml
    assert config.learning_rate == 0.5
    assert config.stop.episode_return_mean is None and config.expect.episode_return_mean is None
    assert config.stop.env_steps == 1_000_000  # the default: the experiment says when
    assert config.seed == 9
    assert plan.notes == ["settings that config does not name are those of the tuned config ppo/CartPole-v1.yaml"]
    assert plan_trial("ppo", {"env": "Acrobot-v1x"}).notes == []  # no such environment, which is said elsewhere


@pytest.mark.parametrize(
    ("algo", "config", "workers"),
    [
        ("ppo", {"env": "CartPole-v1"}, 0),  # tuned with one: in the host all the same
        ("ppo", {"env": "unknown"}, 0),
        ("ppo", {"env": "CartPole-v1", "num_rollout_workers": 1}, 1),
        ("a3c", {"env": "CartPole-v1"}, 2),
    ],
)
def test_the_number_of_rollout_workers(algo: str, config: dict[str, Any], workers: int) -> None:
    assert plan_trial(algo, config).config.num_rollout_workers == workers


@pytest.mark.parametrize(
    ("config", "demand"),
    [
        ({}, {"CPU": 1.0}),
        ({"num_rollout_workers": 0}, {"CPU": 1.0}),
        ({"num_rollout_workers": 3}, {"CPU": 3.0}),
        ({"learner": {"num_gpus": 1, "num_learners": 2}}, {"CPU": 1.0, "GPU": 2.0}),
        ({"learner": {"num_gpus": "auto"}}, {"CPU": 1.0}),
    ],
)
def test_what_a_trial_takes(config: dict[str, Any], demand: dict[str, float]) -> None:
    assert demand_of("ppo", config) == demand


def test_the_document_of_the_best_is_complete() -> None:
    text = plan_trial("dqn", {"env": "CartPole-v1", "stop": {"env_steps": 500}}, seed=3).to_yaml()
    assert text.startswith("algo: dqn\n")
    assert "seed: 3" in text and "env_steps: 500" in text and "batch_size: 64" in text


def test_a_typo_says_where_and_what_was_meant() -> None:
    origins = {("learning_rte",): "exp.yaml:4"}
    with pytest.raises(ConfigError, match=r"learning_rte.*exp.yaml:4.*did you mean 'learning_rate'"):
        check_configs("ppo", [{"env": "CartPole-v1"}, {"env": "CartPole-v1", "learning_rte": 1}], origins)


def test_every_environment_of_a_space_is_looked_at() -> None:
    check_configs("ppo", [{"env": "CartPole-v1"}, {"env": "Acrobot-v1"}])
    with pytest.raises(UsageError, match="CartPol-v1"):
        check_configs("ppo", [{"env": "CartPole-v1"}, {"env": "CartPol-v1"}])


def test_several_seeds_of_a_fixed_seed_are_refused() -> None:
    check_seeds("ppo", {}, 3)
    check_seeds("ppo", {"seed": 1}, 1)
    with pytest.raises(ConfigError, match=r"seeds_per_trial is 3.*config\.seed"):
        check_seeds("ppo", {"seed": 1}, 3)


def test_what_a_checkpoint_is_made_for_cannot_mutate() -> None:
    from rlplat import tune

    space = {
        "env": "CartPole-v1",
        "learning_rate": tune.loguniform(1e-4, 1e-2),
        "num_envs_per_worker": tune.choice([4, 8]),
    }
    scheduler: dict[str, Any] = {"name": "pbt", "perturbation_period": 1000}
    spec = ExperimentSpec(trainable="ppo", config=space, stop={"env_steps": 4000}, scheduler=scheduler)
    with pytest.raises(ConfigError, match=r"would change 'num_envs_per_worker'.*mutations: \[learning_rate\]"):
        spec.checked()
    scheduler["mutations"] = ["learning_rate"]
    ExperimentSpec(trainable="ppo", config=space, stop={"env_steps": 4000}, scheduler=scheduler).checked()


def test_settings_that_the_algorithm_ignores_are_announced() -> None:
    [*_, note] = plan_trial("es", {"env": "CartPole-v1", "discount": 0.5}).notes
    assert note == "es does not use discount (an episode counts by its undiscounted return)"


@pytest.mark.parametrize(
    ("algo", "name"),
    [
        ("apex", "num_replay_shards"), ("dqn", "dueling"), ("impala", "optimizer"), ("ppo", "policy.hidden_sizes[0]"),
        ("es", "linear_policy"), ("mbpo", "model.ensemble_size"), ("mbpo", "model.hidden_sizes[0]"),
    ],
)  # fmt: skip
def test_a_mutation_is_refused_where_a_resumed_run_would_be(algo: str, name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"would change '{re.escape(name)}' of a trial that goes on from a checkpoint"
    ):
        check_mutations(algo, ["learning_rate", name], "pbt", {"env": "CartPole-v1"})


def test_other_settings_of_a_section_may_mutate() -> None:
    check_mutations("mbpo", ["model.learning_rate"], "pbt", {"env": "Pendulum-v1"})


@pytest.mark.parametrize(
    ("algo", "name"),
    [("dqn", "n_step"), ("dqn", "prioritized"), ("sac", "n_step"), ("td3", "replay_capacity")],
)
def test_a_mutation_that_a_saved_replay_does_not_fit_is_refused(algo: str, name: str) -> None:
    for saves in ({}, {"save_replay": True}, {"save_replay": {"choice": [True, False]}}):
        with pytest.raises(
            ConfigError, match=f"would change '{name}' .* replay in the checkpoint fits .* save_replay: false"
        ):
            check_mutations(algo, ["learning_rate", name], "pbt", {"env": "Pendulum-v1", **saves})
    check_mutations(algo, [name], "pbt", {"save_replay": False})
    if algo == "dqn":
        check_mutations(algo, [name], "pbt", {"env": "Pong"})  # its tuned config saves none
    with pytest.raises(ConfigError, match="would change 'num_envs_per_worker'"):
        check_mutations(algo, ["num_envs_per_worker"], "pbt", {"save_replay": False})


def test_an_experiment_that_would_mutate_n_step_does_not_begin() -> None:
    from rlplat import tune

    space = {"env": "Pendulum-v1", "n_step": tune.choice([1, 3])}
    scheduler = {"name": "pbt", "perturbation_period": 1000}
    spec = ExperimentSpec(trainable="sac", config=space, stop={"env_steps": 4000}, scheduler=scheduler)
    with pytest.raises(ConfigError, match="scheduler pbt would change 'n_step' of a trial"):
        spec.checked()
    spec.config["save_replay"] = False
    spec.checked()
