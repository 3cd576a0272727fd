"""Recurrent DQN with stored states (R2D2, Kapturowski et al. 2019): DQN on sequences, for policies with a core.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

A sequence is `burn_in` + `unroll_length` + `n_step` rows of one environment, beside it the core's state when the worker
acted on the first one. The burn-in brings that state up to the present weights, for the online and the target network;
then both unroll, and td_losses (algorithms/dqn.py) are those of every step. Settings, ring and losses are DQN's; the
actors of the paper, which do not wait for each other, are `--algo apex --policy.core lstm`.

Before this file, and after it (rlplat/rl/...; the others are named in algorithms/dqn.py):

    torch/cores.py, policy.py          LSTM, GRU, attention; who acts keeps a core's state for each environment
    replay/buffer.py SequenceReplay    where sequences begin and which are complete; draws them, time first
    algorithms/dqn.py                  the gradient step around `forward` and `reduced` here; learner, ring, `step`

Different from the paper:

- value rescaling is left out; new sequences get the largest priority so far;
- a sequence may hold several episodes: the state is forgotten where one begins;
- sequences overlap by half, whatever their length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from pydantic import Field

from rlplat.algorithms.dqn import DQN, DQNConfig, TorchDQN
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.off_policy.learner import QPolicyConfig
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, SequenceMinibatch
from rlplat.rl.spaces import MASK
from rlplat.section import Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import R2D2Settings


class RecurrentPolicyConfig(QPolicyConfig):
    """The network."""

    core: Literal["none", "lstm", "gru", "attention"] = "lstm"
    """Memory between encoder and heads; none learns as DQN does."""


class SequenceConfig(DQNConfig):
    """DQN's settings, and how long sequences are."""

    shapes_replay = (*DQNConfig.shapes_replay, "burn_in", "unroll_length")

    burn_in: int = Field(default=20, ge=0, le=1_000_000)
    """With a core: steps that warm its state up before those that are learnt from."""
    unroll_length: int = Field(default=20, ge=2, le=1_000_000)
    """With a core: steps of a sequence that are learnt from; sequences overlap by half."""


class R2D2Config(SequenceConfig):
    """R2D2's settings: DQN's with a core, double, dueling and prioritised, and the length of sequences."""

    policy: RecurrentPolicyConfig = Field(default_factory=RecurrentPolicyConfig)
    env_steps_per_update: float = Field(default=40.0, gt=0.0, le=1e9)
    """Env steps for each gradient step, which sees `batch_size` * `unroll_length` of them."""
    batch_size: Count = 32
    """Sequences per gradient step."""
    double: bool = True
    """The online network chooses the next action, the target network values it."""
    dueling: bool = True
    """Heads for V and A: Q = V + A - mean(A)."""
    prioritized: bool = True
    """Draw in proportion to the error."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[R2D2Settings]) -> None: ...


class TorchR2D2(TorchDQN):
    """DQN's networks, optimizer and gradient step, on sequences. What a policy without a core replays is single."""

    def forward(
        self, batch: Minibatch | SequenceMinibatch, next_outputs: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """As DQN's, N = U * M rows of the sequences after the burn-in."""
        import torch

        if isinstance(batch, Minibatch):
            return super().forward(batch, next_outputs)
        L, M = batch.starts.shape
        U, burn_in = len(batch.actions), self.config.burn_in
        obs = map_obs(self._tensor, map_obs(lambda leaf: leaf.reshape(L * M, *leaf.shape[2:]), batch.obs))
        starts, state = self._tensor(batch.starts), self._tensor(batch.core_states)
        target_state = state
        with torch.no_grad():
            if burn_in:
                warm_up = map_obs(lambda leaf: leaf[: burn_in * M], obs)
                _, state = self.network(warm_up, state, starts[:burn_in])
                _, target_state = self.target(warm_up, target_state, starts[:burn_in])
            obs = map_obs(lambda leaf: leaf[burn_in * M :], obs)
            next_outputs, _ = self.target(obs, target_state, starts[burn_in:])
        outputs, _ = self.network(obs, state, starts[burn_in:])
        ends = self._tensor(((batch.bootstraps - burn_in) * M + np.arange(M)).reshape(-1))
        next_outputs = next_outputs[ends]
        with torch.no_grad():
            next_q = self.network.q_values(outputs[ends] if self.config.double else next_outputs)
        next_mask = obs[MASK][ends] if self._spec.has_mask else None
        return outputs[: U * M], next_outputs, next_q, next_mask

    def reduced(self, losses: Tensor, errors: Tensor, batch: Minibatch | SequenceMinibatch) -> tuple[Tensor, Tensor]:
        """Means over the steps that can be learnt from; priority = 0.9 max |error| + 0.1 mean |error| (section 2.3)."""
        if isinstance(batch, Minibatch):
            return super().reduced(losses, errors, batch)
        mask = self._tensor(batch.mask)
        losses = losses.view_as(mask) * mask
        if self.config.prioritized:
            losses = losses * self._tensor(batch.weights)
        sizes = errors.view_as(mask).abs() * mask
        priorities = 0.9 * sizes.amax(dim=0) + 0.1 * sizes.sum(dim=0) / mask.sum(dim=0)
        return losses.sum() / mask.sum(), priorities


class R2D2(DQN):
    """DQN's ring, whose replay holds sequences.

    with R2D2(R2D2Config(env="rlplat.rl.envs.diagnostic:RememberCue", seed=1)) as r2d2:
        while (result := r2d2.step()).env_steps < 15_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "r2d2"
    config_class: type[DQNConfig] = R2D2Config
    config: SequenceConfig
    nets = {"torch": TorchR2D2, "tf": "rlplat.algorithms.other_frameworks.dqn_tf:TfR2D2"}
    takes_cores = True

    def replay_shape(self, spec: PolicySpec, num_columns: int) -> ReplayShape:
        shape, config = super().replay_shape(spec, num_columns), self.config
        if spec.core == "none":
            return shape
        return replace(shape, burn_in=config.burn_in, unroll=config.unroll_length)
