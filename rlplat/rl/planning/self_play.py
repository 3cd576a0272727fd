"""`board_game_of`: the game of an environment; `GamesInProgress`: games that are played side by side; `PositionReplay`:
the positions of those that have ended."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.envs.board_games.game import BoardGame
from rlplat.rl.envs.make import make_single_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.interfaces import Array
from rlplat.rl.replay.circular_buffer import CircularBuffer
from rlplat.rl.saved import Saved


class Positions(NamedTuple):
    """N positions."""

    boards: Array
    """int8[N, cells], seen by the player whose turn it was."""
    policies: Array
    """float32[N, A]: the search's visits as shares."""
    outcomes: Array
    """float32[N]: 1 where that player won in the end, 0 for a draw, -1 for a loss."""


class PositionReplay(CircularBuffer):
    """The newest `capacity` positions.

    replay.add(positions)
    drawn = replay.sample(256)
    """

    def __init__(self, game: BoardGame, capacity: int, seed: np.random.SeedSequence, *, use_symmetries: bool) -> None:
        """use_symmetries: every position is drawn as one of its equals, at random."""
        self._symmetries = game.symmetries if use_symmetries else game.symmetries[:1]
        columns: dict[str, Array] = {
            "boards": np.zeros((capacity, game.start(1).shape[1]), np.int8),
            "policies": np.zeros((capacity, game.num_actions), np.float32),
            "outcomes": np.zeros(capacity, np.float32),
        }
        super().__init__(columns, seed)

    def sample(self, size: int) -> Positions:
        """Independent draws."""
        drawn = Positions(*self.draw(size)[1])
        which = self._rng.integers(len(self._symmetries), size=size)
        for number, (cells, actions) in enumerate(self._symmetries):
            here = np.flatnonzero(which == number)
            drawn.boards[here] = drawn.boards[here][:, cells]
            drawn.policies[here] = drawn.policies[here][:, actions]
        return drawn


def board_game_of(env: Any, env_kwargs: dict[str, Any], algo: str) -> BoardGame:
    """The game that an environment plays: its attribute `game`. ConfigError where it has none."""
    source, game = resolve_env(env), None
    if source.kind in ("registered", "factory"):
        made = make_single_env(source, env_kwargs)
        game = getattr(getattr(made, "unwrapped", made), "game", None)
    if game is None:
        raise ConfigError(
            f"{algo} plans in board games of two players, and {source.name} is none: use TicTacToe, ConnectFour, or an "
            "environment with an attribute `game` (docs/alphazero.md); for other ones, --algo ppo"
        )
    found: BoardGame = game
    return found


class GamesInProgress(Saved):
    """A game that ends makes room for a new one.

    games = GamesInProgress(game, 64)
    ended = games.play(actions, policies)            # of games.boards; the positions of each game that has ended
    """

    saved = {
        "boards": "boards", "lengths": "lengths", "past_boards": "_past_boards", "past_policies": "_past_policies",
    }  # fmt: skip

    def __init__(self, game: BoardGame, num_games: int) -> None:
        self._game = game
        self.boards = game.start(num_games)
        """int8[B, cells], seen by the player whose turn it is."""
        self.lengths = np.zeros(num_games, np.int64)
        """Moves so far."""
        self._past_boards = np.zeros((num_games, game.max_moves, self.boards.shape[1]), np.int8)
        self._past_policies = np.zeros((num_games, game.max_moves, game.num_actions), np.float32)

    def play(self, actions: Array, policies: Array) -> list[Positions]:
        """One move in every game. actions: int64[B]; policies: float32[B, A], what the search thought of the moves."""
        games = np.arange(len(actions))
        self._past_boards[games, self.lengths] = self.boards
        self._past_policies[games, self.lengths] = policies
        self.lengths += 1
        moved = self._game.play(self.boards, actions)
        ended = []
        for game in np.flatnonzero(moved.ended):
            length = int(self.lengths[game])
            boards, policies_then = self._past_boards[game, :length], self._past_policies[game, :length]
            outcomes = outcomes_of(float(moved.outcomes[game]), length)
            ended.append(Positions(boards.copy(), policies_then.copy(), outcomes))
        self.boards = moved.boards
        self.boards[moved.ended] = self._game.start(1)
        self.lengths[moved.ended] = 0
        return ended

    def set_state(self, state: dict[str, Any]) -> None:
        """Into new games. state: of any number; those that are too many are dropped, and where there are fewer, the
        others begin."""
        kept = min(len(self.lengths), len(state["lengths"]))
        self.boards = np.concatenate([state["boards"][:kept], self.boards[kept:]])
        self.lengths[:kept] = state["lengths"][:kept]
        self._past_boards[:kept] = state["past_boards"][:kept]
        self._past_policies[:kept] = state["past_policies"][:kept]


def outcomes_of(last: float, length: int) -> Array:
    """float32[length]: of every position of a game, for the player whose turn it was; last: for the one who made the
    last move."""
    signs = np.where((length - 1 - np.arange(length)) % 2 == 0, 1.0, -1.0)
    return (last * signs).astype(np.float32)
