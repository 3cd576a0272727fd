"""PQN: Q(lambda) returns and the loss row by row; what learns is what acted; epsilon, resuming, learning, masks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlplat
from rlplat.algorithms.pqn import PQN, PQNConfig, TorchPQN
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.policies.exploration import EPSILON
from tests.states import assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 1,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 4,
    "rollout_length": 16,
    "num_epochs": 2,
    "minibatch_size": 16,
    "policy": {"hidden_sizes": [16]},
    "evaluation": {"episodes": 0},
    "stop": {"env_steps": 1_000},
}


class Turns(gym.Env[Any, Any]):
    """Observes the step of the episode; episodes terminate at step 3 and are cut off at step 4, in turns."""

    observation_space = gym.spaces.Box(0.0, 4.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = (self.t == 3, False) if self.episode % 2 == 0 else (False, self.t == 4)
        return np.full(1, self.t, np.float32), 10.0 * self.t + float(action), *ends, {}


@pytest.mark.parametrize("env", [f"{__name__}:Turns", "CartPole-v1"])
def test_returns_are_those_of_q_lambda(runtime: None, monkeypatch: pytest.MonkeyPatch, env: str) -> None:
    """Equation 12 row by row, in plain Python: terminations, cut-offs, rows of a reset (CartPole's), the last row."""
    loaded: list[Any] = []
    load = TorchPQN.load
    monkeypatch.setattr(TorchPQN, "load", lambda self, rollout: (loaded.append(rollout), load(self, rollout)) and None)
    settings = {"env": env, "rollout_length": 40, "learning_rate": 0.0, "discount": 0.9, "q_lambda": 0.7}
    settings |= {"num_epochs": 1, "minibatch_size": 1_000}
    if env == "CartPole-v1":
        settings["env_kwargs"] = {"max_episode_steps": 12}
    with PQN(PQNConfig(**QUICK | settings)) as pqn:
        result = pqn.step()
        policy = pqn.make_policy(pqn.config.model_dump(), pqn.spaces, np.random.SeedSequence(0))
        policy.set_weights(rlplat.get(pqn.weights())[1])
    [rollout] = loaded[1:]  # the first one is made up
    batch = rollout.batch

    def value_after(t: int, b: int) -> float:
        if env != "CartPole-v1":
            following = np.full((1, 1), batch.obs[t, b, 0] + 1.0, np.float32)
        elif t == 39:
            return float(batch.next_values[t, b])
        else:
            following = batch.obs[t + 1, b][None]
        return float(policy.q_values(following).max())

    seen = {"terminated": 0, "truncated": 0, "reset": 0}
    for b in range(4):
        later = 0.0
        for t in range(39, -1, -1):
            if not batch.valid[t, b]:
                seen["reset"] += 1
                continue
            expected = batch.rewards[t, b]
            if not batch.terminated[t, b]:
                share = 0.0 if batch.truncated[t, b] or t == 39 else 0.7
                expected += 0.9 * (share * later + (1.0 - share) * value_after(t, b))
            assert rollout.returns[t, b] == pytest.approx(expected, rel=1e-5)
            later = expected
            for name in ("terminated", "truncated"):
                seen[name] += getattr(batch, name)[t, b]
    q_taken = [policy.q_values(batch.obs[t])[range(4), batch.actions[t]] for t in range(40)]
    squares = np.square(np.array(q_taken) - rollout.returns)[batch.valid]
    assert result.metrics["learner/loss"] == pytest.approx(0.5 * squares.mean(), rel=1e-4)
    assert seen["terminated"] and seen["truncated"] and bool(seen["reset"]) == (env == "CartPole-v1")


KINDS: dict[str, dict[str, Any]] = {
    "vector, normalised": {"normalize_observations": True},
    "mask": {"env": "rlplat.rl.envs.diagnostic:MaskedChoice"},
    "core": {"policy": {"hidden_sizes": [8], "core": "gru", "core_size": 6}, "env": f"{__name__}:Turns"},
    "image": {"env": f"{__name__}:Picture", "learner": {"num_threads": 1, "precision": "float32"}},
    "several agents": {"env": "rlplat.rl.envs.diagnostic_multi_agent:Rendezvous"},
}


class Picture(Turns):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def reset(self, **arguments: Any) -> Any:
        super().reset(**arguments)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return self.observation_space.sample(), *rest


COMPARED: list[Any] = []


class Compared(PQN):
    @staticmethod
    def loss(network: Any, minibatch: Any, config: Any) -> Any:
        q = network.q_values(network(minibatch.obs, minibatch.state, minibatch.starts)[0])
        if isinstance(minibatch.obs, dict):
            q = q.masked_fill(~minibatch.obs["action_mask"].bool(), -torch.inf)
        values = q.max(dim=1).values
        COMPARED.append((values if minibatch.counted is None else values[minibatch.counted], minibatch.values))
        return values.mean(), {}


@pytest.mark.parametrize("kind", KINDS)
def test_what_learns_sees_what_acted(runtime: None, kind: str) -> None:
    """With weights that stay the same the learner's max_a Q of legal actions are the values of the rollout."""
    COMPARED.clear()
    with Compared(PQNConfig(**QUICK | {"learning_rate": 0.0} | KINDS[kind])) as pqn:
        for _ in range(3):
            pqn.step()
    assert len(COMPARED) > 9
    for ours, acted in COMPARED[1:]:  # the first ones are made up
        torch.testing.assert_close(ours, acted, rtol=1e-4, atol=1e-5)


def test_epsilon_follows_the_env_steps(runtime: None) -> None:
    epsilon = {"schedule": "linear", "start": 1.0, "end": 0.2, "until": 0.5}
    with PQN(PQNConfig(**QUICK, epsilon=epsilon)) as pqn:
        steps, published = [0], [float(rlplat.get(pqn.weights())[1][EPSILON][0])]
        acted = []
        while steps[-1] < 700:
            result = pqn.step()
            acted.append(result.metrics["learner/epsilon"])
            steps.append(result.env_steps)
            published.append(float(rlplat.get(pqn.weights())[1][EPSILON][0]))
    expected = [max(0.2, 1.0 - 0.8 * step / 500) for step in steps]
    np.testing.assert_allclose(published, expected, rtol=1e-6)
    np.testing.assert_allclose(acted, expected[:-1])


def test_resumes_bit_by_bit(runtime: None) -> None:
    more = {"deterministic": True, "num_rollout_workers": 2, "num_envs_per_worker": 2, "normalize_observations": True}
    [*_, last] = assert_resumes(PQN, PQNConfig(**QUICK | more), before=3, after=3)
    assert last.metrics["learner/loss"] > 0


def test_learns_a_small_task(runtime: None) -> None:
    """Which of the legal actions pays: a third by chance, and an illegal one ends the episode."""
    settings = {
        "env": "rlplat.rl.envs.diagnostic:MaskedChoice",
        "num_envs_per_worker": 16,
        "minibatch_size": 128,
        "learning_rate": 5e-3,
        "discount": 0.5,
        "policy": {"hidden_sizes": [64]},
        "stop": {"env_steps": 12_000},
    }
    with PQN(PQNConfig(**QUICK | settings)) as pqn:
        untrained = np.mean([e.episode_return for e in pqn.evaluate(10)])
        while pqn.step().env_steps < 12_000:
            pass
        episodes = pqn.evaluate(10)
    assert {e.length for e in episodes} == {20}
    trained = np.mean([e.episode_return for e in episodes])
    assert trained > 1.5 * untrained + 2, (untrained, trained)


def test_what_it_cannot_take(runtime: None) -> None:
    with pytest.raises(UsageError, match=r"PQN chooses among .* use SAC"):
        PQN(PQNConfig(env="Pendulum-v1", num_rollout_workers=0))
    for setting, why in (
        ({"value_coef": 1.0}, "value_coef=1.0 has no effect: the loss is of Q alone"),
        ({"learner": {"num_learners": 2}}, "there is one learner"),
        ({"framework": "tf"}, "PQN computes with torch"),
    ):
        with pytest.raises((ConfigError, ValueError), match=why):
            PQN(PQNConfig(**QUICK | setting))
