"""`PositionReplay`: positions of finished games, with what a search thought of their moves and how the games ended."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlplat.rl.envs.board_games.game import BoardGame
from rlplat.rl.interfaces import Array
from rlplat.rl.replay.ring import Ring
from rlplat.rl.saved import Saved


class Positions(NamedTuple):
    """N positions."""

    boards: Array
    """int8[N, cells], seen by the player whose turn it was."""
    policies: Array
    """float32[N, A]: the search's visits as shares."""
    outcomes: Array
    """float32[N]: 1 where that player won in the end, 0 for a draw, -1 for a loss."""


class PositionReplay(Saved):
    """The newest `capacity` positions.

    replay.add(positions)
    drawn = replay.sample(256)
    """

    saved = {"**": "_ring", "rng": "_rng"}

    def __init__(
        self, game: BoardGame, capacity: int, seed: np.random.SeedSequence, *, use_symmetries: bool
    ) -> None:
        """use_symmetries: every position is drawn as one of its equals, at random."""
        self._symmetries = game.symmetries if use_symmetries else game.symmetries[:1]
        cells = game.start(1).shape[1]
        self._ring = Ring(
            {
                "boards": np.zeros((capacity, cells), np.int8),
                "policies": np.zeros((capacity, game.num_actions), np.float32),
                "outcomes": np.zeros(capacity, np.float32),
            }
        )
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, positions: Positions) -> None:
        """Any number of them; the oldest give way."""
        self._ring.add(positions)

    def sample(self, size: int) -> Positions:
        """Independent draws."""
        rows = self._rng.integers(len(self), size=size)
        drawn = Positions(*self._ring.rows(rows))
        which = self._rng.integers(len(self._symmetries), size=size)
        for number, (cells, actions) in enumerate(self._symmetries):
            here = np.flatnonzero(which == number)
            drawn.boards[here] = drawn.boards[here][:, cells]
            drawn.policies[here] = drawn.policies[here][:, actions]
        return drawn
