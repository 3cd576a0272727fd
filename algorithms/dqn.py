"""Deep Q-learning (Mnih et al. 2015) with the parts of Rainbow (Hessel et al. 2018), in two rings.

    rollout workers ──TransitionBatch refs──▶ replay ──minibatches──▶ learner ──weights──▶ parameter server ──▶ workers
                                                 ▲────priorities────────┘

`asynchronous: false`, the classic ratio: every round all rollout workers make `rollout_length` steps, and the learner,
which holds the replay itself, makes one gradient step per `env_steps_per_update` of them. Same seed, same curve, bit
for bit.

`asynchronous: true`, Ape-X (Horgan et al. 2018): rollout workers, replay shards and learner are actors that never wait
for each other, except that the ratio of env steps to gradient steps is kept within `ratio_slack`. Every environment has
its own epsilon, new transitions come with priorities by the weights that acted.

The parts, each a switch: `double` (van Hasselt et al. 2016), `dueling` (Wang et al. 2016), `n_step` (Sutton 1988),
`distributional` c51 (Bellemare et al. 2017) or qr (Dabney et al. 2018), `noisy` (Fortunato et al. 2018), `prioritized`
(Schaul et al. 2016); all on is Rainbow. `policy.core` makes it R2D2-like (Kapturowski et al. 2019): sequences with
stored state and burn-in. Different from the papers:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- n-step windows are computed in the replay, which keeps every observation once;
- the last n steps of every environment wait for their windows, until its next fragment has come;
- importance weights are divided by the largest of the minibatch, not of the whole replay;
- C51's priority is KL(target || prediction), QR's the error of the mean, a sequence's 0.9 max + 0.1 mean (R2D2);
  with C51 new transitions get the largest priority so far, in Ape-X too: errors of returns are of another scale;
- R2D2's value rescaling is left out; new sequences get the largest priority so far.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
from pydantic import Field

import rlplat
from rlplat.errors import ConfigError
from rlplat.rl.algorithm_config import AlgorithmConfig, EvaluationConfig, PolicyConfig
from rlplat.rl.interfaces import Array, Policy, Result, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import Learner
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig, MultiAgentPlan, look_at_env
from rlplat.rl.multi_agent.policy_rings import PolicyRings
from rlplat.rl.normalization import obs_statistics, require_normalizable
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.off_policy.apex_ring import ApexRing, ReplayShard, shape_of_shard
from rlplat.rl.off_policy.learner import REPLAY, LearnerReplay, replay_round
from rlplat.rl.policies.exploration import EPSILON, lane_epsilons
from rlplat.rl.policies.framework_check import require_framework
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import PolicySpec, QSpec, policy_spec, require_discrete
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, SequenceMinibatch, require_room
from rlplat.rl.replay.hindsight import HindsightConfig, hindsight_of, record_of, require_goals
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.saved import Saved, state_of
from rlplat.rl.schedules import LinearSchedule, ScheduledShare
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import MASK, SpaceSpec
from rlplat.rl.spread import spread
from rlplat.rl.unused_settings import Unused
from rlplat.section import Count, Epsilon, Norm

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.run.typed_settings import DQNSettings

AtomValue = Annotated[float, Field(ge=-1e9, le=1e9)]
_FIXED = ("asynchronous", "num_replay_shards", *(field.name for field in fields(QSpec)))
_STORED = ("clip_rewards", "frame_stacks", "prioritized", "priority_alpha", "burn_in", "unroll_length")


class QPolicyConfig(PolicyConfig):
    """The network; defaults as in Mnih et al. 2015."""

    activation: Literal["tanh", "relu"] = "relu"
    """Non-linearity of the MLP."""
    orthogonal_init: bool = False
    """Orthogonal initialisation; false: the framework's own."""


