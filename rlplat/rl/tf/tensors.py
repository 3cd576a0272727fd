"""Arrays of observations and actions as TensorFlow takes them, and the signatures of functions over them.

A `tf.function` is traced again for every new shape unless it is told which axes vary: here always the first.

`weights_of`, `load_weights`: between modules and `Weights`, plain numpy, float32, by dotted name, in torch's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.policies.framework_check import weight_for
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ActionSpec, ObsSpec
from rlplat.rl.tf import tf

FLOAT = tf.TensorSpec([], tf.float32)


def graph(function: Callable[..., Any], *signature: Any) -> Any:
    """The function as one graph for all calls. What it does is written in TensorFlow's own control flow: rewriting its
    source (autograph) would only take time; a network of the user's own that wants it decorates its __call__."""
    return tf.function(function, input_signature=list(signature), autograph=False)


def rows(*shape: int, dtype: tf.DType = tf.float32) -> tf.TensorSpec:
    """[any number, *shape]"""
    return tf.TensorSpec([None, *shape], dtype)


def obs_signature(obs: ObsSpec | dict[str, ObsSpec]) -> Any:
    """Of observations [N, ...], or a dict of such by path."""
    if isinstance(obs, dict):
        return {path: obs_signature(leaf) for path, leaf in obs.items()}
    return rows(*obs.shape, dtype=tf.as_dtype(_dtype(obs)))


def action_signature(action: ActionSpec) -> tf.TensorSpec:
    if action.kind == "discrete":
        return rows(dtype=tf.int64)
    is_float = action.kind in ("box", "composite")
    return rows(action.flat_size, dtype=tf.float32 if is_float else tf.int64)


def obs_tensors(obs: Obs, spec: PolicySpec) -> Any:
    """The observations as tensors that fit `obs_signature(spec.obs)`."""
    if isinstance(obs, dict):
        assert isinstance(spec.obs, dict)
        return {path: _tensor(obs[path], leaf) for path, leaf in spec.obs.items()}
    assert isinstance(spec.obs, ObsSpec)
    return _tensor(obs, spec.obs)


def sample_obs(spec: PolicySpec, num_rows: int) -> Any:
    """Made-up observations: ones in a mask (everything is legal), zeros elsewhere."""
    if isinstance(spec.obs, dict):
        return {path: _sample_leaf(leaf, num_rows) for path, leaf in spec.obs.items()}
    return _sample_leaf(spec.obs, num_rows)


def _sample_leaf(leaf: ObsSpec, num_rows: int) -> tf.Tensor:
    fill = np.ones if leaf.kind == "mask" else np.zeros
    return tf.convert_to_tensor(fill((num_rows, *leaf.shape), _dtype(leaf)))


def _tensor(array: Array, leaf: ObsSpec) -> tf.Tensor:
    return tf.convert_to_tensor(array.astype(_dtype(leaf), copy=False))


def _dtype(leaf: ObsSpec) -> np.dtype:
    """Numbers of vectors are float32 in every network, whatever the environment's dtype."""
    return np.dtype(np.float32 if leaf.kind == "vector" else leaf.dtype)


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
    return {name: np.array(variable.numpy(), np.float32) for name, variable in named_variables(module).items()}


def load_weights(module: Any, weights: Weights) -> None:
    """Copy weights into the module's variables; all of them or, where one does not fit, none.

    Further names (normaliser statistics) are not the module's business.
    """
    variables = named_variables(module)
    fitting = [weight_for(weights, name, variable.shape) for name, variable in variables.items()]
    for variable, weight in zip(variables.values(), fitting, strict=True):
        variable.assign(weight)
