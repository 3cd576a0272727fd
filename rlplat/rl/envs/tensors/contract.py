"""What is taken for a tensor environment, by what it has (also within gymnasium's wrappers):

    num_envs, device, single_observation_space, single_action_space
    reset(seed=...) -> obs, info
    step(actions) -> obs, rewards, terminated, truncated, info      with tensors [num_envs, ...] on that device

Arrays of other frameworks that speak DLPack (JAX) are taken as tensors without a copy. An episode that has ended begins
anew within the same step; the last observation of the one before is in info["final_obs"] or info["final_observation"]
(ManiSkill), or nowhere (Isaac Lab). Numbers of ended episodes: info["log"] (Isaac Lab, their means), or
info["final_info"]["episode"] (ManiSkill, [num_envs] each).

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplat.errors import EnvError


def is_tensor_env(env: Any) -> bool:
    """Whether it steps many environments as torch tensors on a device."""
    names = ("device", "num_envs", "single_observation_space")
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", "SAME_STEP")
    return all(attribute(env, name) is not None for name in names) and getattr(mode, "name", mode) == "SAME_STEP"


def require_tensor_env(env: Any, name: str) -> None:
    """EnvError for one that would go on after an episode's end."""
    home = type(getattr(env, "unwrapped", env)).__module__
    is_bare = home.startswith("mani_skill.") and not hasattr(env, "auto_reset")
    if is_bare or attribute(env, "auto_reset") is False:
        raise EnvError(
            f"{name} made a {type(env).__name__}, whose episodes do not begin again when they end: for ManiSkill, wrap "
            "it in ManiSkillVectorEnv(env), with auto_reset"
        )


def attribute(env: Any, name: str) -> Any:
    """Also of an environment within gymnasium's wrappers, which pass on no names; None where it has none."""
    found = getattr(env, name, None)
    return found if found is not None else getattr(getattr(env, "unwrapped", env), name, None)


def of_reset(result: Any, name: str) -> Any:
    """The observations. EnvError where `reset()` gave anything but (obs, info)."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvError(f"{name}: reset() returned {_kind(result)}, expected (obs, info); return obs, {{}}")
    return result[0]


def of_step(result: Any, name: str) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
    """The five of `step()`. EnvError where they are others."""
    if isinstance(result, tuple) and len(result) == 4:
        raise EnvError(
            f"{name}: step() returned 4 values, expected obs, rewards, terminated, truncated, info; split `dones` into "
            "terminated (the task ended) and truncated (time limit, extras['time_outs'] of rsl_rl)"
        )
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvError(f"{name}: step() returned {_kind(result)}, expected (obs, rewards, terminated, truncated, info)")
    if not isinstance(result[4], Mapping):
        raise EnvError(f"{name}: step() returned the info {_kind(result[4])}, expected one dict for all copies")
    return result


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}{f' of {len(value)}' if isinstance(value, tuple | list) else ''}"
