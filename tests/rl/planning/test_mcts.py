"""The tree search: known answers for its parts, and what it finds in positions that have one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlplat.rl.envs.board_games.game import CONNECT_FOUR, TIC_TAC_TOE, LineGame
from rlplat.rl.interfaces import Array
from rlplat.rl.planning.mcts import Evaluate, SearchSettings, Trees, draw, puct_scores, search, with_noise
from tests.rl.envs.test_board_games import board


def uniform(game: LineGame, calls: list[int] | None = None) -> Evaluate:
    """A network that knows nothing."""

    def evaluate(boards: Array) -> tuple[Array, Array]:
        if calls is not None:
            calls.append(len(boards))
        legal = game.legal(boards)
        return (legal / legal.sum(axis=1, keepdims=True)).astype(np.float32), np.zeros(len(boards), np.float32)

    return evaluate


def test_puct_scores_are_those_of_the_paper() -> None:
    settings = SearchSettings(1, c_init=1.25, c_base=19652.0)
    visits, totals = np.array([[3.0, 0.0, 1.0]]), np.array([[1.5, 0.0, -1.0]])
    priors = np.array([[0.2, 0.5, -np.inf]])
    c = math.log((1 + 5 + 19652) / 19652) + 1.25  # N(s) = 1 + 3 + 0 + 1
    expected = [0.5 + c * 0.2 * math.sqrt(5) / 4, 0.0 + c * 0.5 * math.sqrt(5) / 1, -math.inf]
    assert puct_scores(visits, totals, priors, settings)[0] == pytest.approx(expected)


def test_noise_is_mixed_into_legal_moves_only() -> None:
    settings = SearchSettings(1, dirichlet_alpha=0.5, noise_share=0.25)
    priors = np.tile(np.array([0.75, 0.25, -np.inf], np.float32), (20_000, 1))
    noisy = with_noise(priors, settings, np.random.default_rng(1))
    assert (noisy[:, 2] == -np.inf).all() and np.allclose(noisy[:, :2].sum(axis=1), 1.0, atol=1e-6)
    noise = (noisy[:, 0] - 0.75 * 0.75) / 0.25
    assert noise.min() > -1e-6 and noise.max() < 1.0 + 1e-6
    # Of Dirichlet(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
    assert noise.mean() == pytest.approx(0.5, abs=0.01) and noise.var() == pytest.approx(1 / 8, abs=0.005)


def test_noise_comes_into_the_root_alone() -> None:
    start = TIC_TAC_TOE.start(2)
    trees = Trees(TIC_TAC_TOE, start, settings := SearchSettings(30, noise_share=0.5))
    trees.evaluate(np.arange(2), 0, uniform(TIC_TAC_TOE))
    trees.priors[:, 0] = with_noise(trees.priors[:, 0], settings, np.random.default_rng(1))
    for number in range(1, 31):
        trees.simulate(number, uniform(TIC_TAC_TOE))
    inner = trees.priors[:, 1:][np.isfinite(trees.priors[:, 1:])]
    assert len(np.unique(trees.priors[:, 0])) == 18
    assert set(np.round(1.0 / inner).astype(int)) <= set(range(1, 9))
    found, other = (
        search(TIC_TAC_TOE, start, uniform(TIC_TAC_TOE), settings, np.random.default_rng(1)) for _ in range(2)
    )
    assert (found.visits == trees.visits[:, 0]).all() and (found.visits == other.visits).all()
    without = search(TIC_TAC_TOE, start, uniform(TIC_TAC_TOE), settings)
    assert (without.visits[0] == without.visits[1]).all() and (without.visits != found.visits).any()


def test_values_go_up_with_the_other_sign_at_every_move() -> None:
    """A network that says 0.5 of the root's child and -0.25 of its grandchild, in a tree of one line."""
    game = LineGame(1, 4, 4, drops=False)
    said = {0: 0.1, 1: 0.5, 2: -0.25}

    def evaluate(boards: Array) -> tuple[Array, Array]:
        priors = np.zeros((len(boards), 4), np.float32)
        stones = (boards != 0).sum(axis=1)
        priors[np.arange(len(boards)), stones] = 1.0  # always the next cell from the left
        return priors, np.array([said[int(n)] for n in stones], np.float32)

    trees = Trees(game, game.start(1), SearchSettings(2))
    trees.evaluate(np.arange(1), 0, evaluate)
    trees.simulate(1, evaluate)
    assert trees.totals[0, 0].tolist() == [-0.5, 0.0, 0.0, 0.0] and trees.visits[0, 0].tolist() == [
        1,
        0,
        0,
        0,
    ]
    trees.priors[0, 0, 1:] = -np.inf  # else the moves that were never tried come first
    trees.simulate(2, evaluate)
    assert trees.visits[0, 0, 0] == 2 and trees.totals[0, 0, 0] == pytest.approx(-0.5 - 0.25)
    child = trees.children[0, 0, 0]
    assert trees.totals[0, child, 1] == pytest.approx(0.25) and trees.visits[0, child].sum() == 1
    assert trees.values[0].tolist() == pytest.approx([0.1, 0.5, -0.25])


