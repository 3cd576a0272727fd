"""What comes from the ranks, put together: reports, results, statistics and states. Pure, but for a line on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlplat.data_parallel.rank import Turn
from rlplat.errors import ConfigError, RlplatError
from rlplat.given.say import say


@dataclass(frozen=True)
class Report:
    number: int
    """From 1 on, over the whole run; one that was lost with its ranks comes again, under the same number."""
    metrics: dict[str, Any]
    state: dict[str, Any] | None
    """For a checkpoint, where the report came with one."""
    num_restarts: int


@dataclass
class Result:
    history: list[dict[str, Any]] = field(default_factory=list)
    """The metrics of every report, in their order."""
    state: dict[str, Any] | None = None
    """Of the last checkpoint."""
    path: Path | None = None
    """Where it is, if the trainer has an `out`."""
    num_restarts: int = 0

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last report."""
        return self.history[-1] if self.history else {}

    def state_dict(self, model: int = 0) -> dict[str, Any]:
        """The weights of the model that was prepared as the `model`-th, as torch tensors."""
        if self.state is None:
            raise RlplatError("no report came with a checkpoint: ctx.report(metrics, checkpoint=True)")
        from rlplat.data_parallel.torch.states import decode

        weights: dict[str, Any] = decode(self.state["models"][model])
        return weights


def merged_turns(turns: Sequence[Turn]) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """(metrics, state) of one report of all ranks; None: all have come to the end."""
    ended = [rank for rank, turn in enumerate(turns) if turn.metrics is None]
    if ended:
        if len(ended) < len(turns):
            other = next(rank for rank, turn in enumerate(turns) if turn.metrics is not None)
            raise ConfigError(
                f"rank {ended[0]} came to the end of its function after {turns[ended[0]].num_steps} steps, and rank "
                f"{other} reports in step {turns[other].num_steps}: call ctx.report on every rank, equally often"
            )
        return None
    metrics = dict(turns[0].metrics or {})
    _tell_of_counts([turn.metrics or {} for turn in turns])
    for name, value in metrics.items():
        if isinstance(value, float):
            values = [turn.metrics[name] for turn in turns if turn.metrics and name in turn.metrics]
            metrics[name] = sum(values) / len(values)
    return metrics, merged_state([turn.state for turn in turns])


_told: set[str] = set()
"""Counts of which was told."""


def _tell_of_counts(metrics: Sequence[dict[str, Any]]) -> None:
    """Whole numbers are rank 0's: one that another rank has otherwise (`correct=12`) is likely meant for all ranks."""
    for name, value in metrics[0].items():
        if type(value) is int and name not in _told and name != "num_samples":
            others = [one[name] for one in metrics if name in one]
            if any(other != value for other in others):
                _told.add(name)
                say(
                    f"'{name}' is a whole number, which is rank 0's in the report, and the ranks have "
                    f"{', '.join(map(str, others[:8]))}: report a float for the mean over the ranks"
                )


def merged_state(states: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Rank 0's, with the random states of all, where the ranks have their own."""
    if states[0] is None or "random" not in states[0]:
        return states[0]
    random = {rank: state["random"][rank] for rank, state in enumerate(states) if state}
    return states[0] | {"random": random}


def merged_stats(stats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the ranks, each with the weight of its samples; `num_samples` is the sum, counts are rank 0's."""
    samples = [one.get("num_samples", 1) for one in stats]
    _tell_of_counts(stats)
    merged: dict[str, Any] = {}
    for name, value in stats[0].items():
        if name == "num_samples":
            merged[name] = sum(samples)
        elif isinstance(value, float):
            values = [one.get(name, value) for one in stats]
            merged[name] = sum(x * n for x, n in zip(values, samples, strict=True)) / max(1, sum(samples))
        else:
            merged[name] = value
    return merged
