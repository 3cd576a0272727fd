"""`ActorCritic`: encoder, core, a head for the action distribution and one for the value; the class to extend for a
policy of one's own (docs/custom-policy.md)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlplat.rl.class_path import load_class
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.torch.action_distributions import ActionDistribution, sde_log_std
from rlplat.rl.torch.cores import make_core
from rlplat.rl.torch.encoders import TensorObs, initialize_orthogonally, make_encoder
from rlplat.rl.torch.network_check import errors_named, size_lazy_layers


class ActorCritic(nn.Module):
    """Policy and value network of a `PolicySpec`: one encoder for both heads (`share_encoder`) or one for each.

        distribution, values, state = network(obs, state, starts)

    obs: [N, ...] (or a dict of such), N = T*B rows, time first; state: float32[B, S] before the first step, None for
    the state in which episodes begin; starts: bool[T, B], None for T = 1. Without a core S is 0 and rows are on their
    own. Returns the distribution of N actions, values float32[N] and the state after the last step. Without the
    observations of the critic's group (`spec.critic_obs`) values are zeros.

    Initialised as in Huang et al. 2022 (core detail 2): orthogonal, gain sqrt(2) in the encoder, 0.01 in the policy
    head (so that the first policy is nearly uniform) and 1 in the value head; biases 0.
    """

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec = spec
        self.actor_encoder = make_encoder(spec.actor, compute_dtype)
        self.critic_encoder = None if spec.share_encoder else make_encoder(spec.critic, compute_dtype)
        num_features = int(self.actor_encoder.num_features)
        self.core = make_core(spec, num_features)
        self.state_size = 0
        if self.core is not None:
            num_features, self.state_size = self.core.num_features, self.core.state_size
        self.actor_head = nn.Linear(num_features, spec.num_params)
        own = self.critic_encoder
        self.critic_head = nn.Linear(num_features if own is None else int(own.num_features), 1)
        if spec.num_gaussian:
            shape: tuple[int, ...] = (spec.num_gaussian,)
            initial = spec.initial_log_std
            if spec.use_sde:  # of every weight of the noise: of actions, it is as large for features of size 1
                shape, initial = (num_features, *shape), initial - 0.5 * math.log(num_features)
            self.log_std = nn.Parameter(torch.full(shape, initial))
        if spec.orthogonal_init:
            self._initialize_orthogonally()

    def forward(
        self, obs: TensorObs, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[ActionDistribution, Tensor, Tensor]:
        features = self.actor_encoder(obs)
        if state is None:
            num_envs = features.shape[0] if starts is None else starts.shape[1]
            state = features.new_zeros(num_envs, self.state_size)
        has_values = all(path in obs for path in self.spec.critic_obs)
        critic_features = features
        if self.critic_encoder is not None and has_values:
            critic_features = self.critic_encoder(obs)
        if self.core is not None:
            features, state = self.core(features, state, starts)
            critic_features = features
        distribution = self.distribution(features, obs)
        values = self.critic_head(critic_features) if has_values else features.new_zeros(features.shape[0], 1)
        return distribution, values.squeeze(-1), state

    def distribution(self, features: Tensor, obs: TensorObs) -> ActionDistribution:
        """features: float32[N, F] -> the distribution of N actions; the place for heads of one's own.

        With `use_sde` noise is a linear function of the features (`sde_log_std`).
        """
        mask = obs["action_mask"].bool() if self.spec.has_mask else None  # type: ignore[index]
        log_std, explored = getattr(self, "log_std", None), None
        if self.spec.use_sde:
            explored = features.detach()
            log_std = sde_log_std(explored, self.log_std)
        distribution = ActionDistribution(self.spec, self.actor_head(features), log_std, mask)
        distribution.explored = explored
        return distribution

    def evaluate_actions(
        self,
        obs: TensorObs,
        actions: Tensor,
        state: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(log pi(actions | obs), entropy of pi(. | obs), V(obs)), float32[N] each."""
        distribution, values, _ = self(obs, state, starts)
        return distribution.log_prob(actions), distribution.entropy(), values

    def _initialize_orthogonally(self) -> None:
        gains: dict[nn.Module, float] = {self.actor_head: 0.01, self.critic_head: 1.0}
        parts = [self.actor_encoder, self.critic_encoder, self.actor_head, self.critic_head]
        for module in (module for part in parts if part is not None for module in part.modules()):
            if isinstance(module, nn.Linear | nn.Conv2d):
                gain = gains.get(module, math.sqrt(2.0))
                initialize_orthogonally(module, gain, keeps=":" in self.spec.encoder)


def make_network(spec: PolicySpec, compute_dtype: torch.dtype = torch.float32) -> ActorCritic:
    """The network of a spec: `ActorCritic`, or the class that `spec.custom` names ("pkg.mod:Class")."""
    if not spec.custom and ":" not in spec.encoder:
        return ActorCritic(spec, compute_dtype)
    with errors_named(spec.custom or spec.encoder, "making the network"):
        network_class = load_class(spec.custom) if spec.custom else ActorCritic
        network: ActorCritic = network_class(spec, compute_dtype)
        size_lazy_layers(network, spec)
    return network
