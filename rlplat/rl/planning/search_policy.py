"""`SearchPolicy`: acts in a board game by tree search; `NetworkEvaluator`: the network that the search asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplat.rl.envs.board_games.game import BoardGame
from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.planning.mcts import Found, SearchSettings, draw, search
from rlplat.rl.policies.numpy_policies import Stateless
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import MASK
from rlplat.rl.torch.device import use_threads
from rlplat.rl.torch.networks import make_network
from rlplat.rl.torch.tensor_rows import tensor_on
from rlplat.rl.torch.weights import load_weights

BOARD = "board"
"""The key of the planes in the observations of a board game's environment."""


def tensors_of(game: BoardGame, boards: Array, device: torch.device) -> dict[str, Tensor]:
    """Positions as a network sees them, the same as the environment's observations."""
    planes = game.planes(boards).astype(np.float32)
    return {BOARD: tensor_on(device, planes), MASK: tensor_on(device, game.legal(boards))}


class NetworkEvaluator:
    """An `mcts.Evaluate`: priors are the softmax of the policy head's numbers for legal moves, values the tanh of the
    value head's."""

    def __init__(self, game: BoardGame, spec: PolicySpec) -> None:
        use_threads(1, spec)
        self._game = game
        self._network: Any = make_network(spec).requires_grad_(False).eval()

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)

    def __call__(self, boards: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            distribution, values, _ = self._network(tensors_of(self._game, boards, torch.device("cpu")))
            return distribution.params.softmax(dim=-1).numpy(), values.tanh().numpy()


class SearchPolicy(Stateless):
    """Acts with the weights of a network of the same spec (see interfaces.Policy); begins every search anew."""

    def __init__(
        self, game: BoardGame, spec: PolicySpec, settings: SearchSettings, seed: np.random.SeedSequence
    ) -> None:
        super().__init__(seed)
        self._game, self._settings = game, settings
        self._evaluate = NetworkEvaluator(game, spec)

    def set_weights(self, weights: Weights) -> None:
        self._evaluate.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """The move with the most visits, or one drawn in proportion to them; without noise at the root."""
        found = self._search(obs)
        shares = found.shares()
        actions = found.visits.argmax(axis=1) if deterministic else draw(shares, self._rng)
        taken = shares[np.arange(len(actions)), actions]
        return PolicyOutput(actions, np.log(taken).astype(np.float32), found.values.astype(np.float32))

    def values(self, obs: Obs) -> Array:
        return self._search(obs).values.astype(np.float32)

    def _search(self, obs: Obs) -> Found:
        assert isinstance(obs, dict)
        return search(self._game, self._game.boards(obs[BOARD]), self._evaluate, self._settings)
