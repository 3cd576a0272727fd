"""What a checkpoint keeps of a rollout worker: its policy's random generator and core, and its environments."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.interfaces import Array, Obs, Policy


def worker_state(policy: Policy, env: VectorEnv, *, deterministic: bool) -> dict[str, Any]:
    """`env` is None where the environments cannot be saved, or need not be (`worker_not_saved`)."""
    return {
        "policy": policy.get_state(),
        "env": env.get_state() if deterministic and not env.not_saved else None,
    }


def restore_worker(policy: Policy, env: VectorEnv, obs: Obs, state: dict[str, Any]) -> tuple[Obs, Array]:
    """Go on from `worker_state` -> (observations [B, ...] to act on next, bool[B]: a new episode begins there).

    obs: of the episodes that have just begun, for environments that were not saved.
    """
    policy.set_state(state["policy"])
    begins_anew = np.ones(env.num_envs, np.bool_)
    if state["env"] is not None:
        obs = env.set_state(state["env"])
        for reason in env.not_restored.values():
            print(f"warning: {reason}; a new episode begins there", file=sys.stderr)
        begins_anew[:] = [b in env.not_restored for b in range(env.num_envs)]
    policy.reset_core(begins_anew)
    return obs, begins_anew


def worker_not_saved(env: VectorEnv, *, deterministic: bool) -> str:
    """What `worker_state` leaves out, or the empty string."""
    if not deterministic:
        return "the states of the environments (deterministic: true saves them): after a resume new episodes start"
    return env.not_saved
