"""`TensorRows`: the flattened columns of a round on the learner's device, from which minibatches are taken."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rlplat.rl.interfaces import Array


class TensorRows:
    """Columns are moved to the device once; each minibatch is two or three gathers there.

    rows = TensorRows(obs, actions, {"advantages": advantages, ...}, device, images=True)
    obs, actions, columns = rows.take(indices)          # columns["advantages"]: float32[M]
    """

    def __init__(
        self,
        obs: Array,
        actions: Array,
        columns: Mapping[str, Array],
        device: torch.device,
        *,
        channels_first_images: bool,
    ) -> None:
        """obs: [N, ...]; actions: [N, ...]; columns: float32[N] each.

        `channels_first_images`: obs is [N, C, H, W]; rows are kept as [H, W, C], which is how convolutions want them
        in memory, so that the change of order is made once per round, not once per epoch.
        """
        self._names = tuple(columns)
        self._columns = torch.from_numpy(np.stack(list(columns.values()), axis=1)).to(device)
        self._actions = _tensor(actions).to(device)
        self._channels_first_images = channels_first_images
        pixels = _tensor(obs).to(device)
        if channels_first_images:
            pixels = pixels.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        self._obs = pixels
        self._device = device

    def take(self, indices: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """indices: int64[M] -> obs [M, ...] (images [M, C, H, W] in channels-last memory order), actions, columns."""
        rows = torch.from_numpy(indices).to(self._device)
        obs = self._obs.index_select(0, rows)
        if self._channels_first_images:
            obs = obs.permute(0, 3, 1, 2)
        columns = self._columns.index_select(0, rows).unbind(1)
        return obs, self._actions.index_select(0, rows), dict(zip(self._names, columns, strict=True))


def _tensor(array: Array) -> Tensor:
    # What came through shared memory is read-only; torch has no read-only tensors and warns about the alias.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
