"""Where NaN or infinity is first to be seen in an update, for the error that ends a run (`non_finite: stop`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from rlplat.errors import NonFiniteError
from rlplat.rl.interfaces import Obs


def non_finite_error(
    *,
    columns: Mapping[str, Obs],
    losses: Mapping[str, float],
    gradients: Callable[[], list[str]],
    place: str,
    version: int,
    scaling: str,
) -> NonFiniteError:
    """columns: what the loss was computed from; losses: its terms; gradients: names of those that are not finite;
    place: of the minibatch, for the user; version: of the weights; scaling: what makes such numbers smaller."""
    inputs = [
        name
        for name, column in columns.items()
        for leaf in (column.values() if isinstance(column, dict) else [column])
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()
    ]
    terms = [name for name, value in losses.items() if not math.isfinite(value)]
    if inputs:
        where = f"batch columns {inputs}"
    elif terms:
        where = f"loss terms {terms}"
    else:
        where = f"gradients {gradients()}"
    return NonFiniteError(
        f"NaN or infinity in the {where} {place}; weights of version {version} are unharmed. Lower learning_rate, "
        f"{scaling}, or omit such minibatches: --set non_finite=skip"
    )
