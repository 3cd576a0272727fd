"""Arrays on the learner's device: `TensorRows`, the flattened columns of a round, from which minibatches are taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.policies.spec import MIN_IMAGE_SIZES, PolicySpec
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.torch.encoders import TensorObs, channels_last, folded


class TensorRows:
    """Columns are moved to the device once, if they are not there already; each minibatch is a few gathers there.

    rows = TensorRows(spec, obs, actions, {"advantages": advantages, ...}, device)
    obs, actions, columns = rows.take(indices)          # columns["advantages"]: float32[M]
    """

    def __init__(
        self,
        spec: PolicySpec,
        obs: Obs,
        actions: Array,
        columns: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        """obs: [N, ...] or a dict of such; actions: [N, ...]; columns: float32[N] each. Arrays or tensors."""
        self._names = tuple(columns)
        if all(isinstance(column, np.ndarray) for column in columns.values()):
            beside = np.stack(list(columns.values()), axis=1) if columns else np.empty((len(actions), 0), np.float32)
            self._columns = to_device(torch.from_numpy(beside), device)
        else:
            self._columns = torch.stack(list(columns.values()), dim=1)
        self._actions = to_device(_tensor(actions), device)
        self._obs: _Leaf | dict[str, _Leaf]
        if isinstance(obs, dict):
            assert isinstance(spec.obs, dict)
            self._obs = {
                path: _Leaf(leaf, spec.obs[path], spec.encoders.get(path, ""), device) for path, leaf in obs.items()
            }
        else:
            assert isinstance(spec.obs, ObsSpec)
            self._obs = _Leaf(obs, spec.obs, spec.encoders.get("", ""), device)
        self._device = device

    def take(self, indices: Array | Tensor | None = None) -> tuple[TensorObs, Tensor, dict[str, Tensor]]:
        """indices: int64[M], None: all, without a copy -> obs [M, ...] (images [M, C, H, W] in channels-last memory
        order), actions, columns."""
        rows = None if indices is None else to_device(_tensor(indices), self._device)
        obs: TensorObs
        if isinstance(self._obs, dict):
            obs = {path: leaf.take(rows) for path, leaf in self._obs.items()}
        else:
            obs = self._obs.take(rows)
        columns, actions = (
            whole if rows is None else whole.index_select(0, rows) for whole in (self._columns, self._actions)
        )
        return obs, actions, dict(zip(self._names, columns.unbind(1), strict=True))


class _Leaf:
    """One leaf of the observations. Images and stacks of them are kept as [H, W, C], which is how convolutions want
    them in memory, so that the change of order is made once per round, not once per epoch."""

    def __init__(self, obs: Array, leaf: ObsSpec, encoder: str, device: torch.device) -> None:
        """encoder: what takes it as images; a class of the user's own gets stacks as they are."""
        layouts = ("CHW", "TCHW", "THWC") if encoder in MIN_IMAGE_SIZES else ("CHW",)
        self._channels_first = bool(encoder) and leaf.layout in layouts
        if leaf.kind == "vector" and isinstance(obs, np.ndarray):
            obs = obs.astype(np.float32, copy=False)
        self._tensor = to_device(_tensor(obs), device)
        if self._channels_first:
            self._tensor = channels_last(folded(self._tensor, leaf.layout)).permute(0, 2, 3, 1)

    def take(self, rows: Tensor | None) -> Tensor:
        taken = self._tensor if rows is None else self._tensor.index_select(0, rows)
        return taken.permute(0, 3, 1, 2) if self._channels_first else taken


def tensor_on(device: torch.device, array: Array) -> Tensor:
    """A copy there (on the CPU of floats only); float64 becomes float32."""
    tensor = _tensor(array.astype(np.float32) if array.dtype == np.float64 else array)
    # The clone lies where torch puts things: rounding must not depend on where numpy's array happened to lie.
    is_there = device.type == "cpu"
    return tensor.clone() if is_there and tensor.is_floating_point() else to_device(tensor, device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """There. A GPU copies out of page-locked memory while both go on; out of other memory only when all that it was
    told before is done."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _tensor(array: Array | Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array
    # What came through shared memory is read-only; torch has no read-only tensors and warns about the alias.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
