"""Who steps a tensor environment: the learner, on the device, or rollout workers, with copies of its tensors."""

from __future__ import annotations

from functools import reduce
from typing import Any

from rlplat.rl.spaces import SpaceSpec, obs_leaves


def why_on_host(algorithm: Any) -> str:
    """Why rollout workers step it, in words that follow a colon; empty where the learner does.

    algorithm: an `Algorithm` that has looked at its environment.
    """
    if not getattr(algorithm, "can_sample_in_learner", False) or not isinstance(algorithm.looked_at, SpaceSpec):
        return f"{algorithm.name} learns from what rollout workers bring"
    spaces, config, learner = algorithm.looked_at, algorithm.config, algorithm.config.learner
    [spec], is_on_gpu = algorithm.specs, spaces.device.startswith("cuda")
    leaves = obs_leaves(spec.obs).values()
    for key, is_hindered in {
        "num_rollout_workers": config.num_rollout_workers > 1,
        "framework": config.framework != "torch",
        "learner.backend": learner.backend == "numpy",
        "learner.num_learners": learner.num_learners > 1,
        "learner.device": learner.device != "auto" and (learner.device == "cuda") != is_on_gpu,
        "overlap_sampling": getattr(config, "overlap_sampling", False) is True,
        "random_start_steps": config.random_start_steps > 0,
        "vectorization": config.vectorization != "auto",
        "on_env_error": config.on_env_error != "fail",
        "normalize_rewards": config.normalize_rewards,
        "normalize_value": getattr(config, "normalize_value", False),
        "exploration_bonus": getattr(config, "exploration_bonus", None) is not None,
        "policy.core": spec.core != "none",
        "policy.use_sde": spec.use_sde,
        "normalize_observations": config.normalize_observations
        and any(leaf.kind not in ("vector", "mask") for leaf in leaves),
    }.items():
        if is_hindered:
            return f"{key} is {reduce(getattr, key.split('.'), config)}"
    if spec.action.kind == "composite":
        return f"actions are {spec.action}"
    if not is_on_gpu and spaces.device != "cpu":
        return "learners compute on cpu and cuda"
    if not algorithm.learner_class.__module__.startswith("rlplat."):
        return f"{algorithm.learner_class.__name__} is a learner of your own"
    home = next(base for base in type(algorithm).__mro__ if "can_sample_in_learner" in vars(base))
    own = [name for name in ("setup", "step") if getattr(type(algorithm), name) is not getattr(home, name)]
    return f"{type(algorithm).__name__}.{own[0]} is your own" if own else ""
