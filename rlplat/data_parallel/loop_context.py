"""`LoopContext`: what a training function is given in each rank, as far as the frameworks have it in common.

for epoch in ctx.epochs(10):
    ...
    ctx.report(loss=loss, checkpoint=True)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from rlplat.data_parallel.rank import RankSettings, Reporting
from rlplat.errors import CheckpointError


class LoopContext(ABC):
    def __init__(self, settings: RankSettings, report: Reporting, checkpoint: dict[str, Any] | None) -> None:
        """checkpoint: what `state` returned, once."""
        self.rank, self.world_size = settings.rank, settings.world_size
        self._report, self._from = report, checkpoint
        self.checkpoint: dict[str, Any] | None = checkpoint["user"] if checkpoint else None
        """The dict that was given to `report(checkpoint=)` when the checkpoint was made; None: a fresh start."""
        self._epoch = -1

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """0 to `num_epochs` - 1; with a checkpoint from where it was made."""
        first = 0
        if self._from and self._from["epoch"] >= 0:
            first = self._from["epoch"] + (0 if self._from["is_within_pass"] else 1)
        self.begin_drawing()
        for self._epoch in range(first, num_epochs):
            yield self._epoch

    def report(
        self, metrics: dict[str, Any] | None = None, *, checkpoint: bool | dict[str, Any] = False, **more: Any
    ) -> None:
        """On every rank, between two steps. metrics: numbers and texts; of floats the mean over the ranks counts.

        checkpoint: True: all that was prepared, the place in the data, torch's random states; a dict: this as well.
        """
        self._check_all_finite()
        plain = {name: _plain(value) for name, value in {**(metrics or {}), **more}.items()}
        state = None
        if checkpoint is not False:
            state = self.state({} if checkpoint is True else checkpoint)
        self._report(plain, state)

    @abstractmethod
    def state(self, user: dict[str, Any]) -> dict[str, Any] | None:
        """Of rank 0: all; of the others what only they know. To be called on every rank."""

    def begin_drawing(self) -> None:  # noqa: B027 (TensorFlow restores none)
        """The function begins to draw samples: random numbers continue as the checkpoint left them."""

    def _saved(self, kind: str, number: int) -> Any:
        """What the checkpoint has of the number-th model, optimizer, ...; None without a checkpoint."""
        if self._from is None:
            return None
        saved = self._from[kind]
        if number >= len(saved):
            raise CheckpointError(
                f"rank {self.rank}: the checkpoint has {len(saved)} {kind}, and the function prepares more: it is of "
                "another program; begin again in another directory"
            )
        return saved[number]

    @abstractmethod
    def _check_all_finite(self) -> None:
        """NonFiniteError that names the rank."""


def _plain(value: Any) -> Any:
    if hasattr(value, "numpy") and not hasattr(value, "item"):  # TensorFlow's
        value = value.numpy()
    return value.item() if hasattr(value, "item") else value
