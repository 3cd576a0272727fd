"""`ESWorker`: which episodes it plays, what it returns, and that nobody else's work or death changes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.algorithms.es import (
    ES,
    ESConfig,
    ESWorker,
    mlp_shape,
    seed_of,
    share_of_population,
)
from rlplat.errors import EnvError, NonFiniteError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Weights
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.policies.perturbed_mlp import make_noise
from rlplat.rl.sampling.perturbed_episodes import ObsGatherer, Returns, join_returns
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

ENVS = "tests.algorithms.es_envs"
NOISE = make_noise(10_000, np.random.SeedSequence(0))


def config_of(env: str, **settings: Any) -> ESConfig:
    defaults: dict[str, Any] = {
        "env": env if "-v" in env else f"{ENVS}:{env}",
        "seed": 5,
        "num_rollout_workers": 0,
        "population_size": 6,
        "num_envs_per_worker": 4,
        "noise_std": 0.1,
        "normalize_observations": False,
        "policy": {"hidden_sizes": [3]},
    }
    return ESConfig(**(defaults | settings))


def worker_of(config: ESConfig, index: int = 0) -> ESWorker:
    return ESWorker(computation_of(ES), config.model_dump(), index, NOISE)


def weights_of(config: ESConfig, spaces: SpaceSpec, seed: int = 1) -> Weights:
    shape = mlp_shape(config, spaces)
    theta = np.random.default_rng(seed).standard_normal(shape.num_params).astype(np.float32)
    statistics = {
        OBS_MEAN: np.zeros(shape.obs_shape, np.float32),
        OBS_VAR: np.ones(shape.obs_shape, np.float32),
    }
    return shape.named(theta) | (statistics if config.normalize_observations else {})


def sample(config: ESConfig, index: int = 0, version: int = 0) -> Returns:
    worker = worker_of(config, index)
    returns = worker.sample((version, weights_of(config, worker._env.spec)))
    worker.close()
    return returns


def assert_equal(one: Returns, other: Returns) -> None:
    """All but the seconds."""
    for name, left, right in zip(Returns._fields, one, other, strict=True):
        if name == "seconds":
            continue
        np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize("num_envs", [1, 4, 16])
def test_returns_are_those_of_the_mirrored_perturbations(num_envs: int) -> None:
    settings = {"num_envs_per_worker": num_envs, "linear_policy": True}
    config = config_of("TargetEnv", episodes_per_perturbation=2, **settings)
    spec = SpaceSpec(ObsSpec("vector", (2,), "float32"), ActionSpec("box", shape=(1,), low=(-100.0,), high=(100.0,)))
    theta = mlp_shape(config, spec).flat(weights_of(config, spec))
    got = sample(config)
    assert got.returns.shape == got.lengths.shape == (6, 2, 2) and (got.lengths == 3).all()

    def expected(parameters: np.ndarray) -> float:
        action = parameters[0] + 2.0 * parameters[1] + parameters[2]
        return float(-3.0 * (action - 2.0) ** 2)

    for index, returns in zip(got.indices.tolist(), got.returns, strict=True):
        noise = 0.1 * NOISE[index : index + 3]
        np.testing.assert_allclose(returns[0], expected(theta + noise), rtol=1e-4)
        np.testing.assert_allclose(returns[1], expected(theta - noise), rtol=1e-4)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_episode_follows_from_its_place(vectorization: str) -> None:
    """Of RandomLengthEnv, whose reset decides everything: none is left out because it is long."""
    config = config_of("RandomLengthEnv", population_size=10, vectorization=vectorization)
    got = sample(config)
    expected = []
    with make_vector_env(config.env, 1) as env:
        for place in range(10):
            env.reset([seed_of(5, "episodes", 0, place).spawn(1)[0]])
            total, length, step = 0.0, 0, None
            while step is None or not step.truncated[0]:
                step = env.step(np.zeros(1, np.int64))
                total, length = total + float(step.rewards[0]), length + 1
            expected.append((total, length))
    assert len({length for _, length in expected}) > 4
    np.testing.assert_array_equal(got.returns[:, 0, 0], [episode_return for episode_return, _ in expected])
    np.testing.assert_array_equal(got.lengths[:, 0, 0], [length for _, length in expected])
    # Common random numbers: the other half of every pair met the same episode.
    np.testing.assert_array_equal(got.returns[:, 1], got.returns[:, 0])


def test_the_same_version_is_the_same_whoever_plays_it_and_whatever_came_before() -> None:
    config = config_of("RandomLengthEnv", normalize_observations=True, obs_gathering_probability=0.5)
    first = sample(config)
    worker = worker_of(config)
    weights = weights_of(config, worker._env.spec)
    other = worker.sample((1, weights))
    assert (other.indices != first.indices).all() and (other.returns != first.returns).any()
    assert_equal(worker.sample((0, weights)), first)
    worker.close()


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"population_size": 7}),
        ("Pendulum-v1", {"env_kwargs": {"max_episode_steps": 20}, "episodes_per_perturbation": 2}),
        ("RandomLengthEnv", {}),
    ],
)
def test_returns_do_not_depend_on_the_number_of_workers(env: str, settings: dict[str, Any]) -> None:
    """Nor on how many environments each of them steps side by side."""
    settings |= {"normalize_observations": True, "obs_gathering_probability": 0.5}
    alone = sample(config_of(env, **settings))
    for number, num_envs in ((1, 1), (2, 4), (3, 2)):
        config = config_of(env, **settings, num_rollout_workers=number, num_envs_per_worker=num_envs)
        joined, *shares = [sample(config, index) for index in range(number)]
        for share in shares:
            joined = join_returns(joined, share)
        for name in ("indices", "returns", "lengths"):
            np.testing.assert_array_equal(getattr(joined, name), getattr(alone, name), err_msg=name)
        np.testing.assert_allclose(joined.obs_sums, alone.obs_sums, rtol=1e-12)


def test_shares_add_up() -> None:
    for number in (1, 3, 7, 40):
        config = config_of("TargetEnv", population_size=41, num_rollout_workers=number)
        shares = [share_of_population(config, index) for index in range(number)]
        assert [pair for share in shares for pair in share] == list(range(41))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_gathered_sums_are_those_of_the_episodes_that_were_played() -> None:
    config = config_of("RandomLengthEnv", normalize_observations=True, obs_gathering_probability=1.0, population_size=4)
    got = sample(config)
    rewards = (got.returns / got.lengths)[..., 0].reshape(-1)  # the same in every step, and the first number seen
    rows = np.concatenate(
        [
            [(reward, step) for step in range(length)]
            for reward, length in zip(rewards, got.lengths[..., 0].reshape(-1), strict=True)
        ]
    )
    np.testing.assert_allclose(got.obs_sums, [len(rows), *rows.sum(axis=0), *(rows**2).sum(axis=0)], rtol=1e-6)


def test_without_statistics_all_episodes_are_gathered() -> None:
    settings = {"normalize_observations": True, "obs_gathering_probability": 1e-9}
    config = config_of("RandomLengthEnv", **settings)
    got = sample(config)
    assert got.obs_sums[0] == got.lengths.sum()
    worker = worker_of(config)
    measured = weights_of(config, worker._env.spec) | {OBS_MEAN: np.ones(2, np.float32)}
    assert not worker.sample((0, measured)).obs_sums.size
    worker.close()


def test_gathering_far_from_zero_keeps_the_variance() -> None:
    """Sums of squares around 0 would have lost it: 1e8^2 has no digits left for 1e-2."""
    reference = np.full(1, 1e8)
    gatherer = ObsGatherer(reference)
    gatherer.begin(1, True)
    obs = 1e8 + np.random.default_rng(1).normal(0.5, 0.1, (5000, 2, 1))
    for one in obs:
        gatherer.add(one)
    number, total, squares = gatherer.sums()
    assert number == 5000
    variance = squares / number - (total / number) ** 2
    assert variance == pytest.approx(obs[:, 1].var(), rel=1e-6)


def test_a_reward_that_is_no_number_is_named() -> None:
    with pytest.raises(
        EnvError, match=r"NanRewardEnv \(environment 0 of 0\.\.3\), step 40 .* NaN or infinity in the reward"
    ):
        sample(config_of("NanRewardEnv"))


def test_weights_that_have_diverged_are_named() -> None:
    config = config_of("TargetEnv")
    worker = worker_of(config)
    weights = weights_of(config, worker._env.spec)
    weights["actor_head.bias"][:] = np.nan
    with pytest.raises(NonFiniteError, match="its weights have diverged"):
        worker.sample((0, weights))
    worker.close()
