"""`AgentSpaces`: between what a user's loop has in hand and what a policy takes and gives.

    spaces = agent_spaces("CartPole-v1", {})                  # makes one environment, to look at it
    rows, is_batch = spaces.read(obs, mask)                   # interfaces.Obs [B, ...]; B = 1 for one observation
    action = spaces.actions(policy.act(rows).actions, is_batch)

As environments observe and act, not as policies do: nested, counted from `start`, in the space's shapes and dtypes. One
observation and many are told apart by their shapes. Whatever does not fit is a BadObservation that says what does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from rlplat.acting import ActingInputs, Leaf, brief
from rlplat.errors import NonFiniteError
from rlplat.rl.envs.guard import has_info_mask, mask_method
from rlplat.rl.envs.gym_spaces import ObsPart, action_converter, action_row, obs_parts, space_spec
from rlplat.rl.envs.make import is_vector_env, make_single_env, make_vector_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.tensors.contract import attribute, is_tensor_env
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.spaces import MASK, SpaceSpec


def agent_spaces(env: Any, env_kwargs: dict[str, Any]) -> AgentSpaces:
    """Those of an environment with one agent; it is made once, and closed again."""
    source = resolve_env(env)
    if source.kind == "atari":
        with make_vector_env(env, 1, env_kwargs=env_kwargs) as vector_env:
            return AgentSpaces(vector_env.observation_space, vector_env.action_space)
    single = make_single_env(source, dict(env_kwargs))
    try:
        if is_vector_env(single) or is_tensor_env(single):
            return AgentSpaces(*(attribute(single, f"single_{of}_space") for of in ("observation", "action")))
        can_mask = space_spec(single.observation_space, single.action_space).action.mask_size > 0
        adds_mask = mask_method(single) is not None or (can_mask and has_info_mask(single))
        return AgentSpaces(single.observation_space, single.action_space, adds_mask=adds_mask)
    finally:
        if hasattr(single, "close"):
            single.close()


class AgentSpaces:
    def __init__(self, observation_space: Any, action_space: Any, *, adds_mask: bool = False) -> None:
        """Of one environment, gymnasium's; adds_mask: it gives a mask beside its observations."""
        self.observation_space, self.action_space = observation_space, action_space
        self.spec = space_spec(observation_space, action_space, adds_mask=adds_mask)
        self.has_mask = isinstance(self.spec.obs, dict) and MASK in self.spec.obs
        self._parts = [part for part in obs_parts(observation_space) if part.spec.kind != "mask"]
        self.mask_is_observed = self.has_mask and not adds_mask
        self._make_inputs()
        self._alone = "obs" if adds_mask else ""
        self._convert = action_converter(action_space)

    def _make_inputs(self) -> None:
        self.leaves = tuple(map(_leaf, self._parts))
        groups = self.spec.action.mask_groups if self.has_mask else ()
        self.inputs = ActingInputs(self.leaves, groups, self.mask_is_observed, "agent")

    def read_only(self, paths: Collection[str]) -> AgentSpaces:
        """Of the observations, these: what an actor sees where its critic sees more."""
        self._parts = [part for part in self._parts if (part.path or self._alone) in paths]
        self._make_inputs()
        return self

    def without_state(self, spec: SpaceSpec) -> AgentSpaces:
        """Of what a policy sees, `spec`, these have all but what is for its central critic."""
        self._alone = "" if isinstance(self.spec.obs, dict) and not self._alone else "obs"
        self.spec = spec
        return self

    def read(self, obs: Any, mask: Any = None) -> tuple[Obs, bool]:
        """(rows [B, ...] as the policy counts, whether `obs` was a batch); mask: bool[L], for a batch bool[B, L]."""
        arrays, masks, is_batch = self.inputs.read(obs, mask)
        leaves: dict[str, Array] = {}
        for part, array in zip(self._parts, arrays, strict=True):
            rows = array.reshape(len(array), *part.spec.shape)
            if np.any(part.start):
                rows = rows.astype(np.int64) - part.start
            leaves[part.path or self._alone] = rows.astype(part.spec.dtype, copy=False)
        if masks is not None:
            leaves[MASK] = masks
        return leaves if isinstance(self.spec.obs, dict) else leaves[""], is_batch

    def actions(self, actions: Array, is_batch: bool) -> Any:
        """A policy's actions as the environment takes them: Box clipped to its bounds, Discrete from its `start`."""
        if actions.dtype.kind == "f" and not np.isfinite(actions).all():
            raise NonFiniteError(f"the policy gives the action {brief(actions)}; its weights have diverged")
        converted = self._convert(actions)
        return converted if is_batch else action_row(converted, 0)


def _leaf(part: ObsPart) -> Leaf:
    nvec = part.spec.nvec
    start = np.broadcast_to(np.asarray(part.start, np.int64), len(nvec)).tolist() if nvec else ()
    shape, dtype = tuple(map(int, part.space.shape)), np.dtype(part.space.dtype).name
    return Leaf(part.path, part.keys, part.spec.kind, shape, dtype, nvec, tuple(start))
