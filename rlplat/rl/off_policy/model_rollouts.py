"""Branched rollouts: a few steps in a model, from states that were really seen (Janner et al. 2019, algorithm 2).
`ModelReplay`: single transitions of a model, the newest of them; and minibatches of real and imagined ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.replay.buffer import Minibatch
from rlplat.rl.replay.circular_buffer import CircularBuffer

if TYPE_CHECKING:
    from rlplat.rl.torch.ensemble import Predicted


class Imagined(NamedTuple):
    """N transitions of a model."""

    obs: Array
    """float32[N, D]"""
    actions: Array
    """float32[N, A]"""
    rewards: Array
    """float32[N]"""
    next_obs: Array
    """float32[N, D]"""
    terminated: Array
    """bool[N]"""


def branched_rollouts(
    predict: Callable[[Array, Array], Predicted], act: Callable[[Array], Array], starts: Array, length: int
) -> tuple[Imagined, int]:
    """`length` steps from each of the starts, float32[M, D], fewer where the model says that the episode terminates ->
    the transitions step by step, and how many more were left out because the prediction held NaN or infinity, which
    ends a rollout too.

    predict: (obs, actions) -> what happens; act: obs -> float32[M, A].
    """
    obs, steps, num_dropped = starts, list[Imagined](), 0
    for _ in range(length):
        actions = act(obs)
        found = predict(obs, actions)
        step = Imagined(obs, actions, found.rewards, found.next_obs, found.terminated)
        is_finite = np.isfinite(found.next_obs).all(axis=1) & np.isfinite(found.rewards)
        if not is_finite.all():
            num_dropped += int(np.count_nonzero(~is_finite))
            step = Imagined(*(column[is_finite] for column in step))
        steps.append(step)
        obs = step.next_obs[~step.terminated]
        if not len(obs):
            break
    return Imagined(*(np.concatenate(columns) for columns in zip(*steps, strict=True))), num_dropped


class ModelReplay(CircularBuffer):
    """The newest `capacity` transitions.

    replay.add(imagined)
    minibatch = replay.sample(243)
    """

    def __init__(
        self, capacity: int, num_obs: int, num_actions: int, discount: float, seed: np.random.SeedSequence
    ) -> None:
        """num_obs, num_actions: D and A."""
        self._discount = np.float32(discount)
        columns = {
            "obs": np.zeros((capacity, num_obs), np.float32),
            "actions": np.zeros((capacity, num_actions), np.float32),
            "rewards": np.zeros(capacity, np.float32),
            "next_obs": np.zeros((capacity, num_obs), np.float32),
            "terminated": np.zeros(capacity, np.bool_),
        }
        super().__init__(columns, seed)

    def sample(self, size: int) -> Minibatch:
        """`size` independent draws, all rows equally likely."""
        rows, (obs, actions, rewards, next_obs, terminated) = self.draw(size)
        return Minibatch(
            obs=obs,
            actions=actions,
            returns=rewards,
            discounts=np.where(terminated, np.float32(0.0), self._discount),
            next_obs=next_obs,
            weights=np.ones(size, np.float32),
            rows=rows,
            stamps=np.zeros(size, np.int64),
        )


def mixed(real: Minibatch, imagined: Minibatch, num_batches: int) -> Minibatch:
    """`num_batches` minibatches one after the other, each with its share of both; their sizes are multiples of
    `num_batches`. Observations are arrays."""

    def side_by_side(name: str) -> Array:
        parts = [getattr(each, name) for each in (real, imagined)]
        grouped = [part.reshape(num_batches, -1, *part.shape[1:]) for part in parts]
        joined: Array = np.concatenate(grouped, axis=1)
        return joined.reshape(-1, *joined.shape[2:])

    return Minibatch(**{field.name: side_by_side(field.name) for field in fields(Minibatch)})
