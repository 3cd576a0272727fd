"""`BoardGame`: what a search needs of a game of two players; `LineGame`: those of stones in a line.

    boards = game.start(64)                              # int8[64, cells]
    moved = game.play(boards, actions)                   # of 64 games at once
    moved.boards, moved.outcomes, moved.ended

A position is always seen by the player whose turn it is: own stones are 1, the other player's -1, empty cells 0. All
functions take many positions at once and change nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from rlplat.rl.interfaces import Array


class Moved(NamedTuple):
    """N positions after one move each."""

    boards: Array
    """int8[N, cells], seen by the other player, whose turn it is now."""
    outcomes: Array
    """float32[N]: 1 where the player who moved has won, 0 where the game goes on or is drawn."""
    ended: Array
    """bool[N]"""


class BoardGame(Protocol):
    """Two players in turn, all to be seen, what one wins the other loses.

    boards = game.start(1)
    while not ended[0]:
        boards, outcomes, ended = game.play(boards, choose(game.legal(boards)))
    """

    num_actions: int
    """A: moves that there are anywhere in a game."""
    max_moves: int
    """After so many moves every game has ended."""
    planes_shape: tuple[int, int, int]
    """Of what a network sees: planes, rows, columns."""
    symmetries: tuple[tuple[Array, Array], ...]
    """(cells, actions): boards[:, cells] is an equal position, in which move i is move actions[i] of the first one. The
    position itself comes first."""

    def __hash__(self) -> int: ...

    def start(self, num_games: int) -> Array:
        """int8[N, cells]: where games begin."""
        ...

    def legal(self, boards: Array) -> Array:
        """bool[N, A]; positions in which a game has ended are never asked about."""
        ...

    def play(self, boards: Array, actions: Array) -> Moved:
        """actions: int64[N], legal ones."""
        ...

    def planes(self, boards: Array) -> Array:
        """int8[N, *planes_shape], 0 or 1: what a network sees."""
        ...

    def boards(self, planes: Array) -> Array:
        """The positions that were seen so: the other way round."""
        ...

    def estimate(self, boards: Array) -> Array:
        """float32[N] within (-0.9, 0.9): what a position may be worth to the player whose turn it is, where it is not
        searched any further; 0 where nothing is known."""
        ...


class LineGame:
    """`length` stones in a row win, in any direction; a full board is a draw.

    A move is a cell, counted by rows from the top left; or, where stones drop, a column, whose lowest empty cell is
    taken."""

    def __init__(self, rows: int, columns: int, length: int, *, drops: bool) -> None:
        self.rows, self.columns, self.length, self.drops = rows, columns, length, drops
        self.max_moves = rows * columns
        self.num_actions = columns if drops else rows * columns
        self.planes_shape = (2, rows, columns)
        lines = _lines(rows, columns, length)
        self._lines = np.zeros((rows * columns, len(lines)), np.float32)
        for index, cells in enumerate(lines):
            self._lines[cells, index] = 1.0
        grid = np.arange(rows * columns).reshape(rows, columns)
        turned = [np.rot90(grid, quarter) for quarter in range(4)] if rows == columns and not drops else [grid]
        self.symmetries = tuple(
            (cells.ravel(), cells[-1] - cells[-1].min() if drops else cells.ravel())
            for turn in turned
            for cells in (turn, turn[:, ::-1])
        )

    def start(self, num_games: int) -> Array:
        return np.zeros((num_games, self.max_moves), np.int8)

    def legal(self, boards: Array) -> Array:
        legal: Array = boards[:, : self.num_actions] == 0  # a column has room while its top cell has
        return legal

    def play(self, boards: Array, actions: Array) -> Moved:
        rows = np.arange(len(boards))
        cells = actions
        if self.drops:
            stones = (boards.reshape(-1, self.rows, self.columns)[rows, :, actions] != 0).sum(axis=1)
            cells = (self.rows - 1 - stones) * self.columns + actions
        after = boards.copy()
        after[rows, cells] = 1
        won = ((after == 1).astype(np.float32) @ self._lines == self.length).any(axis=1)
        return Moved(-after, won.astype(np.float32), won | (after != 0).all(axis=1))

    def planes(self, boards: Array) -> Array:
        both = np.stack([boards == 1, boards == -1], axis=1).astype(np.int8)
        return both.reshape(-1, *self.planes_shape)

    def boards(self, planes: Array) -> Array:
        both = planes.reshape(len(planes), 2, -1)
        boards: Array = both[:, 0].astype(np.int8) - both[:, 1].astype(np.int8)
        return boards

    def estimate(self, boards: Array) -> Array:
        """Lines that are open to one player alone, by the square of the stones in them."""
        own, other = ((boards == side).astype(np.float32) @ self._lines for side in (1, -1))
        worth = np.where(other == 0, own**2, 0.0) - np.where(own == 0, other**2, 0.0)
        most = np.float32(self._lines.shape[1] * self.length**2)
        return (worth.sum(axis=1) / most).astype(np.float32)


def _lines(rows: int, columns: int, length: int) -> list[list[int]]:
    """The cells of every line."""
    found = []
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                ends = row + down * (length - 1), column + right * (length - 1)
                if 0 <= ends[0] < rows and 0 <= ends[1] < columns:
                    found.append([(row + down * i) * columns + column + right * i for i in range(length)])
    return found


TIC_TAC_TOE = LineGame(3, 3, 3, drops=False)
CONNECT_FOUR = LineGame(6, 7, 4, drops=True)


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
