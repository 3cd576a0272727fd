"""RND: its advantages and its normalisation by hand, a bonus that falls where something was seen, resuming, and a
reward that PPO finds with it only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.errors import ConfigError
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.rnd import RND, bonus_advantages
from tests.states import assert_resumes

pytestmark = pytest.mark.slow
SPACES = SpaceSpec(ObsSpec("vector", (3,), "float32"), ActionSpec("discrete", n=2))


def make(obs: ObsSpec | dict[str, ObsSpec] = SPACES.obs, **settings: Any) -> tuple[RND, PPOConfig]:
    config = PPOConfig(env="X", exploration_bonus="rnd", num_epochs=1, **settings)
    spec = policy_spec(config.policy.model_dump(), SpaceSpec(obs, SPACES.action))
    return RND(config, spec, np.random.SeedSequence(1)), config


def batch_of(obs: Any) -> SampleBatch:
    """obs: [T, B, ...]; every second episode ends in the middle."""
    batch = SampleBatch.empty(len(obs), obs[0], np.zeros(obs.shape[1], np.int64))
    batch.obs, batch.valid[:] = obs, True
    batch.terminated[len(obs) // 2, ::2] = True
    return batch


def test_advantages_are_of_what_follows_and_no_episode_ends() -> None:
    """Four rows; in the second environment the third one only resets it."""
    bonuses, values = np.array([[9, 1, 2, 4], [9, 1, 2, 4]], np.float32).T, np.array([[1, 2, 3, 5]] * 2, np.float32).T
    valid = np.ones((4, 2), np.bool_)
    valid[2, 1] = False
    found = bonus_advantages(bonuses, values, valid, 0.9, 0.5)
    third = 4 + 0.9 * 5 - 3
    second = 2 + 0.9 * 3 - 2 + 0.45 * third
    np.testing.assert_allclose(found[:, 0], [1 + 0.9 * 2 - 1 + 0.45 * second, second, third, 0], rtol=1e-6)
    left_out = 5 - 3  # to the next row's value, at no time
    second = 2 + 0.9 * 3 - 2 + 0.45 * left_out
    np.testing.assert_allclose(found[:, 1], [1 + 0.9 * 2 - 1 + 0.45 * second, second, left_out, 0], rtol=1e-6)


def test_bonuses_are_in_units_of_the_deviation_of_their_sums() -> None:
    """Two rounds, by hand: observations clipped to +-5 deviations, errors of the networks before they learn, sums that
    go on over the ends of episodes and from round to round."""
    rng = np.random.default_rng(1)
    rnd, config = make(bonus_discount=0.5)
    running, seen, sums = np.zeros(4), np.empty((0, 3)), np.empty(0)
    for _ in range(2):
        obs = rng.normal(3.0, [1.0, 5.0, 0.1], (6, 4, 3)).astype(np.float32)
        obs[2, 1] = 1e3
        seen = np.concatenate([seen, obs.reshape(-1, 3)])
        normal = np.clip((obs - seen.mean(0)) / seen.std(0), -5, 5).reshape(-1, 3)
        assert normal.max() < 5 or (normal == 5).any()
        with torch.no_grad():
            inputs = torch.from_numpy(normal.astype(np.float32))
            errors = (rnd.trained["predictor"](inputs) - rnd.target(inputs)).square().mean(1).numpy().reshape(6, 4)
        for row in errors:
            running = 0.5 * running + row
            sums = np.concatenate([sums, running])
        _, figures = rnd.learn(batch_of(obs), config)
        assert figures["learner/prediction_error"] == pytest.approx(errors.mean(), rel=1e-4)
        assert figures["learner/bonus"] == pytest.approx((errors / sums.std()).mean(), rel=1e-4)


def test_the_bonus_falls_where_something_was_seen_and_stays_elsewhere() -> None:
    rng = np.random.default_rng(1)
    rnd, config = make(learning_rate=1e-3, minibatch_size=32)
    known, other = (rng.normal(size=(1, 3)).astype(np.float32) for _ in range(2))

    def errors(obs: Any) -> float:
        tensor = torch.from_numpy(rnd._obs_statistics.normalize(obs))
        return float(rnd.errors(tensor, rnd.target(tensor)).detach())

    obs = (known + 0.1 * rng.normal(size=(32, 4, 3))).astype(np.float32)
    _, first = rnd.learn(batch_of(obs), config)
    target = {name: tensor.clone() for name, tensor in rnd.target.state_dict().items()}
    for _ in range(30):
        _, last = rnd.learn(batch_of(obs), config)
    assert last["learner/prediction_error"] < 0.1 * first["learner/prediction_error"]
    assert errors(other) > 5.0 * errors(known), "at five deviations of what was seen"
    assert all(bool((rnd.target.state_dict()[name] == tensor).all()) for name, tensor in target.items())


@pytest.mark.parametrize(
    "obs",
    [
        ObsSpec("discrete", (), "int64", nvec=(5,)),
        ObsSpec("image", (16, 16, 1), "uint8", layout="HWC", low=(0.0,), high=(255.0,)),
        {"a": ObsSpec("vector", (2,), "float32"), "b": ObsSpec("discrete", (), "int64", nvec=(3,))},
    ],
    ids=["discrete", "image", "dict"],
)
def test_takes_what_the_policy_takes(obs: Any) -> None:
    rnd, config = make(obs)
    leaves = obs if isinstance(obs, dict) else {"": obs}
    first: Any = {path: np.ones((2, *leaf.shape), leaf.dtype) for path, leaf in leaves.items()}
    batch = SampleBatch.empty(4, first if isinstance(obs, dict) else first[""], np.zeros(2, np.int64))
    batch.valid[:] = True
    advantages, figures = rnd.learn(batch, config)
    assert advantages.shape == (4, 2) and np.isfinite(advantages).all() and np.isfinite(figures["learner/bonus"])
    batch.valid[:] = False
    assert not rnd.learn(batch, config)[0].any(), "of several agents some may have had no turn"


SMALL: dict[str, Any] = {"env": "CartPole-v1", "num_rollout_workers": 0, "rollout_length": 16, "num_envs_per_worker": 2}


def test_resumes_bit_by_bit() -> None:
    [last] = assert_resumes(PPO, PPOConfig(**SMALL, exploration_bonus="rnd", deterministic=True), before=2, after=1)
    assert {"learner/bonus", "learner/prediction_error"} <= last.metrics.keys()


def test_without_a_bonus_nothing_of_it_is_there() -> None:
    with PPO(PPOConfig(**SMALL)) as ppo:
        assert ppo.step().metrics.keys().isdisjoint({"learner/bonus", "learner/prediction_error"})
        assert ppo.get_state()["learner"]["rnd"] is None


def test_a_way_of_ten_costs_is_found() -> None:
    """One of 1,024, which costs something at every step but the last."""
    sea = {"env": "rlplat.rl.envs.diagnostic:DeepSea", "env_kwargs": {"size": 10}, "num_rollout_workers": 0, "seed": 1}
    with PPO(PPOConfig(**sea, learning_rate=1e-3, entropy_coef=0.01, exploration_bonus="rnd")) as ppo:
        while (result := ppo.step()).env_steps < 20_000 and (result.episode_return_mean or 0.0) < 0.5:
            pass
    assert result.episode_return_mean is not None and result.episode_return_mean >= 0.5


def test_it_is_torchs() -> None:
    with pytest.raises(ConfigError, match=r"exploration_bonus is for framework=torch"):
        PPO(PPOConfig(**SMALL, exploration_bonus="rnd", framework="tf"))
