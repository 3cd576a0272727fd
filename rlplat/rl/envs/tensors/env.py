"""`TensorEnvs`: environments side by side that a simulator steps on its device, with every tensor checked at the door.

envs = TensorEnvs(TensorCartPole(4096, device="cuda"), "TensorCartPole")
obs = envs.reset(seed)
step = envs.step(actions)                   # a `TensorStep`: nothing of it has been on the host

`OnHost`: the same with numpy arrays, for all that is not on the device: the other algorithms, evaluations,
`rlplat check-env`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from rlplat.errors import EnvError, UsageError
from rlplat.given.raised_at import raised_here
from rlplat.rl.envs.gym_spaces import ObsPart, obs_parts, space_spec
from rlplat.rl.envs.tensors.contract import attribute, of_reset, of_step, require_tensor_env
from rlplat.rl.interfaces import Array
from rlplat.rl.seeding import number_of
from rlplat.rl.spaces import MASK, ActionSpec

Tensors = Tensor | dict[str, Tensor]
"""Observations [B, ...], by path where they are a Dict."""


class TensorStep(NamedTuple):
    """On the device, all of it."""

    obs: Tensors
    """[B, ...]: to act on next."""
    rewards: Tensor
    """float32[B]"""
    terminated: Tensor
    truncated: Tensor
    """bool[B] each, never both."""
    final_obs: Tensors | None
    """[B, ...]: the last observations of episodes that ended in this step; None where the environment gives none."""
    means: dict[str, Tensor]
    """By name, (float32[2]: a sum over episodes that ended in this step, and of how many)."""


class TensorEnvs:
    """A raw tensor environment, its tensors in the shapes and dtypes of `spec`."""

    def __init__(self, raw: Any, name: str) -> None:
        require_tensor_env(raw, name)
        self.raw, self.name = raw, name
        self.num_envs, self.device = int(attribute(raw, "num_envs")), torch.device(attribute(raw, "device"))
        observation_space, action_space = (attribute(raw, f"single_{kind}_space") for kind in ("observation", "action"))
        self.spec = replace(space_spec(observation_space, action_space), device=str(self.device))
        self._parts, self._is_dict = obs_parts(observation_space), isinstance(self.spec.obs, dict)
        self._to_raw = _action_converter(action_space, self.spec.action, self.device)
        self.num_steps = 0

    @property
    def keeps_state(self) -> bool:
        """Whether episodes can be saved and gone on with."""
        return all(callable(attribute(self.raw, name)) for name in ("get_state", "set_state"))

    def reset(self, seed: np.random.SeedSequence) -> Tensors:
        """New episodes everywhere -> [B, ...]"""
        result = self._call(lambda: self.raw.reset(seed=number_of(seed) >> 32), "reset()")
        return self._read(of_reset(result, self.name), "observations")

    def step(self, actions: Tensor) -> TensorStep:
        """actions: [B, ...], as the policy's distribution gave them; a Box is clipped to its bounds here."""
        raw_actions = self._to_raw(actions)
        self.num_steps += 1
        result = self._call(lambda: self.raw.step(raw_actions), "step()")
        obs, rewards, terminated, truncated, info = of_step(result, self.name)
        terminated, truncated = self._row(terminated, "terminated").bool(), self._row(truncated, "truncated").bool()
        ended = terminated | truncated
        final = info.get("final_obs", info.get("final_observation"))
        return TensorStep(
            self._read(obs, "observations"),
            self._row(rewards, "rewards").float(),
            terminated,
            truncated & ~terminated,
            None if final is None else self._read(final, "final observations"),
            _means(info, ended),
        )

    def get_state(self) -> dict[str, Any]:
        """Of the environment, as numpy arrays of their own."""
        return {name: host_copy(each, name) for name, each in self.raw.get_state().items()}

    def set_state(self, state: Mapping[str, Any]) -> Tensors:
        """-> the observations there, [B, ...]"""
        raw = {name: torch.from_numpy(np.array(each)) for name, each in state.items()}
        return self._read(self._call(lambda: self.raw.set_state(raw), "set_state()"), "observations")

    def close(self) -> None:
        if callable(close := attribute(self.raw, "close")):
            close()

    def _call(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return call()
        except Exception as error:
            raise EnvError(
                f"{self.name}: {what} after {self.num_steps} steps raised {type(error).__name__}: "
                f"{error}{raised_here(error)}"
            ) from error

    def _read(self, obs: Any, what: str) -> Tensors:
        leaves = {part.path: self._leaf(obs, part, what) for part in self._parts}
        return leaves if self._is_dict else leaves[""]

    def _leaf(self, obs: Any, part: ObsPart, what: str) -> Tensor:
        name = f"{what}{f' at {part.path!r}' if part.path else ''}"
        try:
            found = reduce(getitem, part.keys, obs)
        except (KeyError, IndexError, TypeError):
            raise EnvError(f"{self.name}: {name} are not there, but in its space: change one of them") from None
        tensor = self._on_device(found, name)
        if tensor.shape != (self.num_envs, *part.space.shape):
            raise EnvError(
                f"{self.name}: {name} have shape {list(tensor.shape)}, but {self.num_envs} of its space have "
                f"{[self.num_envs, *part.space.shape]}: change one of them"
            )
        spec = part.spec
        tensor = tensor.to(_DTYPES["float32" if spec.kind == "vector" else spec.dtype])
        if spec.nvec and np.any(part.start):
            tensor = tensor - torch.as_tensor(part.start, device=self.device)
        return tensor if tensor.shape[1:] == spec.shape else tensor.reshape(self.num_envs, *spec.shape)

    def _row(self, found: Any, what: str) -> Tensor:
        tensor = self._on_device(found, what)
        if tensor.shape != (self.num_envs,):
            raise EnvError(f"{self.name}: {what} have shape {list(tensor.shape)}, expected [{self.num_envs}]")
        return tensor

    def _on_device(self, found: Any, what: str) -> Tensor:
        try:
            tensor = as_tensor(found, what)
        except UsageError as error:
            raise EnvError(f"{self.name}: {error}") from None
        if tensor.device.type != self.device.type:
            raise EnvError(
                f"{self.name}: {what} are on {tensor.device}, but the environment says device={self.device}: what is "
                "given back and forth is to lie there"
            )
        return tensor


class OnHost:
    """Gymnasium's vector API in the mode SAME_STEP."""

    metadata = {"autoreset_mode": "SAME_STEP"}
    tells_episode_metrics = True  # there are none

    def __init__(self, raw: Any, name: str) -> None:
        require_tensor_env(raw, name)
        self.raw, self._name = raw, name
        self.num_envs, self.device = int(attribute(raw, "num_envs")), str(torch.device(attribute(raw, "device")))
        self.single_observation_space = attribute(raw, "single_observation_space")
        self.single_action_space = attribute(raw, "single_action_space")
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = self.raw.reset(seed=seed)
        self._obs = self._arrays(of_reset(result, self._name))
        return self._obs, {name: result[1][name] for name in (MASK,) if name in result[1]}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        result = self.raw.step(torch.as_tensor(actions, device=self.device))
        obs, rewards, terminated, truncated, info = of_step(result, self._name)
        # Where it is not told, that of a step before stands for an episode's last one.
        final = info.get("final_obs", info.get("final_observation"))
        before, self._obs = self._obs, self._arrays(obs)
        ends = {"final_obs": before if final is None else self._arrays(final)}
        ended = [self._arrays(each).astype(np.bool_) for each in (terminated, truncated)]
        return self._obs, self._arrays(rewards).astype(np.float32), ended[0], ended[1], ends

    def close(self) -> None:
        if callable(close := attribute(self.raw, "close")):
            close()

    def _arrays(self, tensors: Any) -> Any:
        """numpy arrays in the same structure."""
        if isinstance(tensors, Mapping):
            return {key: self._arrays(each) for key, each in tensors.items()}
        if isinstance(tensors, tuple):
            return tuple(self._arrays(each) for each in tensors)
        try:
            return host_copy(tensors, "what it gives")
        except UsageError as error:
            raise EnvError(f"{self._name}: {error}") from None


_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "uint8", "int8", "int64", "bool", "float16")}


