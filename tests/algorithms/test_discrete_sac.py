"""SAC for discrete actions: losses row by row, the policy that is known to be the best, resuming, learning, masks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.discrete_sac import (
    DiscreteSAC,
    DiscreteSACConfig,
    actor_loss,
    critic_loss,
    soft_targets,
)
from rlplat.errors import ConfigError, NonFiniteError, UsageError
from tests.states import assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 1,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 2,
    "learning_starts": 40,
    "env_steps_per_update": 2,
    "batch_size": 16,
    "policy": {"hidden_sizes": [16]},
    "evaluation": {"episodes": 0},
}


def test_losses_are_the_papers() -> None:
    """Row by row, in plain Python."""
    rng = np.random.default_rng(0)
    returns, discounts = rng.normal(size=4), np.array([0.99, 0.0, 0.98, 0.99])  # the second one terminated
    q, probs, alpha = rng.normal(size=(2, 4, 3)), rng.dirichlet(np.ones(3), size=4), 0.3
    tensor = torch.from_numpy
    targets = soft_targets(tensor(returns), tensor(discounts), tensor(q), tensor(np.log(probs)), alpha)
    expected = [
        returns[i]
        + discounts[i]
        * sum(probs[i, a] * (min(q[0, i, a], q[1, i, a]) - alpha * np.log(probs[i, a])) for a in range(3))
        for i in range(4)
    ]
    np.testing.assert_allclose(targets.numpy(), expected)
    assert targets[1] == returns[1]
    by_hand = sum((q[k, i, 0] - expected[i]) ** 2 / 2 for k in range(2) for i in range(4)) / 4
    np.testing.assert_allclose(float(critic_loss(tensor(q[:, :, 0]), targets)), by_hand)
    by_hand = (
        sum(
            probs[i, a] * (alpha * np.log(probs[i, a]) - min(q[0, i, a], q[1, i, a]))
            for i in range(4)
            for a in range(3)
        )
        / 4
    )
    np.testing.assert_allclose(float(actor_loss(tensor(q), tensor(np.log(probs)), alpha)), by_hand)


class Payout(gym.Env[Any, Any]):
    """One step, one state, three actions that pay 0, 0.5 and 1."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 0.5 * float(action), True, False, {}


def probabilities(algorithm: DiscreteSAC) -> Any:
    policy = algorithm.make_policy(algorithm.config.model_dump(), algorithm.spaces, np.random.SeedSequence(0))
    policy.set_weights(rlplat.get(algorithm.weights())[1])
    output = policy.act(np.ones((4_000, 1), np.float32))
    return np.bincount(output.actions, minlength=3) / 4_000


def test_the_policy_becomes_that_of_maximum_entropy(runtime: None) -> None:
    """Of one step it is known: pi(a) = exp(r_a / alpha) / sum_b exp(r_b / alpha)."""
    settings = {"entropy_coef": 0.5, "learning_rate": 3e-3, "env": f"{__name__}:Payout", "batch_size": 32}
    with DiscreteSAC(DiscreteSACConfig(**QUICK | settings)) as sac:
        np.testing.assert_allclose(probabilities(sac), 1 / 3, atol=0.15)
        for _ in range(60):
            result = sac.step()
        best = np.exp(np.arange(3))
        np.testing.assert_allclose(probabilities(sac), best / best.sum(), atol=0.05)
    assert result.metrics["learner/entropy_coef"] == 0.5


def test_alpha_brings_the_entropy_to_its_target(runtime: None) -> None:
    settings = {"target_entropy": 0.6, "learning_rate": 1e-2, "env": f"{__name__}:Payout", "batch_size": 32}
    with DiscreteSAC(DiscreteSACConfig(**QUICK | settings)) as sac:
        results = [sac.step() for _ in range(100)]
    assert np.mean([r.metrics["learner/entropy"] for r in results[-20:]]) == pytest.approx(0.6, abs=0.1)


def test_resumes_bit_by_bit(runtime: None) -> None:
    config = DiscreteSACConfig(**QUICK, deterministic=True, normalize_observations=True, n_step=2)
    [*_, last] = assert_resumes(DiscreteSAC, config, before=4, after=2)
    assert last.metrics["learner/updates"] > 50


def test_masked_actions_are_never_taken(runtime: None) -> None:
    """An illegal one ends the episode there: lengths would differ."""
    settings = {"env": "rlplat.rl.envs.diagnostic:MaskedChoice", "entropy_coef": 0.1}
    with DiscreteSAC(DiscreteSACConfig(**QUICK | settings)) as sac:
        results = [sac.step() for _ in range(8)]
        lengths = {episode.length for episode in sac.evaluate(10)}
    assert len(lengths) == 1 and np.isfinite(results[-1].metrics["learner/actor_loss"])


def test_learns_cartpole(runtime: None) -> None:
    settings = {
        "num_envs_per_worker": 1,
        "rollout_length": 32,
        "learning_starts": 500,
        "batch_size": 64,
        "learning_rate": 1e-3,
        "target_entropy": 0.2,
        "target_tau": 0.02,
        "policy": {"hidden_sizes": [64, 64]},
        "stop": {"env_steps": 5_000},
    }
    with DiscreteSAC(DiscreteSACConfig(**QUICK | settings)) as sac:
        while sac.step().env_steps < 5_000:
            pass
        assert np.mean([episode.episode_return for episode in sac.evaluate(10)]) > 150, "22 by chance"


def test_what_it_cannot_take(runtime: None) -> None:
    with pytest.raises(UsageError, match=r"DISCRETE_SAC chooses among .* use SAC"):
        DiscreteSAC(DiscreteSACConfig(env="Pendulum-v1"))
    with pytest.raises(ConfigError, match=r"policy\.core=gru, but discrete_sac replays single transitions"):
        DiscreteSAC(DiscreteSACConfig(**QUICK | {"policy": {"core": "gru"}}))


@pytest.mark.parametrize("non_finite", ["stop", "skip"])
def test_what_is_not_finite_ends_the_run_or_is_left_out(runtime: None, non_finite: str) -> None:
    with DiscreteSAC(DiscreteSACConfig(**QUICK, non_finite=non_finite)) as sac:
        sac.step()
        state = sac.get_state()
        state["learner"]["replay"]["store"]["columns"]["returns"][:] = np.nan
        sac.set_state(state)
        if non_finite == "stop":
            with pytest.raises(NonFiniteError, match=r"batch columns \['returns'\]"):
                sac.step()
        else:
            assert sac.step().metrics["learner/skipped_minibatches"] > 0
