"""Deep Q-learning (Mnih et al. 2015) with the parts of Rainbow (Hessel et al. 2018).

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

A round: all rollout workers make `rollout_length` steps, the learner one gradient step per `env_steps_per_update` of
them. Same seed, same curve, bit for bit. The parts, each a switch: `double` (van Hasselt et al. 2016), `dueling` (Wang
et al. 2016), `n_step` (Sutton 1988), `distributional` c51 (Bellemare et al. 2017) or qr (Dabney et al. 2018), `noisy`
(Fortunato et al. 2018), `prioritized` (Schaul et al. 2016); all on is Rainbow. With a core: r2d2.py; with actors that
do not wait for each other: apex.py.

Before this file, and after it (rlplat/rl/...):

    sampling/rollout_worker.py         steps environments, records a TransitionBatch of `rollout_length` steps of each
    policies/exploration.py            epsilon-greedy among the legal actions; numpy_policies.py, torch/policy.py: Q
    sampling/worker_group.py           the workers: asks all, replaces one that died
    off_policy/ring.py                 the ring: `setup` with its pre-flight, and `step`, which turns it once
    off_policy/learner.py              a round: batches into the replay, `learn` here, publish; how many steps are due
    replay/step_store.py, buffer.py    keep steps, frames once, n-step returns; minibatches, priorities (sum_tree.py)
    torch/q_network.py, trainee.py     encoder and heads, their noise; the optimizer, clipping, devices
    learning/parameter_server.py       holds the newest weights for workers and evaluations
    multi_agent/policy_rings.py        with several agents: such a learner for every policy
    run/algorithm.py, training_loop.py what all algorithms do; metrics, checkpoints, evaluation around `step`

Different from the papers:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- n-step windows are computed in the replay: the last n steps of an environment wait until its next fragment has come;
- importance weights are divided by the largest of the minibatch, not of the whole replay;
- C51's priority is KL(target || prediction), QR's the error of the mean.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Unpack

import numpy as np
from pydantic import Field, model_validator

from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.off_policy.learner import OffPolicyConfig, OffPolicyLearner, QEvaluationConfig, QPolicyConfig
from rlplat.rl.off_policy.ring import OffPolicy
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.make import q_policy_for
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, SequenceMinibatch, TargetsAhead
from rlplat.rl.saved import Saved, state_of
from rlplat.rl.schedules import LinearSchedule, ScheduledShare
from rlplat.rl.spaces import MASK
from rlplat.rl.unused_settings import DISCRETE, Unused
from rlplat.section import Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import DQNSettings

AtomValue = Annotated[float, Field(ge=-1e9, le=1e9)]


class DQNConfig(OffPolicyConfig):
    """DQN's settings. The defaults are plain DQN for small environments; for Atari: configs/dqn/_atari.yaml."""

    unused = {
        **OffPolicyConfig.unused,
        "learner.backend": Unused("there is no numpy learner", is_error=True, harmless=("torch",)),
        "policy.share_encoder": Unused("a Q-network has one encoder"),
        "multi_agent.centralized_critic": Unused("there is no critic beside Q: ppo has one", is_error=True),
        "policy.critic_hidden_sizes": Unused("the Q-network is the critic: set policy.hidden_sizes", is_error=True),
        **DISCRETE,
    }
    fixed_on_resume = (*OffPolicyConfig.fixed_on_resume, *(field.name for field in fields(QSpec)))
    removed = {"frame_stacks": True}
    shapes_replay = (*OffPolicyConfig.shapes_replay, "clip_rewards", "prioritized", "priority_alpha")

    policy: QPolicyConfig = Field(default_factory=QPolicyConfig)
    evaluation: QEvaluationConfig = Field(default_factory=QEvaluationConfig)
    target_period: Count = 1_000
    """Gradient steps between updates of the target network."""
    target_tau: float = Field(default=1.0, gt=0.0, le=1.0)
    """What the target network then takes over: 1 copies; small, with target_period 1, is Polyak averaging."""
    loss: Literal["huber", "mse"] = "huber"
    """Of the temporal-difference error; distributional losses have their own."""
    epsilon: ScheduledShare = LinearSchedule(start=1.0, end=0.05, until=0.1)
    """Share of random actions."""
    clip_rewards: bool = False
    """Learn from the sign of rewards; metrics stay raw."""

    double: bool = False
    """The online network chooses the next action, the target network values it."""
    dueling: bool = False
    """Heads for V and A: Q = V + A - mean(A)."""
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

    prioritized: bool = False
    """Draw in proportion to the error."""
    priority_alpha: float = Field(default=0.6, gt=0.0, le=1.0)
    """Priorities are |error|^alpha."""
    importance_beta: ScheduledShare = LinearSchedule(start=0.4, end=1.0)
    """How much of the bias of prioritised draws importance weights take back."""
    multi_agent: MultiAgentConfig = Field(default_factory=MultiAgentConfig)
    """Which policy decides for which agent, where there are several (docs/multi-agent.md)."""

    @model_validator(mode="after")
    def _check_value_range(self) -> Self:
        low, high = self.value_range
        if self.distributional == "c51" and low >= high:
            raise ValueError(f"value_range is [{low:g}, {high:g}]: the first number is the smaller one")
        return self

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
    i-th of Z equal parts of [0, 1] (Dabney et al. 2018, eq. 10, kappa = 1). quantiles: float32[N, Z]; targets:
    float32[N, any]."""
    import torch
    from torch.nn.functional import huber_loss

    Z = quantiles.shape[1]
    taus = ((torch.arange(Z, device=quantiles.device) + 0.5) / Z).view(1, Z, 1)
    own, wanted = torch.broadcast_tensors(quantiles.unsqueeze(2), targets.unsqueeze(1))  # [N, i, j]
    weights = torch.where(wanted < own.detach(), 1.0 - taus, taus)
    return (weights * huber_loss(own, wanted, reduction="none")).mean(dim=2).sum(dim=1)


class TorchDQN(Saved):
    """Networks, optimizer and gradient step on torch; `TfDQN` is the same on TensorFlow."""

    saved = {"**": "trainee", "target": "target", "noise": "_noise"}

    def __init__(self, config: Any, spec: PolicySpec, q: QSpec, seed: np.random.SeedSequence) -> None:
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
        # y = r, or r + gamma max_a' Q^(s', a'; theta-) where the episode goes on
        outputs, next_outputs, next_q, next_mask = self.forward(batch, next_outputs)
        with torch.no_grad():
            legal = next_q if next_mask is None else next_q.masked_fill(~next_mask.bool(), -math.inf)
            next_actions = legal.argmax(dim=1)
        actions, returns, discounts = (
            self._tensor(column).reshape(-1) for column in (batch.actions, batch.returns, batch.discounts)
        )
        losses, errors = self.loss(
            outputs,
            actions,
            next_outputs,
            next_actions,
            returns,
            discounts,
            distributional=self.config.distributional,
            loss=self.config.loss,
            support=getattr(self.network, "support", None),
        )
        loss, priorities = self.reduced(losses, errors, batch)
        with torch.no_grad():
            q_taken = self.network.q_values(outputs).gather(1, actions.unsqueeze(1)).mean()
        # a gradient descent step on (y - Q(s, a; theta))^2 with respect to theta
        figures = torch.stack([loss.detach(), q_taken])
        return *self.trainee.start_descent(loss, learning_rate, figures), priorities

    def forward(self, batch: Any, next_outputs: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Outputs [N, A, Z] for s; the target network's for s', Q(s', .) [N, A] that chooses a', legal a' [N, A]."""
        import torch

        outputs, _ = self.network(map_obs(self._tensor, batch.obs))
        if next_outputs is None:
            next_outputs = self.target_outputs(batch.next_obs)
        with torch.no_grad():
            choosing = self.network(map_obs(self._tensor, batch.next_obs))[0] if self.config.double else next_outputs
            next_q = self.network.q_values(choosing)
        next_mask = self._tensor(batch.next_obs[MASK]) if self._spec.has_mask else None
        return outputs, next_outputs, next_q, next_mask

    def reduced(self, losses: Tensor, errors: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """(the loss of the minibatch, the priorities of what it was drawn of)"""
        if self.config.prioritized:
            losses = losses * self._tensor(batch.weights)
        return losses.mean(), errors.abs()

    def read(self, trained: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Array, Array, Array]:
        """Of K gradient steps, when they are made: float32[K, 2], loss and mean Q of the actions taken; float32[K], the
        gradient norms before clipping (one that is not finite changed nothing); float32[K, M], the priorities."""
        import torch

        figures, norms, priorities = (torch.stack(c).numpy(force=True) for c in zip(*trained, strict=True))
        return figures, self.trainee.norms_of(norms), priorities

    def target_outputs(self, next_obs: Any) -> Tensor:
        """The target network's, for any number of minibatches."""
        import torch

        with torch.no_grad():
            outputs: Tensor = self.target(map_obs(self._tensor, next_obs))[0]
            return outputs

    def update_target(self, tau: float) -> None:
        """target = tau * online + (1 - tau) * target"""
        from rlplat.rl.torch.continuous_control import polyak

        polyak(self.target, self.network, tau)

    def set_state(self, state: dict[str, Any]) -> None:
        own = {} if "noise" in state else {"noise": state_of(self._noise)}  # the other framework saves none
        super().set_state(state | own)


class DQNLearner(OffPolicyLearner[DQNConfig]):
    """An actor: keeps the replay, makes the gradient steps that are due, publishes the weights.

    Knows no framework; `net` does the arithmetic (of `DQN.nets`).
    """

    saved = {"**": "net"}

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        super().__init__(computation, *arguments)
        framework, q = computation.framework(self.config), QSpec.of(self.config.model_dump())
        self.net: TorchDQN = computation.net(framework, self.config, self.spec, q, self.network_seed)
        self.trainee = self.net.trainee

    def learn(self, num_updates: int) -> list[dict[str, float]]:
        """Algorithm 1, the gradient steps of a round, on what is drawn from the replay."""
        assert self.replay is not None
        config, buffer, beta = self.config, self.replay.buffer, self.value(self.config.importance_beta)
        # Without priorities that change in between, minibatches are drawn many at a time (of images, which take memory,
        # those of a round).
        draws_ahead = not config.prioritized and self.spec.core == "none"
        chunk = (8 if self.spec.has_images else 64) if draws_ahead else 1
        trained: list[dict[str, float]] = []
        for start in range(0, num_updates, chunk):
            drawn = buffer.sample(min(chunk, num_updates - start) * config.batch_size, beta)
            figures, priorities = self.train(drawn)
            if config.prioritized:
                buffer.update_priorities(drawn.rows, drawn.stamps, priorities)
            trained += figures
        return trained

    def train(self, drawn: Minibatch | SequenceMinibatch) -> tuple[list[dict[str, float]], Array]:
        """One gradient step for every `batch_size` of what was drawn -> (figures of each, priorities of what was drawn:
        float32)."""
        config, size = self.config, self.config.batch_size
        learning_rate = self.value(config.learning_rate)
        drawn = drawn.with_obs(self.obs_statistics.normalize)
        ahead, trained = TargetsAhead(self.net.target_outputs), list[Any]()
        for start in range(0, len(drawn.rows), size):
            next_outputs = None
            if self.spec.core == "none" and not config.noisy:  # the target network stays the same for a while
                until_update = config.target_period - self.updates % config.target_period
                next_outputs = ahead.of(drawn, start, size, until_update)
            trained.append(self.net.train(drawn.part(start, start + size), learning_rate, next_outputs))
            self.updates += 1
            # every C steps reset Q^ = Q
            if self.updates % config.target_period == 0:
                self.net.update_target(config.target_tau)
        figures, norms, priorities = self.net.read(trained)
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

    def metrics(self, trained: list[dict[str, float]]) -> dict[str, float]:
        return {"learner/epsilon": self.value(self.config.epsilon)} | super().metrics(trained)

    def beside(self) -> Weights:
        """The share of random actions as well."""
        epsilon = np.array([self.value(self.config.epsilon)], np.float32)
        return {EPSILON: epsilon} | super().beside()


class DQN(OffPolicy[DQNConfig]):
    """The ring of off_policy/ring.py, which `step()` turns once.

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
    make_policy = staticmethod(q_policy_for)

    def replay_shape(self, spec: PolicySpec, num_columns: int) -> ReplayShape:
        config = self.config
        return replace(
            super().replay_shape(spec, num_columns),
            alpha=config.priority_alpha if config.prioritized else 0.0,
            clip_rewards=config.clip_rewards,
        )