class QEvaluationConfig(EvaluationConfig):
    """Episodes played between updates; greedy but for `epsilon`."""

    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of random actions in a deterministic evaluation, from the evaluation's own seed: 0.05 in Mnih et al. 2015,
    0.001 in Rainbow. A greedy policy can wait for ever where only another action goes on."""


class DQNConfig(AlgorithmConfig):
    """DQN's settings. The defaults are plain DQN for small environments; for Atari: configs/dqn/_atari.yaml."""

    unused = {
        "learner.backend": Unused("dqn has no numpy learner", is_error=True, harmless=("torch",)),
        "learner.num_learners": Unused("dqn has one learner", is_error=True),
        "policy.share_encoder": Unused("a Q-network has one encoder"),
        **dict.fromkeys(
            (f"policy.{key}" for key in ("squash_actions", "rescale_actions", "initial_log_std")),
            Unused("actions are discrete"),
        ),
    }
    fixed_on_resume = (*AlgorithmConfig.fixed_on_resume, *_FIXED)
    shapes_replay = (*REPLAY, *_STORED)

    policy: QPolicyConfig = Field(default_factory=QPolicyConfig)
    evaluation: QEvaluationConfig = Field(default_factory=QEvaluationConfig)
    num_envs_per_worker: int = Field(default=1, ge=1, le=100_000)
    """Environments side by side in each rollout worker."""
    rollout_length: Count = 16
    """T: steps of every environment per fragment (synchronous: per round)."""

    env_steps_per_update: float = Field(default=4.0, gt=0.0, le=1e9)
    """Env steps for each gradient step."""
    batch_size: Count = 32
    """Transitions (with a core: sequences) per gradient step."""
    learning_starts: Count = 1_000
    """Env steps before the first gradient step."""
    target_period: Count = 1_000
    """Gradient steps between updates of the target network."""
    target_tau: float = Field(default=1.0, gt=0.0, le=1.0)
    """What the target network then takes over: 1 copies; small, with target_period 1, is Polyak averaging."""
    loss: Literal["huber", "mse"] = "huber"
    """Of the temporal-difference error; distributional losses have their own."""
    adam_epsilon: Epsilon = 1e-8
    """Adam's epsilon; 1.5e-4 in Rainbow."""
    max_gradient_norm: Norm | None = 10.0
    """Gradients are scaled down to this global norm; null: they are not."""
    epsilon: ScheduledShare = LinearSchedule(start=1.0, end=0.05, until=0.1)
    """Share of random actions; asynchronous: 0.4^(1 + 7 i / (N - 1)) in environment i of N instead."""
    clip_rewards: bool = False
    """Learn from the sign of rewards; metrics stay raw."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the deviation, clip to +-10; of an image, those of each pixel."""

    double: bool = False
    """The online network chooses the next action, the target network values it."""
    dueling: bool = False
    """Heads for V and A: Q = V + A - mean(A)."""
    n_step: int = Field(default=1, ge=1, le=10_000)
    """Rewards that are summed before the bootstrap."""
    distributional: Literal["none", "c51", "qr"] = "none"
    """Learn the distribution of returns: on fixed atoms, or by quantiles."""
    num_atoms: int = Field(default=51, ge=2, le=100_000)
    """Atoms or quantiles; 51 in C51, 200 in QR-DQN."""
    value_range: tuple[AtomValue, AtomValue] = (-10.0, 10.0)
    """C51: returns of the first and the last atom."""
    noisy: bool = False
    """Noise in the heads' weights explores; set epsilon to 0 with it."""
    head_hidden_size: int = Field(default=0, ge=0, le=1_000_000)
    """Width of a hidden layer in each head, 0: none; Rainbow's CNN has 512."""

    replay_capacity: Count = 100_000
    """Steps that the replay holds."""
    frame_stacks: bool = True
    """Keep each frame of an image stack [C, H, W] or [T, H, W, C] once; no stack is kept as it is either way."""
    prioritized: bool = False
    """Draw in proportion to the error."""
    priority_alpha: float = Field(default=0.6, gt=0.0, le=1.0)
    """Priorities are |error|^alpha."""
    importance_beta: ScheduledShare = LinearSchedule(start=0.4, end=1.0)
    """How much of the bias of prioritised draws importance weights take back."""
    save_replay: bool = True
    """Checkpoints hold the replay (its filled part); false: after a resume it fills anew."""
    hindsight: HindsightConfig = Field(default_factory=HindsightConfig)
    """Other goals for what was seen, where the environment has goals (docs/hindsight.md)."""

    burn_in: int = Field(default=20, ge=0, le=1_000_000)
    """With a core: steps that warm its state up before those that are learnt from."""
    unroll_length: int = Field(default=20, ge=2, le=1_000_000)
    """With a core: steps of a sequence that are learnt from; sequences overlap by half."""

    asynchronous: bool = False
    """Ape-X: actors that do not wait for each other; not reproducible."""
    num_replay_shards: int = Field(default=1, ge=1, le=1024)
    """asynchronous: actors that share the replay."""
    updates_per_call: Count = 8
    """asynchronous: gradient steps per message to the learner, after which it publishes its weights."""
    ratio_slack: float = Field(default=2_000.0, ge=0.0, le=1e12)
    """asynchronous: env steps that rollout workers, or the learner, may be ahead of env_steps_per_update (never less
    than what is under way at any time)."""

    multi_agent: MultiAgentConfig = Field(default_factory=MultiAgentConfig)
    """Which policy decides for which agent, where there are several (docs/multi-agent.md)."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[DQNSettings]) -> None: ...


def td_losses(
    outputs: Tensor,
    actions: Tensor,
    next_outputs: Tensor,
    next_actions: Tensor,
    returns: Tensor,
    discounts: Tensor,
    *,
    distributional: str = "none",
    loss: str = "huber",
    support: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(losses float32[N] with gradients, errors float32[N] for the priorities).

        none   y = R + discount * Q_target(s', a');  huber(y - Q(s, a)) or (y - Q(s, a))^2 / 2
        c51    KL(projection of R + discount * Z_target(s', a') || Z(s, a))
        qr     quantile Huber loss between the quantiles of both

    outputs: float32[N, A, Z] of the online network for s; next_outputs: of the target network for s'; actions,
    next_actions: int64[N]; returns (n-step), discounts (0 where terminated): float32[N].
    """
    import torch
    from torch.nn import functional as F  # noqa: N812 - torch's own name for it

    chosen, next_chosen = (
        _of_actions(outputs, actions),
        _of_actions(next_outputs, next_actions).detach(),
    )  # [N, Z]
    if distributional == "c51":
        assert support is not None
        targets = c51_projection(returns, discounts, next_chosen.softmax(dim=-1), support)
        losses = (torch.xlogy(targets, targets) - targets * chosen.log_softmax(dim=-1)).sum(dim=-1)
        return losses, losses.detach()
    targets = returns.unsqueeze(-1) + discounts.unsqueeze(-1) * next_chosen
    if distributional == "qr":
        losses = quantile_huber_losses(chosen, targets)
        return losses, (targets.mean(dim=-1) - chosen.mean(dim=-1)).detach()
    chosen, targets = chosen.squeeze(-1), targets.squeeze(-1)
    errors = targets - chosen
    losses = F.huber_loss(chosen, targets, reduction="none") if loss == "huber" else 0.5 * errors**2
    return losses, errors.detach()


