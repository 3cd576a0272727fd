"""Spaces of every kind, policy specs and made-up observations for them, and an environment that is nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.interfaces import Array, Episode, Obs, Step
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.spaces import MASK, ActionSpec, ObsSpec, SpaceSpec

VECTOR = ObsSpec("vector", (4,), "float32")
IMAGE = ObsSpec("image", (2, 36, 36), "uint8", "CHW")
TREE = {
    "camera": IMAGE,
    "gear": ObsSpec("discrete", (), "int64", nvec=(5,)),
    "arm/joints": ObsSpec("vector", (2, 3), "float64"),
    "arm/lamps": ObsSpec("multi_binary", (3,), "int8"),
    "arm/dials": ObsSpec("multi_discrete", (2,), "int64", nvec=(3, 2)),
}
DISCRETE = ActionSpec("discrete", n=3)
MULTI_DISCRETE = ActionSpec("multi_discrete", shape=(2,), nvec=(2, 3))
MULTI_BINARY = ActionSpec("multi_binary", shape=(3,))
BOX = ActionSpec("box", shape=(2,), dtype="float32", low=(-1.0, 0.0), high=(1.0, 5.0))
COMPOSITE = ActionSpec(
    "composite",
    parts=(("choice", DISCRETE), ("flags", MULTI_BINARY), ("move", BOX), ("pair", MULTI_DISCRETE)),
)
ACTIONS = {
    "discrete": DISCRETE,
    "multi_discrete": MULTI_DISCRETE,
    "multi_binary": MULTI_BINARY,
    "box": BOX,
    "squashed": BOX,
    "composite": COMPOSITE,
}


def make_spec(obs: ObsSpec | dict[str, ObsSpec] = VECTOR, action: ActionSpec = DISCRETE, **policy: Any) -> PolicySpec:
    """As an algorithm makes it; `policy`: settings that differ from those of `policy_settings`."""
    return policy_spec(policy_settings(**policy), SpaceSpec(obs, action))


def policy_settings(**policy: Any) -> dict[str, Any]:
    """A config's `policy` section, small."""
    small = {"hidden_sizes": [16, 8], "core_size": 8, "attention_window": 4, "attention_heads": 2}
    return PolicyConfig(**(small | policy)).model_dump()


def spec_of_actions(name: str, obs: ObsSpec | dict[str, ObsSpec] = VECTOR, **policy: Any) -> PolicySpec:
    return make_spec(obs, ACTIONS[name], squash_actions=name == "squashed", **policy)


def masked(action: ActionSpec) -> dict[str, ObsSpec]:
    return {"obs": VECTOR, MASK: ObsSpec("mask", (action.mask_size,), "bool")}


def random_obs(spec: PolicySpec, shape: tuple[int, ...], rng: np.random.Generator) -> Obs:
    """[*shape, ...] for every leaf; of a mask, something is legal in every group."""
    if isinstance(spec.obs, dict):
        return {path: _random_leaf(leaf, spec, shape, rng) for path, leaf in spec.obs.items()}
    return _random_leaf(spec.obs, spec, shape, rng)


def _random_leaf(leaf: ObsSpec, spec: PolicySpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    full = (*shape, *leaf.shape)
    if leaf.kind == "mask":
        parts = []
        for size in spec.action.mask_groups:
            part = rng.random((*shape, size)) < 0.5
            np.put_along_axis(part, rng.integers(size, size=(*shape, 1)), True, axis=-1)
            parts.append(part)
        return np.concatenate(parts, axis=-1)
    if leaf.nvec:
        return rng.integers(0, np.array(leaf.nvec).reshape(leaf.shape), full)
    if leaf.kind == "vector":
        return rng.normal(size=full).astype(leaf.dtype)
    return rng.integers(0, 256 if leaf.kind == "image" else 2, full).astype(leaf.dtype)


class RandomEnv:
    """Observations out of a random generator, episodes that end at random, in one of two autoreset modes."""

    def __init__(self, spec: PolicySpec, num_envs: int, *, next_step: bool, seed: int = 0) -> None:
        self.spec = SpaceSpec(spec.obs, spec.action)
        self.num_envs = num_envs
        self.not_saved = "random numbers"
        self._policy_spec = spec
        self._next_step = next_step
        self._rng = np.random.default_rng(seed)
        self._resetting = np.zeros(num_envs, np.bool_)
        self._obs: Obs = self._observe()

    def reset(self) -> Obs:
        return self._obs

    def step(self, actions: Array) -> Step:
        assert len(actions) == self.num_envs
        valid = ~self._resetting
        ends = (self._rng.random(self.num_envs) < 0.25) & valid
        terminated = ends & (self._rng.random(self.num_envs) < 0.5)
        last_obs, obs = self._observe(), self._observe()
        self._resetting = ends & self._next_step
        # NEXT_STEP: the last observation first, that of the next episode one row later.
        obs = last_obs if self._next_step else obs
        rewards = self._rng.normal(size=self.num_envs).astype(np.float32)
        self._obs = obs
        return Step(obs, rewards, terminated, ends & ~terminated, valid, last_obs if ends.any() else None)

    def pop_episodes(self) -> list[Episode]:
        return []

    def close(self) -> None:
        pass

    def _observe(self) -> Obs:
        observed: Obs = map_obs(np.array, random_obs(self._policy_spec, (self.num_envs,), self._rng))
        return observed
