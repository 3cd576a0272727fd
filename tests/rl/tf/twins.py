"""The same network on torch and on TensorFlow, with the same weights; observations and actions for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.obs_tree import put_obs, take_obs
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.spaces import MASK, ActionSpec, ObsSpec, SpaceSpec

VECTOR = ObsSpec("vector", (4,), "float32")
IMAGE = ObsSpec("image", (2, 45, 53), "uint8", "CHW")  # the last convolution leaves 2 x 3: their order matters
DISCRETE = ActionSpec("discrete", n=3)
BOX = ActionSpec("box", shape=(2,), dtype="float32", low=(-1.0, 0.0), high=(1.0, 4.0))
MULTI_DISCRETE = ActionSpec("multi_discrete", shape=(2,), nvec=(3, 2))
MULTI_BINARY = ActionSpec("multi_binary", shape=(3,))
COMPOSITE = ActionSpec(
    "composite", parts=(("move", BOX), ("turn", DISCRETE), ("keys", MULTI_BINARY), ("pick", MULTI_DISCRETE))
)


def masked(action: ActionSpec, obs: ObsSpec = VECTOR) -> SpaceSpec:
    mask = ObsSpec("mask", (action.mask_size,), "bool")
    return SpaceSpec({"obs": obs, MASK: mask}, action)


TREE = {
    "camera": IMAGE,
    "robot/joints": VECTOR,
    "0": ObsSpec("discrete", (), "int64", nvec=(3,)),
    "1/x": ObsSpec("multi_discrete", (2,), "int64", nvec=(2, 4)),
    "lamps": ObsSpec("multi_binary", (3,), "int8"),
    "icon": ObsSpec("image", (4, 4, 1), "uint8", "HWC"),  # too small for a CNN
}
CORE = {"core_size": 8, "attention_window": 3, "attention_heads": 2}


def spec_of(spaces: SpaceSpec, **policy: Any) -> PolicySpec:
    return policy_spec(PolicyConfig(**({"hidden_sizes": [16, 8]} | policy)).model_dump(), spaces)


SPECS: dict[str, Callable[[], PolicySpec]] = {
    "mlp": lambda: spec_of(SpaceSpec(VECTOR, DISCRETE)),
    "mlp shared relu": lambda: spec_of(SpaceSpec(VECTOR, DISCRETE), share_encoder=True, activation="relu"),
    "mlp normalised, critic of its own": lambda: spec_of(
        SpaceSpec(VECTOR, DISCRETE), activation="elu", layer_norm=True, critic_hidden_sizes=[5]
    ),
    **{
        name: lambda name=name: spec_of(SpaceSpec(VECTOR, DISCRETE), activation=name)  # type: ignore[misc]
        for name in ("leaky_relu", "selu", "silu", "gelu", "mish")
    },
    "matrix": lambda: spec_of(SpaceSpec(ObsSpec("vector", (2, 3), "float64"), DISCRETE)),
    "discrete obs": lambda: spec_of(SpaceSpec(TREE["0"], DISCRETE)),
    "multi_discrete obs": lambda: spec_of(SpaceSpec(TREE["1/x"], DISCRETE)),
    "tree": lambda: spec_of(SpaceSpec(TREE, DISCRETE)),
    "nature": lambda: spec_of(SpaceSpec(IMAGE, DISCRETE)),
    "nature normalised": lambda: spec_of(SpaceSpec(IMAGE, DISCRETE), layer_norm=True),
    "nature HWC": lambda: spec_of(SpaceSpec(ObsSpec("image", (52, 44, 3), "uint8", "HWC"), DISCRETE)),
    "stack THWC": lambda: spec_of(SpaceSpec(ObsSpec("image", (2, 40, 37, 3), "uint8", "THWC"), DISCRETE)),
    "grid, bounds by channel": lambda: spec_of(
        SpaceSpec(
            ObsSpec("image", (2, 2, 7, 6), "float32", "TCHW", low=(0.0, -1.0) * 2, high=(10.0, 1.0) * 2),
            DISCRETE,
        )
    ),
    "numbers by channel": lambda: spec_of(
        SpaceSpec(ObsSpec("image", (4, 4, 2), "float32", "HWC", low=(0.0, -1.0), high=(10.0, 1.0)), DISCRETE)
    ),
    "codes": lambda: spec_of(
        SpaceSpec(ObsSpec("image", (7, 5, 3), "uint8", "HWC", low=(0.0,), high=(10.0,)), DISCRETE)
    ),
    "small": lambda: spec_of(SpaceSpec(IMAGE, DISCRETE), encoder="small_cnn"),
    "impala": lambda: spec_of(SpaceSpec(ObsSpec("image", (2, 15, 12), "uint8", "CHW"), DISCRETE), encoder="impala_cnn"),
    "gaussian": lambda: spec_of(SpaceSpec(VECTOR, BOX), initial_log_std=-0.5),
    "rescaled": lambda: spec_of(SpaceSpec(VECTOR, BOX), rescale_actions=True),
    "squashed": lambda: spec_of(SpaceSpec(VECTOR, BOX), squash_actions=True),
    "multi_discrete": lambda: spec_of(SpaceSpec(VECTOR, MULTI_DISCRETE)),
    "multi_binary": lambda: spec_of(SpaceSpec(VECTOR, MULTI_BINARY)),
    "composite": lambda: spec_of(SpaceSpec(VECTOR, COMPOSITE)),
    "mask": lambda: spec_of(masked(DISCRETE)),
    "multi_discrete mask": lambda: spec_of(masked(MULTI_DISCRETE)),
    "composite mask": lambda: spec_of(masked(COMPOSITE)),
    "lstm": lambda: spec_of(SpaceSpec(VECTOR, DISCRETE), core="lstm", **CORE),
    "gru": lambda: spec_of(SpaceSpec(VECTOR, BOX), core="gru", **CORE),
    "attention": lambda: spec_of(masked(DISCRETE), core="attention", **CORE),
}


def perturbed(weights: Weights, rng: np.random.Generator) -> Weights:
    """Away from the initial ones: no bias is 0, no policy uniform."""
    scales = {name: 0.3 / np.sqrt(max(1, w[0].size if w.ndim else 1)) for name, w in weights.items()}
    return {name: (w + scales[name] * rng.normal(size=w.shape)).astype(np.float32) for name, w in weights.items()}


def random_obs(spec: PolicySpec, num_rows: int, rng: np.random.Generator) -> Obs:
    if isinstance(spec.obs, dict):
        return {path: _random_leaf(leaf, spec, num_rows, rng) for path, leaf in spec.obs.items()}
    return _random_leaf(spec.obs, spec, num_rows, rng)


def _random_leaf(leaf: ObsSpec, spec: PolicySpec, num_rows: int, rng: np.random.Generator) -> Array:
    shape = (num_rows, *leaf.shape)
    if leaf.kind == "mask":
        mask = rng.random(shape) < 0.6
        first = 0
        for size in spec.action.mask_groups:
            mask[:, first + int(rng.integers(size))] = True
            first += size
        return mask
    if leaf.kind == "image":
        return rng.integers(0, 256, shape, dtype=np.uint8).astype(leaf.dtype, copy=False)
    if leaf.kind == "vector":
        return rng.normal(size=shape).astype(np.float32)
    if leaf.kind == "multi_binary":
        return rng.integers(0, 2, shape).astype(np.int8)
    return rng.integers(0, leaf.nvec if leaf.shape else leaf.nvec[0], shape)


def random_state(spec: PolicySpec, num_envs: int, state_size: int, rng: np.random.Generator) -> Array:
    state = rng.normal(size=(num_envs, state_size)).astype(np.float32)
    if spec.core == "attention":  # flags of places that are filled
        state[:, -spec.attention_window :] = rng.random((num_envs, spec.attention_window)) < 0.5
    return state


def random_batch(spec: PolicySpec, state_size: int, seed: int, num_steps: int = 6, num_envs: int = 4) -> SampleBatch:
    """A fragment with everything random, but for the same seed always the same: a few episodes end, after some of which
    an environment resets itself in a row of its own."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    obs = random_obs(spec, num_steps * num_envs, rng)
    actions = random_actions(spec, obs, num_steps * num_envs, rng)
    batch = SampleBatch.empty(num_steps, take_obs(obs, slice(num_envs)), actions[:num_envs])
    for t in range(num_steps):
        rows = slice(t * num_envs, (t + 1) * num_envs)
        put_obs(batch.obs, t, take_obs(obs, rows))
        batch.actions[t] = actions[rows]
    batch.core_state = random_state(spec, num_envs, state_size, rng)
    batch.log_probs[:] = rng.normal(-1.0, 0.3, shape)
    for column in (batch.values, batch.next_values, batch.rewards):
        column[:] = rng.normal(size=shape)
    ends = rng.random(shape) < 0.15
    batch.valid[0] = True
    batch.valid[1:] = ~ends[:-1]
    batch.terminated[:] = ends & batch.valid & (rng.random(shape) < 0.5)
    batch.truncated[:] = ends & batch.valid & ~batch.terminated
    return batch


def random_actions(spec: PolicySpec, obs: Obs, num_rows: int, rng: np.random.Generator) -> Array:
    """Legal ones, as `spec.action` has them."""
    mask = obs[MASK] if isinstance(obs, dict) and MASK in obs else None
    columns, first = [], 0
    for head in spec.heads:
        if head.kind == "categorical":
            chances = rng.random((num_rows, head.size))
            if mask is not None:
                chances = np.where(mask[:, first : first + head.size], chances, -1.0)
                first += head.size
            columns.append(chances.argmax(axis=1)[:, None])
        elif head.kind == "bernoulli":
            columns.append(rng.integers(0, 2, (num_rows, head.size)))
        elif head.kind == "gaussian":
            columns.append(rng.normal(size=(num_rows, head.size)))
        else:
            columns.append(rng.uniform(head.low, head.high, (num_rows, head.size)))
    actions = np.concatenate(columns, axis=1)
    if spec.action.kind == "discrete":
        return actions[:, 0].astype(np.int64)
    return actions.astype(np.float32 if spec.action.kind in ("box", "composite") else np.int64)
