"""`ActorCritic`: encoder, core, a head for the action distribution and one for the value; the class to extend for a
policy of one's own on TensorFlow (docs/frameworks.md)."""

from __future__ import annotations

import math
from typing import Any

from rlplat.rl.class_path import load_class
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.action_distributions import ActionDistribution
from rlplat.rl.tf.cores import make_core
from rlplat.rl.tf.encoders import TensorObs, make_encoder
from rlplat.rl.tf.layers import Conv, Linear, orthogonal


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
        self.critic_encoder = None if spec.share_encoder else make_encoder(spec, compute_dtype)
        num_features = int(self.actor_encoder.num_features)
        self.core = make_core(spec, num_features)
        self.state_size = 0
        if self.core is not None:
            num_features, self.state_size = self.core.num_features, self.core.state_size
        self.actor_head = Linear(num_features, spec.num_params)
        self.critic_head = Linear(num_features, 1)
        self.log_std = None
        if spec.num_gaussian:
            self.log_std = tf.Variable(tf.fill((spec.num_gaussian,), spec.initial_log_std))
        if spec.orthogonal_init:
            self._initialize_orthogonally()

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

    def _initialize_orthogonally(self) -> None:
        gains = {id(self.actor_head): 0.01, id(self.critic_head): 1.0}
        parts = [self.actor_encoder, self.critic_encoder, self.actor_head, self.critic_head]
        for part in (part for part in parts if isinstance(part, tf.Module)):
            for module in (part, *part.submodules):
                if isinstance(module, Linear | Conv):
                    gain = gains.get(id(module), math.sqrt(2.0))
                    module.weight.assign(orthogonal(tuple(module.weight.shape), gain))
                    if module.bias is not None:
                        module.bias.assign(tf.zeros_like(module.bias))


def make_network(spec: PolicySpec, compute_dtype: tf.DType = tf.float32) -> Any:
    """The network of a spec: `ActorCritic`, or the class that `spec.custom` names ("pkg.mod:Class")."""
    network_class = load_class(spec.custom) if spec.custom else ActorCritic
    return network_class(spec, compute_dtype)
