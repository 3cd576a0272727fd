"""`ExternalVectorEnv`: simulators that step by themselves as one vector environment; `step` waits for their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.envs.external.frames import Leaves
from rlplat.rl.envs.external.server import SimulatorServer
from rlplat.rl.envs.external.spaces_file import make_space, read_spaces, require_inference
from rlplat.rl.envs.gym_spaces import by_path, nested, obs_parts

DEFAULT_LISTEN = ":9900"


class ExternalVectorEnv:
    """Gymnasium's vector API in the mode SAME_STEP; it listens from the first `reset` on.

    Where a simulator is lost, or says `reset` in the middle of an episode, that episode is truncated at its last
    observation, with a reward of 0 for the action whose outcome is not known.
    """

    metadata = {"autoreset_mode": "SAME_STEP"}
    seed_form = "list"

    def __init__(
        self,
        num_envs: int,
        *,
        spaces: Any = None,
        listen: str = DEFAULT_LISTEN,
        inference: str = "remote",
        **others: Any,
    ) -> None:
        """spaces: a file, or what is in it (spaces_file.py); listen: `:9900`, or `host:9900`; inference: remote."""
        if require_inference(inference) == "local":
            raise ConfigError(
                "env_kwargs.inference: local is for algorithms whose rollout workers take whole fragments: ppo, "
                "impala, a3c and dqn, with num_rollout_workers 0 or 1; set it to remote"
            )
        if others:
            raise ConfigError(
                f"an external environment has no env_kwargs.{next(iter(others))}; it has spaces, listen and inference"
            )
        self.num_envs = num_envs
        self._spaces, self._listen = read_spaces(spaces), listen
        self.single_observation_space = make_space(self._spaces["observation"], "observation")
        self.single_action_space = make_space(self._spaces["action"], "action")
        self._leaves = obs_leaves_of(self.single_observation_space)
        self._obs: dict[str, np.ndarray] = {}
        self._server: SimulatorServer | None = None

    def reset(self, *, seed: list[int] | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Waits until simulators for all environments are there. A second time nothing begins anew: when is theirs to
        say."""
        if self._server is None:
            seeds = [0] * self.num_envs if seed is None else seed
            self._server = SimulatorServer(self._listen, self._spaces, self._leaves, seeds)
            self._take()
        return nested(self.single_observation_space, self._obs), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        assert self._server is not None, "reset() comes first"
        self._server.give(by_path(self.single_action_space, actions))
        rewards, terminated, truncated, final_obs = self._take()
        info = {}
        if (terminated | truncated).any():
            info["final_obs"] = nested(self.single_observation_space, final_obs)
        return nested(self.single_observation_space, self._obs), rewards, terminated, truncated, info

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _take(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """(rewards, terminated, truncated, last observations) of all environments; `_obs` is what they observe."""
        assert self._server is not None
        before, size = self._obs, self.num_envs
        obs, final_obs = ({path: np.zeros((size, *s), d) for path, (d, s) in self._leaves.items()} for _ in range(2))
        rewards = np.zeros(size, np.float32)
        terminated, truncated = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        for envs, rows in self._server.take():
            rewards[envs], terminated[envs], truncated[envs] = (
                rows.rewards,
                rows.terminated,
                rows.truncated,
            )
            for path in self._leaves:
                obs[path][envs] = rows.obs[path]
                final_obs[path][envs] = before[path][envs] if rows.is_reset and before else rows.final_obs[path]
        self._obs = obs
        return rewards, terminated, truncated, final_obs


def obs_leaves_of(space: Any) -> Leaves:
    """Of one environment's observations, as they travel."""
    return {
        part.path: (np.dtype(part.space.dtype).name, tuple(map(int, part.space.shape))) for part in obs_parts(space)
    }
