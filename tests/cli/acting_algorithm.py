"""The counting algorithm with weights and a policy: for the commands that act and evaluation beside the training."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlplat
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Episode, Policy, PolicyOutput, Weights
from rlplat.rl.spaces import SpaceSpec
from tests.cli.counting_algorithm import CountingAlgorithm, CountingConfig


class ActingConfig(CountingConfig):
    best_at: int = 0
    """Iteration from which on the policy gets worse; 0: never."""


class SkilledPolicy:
    """SeededEnv's reward is its action, and that is the skill: an episode's return is 5 times the skill."""

    core_state = np.zeros((0, 0), np.float32)

    def set_weights(self, weights: Weights) -> None:
        self.skill = float(weights["skill"][0])

    def act(self, obs: Any, *, deterministic: bool = False) -> PolicyOutput:
        zeros = np.zeros(len(obs), np.float32)
        return PolicyOutput(np.tile(np.array([self.skill, 0.0], np.float32), (len(obs), 1)), zeros, zeros)

    def values(self, obs: Any) -> np.ndarray:
        return np.zeros(len(obs), np.float32)

    def reset_core(self, ended: np.ndarray) -> None: ...

    def seed(self, seed: np.random.SeedSequence) -> None: ...

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None: ...


def skill(iteration: int, best_at: int) -> Weights:
    distance = abs(iteration - best_at) if best_at else 64 - iteration
    return {"skill": np.array([1.0 - distance / 64], np.float32)}


class ActingAlgorithm(CountingAlgorithm):
    name = "acting"
    config_class = ActingConfig

    def __init__(self, config: ActingConfig) -> None:
        super().__init__(config)
        rlplat.init(backend="inproc")
        with make_vector_env(config.env, 1, env_kwargs=config.env_kwargs) as env:
            self.spaces = str(env.spec)

    def weights(self) -> Any:
        return rlplat.put((self.iteration, skill(self.iteration, self.config.best_at)))

    def evaluate(self, episodes: int) -> list[Episode]:
        raise AssertionError("nobody asks an algorithm that has weights() and make_policy")

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"best_at": self.config.best_at}

    @staticmethod
    def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        return SkilledPolicy()

    @staticmethod
    def policy_weights(state: dict[str, Any]) -> Weights:
        return skill(state["iteration"], state["best_at"])

    def close(self) -> None:
        super().close()
        rlplat.shutdown()
