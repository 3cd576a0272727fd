"""Keras variables: saved, restored, and the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rlplat.errors import CheckpointError


def arrays_of(variables: Sequence[Any]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def load_variables(variables: Sequence[Any], arrays: Sequence[np.ndarray], kind: str) -> None:
    """CheckpointError where they are of something else."""
    there, saved = [tuple(one.shape) for one in variables], [tuple(one.shape) for one in arrays]
    if there != saved:
        raise CheckpointError(
            f"the checkpoint is of another {kind}: it has {len(saved)} variables, and this one {len(there)}"
            + _first_difference([one.path for one in variables], there, saved)
            + ": build the same model, or begin again in another directory"
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def learning_rate_of(optimizer: Any) -> float | None:
    """None where a schedule gives it."""
    rate = _learning_rate(optimizer)
    return None if rate is None else float(rate.numpy())


def load_optimizer(optimizer: Any, arrays: Sequence[np.ndarray], made_with: float | None) -> None:
    """made_with: the learning rate that the saved optimizer was made with. Another one now, of a trial of PBT that
    copies a checkpoint, replaces the saved one, in proportion where that had moved since."""
    fresh = learning_rate_of(optimizer)
    load_variables(optimizer.variables, arrays, "optimizer")
    rate = _learning_rate(optimizer)
    if rate is None or fresh is None or made_with is None or fresh == made_with:
        return
    saved = float(rate.numpy())
    rate.assign(fresh if saved == made_with or not made_with else saved * fresh / made_with)


def _learning_rate(optimizer: Any) -> Any:
    return next((one for one in optimizer.variables if one.name == "learning_rate"), None)


def _first_difference(paths: list[str], there: list[tuple[int, ...]], saved: list[tuple[int, ...]]) -> str:
    for path, here, before in zip(paths, there, saved, strict=False):
        if here != before:
            return f"; {path} has the shape {here}, and had {before}"
    return ""


def sum_over_ranks(strategy: Any) -> Callable[[list[Any]], list[Any]]:
    """f(tensors) -> their sums over the ranks; on every rank at once, in a `tf.function` or outside."""

    def of_replica(values: list[Any]) -> list[Any]:
        own = [tf.identity(value) for value in values]  # on the device of `run`
        summed: list[Any] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)
        return summed

    of_ranks: Callable[[list[Any]], list[Any]] = tf.function(
        lambda values: strategy.run(of_replica, args=(values,)), reduce_retracing=True, autograph=False
    )
    return of_ranks


def take_values_of_rank_0(strategy: Any, rank: int, variables: Sequence[Any]) -> None:
    """Of those that are numbers with a fraction; counters and seeds are alike on all ranks."""
    floats = [one for one in variables if np.issubdtype(one.numpy().dtype, np.floating)]
    own = [one.value if rank == 0 else tf.zeros_like(one.value) for one in floats]
    for variable, value in zip(floats, sum_over_ranks(strategy)(own), strict=True):
        variable.assign(value)
