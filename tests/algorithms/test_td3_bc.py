"""TD3+BC: its actor's loss by hand, what it learns from random decisions, resuming, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.td3_bc import TD3BC, TD3BCConfig, TD3BCLearner, actor_loss
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.offline.dataset import DataWriter, read_episodes
from rlplat.rl.offline.episodes import Episodes
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.algorithms.recorded import mean_reward, single_decisions, weak_pendulum
from tests.states import assert_resumes

pytestmark = pytest.mark.slow


def test_lambda_is_alpha_over_the_mean_size_of_q() -> None:
    """Values -1, 3 and -8: lambda = 2.5 / 4; squared distances 0, 1, 4, 1, 0, 0 over six numbers."""
    q = torch.tensor([-1.0, 3.0, -8.0], requires_grad=True)
    actions = torch.tensor([[0.0, 1.0], [-1.0, 0.5], [0.0, 0.0]], requires_grad=True)
    recorded = torch.tensor([[0.0, 0.0], [1.0, -0.5], [0.0, 0.0]])
    loss = actor_loss(q, actions, recorded, 2.5)
    assert float(loss.detach()) == pytest.approx(1.0 - 2.5 / 4 * -2.0)
    loss.backward()
    np.testing.assert_allclose(q.grad.numpy(), -2.5 / 4 / 3, rtol=1e-6, err_msg="lambda has no gradient")  # type: ignore[union-attr]
    np.testing.assert_allclose(actions.grad.numpy(), 2 * (actions - recorded).detach().numpy() / 6)  # type: ignore[union-attr]
    for scale in (1e-3, 1e3):
        scaled = actor_loss(scale * q.detach(), actions.detach(), recorded, 2.5)
        assert float(scaled) == pytest.approx(float(loss.detach())), "the scale of the rewards does not matter"
    assert np.isfinite(float(actor_loss(torch.zeros(3), actions.detach(), recorded, 2.5)))


def test_the_actor_descends_it_at_the_recorded_actions(weak: Path) -> None:
    spaces = SpaceSpec(
        ObsSpec("vector", (3,), "float32"),
        ActionSpec("box", shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 10.0)),
    )
    config = TD3BCConfig(env="X", data=str(weak), policy={"hidden_sizes": [8]}, batch_size=5, policy_delay=1)
    spec = policy_spec(config.policy.model_dump(), spaces)
    learner = TD3BCLearner(computation_of(TD3BC), config.model_dump(), spec, None)  # type: ignore[arg-type]
    rng = np.random.default_rng(2)
    obs, next_obs = rng.normal(size=(2, 5, 3)).astype(np.float32)
    actions = np.array([[-2, 0], [2, 10], [0, 5], [1, 2.5], [2, 5]], np.float32)
    [batch] = learner.trainee.minibatches(obs, actions, *np.ones((2, 5), np.float32), next_obs)
    before = [parameter.clone() for parameter in learner.trainee.actor.parameters()]
    figures = learner.train(batch)  # the critics before the actor
    own = [parameter.detach().clone() for parameter in learner.trainee.actor.parameters()]
    with torch.no_grad():
        for parameter, old in zip(learner.trainee.actor.parameters(), before, strict=True):
            parameter.copy_(old)
    by_hand = learner.trainee.actor(batch.features).tanh()
    q = learner.trainee.critics(batch.features, by_hand)[0]
    of_bounds = torch.tensor([[-1, -1], [1, 1], [0, 0], [0.5, -0.5], [1, 0]])
    loss = ((by_hand - of_bounds) ** 2).mean() - 2.5 / float(q.detach().abs().mean()) * q.mean()
    assert figures["actor_loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    gradients = torch.autograd.grad(loss, list(learner.trainee.actor.parameters()))
    for old, new, gradient in zip(before, own, gradients, strict=True):
        torch.testing.assert_close(new, old - 3e-4 * gradient / (gradient.abs() + 1e-8), atol=1e-6, rtol=1e-4)


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weak_pendulum(tmp_path_factory.mktemp("data") / "pendulum")


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return single_decisions(tmp_path_factory.mktemp("data") / "decisions")


def quick(data: Path, **settings: Any) -> TD3BCConfig:
    small = {"seed": 2, "batch_size": 64, "updates_per_round": 70, "policy": {"hidden_sizes": [32]}}
    return TD3BCConfig(data=str(data), **small | settings)


def test_it_is_better_than_random_decisions_and_than_their_clone(decisions: Path) -> None:
    """The clone of uniform actions is none at all: a reward of -4/3."""
    rewards = {}
    for alpha in (0.0, 2.5):
        with TD3BC(quick(decisions, alpha=alpha, learning_rate=1e-2, updates_per_round=200)) as td3_bc:
            td3_bc.step()
            policy = td3_bc.make_policy(td3_bc.config.model_dump(), td3_bc.spaces, np.random.SeedSequence(1))
            policy.set_weights(rlplat.get(td3_bc.weights())[1])
            rewards[alpha] = mean_reward(policy)
    assert rewards[0.0] < -0.8 and rewards[2.5] > -0.3


def test_resumes_bit_by_bit_with_the_statistics_of_the_data(weak: Path) -> None:
    [last] = assert_resumes(TD3BC, quick(weak), before=1, after=1)
    assert last.env_steps == 2 * 70 * 64 and last.metrics["learner/updates"] == 140
    assert {"learner/critic_loss", "learner/actor_loss", "learner/q_mean"} <= last.metrics.keys()
    with TD3BC(quick(weak)) as td3_bc:
        weights = td3_bc.policy_weights(td3_bc.get_state())
    episodes = read_episodes(weak)
    obs = episodes.obs[episodes.obs_rows()]  # type: ignore[call-overload]
    np.testing.assert_allclose(weights["obs_norm.mean"], obs.mean(0), rtol=1e-5)
    np.testing.assert_allclose(weights["obs_norm.var"], obs.var(0), rtol=1e-4)


def test_bad_input_is_answered(weak: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="n_step=3 has no effect: recorded steps are learnt from one by one"):
        quick(weak, n_step=3)
    with pytest.raises(UsageError, match=r"there is no data set in .*nowhere"):
        TD3BC(TD3BCConfig(env="Pendulum-v1", data="nowhere"))
    with pytest.raises(ConfigError, match=r"was recorded in Pendulum-v1 .* but MountainCarContinuous-v0 has"):
        TD3BC(quick(weak, env="MountainCarContinuous-v0"))
    with make_vector_env("CartPole-v1", 1) as env, DataWriter(tmp_path / "d", env="CartPole-v1", spaces=env.spec) as w:
        w.add(Episodes(np.zeros((2, 4), np.float32), *map(np.array, ([1], np.ones(1, np.float32), [1], [True]))))
        w.close()
    with pytest.raises(UsageError, match=r"TD3_BC decides continuous actions.*use IQL: rlplat train --algo iql"):
        TD3BC(TD3BCConfig(data=str(tmp_path / "d")))