def as_tensor(found: Any, what: str) -> Tensor:
    """The array of another framework without a copy, where it speaks DLPack."""
    if isinstance(found, Tensor):
        return found
    if not hasattr(found, "__dlpack__"):
        raise UsageError(f"{what} are a {type(found).__name__}: give torch tensors, or arrays that speak DLPack")
    try:
        tensor: Tensor = torch.utils.dlpack.from_dlpack(found)
    except (BufferError, RuntimeError, TypeError) as error:
        what = f"{what} are a {type(found).__name__} of {getattr(found, 'dtype', 'an unknown dtype')}"
        raise UsageError(f"{what}, of which torch makes no tensor ({error}): give torch tensors") from None
    return tensor


def host_copy(found: Any, what: str) -> Any:
    """A numpy array of its own: the environment may write its next tensors into the same memory."""
    return as_tensor(found, what).detach().to("cpu", copy=True).numpy()


def _action_converter(space: Any, spec: ActionSpec, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From a policy's actions to what the environment takes; as `gym_spaces.action_converter`."""
    if spec.kind == "composite":
        raise UsageError(f"actions {spec} of a tensor environment: give it one Box, Discrete or MultiDiscrete")
    if spec.kind == "discrete":
        return lambda actions: actions + spec.start if spec.start else actions
    shape = tuple(space.shape)
    if spec.kind != "box":
        start = torch.as_tensor(np.asarray(getattr(space, "start", 0)), device=device)
        return lambda actions: actions.reshape(-1, *shape) + start
    low, high = (torch.as_tensor(bound, dtype=torch.float32, device=device) for bound in (space.low, space.high))
    if not np.isfinite([*spec.low, *spec.high]).any():
        return lambda actions: actions.reshape(-1, *shape)
    return lambda actions: actions.reshape(-1, *shape).clamp(low, high)


def _means(info: Mapping[str, Any], ended: Tensor) -> dict[str, Tensor]:
    """`TensorStep.means` out of what simulators tell."""
    one = torch.ones((), device=ended.device)
    found: dict[str, Tensor] = {}
    if isinstance(log := info.get("log"), Mapping):  # Isaac Lab: means over what was reset last
        for name, number in log.items():
            if isinstance(number, int | float | Tensor) and getattr(number, "ndim", 0) == 0:
                found[str(name)] = torch.stack([torch.as_tensor(number, device=ended.device).float(), one])
    final = info.get("final_info")
    if isinstance(final, Mapping) and isinstance(episode := final.get("episode"), Mapping):  # ManiSkill
        count = ended.sum()
        for name, numbers in episode.items():
            if isinstance(numbers, Tensor) and numbers.shape == ended.shape:
                total = numbers.float().masked_fill(~ended, 0.0).sum()
                found[str(name)] = torch.stack([total, count.float()])
    return found
