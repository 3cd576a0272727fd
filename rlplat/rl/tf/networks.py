"""`ActorCritic`: encoder, core, a head for the action distribution and one for the value; the class to extend for a
policy of one's own on TensorFlow (docs/frameworks.md).

`check_network`: one forward and one backward pass before anything is trained: what a network of the user's own gets
wrong, it gets wrong here, with both sides named. It also builds Keras layers, which have no variables before.
"""

from __future__ import annotations

from typing import Any

from rlplat.errors import RlplatError, UsageError
from rlplat.rl.class_path import load_class
from rlplat.rl.policies.spec import PolicySpec, forbidden_choice, masks_with_one_choice
from rlplat.rl.spaces import MASK
from rlplat.rl.tf import tf
from rlplat.rl.tf.action_distributions import ActionDistribution
from rlplat.rl.tf.cores import make_core
from rlplat.rl.tf.encoders import TensorObs, make_encoder
from rlplat.rl.tf.layers import Linear, initialize_orthogonally
from rlplat.rl.tf.tensors import named_variables, sample_obs


class ActorCritic(tf.Module):
    """Policy and value network of a `PolicySpec`: one encoder for both heads (`share_encoder`) or one for each.

        distribution, values, state = network(obs, state, starts)

    obs: [N, ...] (or a dict of such), N = T*B rows, time first; state: float32[B, S] before the first step, None for
    the state in which episodes begin; starts: bool[T, B], None for T = 1. Without a core S is 0 and rows are on their
    own. Returns the distribution of N actions, values float32[N] and the state after the last step.

    Initialised like rl/torch's: orthogonal, gain sqrt(2) in the encoder, 0.01 in the policy head and 1 in the value
    head; biases 0. Parameters have the same names and shapes as there.
    """

    def __init__(self, spec: PolicySpec, compute_dtype: tf.DType = tf.float32) -> None:
        super().__init__()
        self.spec = spec
        self.actor_encoder = make_encoder(spec, compute_dtype)
        self.critic_encoder = None if spec.share_encoder else make_encoder(spec.critic, compute_dtype)
        num_features = int(self.actor_encoder.num_features)
        self.core = make_core(spec, num_features)
        self.state_size = 0
        if self.core is not None:
            num_features, self.state_size = self.core.num_features, self.core.state_size
        self.actor_head = Linear(num_features, spec.num_params)
        if self.critic_encoder is not None:
            num_features = int(self.critic_encoder.num_features)
        self.critic_head = Linear(num_features, 1)
        self.log_std = None
        if spec.num_gaussian:
            self.log_std = tf.Variable(tf.fill((spec.num_gaussian,), spec.initial_log_std))
        if spec.orthogonal_init:
            heads = {id(self.actor_head): 0.01, id(self.critic_head): 1.0}
            parts = [self.actor_encoder, self.critic_encoder, self.actor_head, self.critic_head]
            whole = [part for part in parts if isinstance(part, tf.Module)]
            initialize_orthogonally((module for part in whole for module in (part, *part.submodules)), heads)

    def __call__(
        self, obs: TensorObs, state: tf.Tensor | None = None, starts: tf.Tensor | None = None
    ) -> tuple[ActionDistribution, tf.Tensor, tf.Tensor]:
        features = self.actor_encoder(obs)
        if state is None:
            num_envs = tf.shape(features)[0] if starts is None else tf.shape(starts)[1]
            state = tf.zeros((num_envs, self.state_size))
        critic_features = features if self.critic_encoder is None else self.critic_encoder(obs)
        if self.core is not None:
            features, state = self.core(features, state, starts)
            critic_features = features
        distribution = self.distribution(features, obs)
        return distribution, tf.squeeze(self.critic_head(critic_features), -1), state

    def distribution(self, features: tf.Tensor, obs: TensorObs) -> ActionDistribution:
        """features: float32[N, F] -> the distribution of N actions; the place for heads of one's own."""
        mask = tf.cast(obs["action_mask"], tf.bool) if self.spec.has_mask else None
        return ActionDistribution(self.spec, self.actor_head(features), self.log_std, mask)

    def evaluate_actions(
        self,
        obs: TensorObs,
        actions: tf.Tensor,
        state: tf.Tensor | None = None,
        starts: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(log pi(actions | obs), entropy of pi(. | obs), V(obs)), float32[N] each."""
        distribution, values, _ = self(obs, state, starts)
        return distribution.log_prob(actions), distribution.entropy(), values


def make_network(spec: PolicySpec, compute_dtype: tf.DType = tf.float32) -> Any:
    """The network of a spec: `ActorCritic`, or the class that `spec.custom` names ("pkg.mod:Class")."""
    network_class = load_class(spec.custom) if spec.custom else ActorCritic
    return network_class(spec, compute_dtype)


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
