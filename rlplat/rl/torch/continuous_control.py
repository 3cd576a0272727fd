"""The networks of SAC, TD3 and theirs on torch: an actor and two critics or more, MLPs of features and actions in
(-1, 1), and `ActorAndCritics`, which trains them with what all keep beside. Features are numbers side by side
(`obs_tree.flat_features`), and of images what a CNN makes of them, which actor and critics share."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.obs_tree import map_obs, num_features, take_obs
from rlplat.rl.policies.bounded_actor import MAX_LOG_STD, MIN_LOG_STD, ActionScale, ActorSpec, Renorm
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.saved import Saved
from rlplat.rl.spaces import ObsSpec, obs_leaves
from rlplat.rl.torch.action_distributions import sde_log_std
from rlplat.rl.torch.batch_renorm import BatchRenorm, RenormedEncoder
from rlplat.rl.torch.device import linear, resolve_device, use_threads
from rlplat.rl.torch.encoders import ACTIVATIONS, IMAGE_ENCODERS, MLPEncoder, TensorObs, folded, leaf_features
from rlplat.rl.torch.optimizers import adam_of
from rlplat.rl.torch.tensor_rows import tensor_on
from rlplat.rl.torch.weights import weights_of

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Actor(nn.Module):
    """float32[N, F] -> float32[N, 2 A], means and log deviations, or float32[N, A], actions before tanh."""

    columns: Tensor | None

    def __init__(self, spec: PolicySpec, actor: ActorSpec, *, is_alone: bool = False) -> None:
        """is_alone: features are of what it sees itself; else of all observations, of which it takes its own."""
        super().__init__()
        self.spec = spec
        leaves = obs_leaves(spec.actor.obs if is_alone else spec.obs)
        images = [IMAGE_ENCODERS[name](leaves[path], torch.float32) for path, name in spec.encoders.items()]
        self.images = nn.ModuleList(images)
        self._numbers = {path: leaf for path, leaf in leaves.items() if path not in spec.encoders}
        self.num_features: int = num_features(self._numbers) + sum(each.num_features for each in images)
        columns = own_columns(self.num_features, leaves, spec.actor)
        self.register_buffer("columns", columns, persistent=False)
        own = MLPEncoder if actor.renorm is None else partial(RenormedEncoder, actor.renorm)
        self.encoder = own(self.num_features if columns is None else len(columns), spec)
        head = SDEHead if spec.use_sde else nn.Linear
        self.head = head(self.encoder.num_features, actor.num_outputs(spec))

    def features(self, obs: TensorObs) -> Tensor:
        """obs: [N, ...] (or a dict of such) -> float32[N, F]: images through a CNN each, then all else as numbers."""
        leaves = obs if isinstance(obs, dict) else {"": obs}
        parts = [image(leaves[path]) for path, image in zip(self.spec.encoders, self.images, strict=True)]
        parts += [leaf_features(leaves[path], leaf) for path, leaf in self._numbers.items()]
        return torch.cat(parts, dim=1)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(features if self.columns is None else features[:, self.columns]))
        return outputs


class SDEHead(nn.Linear):
    """float32[N, F] -> float32[N, 2 A], means and log deviations of noise that is a linear function of the features."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__(num_features, num_outputs // 2)
        # For features of size 1 as large as the deviations that a network gives at the start.
        self.log_std = nn.Parameter(torch.full((num_features, num_outputs // 2), -0.5 * math.log(num_features)))

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([super().forward(features), sde_log_std(features, self.log_std)], dim=-1)


def own_columns(num_features: int, leaves: Mapping[str, ObsSpec], group: PolicySpec) -> Tensor | None:
    """int64[K]: of the features of observations (`leaves`, by path) those of a group of them (`policy.obs_groups`), or
    None: all. Images, whose features come first, are of every group."""
    seen, numbers = obs_leaves(group.obs), {path: leaf for path, leaf in leaves.items() if path not in group.encoders}
    start = num_features - sum(leaf.num_features for leaf in numbers.values())
    columns = list(range(start))
    for path, leaf in numbers.items():
        columns += range(start, start + leaf.num_features) if path in seen else ()
        start += leaf.num_features
    return None if len(columns) == num_features else torch.tensor(columns)


def random_shift(images: Tensor, layout: str, pad: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `pad` pixels up or down, left or right, its border repeated: DrQ's augmentation
    (Kostrikov et al. 2020, section 4.1). images: [N, *shape] of a layout -> the same (stacks with their frames side by
    side), as encoders take them."""
    if layout != "HWC":
        images = folded(images, layout).permute(0, 2, 3, 1)
    N, H, W, _ = images.shape
    moves = torch.randint(-pad, pad + 1, (2, N, 1), generator=generator).to(images.device)
    rows = (torch.arange(H, device=images.device) + moves[0]).clamp(0, H - 1)  # [N, H]
    columns = (torch.arange(W, device=images.device) + moves[1]).clamp(0, W - 1)
    numbers = torch.arange(N, device=images.device)
    moved = images[numbers[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved if layout == "HWC" else moved.permute(0, 3, 1, 2)


def squashed_sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(actions float32[N, A] in (-1, 1), their log-probabilities float32[N]) of a squashed Gaussian.

        u = mean + std * noise;  a = tanh u;  log pi(a) = log N(u; mean, std) - sum log(1 - tanh(u)^2)

    (Haarnoja et al. 2018b, appendix C), the latter as 2 (log 2 - u - softplus(-2u)), which does not cancel.
    outputs: float32[N, 2 A] of an `Actor`; noise: float32[N, A], standard normal.
    """
    mean, log_std = outputs.chunk(2, dim=-1)
    log_std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)
    u = mean + log_std.exp() * noise
    log_slopes = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    log_probs = (-0.5 * noise.square() - log_std - HALF_LOG_2PI - log_slopes).sum(dim=-1)
    return u.tanh(), log_probs


class Critic(nn.Module):
    """float32[N, F + A], features and actions -> float32[N], or float32[N, M] quantiles. Initialised as `nn.Linear` is;
    weights are [in, out]: the gradient of the first layer's, which has few inputs, takes half the time."""

    def __init__(self, spec: PolicySpec, num_features: int, num_quantiles: int, renorm: Renorm | None) -> None:
        super().__init__()
        sizes = (num_features + spec.action.flat_size, *spec.critic.hidden_sizes, num_quantiles or 1)
        self._is_mean = not num_quantiles
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for num_in, num_out in pairwise(sizes):
            bound = 1.0 / math.sqrt(num_in)
            self.weights.append(nn.Parameter(torch.empty(num_in, num_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(num_out).uniform_(-bound, bound)))
        self._layers = list(zip(self.weights, self.biases, strict=True))  # a ParameterList is slow to walk
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes[1:-1]) if spec.layer_norm else None
        self.renorms = nn.ModuleList(BatchRenorm(size, renorm) for size in sizes[:-1]) if renorm else None
        self._activation = ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor) -> Tensor:
        *hidden, (weight, bias) = self._layers
        for index, (hidden_weight, hidden_bias) in enumerate(hidden):
            x = x if self.renorms is None else self.renorms[index](x)
            x = linear(x, hidden_weight.t(), hidden_bias)
            x = self._activation(x if self.norms is None else self.norms[index](x))
        x = x if self.renorms is None else self.renorms[len(hidden)](x)
        outputs = linear(x, weight.t(), bias)
        return outputs.squeeze(-1) if self._is_mean else outputs


class Critics(nn.Module):
    """(features float32[N, F], actions float32[N, A]) -> float32[K, N], the values by K `Critic`s, or float32[K, N, M],
    M quantiles of their distributions."""

    columns: Tensor | None
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    first: Critic

    def __init__(
        self,
        spec: PolicySpec,
        num_features: int,
        num_critics: int = 2,
        num_quantiles: int = 0,
        renorm: Renorm | None = None,
    ) -> None:
        super().__init__()
        columns = own_columns(num_features, obs_leaves(spec.obs), spec.critic)
        self.register_buffer("columns", columns, persistent=False)
        size = num_features if columns is None else len(columns)
        self._members = [Critic(spec, size, num_quantiles, renorm) for _ in range(num_critics)]
        for name, critic in zip(self.names, self._members, strict=False):
            self.add_module(name, critic)

    def inputs(self, features: Tensor, actions: Tensor) -> Tensor:
        """What each of them takes."""
        return torch.cat([features if self.columns is None else features[:, self.columns], actions], dim=-1)

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        inputs = self.inputs(features, actions)
        return torch.stack([critic(inputs) for critic in self._members])


def polyak(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target = (1 - tau) * target + tau * online, in place."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)


class Transitions(NamedTuple):
    """A minibatch of N transitions of up to n steps, as tensors."""

    features: Tensor
    """float32[N, F]; of images with a gradient, that of the critics' loss: the actor's is computed from constants."""
    actions: Tensor
    """float32[N, A] within [-1, 1]"""
    returns: Tensor
    """float32[N]: the discounted rewards of the window."""
    discounts: Tensor
    """float32[N]: what the value of the next state counts; 0 where the episode terminated."""
    next_features: Tensor
    """float32[N, F]"""


class ActorAndCritics(Saved):
    """The networks on their device, an Adam for each, target critics, and a generator of noise.

    for batch in trainee.minibatches(features, actions, returns, discounts, next_features):
        norm = trainee.descend_critics(f(trainee.critics(...)), learning_rate)
        trainee.descend_actor(g(trainee.critics(..., trainee.actor(...))), learning_rate)
        trainee.update_targets()
    """

    saved = {
        "weights": "actor",
        "critics": "critics",
        "target_critics": "target_critics",
        "actor_optimizer": "_actor_adam",
        "critic_optimizer": "_critic_adam",
        "noise": "_generator",
    }

    target_critics: Any

    def __init__(
        self,
        config: Any,
        spec: PolicySpec,
        actor: ActorSpec,
        seed: np.random.SeedSequence,
        *,
        num_critics: int = 2,
        num_quantiles: int = 0,
        has_targets: bool = True,
    ) -> None:
        """config: a `ContinuousConfig`; num_critics, num_quantiles: of `Critics`."""
        use_threads(config.learner.num_threads, spec)
        if config.deterministic:
            torch.use_deterministic_algorithms(True)
        self.device = resolve_device(config.learner.device, spec)
        network_seed, noise_seed = (int(each) for each in seed.generate_state(2))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(network_seed)
            self.actor = Actor(spec, actor).to(self.device)
            size = num_critics, num_quantiles
            self.critics = Critics(spec, self.actor.num_features, *size, actor.renorm).to(self.device)
        self._ahead, self._behind = list[Tensor](), list[Tensor]()
        self.target_critics = self.target_of(self.critics) if has_targets else None
        self._generator = torch.Generator().manual_seed(noise_seed)
        self._scale, self._batch_size, self._tau = ActionScale(spec), config.batch_size, config.target_tau
        self._max_norm = config.max_gradient_norm or math.inf
        self._spec, self._pad = spec, config.random_shift
        acts = nn.ModuleDict({"encoder": self.actor.encoder, "head": self.actor.head})
        values = nn.ModuleDict({"critics": self.critics, "images": self.actor.images})
        self._actor_adam = adam_of(config, acts)
        self._critic_adam = adam_of(config, values if spec.has_images else self.critics)

    def minibatches(
        self, obs: Obs, actions: Array, returns: Array, discounts: Array, next_obs: Obs
    ) -> Iterator[Transitions]:
        """Many transitions, `batch_size` at a time; actions in the environment's units; obs: without images features
        already."""
        tensor = partial(tensor_on, self.device)
        obs, next_obs = map_obs(tensor, obs), map_obs(tensor, next_obs)
        columns = [tensor(each) for each in (self._scale.from_environment(actions), returns, discounts)]
        for start in range(0, len(returns), self._batch_size):
            rows = slice(start, start + self._batch_size)
            features = self._features(take_obs(obs, rows))
            with torch.no_grad():
                next_features = self._features(take_obs(next_obs, rows))
            own_actions, own_returns, own_discounts = (column[rows] for column in columns)
            yield Transitions(features, own_actions, own_returns, own_discounts, next_features)

    def _features(self, obs: Any) -> Tensor:
        if not self._spec.has_images:
            assert isinstance(obs, Tensor)
            return obs
        moved = dict(obs) if isinstance(obs, dict) else {"": obs}
        for path in self._spec.encoders if self._pad else ():
            layout = obs_leaves(self._spec.obs)[path].layout
            moved[path] = random_shift(moved[path], layout, self._pad, self._generator)
        return self.actor.features(moved if isinstance(obs, dict) else moved[""])

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers float32[N, A], for N rows of actions as `like` has them."""
        return torch.randn(like.shape, generator=self._generator).to(self.device)

    def descend_critics(self, loss: Tensor, learning_rate: float) -> float:
        """One gradient step -> the norm before clipping. One that is not finite changed nothing."""
        return self._critic_adam.descend(loss, learning_rate, self._max_norm)

    def descend_actor(self, loss: Tensor, learning_rate: float) -> float:
        """The same for the actor, whose loss goes through the critics: these get no gradients."""
        return self._actor_adam.descend(loss, learning_rate, self._max_norm)

    def target_of(self, online: AnyModule) -> AnyModule:
        """A copy, which `update_targets` moves towards it."""
        target = copy.deepcopy(online).requires_grad_(False)
        self._behind += target.parameters()
        self._ahead += online.parameters()
        return target

    def update_targets(self) -> None:
        """target = (1 - tau) * target + tau * online"""
        with torch.no_grad():
            torch._foreach_lerp_(self._behind, self._ahead, self._tau)

    def non_finite_gradients(self) -> list[str]:
        """Names of the parameters whose gradients hold NaN or infinity."""
        named = [*self.actor.named_parameters("actor"), *self.critics.named_parameters("critics")]
        return [name for name, p in named if p.grad is not None and not bool(p.grad.isfinite().all())]

    def weights(self) -> Weights:
        """The actor's: what policies act with."""
        return weights_of(self.actor)