def _of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """[N, A, Z], int64[N] -> [N, Z]"""
    Z = outputs.shape[2]
    return outputs.gather(1, actions.view(-1, 1, 1).expand(-1, 1, Z)).squeeze(1)


def c51_projection(returns: Tensor, discounts: Tensor, next_probs: Tensor, support: Tensor) -> Tensor:
    """float32[N, Z]: the distribution of R + discount * Z' on the atoms of `support` (Bellemare et al. 2017, alg. 1).

    Mass between two atoms goes to both, the nearer one gets more; atom j gets from atom i the share
    max(0, 1 - |clip(R + discount * z_i) - z_j| / spacing). next_probs: float32[N, Z].
    """
    import torch

    spacing = support[1] - support[0]
    moved = returns.unsqueeze(-1) + discounts.unsqueeze(-1) * support  # [N, Z]
    place = ((moved.clamp(support[0], support[-1]) - support[0]) / spacing).clamp(0, len(support) - 1)
    below = place.floor()
    above_share = place - below
    first = below.long()
    second = (first + 1).clamp(max=len(support) - 1)
    projected = torch.zeros_like(next_probs)
    projected.scatter_add_(1, first, next_probs * (1.0 - above_share))
    projected.scatter_add_(1, second, next_probs * above_share)
    return projected


