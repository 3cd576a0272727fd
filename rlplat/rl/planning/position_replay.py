"""`PositionReplay`: positions of finished games, with what a search thought of their moves and how the games ended."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlplat.rl.envs.board_games.game import BoardGame
from rlplat.rl.interfaces import Array


class Positions(NamedTuple):
    """N positions."""

    boards: Array
    """int8[N, cells], seen by the player whose turn it was."""
    policies: Array
    """float32[N, A]: the search's visits as shares."""
    outcomes: Array
    """float32[N]: 1 where that player won in the end, 0 for a draw, -1 for a loss."""


COLUMNS = ("boards", "policies", "outcomes")
"""Of `Positions`, by their names in a checkpoint."""


class PositionReplay:
    """The newest `capacity` positions.

    replay.add(positions)
    drawn = replay.sample(256)
    """

    def __init__(
        self, game: BoardGame, capacity: int, seed: np.random.SeedSequence, *, use_symmetries: bool
    ) -> None:
        """use_symmetries: every position is drawn as one of its equals, at random."""
        self._symmetries = game.symmetries if use_symmetries else game.symmetries[:1]
        cells = game.start(1).shape[1]
        self._columns = Positions(
            np.zeros((capacity, cells), np.int8),
            np.zeros((capacity, game.num_actions), np.float32),
            np.zeros(capacity, np.float32),
        )
        self._capacity, self._num_added = capacity, 0
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        return min(self._num_added, self._capacity)

    def add(self, positions: Positions) -> None:
        """Any number of them; the oldest give way."""
        num_new = len(positions.outcomes)
        kept = min(num_new, self._capacity)
        places = (self._num_added + np.arange(num_new - kept, num_new)) % self._capacity
        for column, new in zip(self._columns, positions, strict=True):
            column[places] = new[num_new - kept :]
        self._num_added += num_new

    def sample(self, size: int) -> Positions:
        """Independent draws."""
        rows = self._rng.integers(len(self), size=size)
        drawn = Positions(*(column[rows] for column in self._columns))
        which = self._rng.integers(len(self._symmetries), size=size)
        for number, (cells, actions) in enumerate(self._symmetries):
            here = np.flatnonzero(which == number)
            drawn.boards[here] = drawn.boards[here][:, cells]
            drawn.policies[here] = drawn.policies[here][:, actions]
        return drawn

    def get_state(self) -> dict[str, Any]:
        columns = [column[: len(self)].copy() for column in self._columns]
        return {
            "columns": dict(zip(COLUMNS, columns, strict=True)),
            "num_added": self._num_added,
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Into an empty replay; of another capacity, the newest that it has room for."""
        num_added, num_saved = int(state["num_added"]), len(state["columns"]["outcomes"])
        oldest_first = np.arange(num_added - num_saved, num_added) % max(1, num_saved)
        self._num_added = num_added - num_saved if num_saved == self._capacity else 0
        self.add(Positions(*(state["columns"][name][oldest_first] for name in COLUMNS)))
        self._rng.bit_generator.state = state["rng"]
