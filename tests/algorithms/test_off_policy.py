"""SAC, TD3, TQC, CrossQ as a whole: golden losses, their ratio, resuming bit by bit, lost workers, what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms.crossq import CrossQ
from rlplat.algorithms.mbpo import MBPO
from rlplat.algorithms.sac import SAC, SACConfig
from rlplat.algorithms.td3 import TD3, TD3Config
from rlplat.algorithms.tqc import TQC
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.policies.exploration import EPSILON
from tests.algorithms.golden import assert_on_file
from tests.states import assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "Pendulum-v1",
    "seed": 3,
    "rollout_length": 8,
    "num_envs_per_worker": 2,
    "learning_starts": 40,
    "env_steps_per_update": 2,
    "batch_size": 16,
    "n_step": 2,
    "policy": {"hidden_sizes": [16]},
    "evaluation": {"episodes": 2},
    "stop": {"env_steps": 5_000},
}


REACHING: dict[str, Any] = {
    "env": "rlplat.rl.envs.diagnostic:ReachPoint",
    "env_kwargs": {"length": 7},
    "hindsight": {"goal_selection_strategy": "future"},
}


OPTIONS: dict[str, Any] = {
    "weight_decay": 0.01,
    "learning_rate": {"schedule": "cosine", "start": 1e-3, "end": 0.0, "horizon": 200},
    "critic_learning_rate": {"schedule": "linear", "start": 2e-3, "end": 1e-3, "horizon": 150},
    "policy": {"hidden_sizes": [16], "critic_hidden_sizes": [12, 12], "layer_norm": True, "activation": "mish"},
}
RENORMED: dict[str, Any] = {
    "policy": {"hidden_sizes": [16], "critic_hidden_sizes": [24]},
    "renorm_warmup": 10,
    "renorm_momentum": 0.1,
}

PRIVILEGED: dict[str, Any] = {
    "env": "tests.rl.privileged_env:HiddenBonusBox",
    "policy": {"hidden_sizes": [16], "obs_groups": {"actor": ["cue"], "critic": ["sim"]}},
}

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sac": (SAC, {"normalize_observations": True}),
    "sac with hindsight": (SAC, REACHING),
    "sac, alpha fixed": (SAC, {"entropy_coef": 0.2, "max_gradient_norm": 1.0}),
    "td3": (TD3, {}),
    "tqc": (TQC, {"num_critics": 3, "num_quantiles": 7}),
    "crossq": (CrossQ, RENORMED),
    "mbpo": (MBPO, {"n_step": 1, "batch_size": 20, "model": {"hidden_sizes": [16], "max_epochs": 2}}),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_losses(runtime: None, name: str) -> None:
    """Six rounds give the losses on file."""
    algorithm, settings = CASES[name]
    with algorithm(algorithm.config_class(**(QUICK | settings | {"num_rollout_workers": 0}))) as running:
        rounds = [running.step().metrics for _ in range(6)]
    names = ("critic_loss", "actor_loss", "q_mean", "entropy", "entropy_coef", "gradient_norm", "updates")
    losses = [{n: m[f"learner/{n}"] for n in names if f"learner/{n}" in m} for m in rounds]
    assert_on_file("off_policy_losses.json", name, losses)


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (SAC, OPTIONS | {"normalize_observations": True}),
        (SAC, REACHING),
        (TD3, OPTIONS),
        (TQC, {"num_critics": 3, "num_quantiles": 7}),
        (CrossQ, RENORMED),
        (SAC, PRIVILEGED | {"normalize_observations": True}),
        (CrossQ, PRIVILEGED | RENORMED),
        (SAC, {"policy": {"hidden_sizes": [16], "use_sde": True, "sde_sample_freq": 3}}),
    ],
    ids=["sac", "sac with hindsight", "td3", "tqc", "crossq", "sac with groups", "crossq with groups", "sac with gSDE"],
)
def test_resumes_bit_by_bit(runtime: None, algorithm: Any, more: dict[str, Any]) -> None:
    """Weights, optimizers, alpha, replay, random numbers, environments, statistics: everything goes on."""
    config = algorithm.config_class(**(QUICK | {"deterministic": True, "num_rollout_workers": 2} | more))
    expected = assert_resumes(algorithm, config, before=5, after=3)
    assert expected[-1].metrics["learner/updates"] > 80


def test_warms_up_with_uniform_actions_then_learns_at_its_ratio(runtime: None) -> None:
    with SAC(SACConfig(**QUICK)) as sac:
        results = [sac.step() for _ in range(5)]
        state = sac.get_state()
        actions = np.concatenate(list(_stored_actions(state)))
        assert sac.policy_weights(state)["exploration.epsilon"] == 0.0
    updates = [result.metrics["learner/updates"] for result in results]
    # Rounds of 16 env steps, one update for two of them; none before 40 env steps are there.
    assert updates == [0, 0, 8, 16, 24]
    assert np.abs(actions).max() <= 2.0  # Pendulum's bounds
    assert np.abs(actions[:40]).max() > 1.5


def _stored_actions(state: dict[str, Any]) -> Iterator[np.ndarray]:
    yield state["learner"]["replay"]["store"]["columns"]["actions"]


def test_a_dead_rollout_worker_costs_its_rollout_and_nothing_else(runtime: None) -> None:
    with SAC(SACConfig(**(QUICK | {"num_rollout_workers": 2}))) as sac:
        sac.step()
        rlplat.kill(sac.workers.handles[1])
        result = sac.step()
        assert result.metrics["rollout/worker_restarts"] == 1 and result.iteration == 2


def acts_uniformly(algorithm: Any) -> bool:
    return bool(rlplat.get(algorithm.weights())[1][EPSILON][0] == 1.0)


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_without_its_replay_a_resumed_run_fills_a_new_one_by_its_policy(runtime: None, algorithm: Any) -> None:
    """No gradient steps before `learning_starts` steps are there again, and no uniform actions: those are the run's."""
    config = algorithm.config_class(**(QUICK | {"save_replay": False}))
    with algorithm(config) as one:
        for _ in range(4):
            one.step()
        assert "replay" in one.not_saved[-1]
        state = one.get_state()
    with algorithm(config) as other:
        assert acts_uniformly(other)
        other.set_state(state)
        assert not acts_uniformly(other)
        updates = [other.step().metrics["learner/updates"] for _ in range(3)]
        assert updates == [16, 16, 24] and not acts_uniformly(other)


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_weights_of_another_run_act_from_the_start(runtime: None, algorithm: Any) -> None:
    config = algorithm.config_class(**QUICK)
    with algorithm(config) as one, algorithm(config) as other:
        other.set_weights(rlplat.get(one.weights())[1])
        assert not acts_uniformly(other) and acts_uniformly(one) and "no uniform actions" in other.notes[-1]
        other.step()
        assert not acts_uniformly(other)
        one.set_state(other.get_state())  # as a resumed run does
        assert not acts_uniformly(one)


