"""IQL: its losses by hand, a gradient step beside a reference, what it learns from random decisions of either kind of
action, resuming, going on with PPO, what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.iql import IQL, IQLConfig, TorchIQL, advantage_weights, expectile_loss
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.offline.dataset import DataWriter
from rlplat.rl.offline.episodes import Episodes
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.algorithms.recorded import STATES, mean_reward, single_decisions, weak_pendulum
from tests.states import assert_resumes

pytestmark = pytest.mark.slow


def test_the_expectile_loss_weighs_both_sides() -> None:
    errors = torch.tensor([2.0, -1.0, 0.0])
    assert float(expectile_loss(errors, 0.7)) == pytest.approx((0.7 * 4 + 0.3 * 1) / 3)
    assert float(expectile_loss(errors, 0.5)) == pytest.approx(0.5 * 5 / 3), "half of the mean squared error"
    values = torch.linspace(0, 1, 1001)
    for expectile in (0.5, 0.7, 0.9):  # of 0 and 1, as often each: the expectile itself
        losses = [float(expectile_loss(torch.tensor([0.0, 1.0]) - value, expectile)) for value in values]
        assert float(values[int(np.argmin(losses))]) == pytest.approx(expectile, abs=2e-3)


def test_weights_are_exponential_in_the_advantage_up_to_their_bound() -> None:
    advantages = torch.tensor([-1.0, 0.0, 0.5, 1.5351, 2.0, 1e6])
    found = advantage_weights(advantages, 3.0, 100.0).numpy()
    np.testing.assert_allclose(found, [np.exp(-3), 1, np.exp(1.5), 100, 100, 100], rtol=1e-3)
    np.testing.assert_array_equal(advantage_weights(advantages, 0.0, 100.0), np.ones(6))


DISCRETE = ActionSpec("discrete", n=3)
BOX = ActionSpec("box", shape=(2,), dtype="float32", low=(-9.0, 0.0), high=(9.0, 3.0))


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=str)
def test_a_gradient_step_descends_the_three_losses(action: ActionSpec) -> None:
    """Two episodes of two steps, the first of which terminates; equations 5 to 7 step by step, with the networks as
    functions."""
    rng, is_box = np.random.default_rng(1), action.kind == "box"
    spec = policy_spec(
        IQLConfig(env="X", data="x", policy={"hidden_sizes": [8]}).policy.model_dump(),
        SpaceSpec(ObsSpec("vector", (3,), "float32"), action),
    )
    obs = rng.normal(size=(6, 3)).astype(np.float32)
    actions = np.array([[9, 0], [-9, 3], [0, 1.5], [4.5, 3]], np.float32) if is_box else np.array([0, 2, 1, 1])
    as_numbers = [[1, -1], [-1, 1], [0, 0], [0.5, 1]] if is_box else np.eye(3)[actions]
    rewards, ends = np.array([1, -2, 3, 0.5], np.float32), np.array([True, False])
    episodes = Episodes(obs, actions, rewards, np.array([2, 2]), ends)
    config = IQLConfig(
        env="X", data="x", policy={"hidden_sizes": [8]}, expectile=0.8, temperature=2.0, discount=0.9, target_tau=0.25,
        max_advantage_weight=1.5,
    )  # fmt: skip
    iql = TorchIQL(config, spec, np.random.SeedSequence(1), episodes)
    with torch.no_grad():
        for parameter in iql.target_critics.parameters():  # other ones than the online ones
            parameter += 0.1
    network, critics, targets = (copy.deepcopy(each) for each in (iql.trainee.network, iql.critics, iql.target_critics))
    figures = iql.train(np.array([3, 0, 1, 2]), 1e-3, 2e-3)

    states, next_states = torch.from_numpy(obs[[0, 1, 3, 4]]), torch.from_numpy(obs[[1, 2, 4, 5]])
    inputs = states, torch.tensor(as_numbers, dtype=torch.float32)
    distribution, values, _ = network(states)
    with torch.no_grad():
        u = targets(*inputs).min(dim=0).values - values
        y = torch.from_numpy(rewards) + 0.9 * torch.tensor([1, 0, 1, 1]) * network(next_states)[1]
    value_loss = (torch.where(u > 0, 0.8, 0.2) * (targets(*inputs).min(dim=0).values.detach() - values) ** 2).mean()
    weights = (2.0 * u).exp().clamp(max=1.5)
    policy_loss = -(weights * distribution.log_prob(torch.from_numpy(actions))).mean()
    critic_loss = ((critics(*inputs) - y) ** 2).mean(dim=1).sum() / 2
    expected = {"value_loss": value_loss, "policy_loss": policy_loss, "critic_loss": critic_loss}
    for name, number in expected.items():
        assert figures[name] == pytest.approx(float(number.detach()), rel=1e-5), name
    assert figures["advantage_weight"] == pytest.approx(float(weights.mean()))

    def assert_descended(module: Any, loss: Any, before: Any, rates: tuple[float, float]) -> None:
        gradients = torch.autograd.grad(loss, list(before.parameters()))
        for (name, new), old, g in zip(module.named_parameters(), before.parameters(), gradients, strict=True):
            rate = rates[name.startswith("critic_")]  # Adam's first step
            torch.testing.assert_close(new, old - rate * g / (g.abs() + 1e-8), atol=2e-6, rtol=1e-4)

    assert_descended(iql.trainee.network, value_loss + policy_loss, network, (1e-3, 2e-3))
    assert_descended(iql.critics, critic_loss, critics, (2e-3, 2e-3))
    for new, old, online in zip(
        *(each.parameters() for each in (iql.target_critics, targets, iql.critics)), strict=True
    ):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weak_pendulum(tmp_path_factory.mktemp("data") / "pendulum")


def choices(path: Path) -> Path:
    """500 episodes of one step in CartPole's spaces, of either action: the sign of the position earns 1, the other
    nothing."""
    rng = np.random.default_rng(0)
    obs, actions = rng.uniform(-1, 1, (1_000, 4)).astype(np.float32), rng.integers(2, size=500)
    rewards = (actions == (obs[::2, 0] > 0)).astype(np.float32)
    with (
        make_vector_env("CartPole-v1", 1) as env,
        DataWriter(path, env="CartPole-v1", spaces=env.spec) as writer,
    ):
        writer.add(Episodes(obs, actions, rewards, np.ones(500, np.int64), np.ones(500, np.bool_)))
        writer.close()
    return path


def quick(data: Path, **settings: Any) -> IQLConfig:
    small = {"seed": 2, "batch_size": 64, "updates_per_round": 150, "policy": {"hidden_sizes": [32]}}
    rates = {"learning_rate": 1e-2, "critic_learning_rate": 1e-2}
    return IQLConfig(data=str(data), **small | rates | settings)


def learnt(config: IQLConfig) -> Any:
    """The policy after a round."""
    with IQL(config) as iql:
        iql.step()
        policy = iql.make_policy(config.model_dump(), iql.spaces, np.random.SeedSequence(1))
        policy.set_weights(rlplat.get(iql.weights())[1])
    return policy


def test_it_finds_the_better_ones_among_random_decisions(tmp_path: Path) -> None:
    """The clone of uniform actions earns -4/3 at best."""
    decisions = single_decisions(tmp_path / "box")
    assert mean_reward(learnt(quick(decisions))) > -0.3
    policy = learnt(quick(choices(tmp_path / "discrete")))
    obs = np.concatenate([STATES, STATES[:, :1]], axis=1)
    assert (policy.act(obs, deterministic=True).actions == (obs[:, 0] > 0)).mean() > 0.9


def test_resumes_bit_by_bit(weak: Path) -> None:
    config = IQLConfig(
        data=str(weak), batch_size=32, updates_per_round=20, normalize_observations=True,
        policy={"hidden_sizes": [16]}, stop={"env_steps": 1_280},
    )  # fmt: skip
    [last] = assert_resumes(IQL, config, before=1, after=1)
    assert last.env_steps == 2 * 20 * 32
    assert last.metrics["learner/learning_rate"] == pytest.approx(1.5e-4), "half a cosine, halfway"


def test_ppo_goes_on_with_policy_and_values(weak: Path, tmp_path: Path) -> None:
    quickly = {"policy": {"hidden_sizes": [8], "activation": "relu"}, "evaluation": {"episodes": 0}}
    rlplat.train("iql", data=str(weak), out=tmp_path / "iql", updates_per_round=2, stop={"env_steps": 512}, **quickly)
    after = rlplat.train(
        "ppo", env="Pendulum-v1", init_from=tmp_path / "iql", out=tmp_path / "ppo", learning_rate=1e-9,
        num_rollout_workers=0, stop={"env_steps": 1}, **quickly,
    )  # fmt: skip
    one, other = rlplat.load(tmp_path / "iql").weights(), rlplat.load(tmp_path / "ppo").weights()
    assert after.result is not None and {"critic_head.weight", "log_std"} <= one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-6, err_msg=name)


def test_bad_input_is_answered(weak: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.core=lstm has no effect: recorded steps are learnt from one by one"
    ):
        IQL(quick(weak, policy={"core": "lstm"}))
    with pytest.raises(UsageError, match=r"there is no data set in .*nowhere"):
        IQL(IQLConfig(env="Pendulum-v1", data="nowhere"))
    with pytest.raises(ConfigError, match=r"was recorded in Pendulum-v1 .* but CartPole-v1 has"):
        IQL(quick(weak, env="CartPole-v1"))
    env = "tests.algorithms.test_off_policy:Spot"
    with make_vector_env(env, 1) as images, DataWriter(tmp_path / "d", env=env, spaces=images.spec) as writer:
        obs = np.repeat(np.array(images.reset(1)), 2, axis=0)
        writer.add(Episodes(obs, np.zeros((1, 1), np.float32), *map(np.array, (np.ones(1, np.float32), [1], [True]))))
        writer.close()
    with pytest.raises(UsageError, match=r"the critics of iql take numbers, but .* has images"):
        IQL(IQLConfig(data=str(tmp_path / "d")))
    mlp = IQLConfig(data=str(tmp_path / "d"), policy={"encoder": "mlp"}, batch_size=2, updates_per_round=1)
    with IQL(mlp) as iql:
        iql.step()
