"""`RandomActor`: what a policy that knows nothing does in one environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.envs.gym_spaces import action_converter, action_row, batched, policy_actions
from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import MASK, SpaceSpec, action_leaves, obs_leaves


class RandomActor:
    """Random actions, legal ones where a mask says which are; the same for a seed. The environment gets them as those
    of a policy."""

    def __init__(self, space: Any, spaces: SpaceSpec, seed: int) -> None:
        """space: of actions, gymnasium's; spaces: the environment's, as policies know them."""
        self._space = space
        self._batch_of_one = batched(self._space, 1)
        self._batch_of_one.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._parts = action_leaves(spaces.action)
        self._has_mask = MASK in obs_leaves(spaces.obs)
        self._convert = action_converter(self._space)

    def act(self, obs: Any) -> Any:
        """An action as the environment takes it."""
        if not self._has_mask:
            return action_row(self._convert(policy_actions(self._space, self._batch_of_one.sample())), 0)
        mask = obs[MASK]
        columns: list[Array] = []
        start = 0
        for part in self._parts:
            for size in part.mask_groups:
                legal = np.flatnonzero(mask[start : start + size])
                columns.append(self._rng.choice(legal, 1))
                start += size
            if part.kind == "multi_binary":
                columns.append(self._rng.integers(2, size=part.flat_size))
            elif part.kind == "box":
                columns.append(self._rng.normal(size=part.flat_size))
        actions = np.concatenate(columns)[None]
        return action_row(self._convert(actions[:, 0] if self._space_is_discrete else actions), 0)

    @property
    def _space_is_discrete(self) -> bool:
        return len(self._parts) == 1 and self._parts[0].kind == "discrete"
