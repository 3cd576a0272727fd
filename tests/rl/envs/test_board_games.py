"""Tic-tac-toe and Connect Four against a brute-force referee; minimax; the environment around them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rlplat.errors import EnvError
from rlplat.rl.envs.board_games.env import BoardGameEnv, ConnectFour, TicTacToe
from rlplat.rl.envs.board_games.game import (
    CONNECT_FOUR,
    DECAY,
    TIC_TAC_TOE,
    LineGame,
    best_moves,
    move_values,
)
from rlplat.rl.envs.check import check_env_here
from rlplat.rl.envs.make import make_vector_env

GAMES = {
    "tic-tac-toe": TIC_TAC_TOE,
    "connect four": CONNECT_FOUR,
    "four in a row, 2 x 5": LineGame(2, 5, 4, drops=False),
}


def has_line(stones: np.ndarray, length: int) -> bool:
    """stones: bool[R, C]; every cell, every direction, step by step."""
    rows, columns = stones.shape
    for row, column, (down, right) in itertools.product(range(rows), range(columns), [(0, 1), (1, 0), (1, 1), (1, -1)]):
        cells = [(row + i * down, column + i * right) for i in range(length)]
        if all(0 <= r < rows and 0 <= c < columns and stones[r, c] for r, c in cells):
            return True
    return False


def board(text: str) -> np.ndarray:
    """int8[1, cells] of rows of x (to move), o and dots."""
    return np.array([["o.x".index(cell) - 1 for cell in "".join(text.split())]], np.int8)


@pytest.mark.parametrize("game", GAMES.values(), ids=list(GAMES))
def test_games_follow_their_rules_to_the_end(game: LineGame) -> None:
    """Random games, beside a referee who keeps a board of his own with the colours as they are."""
    rng = np.random.default_rng(1)
    boards, colors = game.start(40), [np.zeros((game.rows, game.columns), int) for _ in range(40)]
    endings = set()
    for move in range(game.max_moves):
        legal = game.legal(boards)
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in legal])
        moved = game.play(boards, actions)
        color = 1 if move % 2 == 0 else -1
        for i, action in enumerate(actions):
            cells = colors[i]
            assert legal[i].tolist() == ((cells[0] == 0) if game.drops else (cells == 0).ravel()).tolist()
            if game.drops:
                cells[np.flatnonzero(cells[:, action] == 0).max(), action] = color
            else:
                cells[action // game.columns, action % game.columns] = color
            assert (moved.boards[i].reshape(cells.shape) == -color * cells).all()
            won, full = has_line(cells == color, game.length), bool((cells != 0).all())
            assert (moved.outcomes[i], moved.ended[i]) == (float(won), won or full)
            endings |= {"won"} if won else {"drawn"} if full else set()
        assert (game.boards(game.planes(moved.boards)) == moved.boards).all()
        going_on = np.flatnonzero(~moved.ended)
        boards, colors = moved.boards[going_on], [colors[i] for i in going_on]
        if not len(boards):
            break
    assert not len(boards) and "won" in endings


@pytest.mark.parametrize("game", GAMES.values(), ids=list(GAMES))
def test_equal_positions_have_equal_moves_and_outcomes(game: LineGame) -> None:
    rng = np.random.default_rng(2)
    boards = game.start(64)
    same_cells, same_actions = game.symmetries[0]
    assert (same_cells == np.arange(game.max_moves)).all() and (same_actions == np.arange(game.num_actions)).all()
    for _ in range(game.max_moves - 1):
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in game.legal(boards)])
        moved = game.play(boards, actions)
        for cells, moves in game.symmetries:
            turned = boards[:, cells]
            assert (game.legal(turned) == game.legal(boards)[:, moves]).all()
            there = np.argmax(moves[None] == actions[:, None], axis=1)
            again = game.play(turned, there)
            assert (again.boards == moved.boards[:, cells]).all()
            assert (again.outcomes == moved.outcomes).all() and (again.ended == moved.ended).all()
            assert np.allclose(game.estimate(turned), game.estimate(boards), atol=1e-6)
        boards = moved.boards[~moved.ended]
        if not len(boards):
            break


def test_the_number_of_symmetries() -> None:
    assert len(TIC_TAC_TOE.symmetries) == 8 and len(CONNECT_FOUR.symmetries) == 2
    assert len({cells.tobytes() for cells, _ in TIC_TAC_TOE.symmetries}) == 8


def plain_minimax(game: LineGame, position: np.ndarray, depth: int) -> dict[int, float]:
    """Depth-first, one position at a time."""
    values = {}
    for action in np.flatnonzero(game.legal(position)[0]):
        moved = game.play(position, np.array([action]))
        if moved.ended[0]:
            values[int(action)] = float(moved.outcomes[0])
        elif depth == 1:
            values[int(action)] = -float(DECAY) * float(game.estimate(moved.boards)[0])
        else:
            values[int(action)] = -float(DECAY) * max(plain_minimax(game, moved.boards, depth - 1).values())
    return values


@pytest.mark.parametrize(
    ("game", "position", "depth"),
    [
        (TIC_TAC_TOE, board("x.o .o. ..x"), 9),
        (TIC_TAC_TOE, board("xo. ... ..."), 3),
        (CONNECT_FOUR, board("....... ....... ....... ...o... ..xxo.. .oxxo.x"), 3),
        (CONNECT_FOUR, board("oxoxoxo xoxoxox xoxoxox oxoxoxo oxoxoxo ......."[::-1]), 2),
    ],
)
def test_minimax_is_that_of_a_plain_search(game: LineGame, position: np.ndarray, depth: int) -> None:
    values, expected = move_values(game, position[0], depth), plain_minimax(game, position, depth)
    assert np.flatnonzero(np.isfinite(values)).tolist() == sorted(expected)
    for action, value in expected.items():
        assert values[action] == pytest.approx(value, abs=1e-5)


def test_minimax_wins_blocks_and_knows_that_tic_tac_toe_is_a_draw() -> None:
    assert best_moves(TIC_TAC_TOE, board("xx. oo. ...")[0], 9).tolist() == [2]
    assert best_moves(TIC_TAC_TOE, board("oo. x.. x..")[0], 9).tolist() == [2]
    start = TIC_TAC_TOE.start(1)[0]
    assert move_values(TIC_TAC_TOE, start, 9).tolist() == [0.0] * 9
    assert best_moves(TIC_TAC_TOE, start, 0).tolist() == list(range(9))


def played(env: BoardGameEnv, seed: int) -> tuple[list[Any], float]:
    """(observations, return) of a game with the first legal move each time."""
    obs, _ = env.reset(seed=seed)
    seen, total, ended = [obs], 0.0, False
    while not ended:
        obs, reward, ended, truncated, _ = env.step(int(np.flatnonzero(obs["action_mask"])[0]))
        assert not truncated and env.observation_space.contains(obs)
        seen.append(obs)
        total += reward
    return seen, total


def test_the_environment_is_sound_and_tells_the_agents_view() -> None:
    report = check_env_here("TicTacToe", {"opponent_depth": 2}, lambda *_: None, steps=60)
    assert report.is_sound, report
    assert check_env_here("ConnectFour", {"opponent_depth": 1}, lambda *_: None, steps=60).is_sound
    for first, num_stones in (("agent", 0), ("opponent", 1)):
        obs, _ = TicTacToe(first=first).reset(seed=1)
        assert obs["board"].sum(axis=(1, 2)).tolist() == [0, num_stones]
    returns = []
    for seed in range(12):
        (seen, total), (again, _) = (played(ConnectFour(0), seed) for _ in range(2))
        assert all((a["board"] == b["board"]).all() for a, b in zip(seen, again, strict=True))
        own, other = seen[-1]["board"].astype(bool)
        assert total == has_line(own, 4) - has_line(other, 4)
        returns.append(total)
    assert {1.0, -1.0} <= set(returns)
    assert all(played(TicTacToe(), seed)[1] <= 0.0 for seed in range(6))


def test_the_environment_says_what_it_does_not_take() -> None:
    with pytest.raises(EnvError, match=r"opponent_depth is -1; 0 plays at random"):
        make_vector_env("TicTacToe", 1, env_kwargs={"opponent_depth": -1})
    with pytest.raises(EnvError, match=r"first is 'me'; it is either, agent or opponent"):
        make_vector_env("TicTacToe", 1, env_kwargs={"first": "me"})
    env = TicTacToe(first="agent")
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(ValueError, match="action 0 is illegal here"):
        env.step(0)


def test_a_picture_shows_every_stone() -> None:
    env = ConnectFour(first="opponent", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (6 * 32, 7 * 32, 3) and picture.dtype == np.uint8
    middle = picture[16::32, 16::32].reshape(-1, 3)
    assert len(np.unique(middle, axis=0)) == 2 and (middle == (230, 190, 30)).all(axis=1).sum() == 1
