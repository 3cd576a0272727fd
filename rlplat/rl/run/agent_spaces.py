"""`AgentSpaces`: between what a user's loop has in hand and what a policy takes and gives.

    spaces = agent_spaces("CartPole-v1", {})                  # makes one environment, to look at it
    rows, is_batch = spaces.read(obs, mask)                   # interfaces.Obs [B, ...]; B = 1 for one observation
    action = spaces.actions(policy.act(rows).actions, is_batch)

As environments observe and act, not as policies do: nested, counted from `start`, in the space's shapes and dtypes. One
observation and many are told apart by their shapes. Whatever does not fit is a BadObservation that says what does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.errors import BadObservation, NonFiniteError
from rlplat.given.box_values import box_values
from rlplat.rl.envs.guard import has_info_mask, mask_method
from rlplat.rl.envs.gym_spaces import ObsPart, action_converter, action_row, obs_parts, space_spec
from rlplat.rl.envs.make import is_vector_env, make_single_env, make_vector_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.obs_reader import brief, obs_name
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import find_no_choice, find_not_finite
from rlplat.rl.spaces import MASK


def agent_spaces(env: Any, env_kwargs: dict[str, Any]) -> AgentSpaces:
    """Those of an environment with one agent; it is made once, and closed again."""
    source = resolve_env(env)
    if source.kind == "atari":
        with make_vector_env(env, 1, env_kwargs=env_kwargs) as vector_env:
            return AgentSpaces(vector_env.observation_space, vector_env.action_space)
    single = make_single_env(source, dict(env_kwargs))
    try:
        if is_vector_env(single):
            return AgentSpaces(single.single_observation_space, single.single_action_space)
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
        self._mask_is_observed = self.has_mask and not adds_mask
        self._alone = "obs" if adds_mask else ""
        self._convert = action_converter(action_space)

    def read(self, obs: Any, mask: Any = None) -> tuple[Obs, bool]:
        """(rows [B, ...], whether `obs` was a batch); mask: bool[L], for a batch bool[B, L]."""
        if mask is None and self._mask_is_observed and isinstance(obs, dict):
            mask = obs.get(MASK)
        leaves: dict[str, Array] = {}
        num_rows: int | None = None
        is_batch, first = False, ""
        for part in self._parts:
            array = self._array(part, obs)
            has_rows = array.ndim == len(part.space.shape) + 1
            if leaves and (has_rows != is_batch or (has_rows and len(array) != num_rows)):
                raise BadObservation(
                    f"{obs_name(part.keys)} has shape {array.shape}, but {first}; all parts are of one observation, or "
                    "of equally many"
                )
            if not leaves:
                is_batch, num_rows = has_rows, len(array) if has_rows else 1
                first = f"{obs_name(part.keys)} has shape {array.shape}"
            assert num_rows is not None
            leaves[part.path or self._alone] = array.reshape(num_rows, *part.spec.shape)
        assert num_rows is not None, "a space without leaves is refused by space_spec"
        rows: Obs = leaves if isinstance(self.spec.obs, dict) else leaves[""]
        if (found := find_not_finite(rows)) is not None:
            row, where, values = found
            raise BadObservation(
                f"NaN or infinity in observation{f' {row}' if is_batch else ''}{where}: {brief(values)}"
            )
        if self.has_mask or mask is not None:
            leaves[MASK] = self._mask(mask, num_rows, is_batch)
        return rows, is_batch

    def actions(self, actions: Array, is_batch: bool) -> Any:
        """A policy's actions as the environment takes them: Box clipped to its bounds, Discrete from its `start`."""
        if actions.dtype.kind == "f" and not np.isfinite(actions).all():
            raise NonFiniteError(f"the policy gives the action {brief(actions)}; its weights have diverged")
        converted = self._convert(actions)
        return converted if is_batch else action_row(converted, 0)

    def _array(self, part: ObsPart, obs: Any) -> Array:
        """One leaf, as the policy counts it, with or without an axis of rows."""
        for depth, key in enumerate(part.keys):
            try:
                obs = obs[key]
            except (KeyError, IndexError, TypeError):
                raise BadObservation(
                    f"{obs_name(part.keys[:depth])} is {brief(obs)} ({type(obs).__name__}) and has no {key!r}; "
                    f"expected is {self._expected()}"
                ) from None
        shape = tuple(part.space.shape)
        try:
            array = np.asarray(obs)
        except ValueError:
            raise _mismatch(part, f"is {brief(obs)}, which is no array") from None
        if array.shape != shape and array.shape[1:] != shape:
            raise _mismatch(part, f"has shape {array.shape}")
        if array.ndim > len(shape) and not len(array):
            raise _mismatch(part, f"holds no observation at all: its shape is {array.shape}")
        if part.spec.kind in ("vector", "image"):
            try:
                return box_values(array, part.space.dtype).astype(part.spec.dtype, copy=False)
            except ValueError as error:
                raise _mismatch(part, str(error)) from None
        if array.dtype.kind not in "biu":
            raise _mismatch(part, f"has dtype {array.dtype}")
        return self._from_zero(part, array)

    def _from_zero(self, part: ObsPart, whole: Array) -> Array:
        """Whole numbers as policies count them, checked against their space."""
        spec, space = part.spec, part.space
        start, num = np.array(0), np.array(2)
        if spec.kind != "multi_binary":
            start = np.asarray(part.start, np.int64).reshape(space.shape)
            num = np.array(spec.nvec).reshape(space.shape)
        if ((whole < start) | (whole >= start + num)).any():  # before a cast could wrap them
            raise BadObservation(
                f"{obs_name(part.keys)} is {brief(whole)}, which is not in its space {space}; give what the "
                "environment observes"
            )
        return (whole.astype(np.int64) - start).astype(spec.dtype)

    def _mask(self, mask: Any, num_rows: int, is_batch: bool) -> Array:
        size = self.spec.action.mask_size
        expected = (
            f"bool[{size}] for one observation, or bool[N, {size}] for N, True where an action is legal"
        )
        if not self.has_mask:
            raise BadObservation("mask= is given, but this agent was trained without action masks; omit it")
        if mask is None:
            raise BadObservation(
                f"the action mask is missing, with which this agent was trained: pass mask=, {expected} (what the "
                "environment gives as info['action_mask'] or by action_masks())"
            )
        try:
            array = np.asarray(mask)
        except ValueError:  # one array for each choice
            array = np.concatenate([np.asarray(each) for each in mask], axis=-1)
        if array.dtype.kind not in "biuf" or array.shape != ((num_rows, size) if is_batch else (size,)):
            raise BadObservation(
                f"the action mask has shape {array.shape} and dtype {array.dtype}; expected {expected}"
                + (f" (here N = {num_rows})" if is_batch else "")
            )
        rows = array.reshape(num_rows, size).astype(np.bool_)
        found = find_no_choice(rows, self.spec.action.mask_groups, np.ones(num_rows, np.bool_))
        if found is not None:
            which = f" of row {found[0]}" if is_batch else ""
            raise BadObservation(
                f"the action mask{which} has no legal action{found[1]}; the episode should have ended"
            )
        return rows

    def _expected(self) -> str:
        return f"{self.observation_space}, or the same with a leading axis in every array for many"


def _mismatch(part: ObsPart, what: str) -> BadObservation:
    shape, dtype = tuple(part.space.shape), part.space.dtype
    return BadObservation(
        f"{obs_name(part.keys)} {what}; expected {dtype}{list(shape)} for one observation, or {dtype}[N{_rest(shape)}] "
        "for N"
    )


def _rest(shape: tuple[int, ...]) -> str:
    return "".join(f", {size}" for size in shape)
