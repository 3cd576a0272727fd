"""`ActorCriticNet`: an actor-critic network, its optimizer, and gradient steps on minibatches of a rollout.

Algorithms name their classes where no torch is imported (numpy computes, or the process is the driver): here it is
imported when a network is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.obs_tree import map_obs, obs_rows
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.rollout import Minibatch, Rollout, Rows
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.schedules import config_at

if TYPE_CHECKING:
    from torch import Tensor


_NO_STARTS = np.zeros((0, 0), np.bool_)


class Ends:
    """What followed the rows of a rollout: the last observation of every environment, and of every episode that was cut
    off. With the T rows these are the T + 1 of which IMPALA's learner takes the values."""

    def __init__(self, rollout: Rollout, inputs: Callable[[Obs], Any], tensor: Callable[[Array], Tensor]) -> None:
        batch = rollout.batch
        assert batch.last_obs is not None, "rollouts of a worker that records samples_and_ends"
        self._last = inputs(batch.last_obs)
        self._has_core = batch.core_state.size > 0
        self._cut_rows = None if batch.cut_rows is None else tensor(batch.cut_rows)
        if batch.cut_rows is None or batch.final_obs is None:
            return
        if not self._has_core:
            self._cut: tuple[Any, ...] = (inputs(batch.final_obs),)
            return
        # A core needs what came before: each cut-off episode's fragment once more, its last observation after the cut.
        (T, B), final = batch.shape, batch.final_obs
        t, b = np.divmod(batch.cut_rows, B)
        K = np.arange(len(t))
        self._places = tensor((t + 1) * len(K) + K)
        starts = np.concatenate([rollout.starts[:, b], np.zeros((1, len(K)), np.bool_)])
        starts[t + 1, K] = False

        def fragments(leaf: Array, last: Array) -> Array:
            rows = leaf.reshape(T, B, *leaf.shape[1:])[:, b]
            rows = np.concatenate([rows, rows[:1]])
            rows[t + 1, K] = last
            return rows.reshape(-1, *leaf.shape[1:])

        self._cut = (
            inputs(map_obs(fragments, rollout.obs, final)),
            tensor(batch.core_state[b]),
            tensor(starts),
        )

    def values(self, network: Any, values: Tensor, last_state: Tensor) -> Tensor:
        """float32[T*B]: V of what followed each row, without gradients. values: of the rows; last_state: the core's
        after them."""
        import torch

        with torch.no_grad():
            last = network(self._last, last_state if self._has_core else None)[1]
            following = torch.cat([values[len(last) :], last])
            if self._cut_rows is not None:
                cut = network(*self._cut)[1]
                following[self._cut_rows] = cut[self._places] if self._has_core else cut
        return following