class Spot(gym.Env[Any, Any]):
    """A bright column in an image says which action pays, episodes are one step. With a side: in a Dict with a number
    that moves it."""

    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, size: int = 8, with_side: bool = False) -> None:
        image = gym.spaces.Box(0, 255, (size, size, 1), np.uint8)
        side = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space: Any = gym.spaces.Dict({"image": image, "side": side}) if with_side else image

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        is_tree = isinstance(self.observation_space, gym.spaces.Dict)
        image: Any = np.zeros((self.observation_space["image"] if is_tree else self.observation_space).shape, np.uint8)
        place = int(self.np_random.integers(len(image)))
        image[:, place] = 255
        side = np.float32(self.np_random.choice([-1.0, 1.0]) if is_tree else 0.0)
        spread = 1.0 if is_tree else 2.0
        self._best = side + spread * (2.0 * place / (len(image) - 1) - 1.0)
        return {"image": image, "side": side[None]} if is_tree else image, {}

    def step(self, action: Any) -> Any:
        reward = -abs(float(action[0]) - float(self._best))
        return self.reset()[0], reward, True, False, {}


class Twice(gym.Env[Any, Any]):
    """The best action is twice the observation, episodes are one step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._seen = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        reward = -abs(float(action[0]) - 2.0 * float(self._seen[0]))
        return self.reset()[0], reward, True, False, {}


@pytest.mark.parametrize("algorithm", [TQC, CrossQ])
def test_learns_what_pays(runtime: None, algorithm: Any) -> None:
    """Uniform actions get -1.1."""
    more = {"env": f"{__name__}:Twice", "n_step": 1, "learning_starts": 100, "batch_size": 32, "learning_rate": 3e-3}
    more |= {"num_envs_per_worker": 8, "entropy_coef": 0.01, "policy": {"hidden_sizes": [32]}}
    if algorithm is CrossQ:
        more |= RENORMED | {"policy_delay": 1}
    with algorithm(algorithm.config_class(**(QUICK | more))) as running:
        for _ in range(12):  # of 64 steps each
            running.step()
        returns = [episode.episode_return for episode in running.evaluate(50)]
    assert np.mean(returns) > -0.3, returns


PIXELS: dict[str, Any] = {
    "env": f"{__name__}:Spot",
    "num_envs_per_worker": 8,
    "n_step": 1,
    "discount": 0.5,
    "learning_starts": 200,
    "env_steps_per_update": 2,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "random_shift": 0,
    "learner": {"num_threads": 1},
    "policy": {"hidden_sizes": [64]},
    "replay_capacity": 5_000,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm, with_side", [(SAC, True), (TD3, False)], ids=["sac, dict", "td3, image"])
def test_learns_from_images_and_dicts_with_images(runtime: None, algorithm: Any, with_side: bool) -> None:
    more = {"env_kwargs": {"with_side": with_side}, "learning_rate": 3e-3}
    if algorithm is SAC:
        more["entropy_coef"] = 0.01
    with algorithm(algorithm.config_class(**(QUICK | PIXELS | more))) as running:
        returns = [running.step().episode_return_mean for _ in range(3)]  # of 64 steps each
        while returns[-1] <= -0.7 and len(returns) < 40:
            returns.append(running.step().episode_return_mean)
        assert running.evaluate(2)
    assert returns[2] < -0.9 and returns[-1] > -0.7, returns


@pytest.mark.parametrize("algorithm", [SAC, TD3])
@pytest.mark.parametrize(("critic", "knows"), [(["cue"], False), (["cue", "sim"], True)])
def test_critics_that_see_more_know_what_the_actor_cannot_see(
    runtime: None, algorithm: Any, critic: list[str], knows: bool
) -> None:
    """Where rewards alone count, two critics that do not see the bonus err by its variance, 3^2, at the least."""
    more = {"discount": 0.0, "n_step": 1, "learning_starts": 200, "learning_rate": 3e-3, "batch_size": 64}
    policy = {"hidden_sizes": [32], "obs_groups": {"actor": ["cue"], "critic": critic}}
    with algorithm(algorithm.config_class(**QUICK | PRIVILEGED | more | {"policy": policy})) as running:
        while (result := running.step()).env_steps < 1_600:
            pass
        actor = rlplat.get(running.weights())[1]
    assert actor["encoder.layers.0.weight"].shape == (32, 2)
    assert (result.metrics["learner/critic_loss"] < 1.0) is knows
    assert (result.metrics["learner/critic_loss"] > 6.0) is not knows


def test_groups_share_the_images(runtime: None) -> None:
    policy = {"obs_groups": {"actor": ["image"], "critic": ["side"]}}
    with pytest.raises(
        ConfigError, match=r"sac's actor and critics share the CNN of the image 'image', .* both groups"
    ):
        SAC(SACConfig(**QUICK | PIXELS | {"env_kwargs": {"with_side": True}, "policy": policy}))


@pytest.mark.parametrize("algorithm", [SAC, TD3, CrossQ])
def test_with_images_it_resumes_bit_by_bit(runtime: None, algorithm: Any) -> None:
    more = {"env_kwargs": {"with_side": True}, "random_shift": 2, "learning_starts": 40, "batch_size": 8}
    if algorithm is CrossQ:
        more |= RENORMED
    if algorithm is SAC:
        more["policy"] = {"hidden_sizes": [64], "use_sde": True}
    if algorithm is TD3:
        more["policy"] = {"hidden_sizes": [64], "obs_groups": {"actor": ["image"]}}
    config = algorithm.config_class(**(QUICK | PIXELS | more | {"deterministic": True}))
    assert_resumes(algorithm, config, before=3, after=2)


def test_the_cnn_is_trained_by_the_critics_alone(runtime: None) -> None:
    """It changes where only they learn (TD3 waits with the actor), and is published with the actor."""
    settings = QUICK | PIXELS | {"policy_delay": 10_000, "learning_starts": 8}
    with TD3(TD3Config(**settings)) as td3:
        before = rlplat.get(td3.weights())[1]
        td3.step()
        after = rlplat.get(td3.weights())[1]
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert "images.0.conv1.weight" in changed and "head.weight" not in changed


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            "CartPole-v1",
            "SAC decides continuous actions .Box., but CartPole-v1 has .*Discrete.2.; use DQN.* --algo dqn",
        ),
        ("tests.rl.fixture_envs:TreeEnv", "has actions Dict.* --algo ppo"),
    ],
)
def test_spaces_that_it_cannot_take_name_who_can(runtime: None, env: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SAC(SACConfig(env=env))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "Pendulum-v1 observes .*, and it needs a Dict of observation, achieved_goal and desired_goal"),
        (
            {"env": "tests.rl.replay.test_hindsight:Boxed"},
            "hindsight cannot relabel .* has no compute_reward",
        ),
    ],
)
@pytest.mark.parametrize("num_rollout_workers", [0, 1])
def test_hindsight_needs_goals(runtime: None, settings: dict[str, Any], says: str, num_rollout_workers: int) -> None:
    hindsight = {
        "hindsight": {"goal_selection_strategy": "future"},
        "num_rollout_workers": num_rollout_workers,
    }
    with pytest.raises(ConfigError, match=says):
        SAC(SACConfig(**(QUICK | hindsight | settings)))


def test_td3_names_itself(runtime: None) -> None:
    with pytest.raises(UsageError, match="TD3 decides continuous actions"):
        TD3(TD3Config(env="CartPole-v1"))


def test_settings_that_cannot_be(runtime: None) -> None:
    with pytest.raises(ConfigError, match=r"policy\.core=lstm has no effect: transitions are replayed one by one"):
        SACConfig(**QUICK | {"policy": {"core": "lstm"}})
    with pytest.raises(ConfigError, match="computes with torch"):
        SAC(SACConfig(**QUICK, framework="tf"))
    with pytest.raises(ConfigError, match="raise replay_capacity"):
        SAC(SACConfig(**QUICK, replay_capacity=20))
