"""Data sets for algorithms that learn from recorded episodes, in the spaces of Pendulum."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.offline.dataset import DataWriter
from rlplat.rl.offline.episodes import Episodes


def weak_pendulum(path: Path) -> Path:
    """Two episodes with weak actions only."""
    rng = np.random.default_rng(0)
    with (
        make_vector_env("Pendulum-v1", 1) as env,
        DataWriter(path, env="Pendulum-v1", spaces=env.spec) as writer,
    ):
        for seed in range(2):
            actions, rewards = rng.uniform(-0.2, 0.2, (200, 1)).astype(np.float32), []
            obs = [np.array(env.reset(seed))]
            for action in actions:
                step = env.step(action[None])
                obs.append(np.array(step.obs if step.final_obs is None else step.final_obs))
                rewards.append(float(step.rewards[0]))
            writer.add(
                Episodes(
                    np.concatenate(obs),
                    actions,
                    np.array(rewards, np.float32),
                    np.array([200]),
                    np.array([False]),
                )
            )
        writer.close()
    return path


def single_decisions(path: Path) -> Path:
    """2,000 episodes of one step, of any action in any state: 2 cos is the best one, and earns 0."""
    rng, N = np.random.default_rng(0), 2_000
    obs = rng.uniform(-1, 1, (2 * N, 3)).astype(np.float32)
    actions = rng.uniform(-2, 2, (N, 1)).astype(np.float32)
    rewards = -np.square(actions - 2 * obs[::2, :1])[:, 0]
    with (
        make_vector_env("Pendulum-v1", 1) as env,
        DataWriter(path, env="Pendulum-v1", spaces=env.spec) as writer,
    ):
        writer.add(Episodes(obs, actions, rewards, np.ones(N, np.int64), np.ones(N, np.bool_)))
        writer.close()
    return path


STATES = np.random.default_rng(1).uniform(-1, 1, (500, 3)).astype(np.float32)
"""Where `single_decisions` are tried."""


def mean_reward(policy: object) -> float:
    """Of what a policy decides there."""
    actions = policy.act(STATES, deterministic=True).actions  # type: ignore[attr-defined]
    return -float(np.square(actions - 2 * STATES[:, :1]).mean())
