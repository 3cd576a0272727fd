"""normalize_observations where observations are a Dict: its vectors, and what stands beside an action mask."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlplat
from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR, ObsNormalizer, ObsStatistics
from rlplat.rl.run.registry import load_algorithm
from rlplat.rl.spaces import ObsSpec


class Far(gym.Env):
    """far: two numbers around 1000 and -50; near: a whole number beside them."""

    observation_space = gym.spaces.Dict(
        {
            "near": gym.spaces.Discrete(3),
            "far": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "pair": gym.spaces.Tuple([gym.spaces.Box(-1.0, 9.0, (1, 1), np.float32)]),
        }
    )

    def __init__(self, discrete: bool = True, mask: bool = False) -> None:
        self.action_space = gym.spaces.Discrete(2) if discrete else gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        if mask:
            self.action_masks = lambda: np.array([True, self.t % 2 == 0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 1.0, False, self.t == 7, {}

    def _obs(self) -> dict[str, Any]:
        far = np.array([1000.0, -50.0]) + self.np_random.normal(size=2)
        return {"near": self.t % 3, "far": far, "pair": (np.full((1, 1), 4.0, np.float32),)}


SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_length": 16, "minibatch_size": 32},
    "ppo tf": {"rollout_length": 16, "minibatch_size": 32, "framework": "tf"},
    "impala": {"rollout_length": 16},
    "a3c": {"rollout_length": 16, "updates_per_report": 20},
    "dqn": {"rollout_length": 16, "learning_starts": 8, "replay_capacity": 400, "batch_size": 8},
    "sac": {"rollout_length": 16, "learning_starts": 8, "replay_capacity": 400, "batch_size": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_vectors_of_a_dict_are_measured_by_acting_and_learning_alike(name: str) -> None:
    algo, _, framework = name.partition(" ")
    if framework:
        pytest.importorskip("tensorflow")
    algorithm_class = load_algorithm(algo)
    kwargs = {"discrete": algo != "sac", "mask": algo == "ppo"}
    settings = SMALL[name] | {"policy": {"hidden_sizes": [8]}, "num_envs_per_worker": 4}
    known = {key: value for key, value in settings.items() if key in algorithm_class.config_class.model_fields}
    config = algorithm_class.config_class(
        env=Far, env_kwargs=kwargs, num_rollout_workers=0, normalize_observations=True, **known
    )
    with algorithm_class(config) as algorithm:
        for _ in range(20):
            algorithm.step()
            weights = rlplat.get(algorithm.weights())[1]
            if OBS_MEAN in weights and weights[OBS_MEAN].any():
                break
        order = ["far", "far", "pair"]  # gymnasium sorts the keys of a Dict
        assert len(order) == len(weights[OBS_MEAN])
        np.testing.assert_allclose(weights[OBS_MEAN], [1000.0, -50.0, 4.0], atol=0.7)
        np.testing.assert_allclose(weights[OBS_VAR][:2], 1.0, atol=0.6)
        algorithm.step()
        assert algorithm.evaluate(2)[0].length == 7


def test_the_leaves_are_normalised_and_everything_else_is_left_alone() -> None:
    spec = {
        "v": ObsSpec("vector", (2, 1), "float64"),
        "camera": ObsSpec("image", (3, 4, 4), "uint8", "CHW"),
        "x": ObsSpec("vector", (), "float32"),
        "action_mask": ObsSpec("mask", (2,), "bool"),
    }
    rng = np.random.default_rng(0)
    rows: dict[str, Array] = {
        "v": rng.normal(5.0, 2.0, (3, 100, 2, 1)),
        "camera": rng.integers(255, size=(3, 100, 3, 4, 4)).astype(np.uint8),
        "x": rng.normal(-7.0, 0.5, (3, 100)).astype(np.float32),
        "action_mask": np.ones((3, 100, 2), np.bool_),
    }
    statistics = ObsStatistics(spec)
    statistics.update(rows, np.ones((3, 100), np.bool_))
    normalize = ObsNormalizer(spec)
    normalize.set_weights(statistics.weights())
    seen = normalize(rows)
    assert isinstance(seen, dict) and seen["v"].dtype == np.float32 and seen["v"].shape == (3, 100, 2, 1)
    for path in ("v", "x"):
        np.testing.assert_allclose(seen[path].mean(axis=(0, 1)), 0.0, atol=1e-4)
        np.testing.assert_allclose(seen[path].std(axis=(0, 1)), 1.0, atol=1e-3)
    assert seen["camera"] is rows["camera"] and seen["action_mask"] is rows["action_mask"]
