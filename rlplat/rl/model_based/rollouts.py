"""Branched rollouts: a few steps in a model, from states that were really seen (Janner et al. 2019, algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from rlplat.rl.interfaces import Array


class Prediction(Protocol):
    """Of N states and actions."""

    @property
    def next_obs(self) -> Array: ...

    @property
    def rewards(self) -> Array: ...

    @property
    def terminated(self) -> Array: ...


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
    predict: Callable[[Array, Array], Prediction], act: Callable[[Array], Array], starts: Array, length: int
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
