"""Monte-Carlo tree search with a network's priors and values (Silver et al. 2017, arXiv:1712.01815), pure numpy.

    found = search(game, boards, evaluate, settings, rng)       # G positions, a tree for each
    found.visits                                                # int64[G, A]: of the moves at the root

All trees take a simulation at the same time, so that the network is called once for G positions: down the tree by

    argmax_a  Q(s, a) + C(s) P(s, a) sqrt(N(s)) / (1 + N(s, a)),   C(s) = log((1 + N(s) + c_base) / c_base) + c_init

to a position that is new or ended; the new one is added and evaluated, and its value goes back up the path, with the
other sign at every move. N(s) = 1 + sum_a N(s, a): the evaluation of s counts as a visit. Q of a move never tried is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlplat.rl.envs.board_games.game import BoardGame
from rlplat.rl.interfaces import Array

Evaluate = Callable[[Array], tuple[Array, Array]]
"""boards int8[N, cells] of games that go on -> (priors float32[N, A], 0 where illegal, values float32[N] for the player
whose turn it is, within [-1, 1])."""
NOWHERE = -1


@dataclass(frozen=True)
class SearchSettings:
    num_simulations: int
    c_init: float = 1.25
    dirichlet_alpha: float = 1.0
    noise_share: float = 0.0
    """epsilon: how much of the root's priors is noise of that Dirichlet distribution."""
    c_base: float = 19652.0


class Found(NamedTuple):
    visits: Array
    """int64[G, A]: of the moves at the root; num_simulations in sum."""
    values: Array
    """float32[G]: of the root, the mean over its simulations."""

    def shares(self) -> Array:
        """float32[G, A]: of the visits; what a network is to learn."""
        return (self.visits / self.visits.sum(axis=1, keepdims=True)).astype(np.float32)


def puct_scores(visits: Array, totals: Array, priors: Array, settings: SearchSettings) -> Array:
    """float32[N, A] of the moves of N positions: those of visits N(s, a), sums of values N(s, a) Q(s, a) and priors, of
    illegal ones -inf."""
    num_visits = 1.0 + visits.sum(axis=1, keepdims=True)
    c = np.log((1.0 + num_visits + settings.c_base) / settings.c_base) + settings.c_init
    scores: Array = totals / np.maximum(visits, 1.0) + c * priors * np.sqrt(num_visits) / (1.0 + visits)
    return scores


def with_noise(priors: Array, settings: SearchSettings, rng: np.random.Generator) -> Array:
    """(1 - epsilon) priors + epsilon Dirichlet(alpha) over the legal moves of every row; priors: -inf where illegal."""
    noise = rng.standard_gamma(settings.dirichlet_alpha, priors.shape) * np.isfinite(priors)
    noise /= np.maximum(noise.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    share = settings.noise_share
    return ((1.0 - share) * priors + share * noise).astype(np.float32)


def search(
    game: BoardGame,
    boards: Array,
    evaluate: Evaluate,
    settings: SearchSettings,
    rng: np.random.Generator | None = None,
) -> Found:
    """boards: int8[G, cells], games that go on; rng: of the noise at the root, None for none."""
    trees = Trees(game, boards, settings)
    trees.evaluate(np.arange(len(boards)), 0, evaluate)
    if rng is not None and settings.noise_share:
        trees.priors[:, 0] = with_noise(trees.priors[:, 0], settings, rng)
    for simulation in range(settings.num_simulations):
        trees.simulate(simulation + 1, evaluate)
    visits = trees.visits[:, 0]
    return Found(visits.astype(np.int64), trees.totals[:, 0].sum(axis=1) / visits.sum(axis=1))


class Trees:
    """G trees side by side, of at most 1 + num_simulations positions each. Number 0 is the root; a simulation adds its
    position under its own number, or none where it ended at the end of a game."""

    def __init__(self, game: BoardGame, boards: Array, settings: SearchSettings) -> None:
        self._game, self._settings = game, settings
        num_trees, num_nodes, num_actions = len(boards), settings.num_simulations + 1, game.num_actions
        shape = (num_trees, num_nodes, num_actions)
        self.boards = np.zeros((num_trees, num_nodes, boards.shape[1]), np.int8)
        self.boards[:, 0] = boards
        self.priors = np.full(shape, -np.inf, np.float32)
        """P(s, a), -inf where illegal."""
        self.visits, self.totals = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        """N(s, a), and N(s, a) Q(s, a) for the player whose turn it is in s."""
        self.children = np.full(shape, NOWHERE, np.int32)
        self.ended = np.zeros((num_trees, num_nodes), np.bool_)
        self.values = np.zeros((num_trees, num_nodes), np.float32)
        """For the player whose turn it is: the network's, or the outcome."""

    def simulate(self, number: int, evaluate: Evaluate) -> None:
        """One simulation in every tree."""
        path, leaves, new = self._descend(number)
        self._add(*new, number)
        going_on = new[0][~self.ended[new[0], number]]
        if len(going_on):
            self.evaluate(going_on, number, evaluate)
        values = self.values[np.arange(len(leaves)), leaves]
        for trees, nodes, actions in reversed(path):
            values[trees] *= -1.0  # what is good for one player is bad for the other, whose move led there
            self.visits[trees, nodes, actions] += 1.0
            self.totals[trees, nodes, actions] += values[trees]

    def evaluate(self, trees: Array, node: int, evaluate: Evaluate) -> None:
        boards = self.boards[trees, node]
        priors, self.values[trees, node] = evaluate(boards)
        self.priors[trees, node] = np.where(self._game.legal(boards), priors, -np.inf)

    def _descend(self, number: int) -> tuple[list[tuple[Array, Array, Array]], Array, tuple[Array, Array, Array]]:
        """(the moves of every level: trees, nodes, actions; where each tree's simulation ends; the moves that lead to
        new positions, in the same form)."""
        trees = np.arange(len(self.boards))
        leaves = np.zeros(len(trees), np.int64)
        path, new = [], []
        while len(trees):
            nodes = leaves[trees]
            visits, totals = self.visits[trees, nodes], self.totals[trees, nodes]
            actions = puct_scores(visits, totals, self.priors[trees, nodes], self._settings).argmax(axis=1)
            path.append((trees, nodes, actions))
            children = self.children[trees, nodes, actions]
            is_new = children == NOWHERE
            new.append((trees[is_new], nodes[is_new], actions[is_new]))
            leaves[trees] = np.where(is_new, number, children)
            trees = trees[~(is_new | self.ended[trees, children])]
        first, second, third = (np.concatenate(parts) for parts in zip(*new, strict=True))
        return path, leaves, (first, second, third)

    def _add(self, trees: Array, parents: Array, actions: Array, number: int) -> None:
        moved = self._game.play(self.boards[trees, parents], actions)
        self.boards[trees, number] = moved.boards
        self.children[trees, parents, actions] = number
        self.ended[trees, number] = moved.ended
        self.values[trees, number] = -moved.outcomes


def draw(shares: Array, rng: np.random.Generator) -> Array:
    """int64[N]: one move of each row, with these probabilities; never one of probability 0. shares: [N, A]."""
    totals = shares.cumsum(axis=1)
    picks = rng.random((len(shares), 1)) * totals[:, -1:]
    actions: Array = (picks >= totals).sum(axis=1)
    return actions