def quantile_huber_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """float32[N]: sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij), u_ij = target_j - quantile_i, tau_i the middle of the
    i-th of Z equal parts of [0, 1] (Dabney et al. 2018, eq. 10, kappa = 1). quantiles, targets: float32[N, Z]."""
    import torch

    Z = quantiles.shape[1]
    taus = (torch.arange(Z, device=quantiles.device) + 0.5) / Z
    errors = targets.unsqueeze(1) - quantiles.unsqueeze(2)  # [N, i, j]
    sizes = errors.abs()
    huber = torch.where(sizes <= 1.0, 0.5 * errors**2, sizes - 0.5)
    weights = (taus.view(1, Z, 1) - (errors.detach() < 0).float()).abs()
    return (weights * huber).mean(dim=2).sum(dim=1)


class TorchDQN(Saved):
    """Networks, optimizer and loss on torch; `TfDQN` is the same on TensorFlow."""

    saved = {"**": "trainee", "target": "target", "noise": "_noise"}

    def __init__(self, config: DQNConfig, spec: PolicySpec, q: QSpec, seed: np.random.SeedSequence) -> None:
        import torch

        from rlplat.rl.torch.q_network import check_q_network, make_q_network
        from rlplat.rl.torch.tensor_rows import tensor_on
        from rlplat.rl.torch.trainee import Trainee

        self.trainee = Trainee(config, spec, seed, lambda precision: make_q_network(spec, q, precision))
        self.config, self._spec, self.device = config, spec, self.trainee.device
        self.network, self._tensor = self.trainee.network, partial(tensor_on, self.device)
        check_q_network(self.network, self.device)
        self.target = copy.deepcopy(self.network).requires_grad_(False).eval()
        self._noise = torch.Generator().manual_seed(int(seed.generate_state(2)[1]))
        self._parameters: list[Tensor] = [*self.network.parameters()]
        self._target_parameters: list[Tensor] = [*self.target.parameters()]

    def loss(self, *columns: Tensor, **switches: Any) -> tuple[Tensor, Tensor]:
        """`td_losses`; a subclass may write others, with `self.network`, `self.target` and `self.config` at hand."""
        return td_losses(*columns, **switches)

    def train(
        self, batch: Minibatch | SequenceMinibatch, learning_rate: float, next_outputs: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One gradient step -> what `read` takes; a GPU is not waited for. next_outputs: what `target_outputs` gave for
        the batch's `next_obs`, if it was asked."""
        import torch

        if self.config.noisy:
            self.network.draw_noise(self._noise)
            self.target.draw_noise(self._noise)
        if isinstance(batch, SequenceMinibatch):
            outputs, next_outputs, next_q, next_mask = self._forward_sequences(batch)
        else:
            outputs, next_outputs, next_q, next_mask = self._forward(batch, next_outputs)
        with torch.no_grad():
            legal = next_q if next_mask is None else next_q.masked_fill(~next_mask.bool(), -math.inf)
            next_actions = legal.argmax(dim=1)
        actions = self._tensor(batch.actions).reshape(-1)
        losses, errors = self.loss(
            outputs,
            actions,
            next_outputs,
            next_actions,
            self._tensor(batch.returns).reshape(-1),
            self._tensor(batch.discounts).reshape(-1),
            distributional=self.config.distributional,
            loss=self.config.loss,
            support=getattr(self.network, "support", None),
        )
        if self.config.prioritized:
            weights = self._tensor(batch.weights)
        if isinstance(batch, SequenceMinibatch):
            mask = self._tensor(batch.mask)
            losses = losses.view_as(mask) * mask
            loss = (losses * weights if self.config.prioritized else losses).sum() / mask.sum()
            sizes = errors.view_as(mask).abs() * mask
            priorities = 0.9 * sizes.amax(dim=0) + 0.1 * sizes.sum(dim=0) / mask.sum(dim=0)
        else:
            loss = (losses * weights if self.config.prioritized else losses).mean()
            priorities = errors.abs()
        with torch.no_grad():
            q_taken = self.network.q_values(outputs).gather(1, actions.unsqueeze(1)).mean()
        figures = torch.stack([loss.detach(), q_taken])
        return *self.trainee.start_descent(loss, learning_rate, figures), priorities

    def read(self, trained: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Array, Array, Array]:
        """Of K gradient steps, when they are made: float32[K, 2], loss and mean Q of the actions taken; float32[K], the
        gradient norms before clipping (one that is not finite changed nothing); float32[K, M], the priorities."""
        import torch

        figures, norms, priorities = (torch.stack(c).numpy(force=True) for c in zip(*trained, strict=True))
        return figures, self.trainee.norms_of(norms), priorities

    def target_outputs(self, next_obs: Any) -> Tensor:
        """The target network's outputs for many minibatches at once: half the work, as long as it stays the same."""
        import torch

        with torch.no_grad():
            outputs: Tensor = self.target(map_obs(self._tensor, next_obs))[0]
            return outputs

    def _forward(
        self, batch: Minibatch, next_outputs: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Outputs [N, A, Z] for s; the target network's for s', Q(s', .) [N, A] that chooses a', legal a' [N, A]."""
        import torch

        outputs, _ = self.network(map_obs(self._tensor, batch.obs))
        if next_outputs is None:
            next_outputs = self.target_outputs(batch.next_obs)
        with torch.no_grad():
            choosing = (
                self.network(map_obs(self._tensor, batch.next_obs))[0] if self.config.double else next_outputs
            )
            next_q = self.network.q_values(choosing)
        mask = batch.next_obs[MASK] if isinstance(batch.next_obs, dict) and self._spec.has_mask else None
        return outputs, next_outputs, next_q, None if mask is None else self._tensor(mask)

    def _forward_sequences(self, batch: SequenceMinibatch) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """As `_forward`, N = U * M rows of the sequences after the burn-in, which only brings the core's state up."""
        import torch

        L, M = batch.starts.shape
        U = len(batch.actions)
        burn_in = self.config.burn_in
        obs = map_obs(self._tensor, map_obs(lambda leaf: leaf.reshape(L * M, *leaf.shape[2:]), batch.obs))
        starts = self._tensor(batch.starts)
        state = target_state = self._tensor(batch.core_states)
        with torch.no_grad():
            if burn_in:
                warm_up = map_obs(lambda leaf: leaf[: burn_in * M], obs)
                _, state = self.network(warm_up, state, starts[:burn_in])
                _, target_state = self.target(warm_up, target_state, starts[:burn_in])
            obs = map_obs(lambda leaf: leaf[burn_in * M :], obs)
            next_outputs, _ = self.target(obs, target_state, starts[burn_in:])
        all_outputs, _ = self.network(obs, state, starts[burn_in:])
        ends = self._tensor(((batch.bootstraps - burn_in) * M + np.arange(M)).reshape(-1))
        next_outputs = next_outputs[ends]
        with torch.no_grad():
            next_q = self.network.q_values(all_outputs[ends] if self.config.double else next_outputs)
        next_mask = obs[MASK][ends] if self._spec.has_mask else None
        return all_outputs[: U * M], next_outputs, next_q, next_mask

    def update_target(self, tau: float) -> None:
        """target = tau * online + (1 - tau) * target"""
        import torch

        with torch.no_grad():
            if tau == 1.0:
                torch._foreach_copy_(self._target_parameters, self._parameters)
            else:
                torch._foreach_lerp_(self._target_parameters, self._parameters, tau)

    def set_state(self, state: dict[str, Any]) -> None:
        own = {} if "noise" in state else {"noise": state_of(self._noise)}  # the other framework saves none
        super().set_state(state | own)


class DQNLearner(Learner[DQNConfig]):
    """An actor: trains on minibatches, publishes the weights. In the synchronous ring it holds the replay too.

    Knows no framework; `_net` does the arithmetic (of `DQN.nets`).
    """

    saved = {
        "**net": "_net",
        "**replay": "_replay",
        "updates": "_updates",
        "obs_statistics": "_obs_statistics",
    }

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
        replay: ReplayShape | None,
    ) -> None:
        """replay: None where shards hold it."""
        super().__init__(computation.config_class.model_validate(config), parameter_server)
        network_seed, replay_seed = seed_sequences(self.config.seed, "learner")
        framework = computation.framework(self.config)
        self._net: TorchDQN = computation.net(framework, self.config, spec, q_spec(self.config), network_seed)
        self.trainee = self._net.trainee
        self._replay = LearnerReplay(self.config, spec, replay, replay_seed) if replay else None
        # Without priorities that change in between, minibatches are drawn many at a time (of images, which take memory,
        # those of a round), and the target network sees them all at once.
        draws_ahead = not self.config.prioritized and spec.core == "none"
        self._chunk = (8 if spec.has_images else 64) if draws_ahead else 1
        self._values_ahead = spec.core == "none" and not self.config.noisy
        self._updates = 0
        self._obs_statistics = obs_statistics(spec.obs if self.config.normalize_observations else None)
        self.publish()

    def update(self, *batches: TransitionBatch) -> UpdateReport:
        """Synchronous: one round into the replay, the gradient steps that are due for it, publish version + 1."""
        assert self._replay is not None
        return replay_round(self, self._replay, self._obs_statistics, batches, self._learn_due, self._metrics)

    def _learn_due(self, due: int) -> list[dict[str, float]]:
        assert self._replay is not None
        config, beta = self.config, self.value(self.config.importance_beta)
        trained: list[dict[str, float]] = []
        while due:
            chunk = min(due, self._chunk)
            drawn = self._replay.buffer.sample(chunk * config.batch_size, beta)
            figures, priorities = self._train(drawn)
            if config.prioritized:
                self._replay.buffer.update_priorities(drawn.rows, drawn.stamps, priorities)
            trained += figures
            due -= chunk
        return trained

    @rlplat.method(num_returns=2)
    def learn(
        self, drawn: Minibatch | SequenceMinibatch, env_steps: int
    ) -> tuple[dict[str, float], tuple[Array, Array, Array]]:
        """Asynchronous: gradient steps on what a shard has drawn -> (metrics, what its `update_priorities` takes).

        env_steps: how far the run is, for the schedules.
        """
        self.env_steps = env_steps
        started = perf_counter()
        trained, priorities = self._train(drawn)
        self.publish_next()
        metrics = self._metrics(trained) | {"time/train_s": perf_counter() - started}
        return metrics, (drawn.rows, drawn.stamps, priorities)

    def _train(self, drawn: Minibatch | SequenceMinibatch) -> tuple[list[dict[str, float]], Array]:
        """One gradient step for every `batch_size` of what was drawn -> (figures of each, priorities of what was drawn:
        float32)."""
        config, size = self.config, self.config.batch_size
        learning_rate = self.value(config.learning_rate)
        drawn = drawn.with_obs(self._obs_statistics.normalize)
        trained: list[Any] = []
        ahead = None
        for start in range(0, len(drawn.rows), size):
            stop = start + size
            if ahead is None and self._values_ahead and isinstance(drawn, Minibatch):
                first, until_update = start, config.target_period - self._updates % config.target_period
                ahead = self._net.target_outputs(drawn.part(start, start + until_update * size).next_obs)
            next_outputs = None if ahead is None else ahead[start - first : stop - first]
            trained.append(self._net.train(drawn.part(start, stop), learning_rate, next_outputs))
            self._updates += 1
            if self._updates % config.target_period == 0:
                self._net.update_target(config.target_tau)
                ahead = None
        figures, norms, priorities = self._net.read(trained)
        is_bad = ~np.isfinite(norms)
        if config.non_finite == "stop" and is_bad.any():
            k = int(is_bad.argmax())
            batch = drawn.part(k * size, k * size + size)
            columns = {"obs": batch.obs, "returns": batch.returns, "weights": batch.weights}
            raise self.non_finite({"loss": figures[k, 0]}, columns, "set clip_rewards")
        priorities = np.where(is_bad[:, None], np.float32(0.0), priorities)
        rows = zip(*figures.T.tolist(), norms.tolist(), strict=True)
        names = ("loss", "q_mean", "gradient_norm")
        return [dict(zip(names, row, strict=True)) for row in rows], priorities.reshape(-1)

    def _metrics(self, trained: list[dict[str, float]]) -> dict[str, float]:
        own = {"learner/updates": self._updates, "learner/epsilon": self.value(self.config.epsilon)}
        return own | self.step_metrics(trained)

    def beside(self) -> Weights:
        """What travels with the weights: the share of random actions, statistics of observations."""
        epsilon = np.array([self.value(self.config.epsilon)], np.float32)
        return {EPSILON: epsilon} | self._obs_statistics.weights()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state({"obs_statistics": None} | state)  # earlier versions kept none


class DQN(Algorithm[DQNConfig]):
    """The ring, and `step()`, which turns it once.

    with DQN(DQNConfig(env="CartPole-v1", seed=1)) as dqn:
        while (result := dqn.step()).env_steps < 50_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "dqn"
    config_class: type[DQNConfig] = DQNConfig
    learner_class = DQNLearner
    nets = {"torch": TorchDQN, "tf": "rlplat.algorithms.other_frameworks.dqn_tf:TfDQN"}
    losses = ("loss",)
    weights_keys = ("weights", "target")

    def setup(self) -> None:
        """Parameter server, replay, learner, rollout workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        spaces = self.spaces = preflight(config, self.computation)
        self.apex: ApexRing | None = None
        if isinstance(spaces, MultiAgentPlan):  # such a ring for every policy
            plan = spaces
            rings = PolicyRings(
                plan,
                settings,
                lambda name, own, spec, server: self.learner_group(
                    own,
                    spec,
                    server,
                    replay_shape(config, spec, plan.num_columns(name, config.num_envs_per_worker)),
                ),
            )
            self.learners = self.add(rings, saved_as="learner")
            make_worker = rings.worker_maker(self.make_policy, record="transitions")
            self.workers = self.start_workers(make_worker, len(plan.trained))
        else:
            worker = spread(RolloutWorker, settings)
            spec, q = policy_spec(settings["policy"], spaces), q_spec(config)
            shape = replay_shape(config, spec, config.num_envs_per_worker)
            num_workers, B = max(1, config.num_rollout_workers), config.num_envs_per_worker
            epsilons: Sequence[Array | None] = [None] * num_workers
            shards: list[ActorHandle] = []
            if config.asynchronous:
                epsilons = [*lane_epsilons(num_workers * B).reshape(num_workers, B)]
                shard = spread(ReplayShard, settings)
                parts = [shape_of_shard(shape, config, i) for i in range(config.num_replay_shards)]
                shards = [self.start(shard, settings, spec, part, i) for i, part in enumerate(parts)]
            learners = self.learners = self.start_learners(settings, spec, None if shards else shape)
            self.workers = self.start_workers(
                lambda *place: worker.remote(
                    settings,
                    *place,
                    partial(policy_for, q=q, epsilons=epsilons[place[0]]),
                    record=record_of(config),
                )
            )
            if shards:
                self.apex = self.add(ApexRing(config, shards, learners, self.workers, self.tally))
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """Synchronous: sample, update, publish. Asynchronous: as many env steps, whoever does what meanwhile."""
        self.require_open()
        if self.apex:
            return self.result(self.apex.turn(), {})
        batches = self.workers.sample(*self.learners.latest())
        report = self.workers.deliver(batches, self.learners.update)
        return self.result(report, self.workers.metrics())

    @property
    def not_saved(self) -> tuple[str, ...]:
        """What a checkpoint leaves out, for its manifest."""
        replay = "the contents of the replay (save_replay: true saves them): after a resume it fills anew"
        order = "the order of events (asynchronous): a resumed run is another one"
        return (
            *self.workers.not_saved(),
            *([] if self.config.save_replay else [replay]),
            *([order] if self.config.asynchronous else []),
        )

    def get_state(self) -> dict[str, Any]:
        ring = self.apex.get_state() if self.apex else {"updates": 0, "shards": []}
        return super().get_state() | ring

    def set_state(self, state: dict[str, Any]) -> None:
        if self.apex:
            self.apex.set_state(state)
        super().set_state(state)

    @staticmethod
    def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        """The policy that acts with this algorithm's weights; settings: the config as a dict."""
        return policy_for(settings, spaces, seed, q=q_spec(DQNConfig.among(settings)))


def q_spec(config: DQNConfig) -> QSpec:
    return QSpec(
        dueling=config.dueling,
        noisy=config.noisy,
        distributional=config.distributional,
        num_atoms=config.num_atoms,
        value_range=config.value_range,
        head_hidden_size=config.head_hidden_size,
    )


def replay_shape(config: DQNConfig, spec: PolicySpec, num_columns: int) -> ReplayShape:
    """The whole replay, with a lane for each of `num_columns` of a rollout worker (its environments, or with several
    agents the columns of one policy)."""
    has_core = spec.core != "none"
    return ReplayShape(
        capacity=config.replay_capacity,
        num_lanes=max(1, config.num_rollout_workers) * num_columns,
        n_step=config.n_step,
        discount=config.discount,
        alpha=config.priority_alpha if config.prioritized else 0.0,
        clip_rewards=config.clip_rewards,
        frame_stacks=config.frame_stacks,
        burn_in=config.burn_in if has_core else 0,
        unroll=config.unroll_length if has_core else 0,
        hindsight=hindsight_of(config),
    )


def preflight(config: DQNConfig, computation: Computation) -> SpaceSpec | MultiAgentPlan:
    """In the driver, before any actor starts: environment and policies fit, and the replay fits into memory."""
    require_framework(computation.framework(config))
    settings, num_copies = config.model_dump(), config.num_envs_per_worker
    spaces = look_at_env(settings)
    require_goals(config, spaces)
    if not isinstance(spaces, MultiAgentPlan):
        require_discrete(spaces, config.env)
        spec = policy_spec(settings["policy"], spaces)
        _check(config, spec, replay_shape(config, spec, num_copies))
        return spaces
    if config.asynchronous:
        raise ConfigError("asynchronous replay shards are for one agent: set asynchronous to false")
    for policy in spaces.policies.values():
        require_discrete(policy.spaces, config.env)
    for name, spec in spaces.specs(settings).items():
        _check(config, spec, replay_shape(config, spec, spaces.num_columns(name, num_copies)))
    return spaces


def _check(config: DQNConfig, spec: PolicySpec, shape: ReplayShape) -> None:
    if config.normalize_observations:
        if config.asynchronous or config.framework != "torch":
            raise ConfigError(
                "normalize_observations of dqn wants asynchronous=false (who measures sees every observation) and "
                "framework=torch: set it to false, or those"
            )
        require_normalizable(spec.obs, images=True)
    num_workers = max(1, config.num_rollout_workers)
    if config.asynchronous and config.num_replay_shards > num_workers:
        raise ConfigError(
            f"num_replay_shards={config.num_replay_shards}, but there are {num_workers} rollout workers to fill them: "
            "lower it, or raise --num-rollout-workers"
        )
    low, high = config.value_range
    if config.distributional == "c51" and low >= high:
        raise ConfigError(f"value_range is [{low:g}, {high:g}]: the first number is the smaller one")
    require_room(shape, spec.obs, config.rollout_length)
