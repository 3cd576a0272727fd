"""A board game as an environment of one agent: the other player is part of it.

rlplat train --algo alphazero --env ConnectFour
rlplat train --algo ppo --env TicTacToe --env-kwargs.opponent-depth 0
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from rlplat.rl.envs.board_games.game import CONNECT_FOUR, TIC_TAC_TOE, BoardGame, best_moves
from rlplat.rl.interfaces import Array

First = Literal["either", "agent", "opponent"]
CELL = 32
"""Pixels of a cell's side in a picture."""
COLORS = np.array([[235, 235, 235], [200, 50, 40], [230, 190, 30]], np.uint8)
"""Of an empty cell, the agent's stones, the opponent's."""


class BoardGameEnv(gymnasium.Env[dict[str, Any], Any]):
    """Observations: `board`, int8 planes of 0 and 1 (the agent's stones, the opponent's), and `action_mask`. The return
    is 1 for a won game, 0 for a draw, -1 for a lost one.

    The opponent looks `opponent_depth` moves ahead (minimax, one of the best moves at random); 0: any legal move.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}

    def __init__(
        self,
        game: BoardGame,
        opponent_depth: int,
        first: First = "either",
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        """first: who begins; either: drawn for every game."""
        if opponent_depth < 0:
            raise ValueError(f"opponent_depth is {opponent_depth}; 0 plays at random, 1 looks one move ahead")
        if first not in ("either", "agent", "opponent"):
            raise ValueError(f"first is {first!r}; it is either, agent or opponent")
        self.game = game
        self.render_mode = render_mode
        self._opponent_depth, self._first = opponent_depth, first
        self._board = game.start(1)
        self.observation_space = spaces.Dict(
            {
                "board": spaces.Box(0, 1, game.planes_shape, np.int8),
                "action_mask": spaces.MultiBinary(game.num_actions),
            }
        )
        self.action_space = spaces.Discrete(game.num_actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._board = self.game.start(1)
        if self._first == "opponent" or (self._first == "either" and self.np_random.integers(2)):
            self._opponent_moves()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if not self.game.legal(self._board)[0, int(action)]:
            raise ValueError(f"action {action} is illegal here: take one that action_mask allows")
        reward, ended = self._play(int(action))
        if not ended:
            reward, ended = self._opponent_moves()
            return self._obs(), -reward, ended, False, {}
        self._board = -self._board  # seen by the agent again, as after a move of the opponent
        return self._obs(), reward, ended, False, {}

    def render(self) -> Any:
        """uint8[H, W, 3]"""
        _, rows, columns = self.game.planes_shape
        cells = COLORS[self.game.planes(self._board)[0].transpose(1, 2, 0) @ np.array([1, 2])]
        picture = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
        picture[::CELL], picture[:, ::CELL] = 90, 90
        return picture.reshape(rows * CELL, columns * CELL, 3)

    def _opponent_moves(self) -> tuple[float, bool]:
        moves = best_moves(self.game, self._board[0], self._opponent_depth)
        return self._play(int(self.np_random.choice(moves)))

    def _play(self, action: int) -> tuple[float, bool]:
        """(what the player who moves gets, whether the game has ended)"""
        moved = self.game.play(self._board, np.array([action]))
        self._board = moved.boards
        return float(moved.outcomes[0]), bool(moved.ended[0])

    def _obs(self) -> dict[str, Array]:
        ended = not (self._board == 0).any()
        mask = np.ones(self.game.num_actions, np.bool_) if ended else self.game.legal(self._board)[0]
        return {"board": self.game.planes(self._board)[0], "action_mask": mask.astype(np.int8)}


class TicTacToe(BoardGameEnv):
    """Against perfect play, unless `opponent_depth` is less than 9."""

    def __init__(self, opponent_depth: int = 9, first: First = "either", **options: Any) -> None:
        super().__init__(TIC_TAC_TOE, opponent_depth, first, **options)


class ConnectFour(BoardGameEnv):
    """Against minimax of depth 4, unless told otherwise."""

    def __init__(self, opponent_depth: int = 4, first: First = "either", **options: Any) -> None:
        super().__init__(CONNECT_FOUR, opponent_depth, first, **options)
