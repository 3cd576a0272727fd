"""Stable-Baselines3's identity environments (`stable_baselines3.common.envs`): the action must equal the observation.

Every algorithm reaches 90 of 100 within the env steps that SB3 gives its own (its tests/test_identity.py), and refuses
what it cannot take by name before anything starts. PPO stands for A3C and IMPALA where an action has several parts: the
networks and distributions are the same. ES, which SB3 does not have, counts whole episodes (40,000 env steps).
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest

from rlplat.errors import ConfigError, UsageError

pytestmark = [  # without importing it, which takes seconds, in every process that collects this file
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "stable_baselines3"))), reason="needs torch and SB3"
    ),
]

ENVS = "stable_baselines3.common.envs"
SPACES: dict[str, dict[str, Any]] = {
    "Discrete": {"env": f"{ENVS}:IdentityEnv", "env_kwargs": {"dim": 4}},
    "MultiDiscrete": {"env": f"{ENVS}:IdentityEnvMultiDiscrete", "env_kwargs": {"dim": 4}},
    "MultiBinary": {"env": f"{ENVS}:IdentityEnvMultiBinary", "env_kwargs": {"dim": 4}},
    "Box": {"env": f"{ENVS}:IdentityEnvBox", "env_kwargs": {"eps": 0.5}},
}
ONE_PROCESS: dict[str, Any] = {"num_rollout_workers": 0, "num_envs_per_worker": 1, "seed": 1}
WHOLE = {"learning_rate": 2e-3, "discount": 0.4}
ALGORITHMS = {
    "a3c": "A3C", "dqn": "DQN", "es": "ES", "impala": "Impala", "ppo": "PPO", "sac": "SAC", "td3": "TD3",
}  # fmt: skip

A3C: dict[str, Any] = {"rollout_length": 5, "updates_per_report": 5}
IMPALA: dict[str, Any] = {"num_envs_per_worker": 4, "rollout_length": 8, "num_epochs": 8, "clip_range": 0.2}
IMPALA |= {"updates_per_report": 1}
PPO: dict[str, Any] = {"rollout_length": 256, "minibatch_size": 64}
OFF_POLICY: dict[str, Any] = {"learning_starts": 100, "policy": {"hidden_sizes": [64, 64]}}
CLOSE = {"learning_rate": 1e-3, "discount": 0.95}

LEARN: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {
    ("ppo", "Discrete"): (1_200, PPO | WHOLE),
    ("ppo", "MultiDiscrete"): (1_200, PPO | WHOLE),
    ("ppo", "MultiBinary"): (1_200, PPO | WHOLE | {"num_epochs": 10, "learning_rate": 5e-3}),
    ("ppo", "Box"): (1_000, PPO | {"learning_rate": 1e-3}),
    ("a3c", "Discrete"): (1_200, A3C | WHOLE),
    ("a3c", "Box"): (2_000, A3C | CLOSE | {"policy": {"initial_log_std": -0.5}}),
    ("impala", "Discrete"): (1_200, IMPALA | WHOLE),
    ("impala", "Box"): (2_000, IMPALA | CLOSE | {"policy": {"initial_log_std": -0.5}}),
    ("dqn", "Discrete"): (1_200, WHOLE | {"learning_starts": 50, "target_period": 100}),
    ("sac", "Box"): (400, OFF_POLICY | CLOSE),
    ("td3", "Box"): (400, OFF_POLICY | CLOSE),
    ("es", "Box"): (
        40_000,
        {
            "linear_policy": True,
            "population_size": 8,
            "num_envs_per_worker": 16,
            "learning_rate": 0.1,
            "noise_std": 0.3,
            "noise_table_size": 100_000,
        },
    ),
}

CANNOT = {
    "dqn": "DQN chooses among a fixed number of actions (Discrete)",
    "sac": "SAC decides continuous actions (Box)",
    "td3": "TD3 decides continuous actions (Box)",
    "es": "es acts on vectors of numbers",
}


def made(name: str, settings: dict[str, Any]) -> Any:
    algorithm = getattr(importlib.import_module(f"rlplat.algorithms.{name}"), ALGORITHMS[name])
    return algorithm(algorithm.config_class(**(ONE_PROCESS | settings)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_become_equal_to_observations(runtime: None, name: str) -> None:
    reached = {}
    for space in SPACES:
        if name in ("a3c", "impala") and space.startswith("Multi"):
            continue
        if (name, space) not in LEARN:
            with pytest.raises((UsageError, ConfigError)) as refused:
                made(name, SPACES[space])
            for words in (CANNOT[name], SPACES[space]["env"], f" {space}("):
                assert words in str(refused.value)
            continue
        steps, settings = LEARN[name, space]
        with made(name, {**SPACES[space], **settings, "stop": {"env_steps": steps}}) as algorithm:
            while algorithm.step().env_steps < steps:
                pass
            reached[space] = np.mean([episode.episode_return for episode in algorithm.evaluate(10)])
    assert min(reached.values()) >= 90.0, reached
