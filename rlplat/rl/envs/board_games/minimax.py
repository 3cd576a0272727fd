"""Minimax: what the legal moves of a position are worth, a number of moves ahead.

All positions of a level are expanded at once, and those that are reached in several ways are looked at once. The values
are those of a plain depth-first search, or of alpha-beta, to the same depth.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rlplat.rl.envs.board_games.game import BoardGame
from rlplat.rl.interfaces import Array

DECAY = np.float32(0.99)
"""What is one move further away counts so much: to win soon and to lose late."""


def move_values(game: BoardGame, board: Array, depth: int) -> Array:
    """float32[A] for the player whose turn it is, -inf where illegal: outcome * DECAY ** (moves until then - 1); where
    `depth` moves do not end the game, `game.estimate`. board: int8[cells]; depth: at least 1."""
    positions = board[None]
    levels = []
    for _ in range(depth):
        parents, actions = np.nonzero(game.legal(positions))
        moved = game.play(positions[parents], actions)
        going_on = ~moved.ended
        children, which = moved.boards[:0], np.zeros(0, np.int64)
        if going_on.any():
            children, which = np.unique(moved.boards[going_on], axis=0, return_inverse=True)
        levels.append((len(positions), parents, actions, moved.outcomes, going_on, which.ravel()))
        positions = children
        if not len(children):
            break
    values = game.estimate(positions)
    while levels:
        num_positions, parents, actions, outcomes, going_on, which = levels.pop()
        of_moves = outcomes.copy()
        of_moves[going_on] = -DECAY * values[which]
        values = np.full(num_positions, -np.inf, np.float32)
        np.maximum.at(values, parents, of_moves)
    by_action = np.full(game.num_actions, -np.inf, np.float32)
    by_action[actions] = of_moves
    return by_action


def best_moves(game: BoardGame, board: Array, depth: int) -> Array:
    """int64[K]: the moves of the largest value; all legal ones with depth 0."""
    if depth == 0:
        return np.flatnonzero(game.legal(board[None])[0])
    return _best_moves(game, board.tobytes(), depth)


@lru_cache(maxsize=20_000)  # all of tic-tac-toe, and the openings of larger games
def _best_moves(game: BoardGame, board: bytes, depth: int) -> Array:
    values = move_values(game, np.frombuffer(board, np.int8), depth)
    return np.flatnonzero(values >= values.max() - 1e-6)
