"""Between TensorFlow modules and `Weights`: plain numpy, float32, by dotted name, in torch's layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Weights
from rlplat.rl.tf import tf


def named_variables(module: Any) -> dict[str, tf.Variable]:
    """The trainable variables by dotted path, as torch's `named_parameters` gives them: those of a module before those
    of its parts, both in the order in which they were assigned.

    Keras layers and models, too, may be parts: theirs are `<attribute>.<number>.<kernel, bias, ...>`, once they are
    built, which a first forward pass does.
    """
    return dict(_walk(module, ""))


def _walk(value: Any, name: str) -> Iterator[tuple[str, tf.Variable]]:
    if isinstance(value, tf.Variable):
        if value.trainable:
            yield name, value
        return
    prefix = f"{name}." if name else ""
    if isinstance(value, tf.Module):
        yield from _walk_parts(vars(value), prefix)
    elif isinstance(value, list | tuple):
        yield from _walk_parts({str(i): part for i, part in enumerate(value)}, prefix)
    elif isinstance(value, dict):
        yield from _walk_parts(value, prefix)
    elif hasattr(value, "trainable_variables"):  # Keras: its variables are wrappers around TensorFlow's
        for i, variable in enumerate(value.trainable_variables):
            yield f"{prefix}{i}.{variable.name}", variable.value


def _walk_parts(parts: dict[Any, Any], prefix: str) -> Iterator[tuple[str, tf.Variable]]:
    shown = {name: part for name, part in parts.items() if not str(name).startswith("_")}
    for own in (True, False):
        for name, part in shown.items():
            if isinstance(part, tf.Variable) is own:
                yield from _walk(part, f"{prefix}{name}")


def weights_of(module: Any) -> Weights:
    """A copy of the variables as float32 numpy arrays."""
    return {
        name: np.array(variable.numpy(), np.float32) for name, variable in named_variables(module).items()
    }


def load_weights(module: Any, weights: Weights) -> None:
    """Copy weights into the module's variables; all of them or, where one does not fit, none.

    Further names (normaliser statistics) are not the module's business.
    """
    variables = named_variables(module)
    for name, variable in variables.items():
        if name not in weights:
            raise CheckpointError(
                f"weights lack {name!r}: they belong to another network than the config describes"
            )
        if weights[name].shape != tuple(variable.shape):
            raise CheckpointError(
                f"weights {name!r} have shape {weights[name].shape}, the network of the config {tuple(variable.shape)}"
            )
    for name, variable in variables.items():
        variable.assign(weights[name])