@dataclass(slots=True, kw_only=True)
class Unroll(Minibatch):
    """All rows of rollouts, in order, and what followed them; log_probs and values are of the rows that count."""

    rollout: Rollout
    ends: Ends

    def unroll(self, network: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(log pi(a|s), entropy of pi(.|s), V(s), V of what followed), float32[T*B], whether rows count or not."""
        distribution, values, last_state = network(self.obs, self.state, self.starts)
        next_values = self.ends.values(network, values, last_state)
        return distribution.log_prob(self.actions), distribution.entropy(), values, next_values

    def host(self, column: Tensor) -> Array:
        """float32[T, B], without gradients."""
        array: Array = column.detach().cpu().numpy().reshape(self.rollout.batch.shape)
        return array

    def rows(self, column: Any) -> Tensor:
        """Those that count, of a tensor [T*B] or an array [T, B]."""
        import torch

        if not isinstance(column, torch.Tensor):
            column = torch.from_numpy(column.reshape(-1)).to(self.log_probs.device)
        return column if self.counted is None else column[self.counted]


class ActorCriticNet:
    """A subclass writes `loss`.

    net.load(rollout)                                               # onto the device, once for all minibatches
    trained = [net.train(rows, config) for rows in rollout.minibatches(...)]        # a GPU is told, and not waited for
    figures = net.read(trained)                                     # it is waited for here
    """

    def __init__(self, config: Any, spec: PolicySpec, seed: np.random.SeedSequence, **where: Any) -> None:
        """where: of `make_trainee`."""
        self.config = config
        self.trainee = self.make_trainee(config, spec, seed, **where)
        self.device, self.network = self.trainee.device, self.trainee.network
        self.spec = spec
        self._names: tuple[str, ...] = ()

    def make_trainee(self, config: Any, spec: PolicySpec, seed: np.random.SeedSequence, **where: Any) -> Any:
        """The network and its optimizer; where: of `actor_critic_trainee`."""
        from rlplat.rl.torch.trainee import actor_critic_trainee

        return actor_critic_trainee(config, spec, seed, **where)

    def decisions(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """(actions, their log-probabilities, values) by the network, of what it takes."""
        distribution, values, _ = self.network(*inputs)
        actions = distribution.mode()
        return actions, distribution.log_prob(actions), values

    def loss(self, network: Any, minibatch: Any, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """(the loss, numbers about it by name). minibatch: a `Minibatch`; config: schedules in it are the numbers that
        they have come to."""
        raise NotImplementedError

    def try_loss(self) -> None:
        """On numbers that are made up, before any rollout: UsageError names the loss and what it does wrong."""
        import torch

        from rlplat.rl.torch.network_check import errors_named

        name = getattr(self.loss, "__qualname__", "loss")
        config = config_at(self.config, 0, self.config.stop.env_steps)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            self.load(rollout := self._made_up())
            minibatch = self.minibatch(rollout.whole())
            with errors_named(name, "loss(network, minibatch, config)"):
                returned = self.loss(self.network, minibatch, config)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], dict):
            raise UsageError(f"{name} returned {_shown(returned)}, expected (loss, {{name: number}})")
        loss, stats = returned
        for what, number in {"the loss": loss, **{f"'{key}'": each for key, each in stats.items()}}.items():
            if not isinstance(number, torch.Tensor) or number.ndim:
                raise UsageError(f"{name}: {what} is {_shown(number)}, expected one number as a tensor: take .mean()")
        for key, figure in self.config.needs_figures.items():
            if getattr(self.config, key) is not None and figure not in stats:
                raise UsageError(
                    f"{key}={getattr(self.config, key):g} looks at '{figure}' among the numbers of the loss, but "
                    f"{name} gives {', '.join(stats) or 'none'}: return it (docs/ppo.md), or omit {key}"
                )
        if not bool(loss.isfinite()):
            raise UsageError(f"{name}: the loss is {loss.item()} on made-up rows, whose numbers are finite")
        if not loss.requires_grad:
            raise UsageError(f"{name}: the loss has no gradient: is something detached, or in no_grad?")

    def _made_up(self) -> Rollout:
        """2 steps of 3 environments; one row does not count."""
        import torch

        T, B = 2, 3
        specs = self.spec.obs if isinstance(self.spec.obs, dict) else {"": self.spec.obs}
        leaves = {
            path: (np.ones if leaf.kind == "mask" else np.zeros)((T, B, *leaf.shape), leaf.dtype)
            for path, leaf in specs.items()
        }
        obs: Any = leaves if isinstance(self.spec.obs, dict) else leaves[""]
        state = np.zeros((B, int(getattr(self.network, "state_size", 0))), np.float32)
        starts = np.zeros((T, B), np.bool_)
        flat = map_obs(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs)
        with torch.no_grad():
            given = (torch.from_numpy(each).to(self.device) if state.size else None for each in (state, starts))
            actions, log_probs, values = (
                each.cpu().numpy().reshape(T, B, *each.shape[1:]) for each in self.decisions(self._inputs(flat), *given)
            )
        batch = SampleBatch.empty(T, map_obs(lambda leaf: leaf[0], obs), actions[0])
        batch.obs, batch.actions, batch.log_probs, batch.values, batch.core_state = (
            obs, actions, log_probs, values, state,
        )  # fmt: skip
        batch.valid[:] = True
        batch.terminated[0, 0], batch.valid[1, 0] = True, False
        batch.last_obs = map_obs(lambda leaf: leaf[0], obs)
        advantages = np.linspace(-1.0, 1.0, T * B, dtype=np.float32).reshape(T, B)
        return Rollout(batch, batch.rewards, flat, advantages, values + advantages)

    def load(self, rollout: Rollout) -> None:
        from rlplat.rl.torch.tensor_rows import TensorRows, tensor_on

        batch = rollout.batch
        self._tensor = partial(tensor_on, self.device)
        self._rollout, self._starts = rollout, rollout.starts if batch.core_state.size else _NO_STARTS
        self._table = TensorRows(self.spec, rollout.obs, batch.flat("actions"), rollout.columns, self.device)
        self._core_state = self._tensor(np.array(batch.core_state))
        self._ends = None if batch.last_obs is None else Ends(rollout, self._inputs, self._tensor)

    def _inputs(self, obs: Obs) -> Any:
        """[N, ...], as the network takes them."""
        from rlplat.rl.torch.tensor_rows import TensorRows

        return TensorRows(self.spec, obs, np.arange(obs_rows(obs)), {}, self.device).take()[0]

    def minibatch(self, rows: Rows) -> Minibatch:
        """Of the rollout that was loaded last."""
        obs, actions, columns = self._table.take(None if rows.is_whole else rows.rows)
        made = Minibatch(obs, actions, **columns)
        if self._ends is not None:
            made = Unroll(obs, actions, **columns, rollout=self._rollout, ends=self._ends)
        if rows.envs is not None:
            made.state = self._core_state[self._tensor(rows.envs)]
            made.starts = self._tensor(self._starts[:, rows.envs])
        if rows.envs is not None or rows.is_whole:  # others count, all of them
            valid = self._rollout.batch.valid.reshape(-1)[rows.rows]
            if not valid.all():
                made.counted = self._tensor(np.flatnonzero(valid))
                for name, column in columns.items():
                    setattr(made, name, column[made.counted])
        if made.advantages is not None:
            made.advantages = (made.advantages - rows.mean) * rows.scale
        return made

    def train(self, rows: Rows, config: Any) -> tuple[Tensor, Tensor]:
        """One gradient step -> what `read` takes."""
        import torch

        loss, stats = self.loss(self.network, self.minibatch(rows), config)
        self._names = tuple(stats)
        figures = torch.stack(list(stats.values())).detach() if stats else loss.new_zeros(0)
        critic_rate = getattr(config, "critic_learning_rate", None)
        return self.trainee.start_descent(loss, config.learning_rate, figures, rows.share, critic_rate)

    def gradients(self, rows: Rows, config: Any) -> tuple[Weights, dict[str, float]]:
        """(by name, float32 and contiguous, not clipped; the numbers of the loss)"""
        loss, stats = self.loss(self.network, self.minibatch(rows), config)
        return self.trainee.gradients(loss), {name: number.item() for name, number in stats.items()}

    def read(self, trained: Sequence[tuple[Tensor, Tensor]]) -> list[dict[str, float]]:
        """Of gradient steps the numbers of the loss and `gradient_norm`. One whose norm is not finite changed
        nothing."""
        import torch

        stats, norms = (torch.stack(column).numpy(force=True) for column in zip(*trained, strict=True))
        both = np.column_stack([stats, self.trainee.norms_of(norms)]).astype(np.float64)
        return [dict(zip((*self._names, "gradient_norm"), each, strict=True)) for each in both.tolist()]


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"a tensor of shape {list(shape)}"