def test_the_end_of_a_game_is_worth_its_outcome_and_is_not_evaluated() -> None:
    """One empty cell: it wins, or it fills the board."""
    for text, outcome in (("xox oxo ox.", 1.0), ("xxo oox xo.", 0.0)):
        calls: list[int] = []
        found = search(TIC_TAC_TOE, board(text), uniform(TIC_TAC_TOE, calls), SearchSettings(10))
        assert calls == [1]  # the root alone
        assert found.values.tolist() == [outcome] and found.visits[0].tolist() == [0] * 8 + [10]


@pytest.mark.parametrize(
    ("game", "position", "move"),
    [
        (TIC_TAC_TOE, "xx. oo. ...", 2),
        (TIC_TAC_TOE, "oo. x.. x..", 2),
        (TIC_TAC_TOE, "x.o .x. o..", 8),
        (CONNECT_FOUR, "....... ....... ....... ....... .oo.... oxxx.o.", 4),
        (CONNECT_FOUR, "....... ....... ....... o...... o...... ox..x..", 0),
        (CONNECT_FOUR, "....... ....... ....... ..xo... .xox... xoox..o", 3),
    ],
)
def test_a_uniform_network_finds_mate_in_one_and_blocks(game: LineGame, position: str, move: int) -> None:
    found = search(game, board(position), uniform(game), SearchSettings(200))
    assert found.visits[0].argmax() == move, found
    assert found.visits[0].sum() == 200 and (found.visits[0][~game.legal(board(position))[0]] == 0).all()
    assert found.shares()[0] == pytest.approx(found.visits[0] / 200)


@pytest.mark.parametrize("num_trees", [1, 2, 7])
def test_trees_side_by_side_do_not_know_of_each_other(num_trees: int) -> None:
    """Each finds what it finds alone, whatever the depth at which the others are."""
    texts = [
        "xx. oo. ...",
        "... ... ...",
        "xox oxo .x.",
        "oo. x.. x..",
        "x.. .o. ...",
        "xo. xo. ...",
        "... .x. o..",
    ]
    boards = np.concatenate([board(text) for text in texts[:num_trees]])
    together = search(TIC_TAC_TOE, boards, uniform(TIC_TAC_TOE), SearchSettings(40))
    for i in range(num_trees):
        alone = search(TIC_TAC_TOE, boards[i : i + 1], uniform(TIC_TAC_TOE), SearchSettings(40))
        assert (alone.visits[0] == together.visits[i]).all() and alone.values[0] == together.values[i]


def test_moves_are_drawn_in_proportion_and_never_those_without_visits() -> None:
    shares = np.tile(np.array([0.0, 0.75, 0.0, 0.25, 0.0], np.float32), (10_000, 1))
    counts = np.bincount(draw(shares, np.random.default_rng(1)), minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0] and counts[1] == pytest.approx(7_500, abs=200)
