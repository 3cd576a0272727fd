"""One forward and one backward pass before anything is trained: what a network of the user's own gets wrong, it gets
wrong here, with both sides named. It also builds Keras layers, which have no variables before."""

from __future__ import annotations

from typing import Any

from rlplat.errors import RlplatError, UsageError
from rlplat.rl.policies.mask_check import forbidden_choice, masks_with_one_choice
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import MASK
from rlplat.rl.tf import tf
from rlplat.rl.tf.tensors import named_variables, sample_obs

NUM_STEPS, NUM_ENVS = 2, 3


def check_network(network: Any, spec: PolicySpec) -> None:
    """Raises UsageError where the network does not keep the promises of `ActorCritic.__call__` for this spec."""
    name = spec.custom or type(network).__name__
    num_rows = NUM_STEPS * NUM_ENVS
    obs = sample_obs(spec, num_rows)
    state_size = int(getattr(network, "state_size", 0))
    state, starts = tf.zeros((NUM_ENVS, state_size)), tf.zeros((NUM_STEPS, NUM_ENVS), tf.bool)
    try:
        with tf.GradientTape() as tape:
            returned = network(obs, state, starts)
            if not isinstance(returned, tuple) or len(returned) != 3:
                raise UsageError(
                    f"{name}: the call returned {type(returned).__name__}, expected (distribution, values, state)"
                )
            distribution, values, new_state = returned
            actions = distribution.sample(tf.random.Generator.from_seed(0))
            log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
            total = tf.reduce_sum(log_probs) + tf.reduce_sum(values) + tf.reduce_sum(entropies)
    except RlplatError:
        raise
    except Exception as error:
        raise UsageError(
            f"{name}: a forward pass over {num_rows} observations ({_shown(spec)}) raised "
            f"{type(error).__name__}: {error}"
        ) from error
    columns = sum(head.num_columns for head in spec.heads)
    is_one_choice = spec.action.kind == "discrete"
    for what, tensor, expected in (
        ("values", values, (num_rows,)),
        ("log_prob(actions)", log_probs, (num_rows,)),
        ("entropy()", entropies, (num_rows,)),
        ("sample()", actions, (num_rows,) if is_one_choice else (num_rows, columns)),
        ("state", new_state, (NUM_ENVS, state_size)),
    ):
        _require(name, what, tensor, expected, spec)
    variables = named_variables(network)
    gradients = tape.gradient(total, list(variables.values()))
    unused = [n for n, gradient in zip(variables, gradients, strict=True) if gradient is None]
    if unused:
        raise UsageError(
            f"{name}: parameters {', '.join(unused[:5])} take no part in log-probabilities, entropies or values: use "
            "them in __call__, or leave them out"
        )
    if spec.has_mask:
        _check_mask(name, network, spec, state_size)


def _check_mask(name: str, network: Any, spec: PolicySpec, state_size: int) -> None:
    """An action that the mask forbids has probability 0."""
    mask, choices = masks_with_one_choice(spec)
    obs = sample_obs(spec, len(mask))
    obs[MASK] = tf.cast(tf.constant(mask), obs[MASK].dtype)
    distribution, _, _ = network(obs, tf.zeros((len(mask), state_size)), tf.zeros((1, len(mask)), tf.bool))
    actions = distribution.mode()

    def log_prob(array: Any) -> Any:
        return distribution.log_prob(tf.cast(tf.constant(array), actions.dtype)).numpy().astype("float64")

    if text := forbidden_choice(spec, choices, actions.numpy(), log_prob):
        raise UsageError(f"{name}: {text}")


def _require(name: str, what: str, tensor: Any, expected: tuple[int, ...], spec: PolicySpec) -> None:
    shape = tuple(tensor.shape) if tf.is_tensor(tensor) else type(tensor).__name__
    if shape != expected:
        raise UsageError(
            f"{name}: {what} has shape {shape}, expected {expected} for {NUM_STEPS} steps of {NUM_ENVS} environments "
            f"with actions {spec.action}"
        )
    if tensor.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(tensor))):
        raise UsageError(f"{name}: {what} is not finite before any training: check its initialisation")


def _shown(spec: PolicySpec) -> str:
    return ", ".join(map(str, spec.obs.values())) if isinstance(spec.obs, dict) else str(spec.obs)
