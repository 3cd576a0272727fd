"""Tiny PettingZoo environments whose best play is known, for tests and for a first try (extra: marl).

rlplat train --algo ppo --env rlplat.rl.envs.diagnostic_multi_agent:Rendezvous
rlplat train --algo ppo --env rlplat.rl.envs.diagnostic_multi_agent:Nim
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from rlplat.rl.interfaces import Array


class Rendezvous(ParallelEnv):
    """Two agents on a line are to stand on the lit cell together (parallel, cooperative).

    Observation: float32[3 * num_cells], one-hot own cell, the other's cell and the lit cell. Actions: left, stay,
    right. Both get -1 / max_steps per step and 1 when they have met, which terminates; after `max_steps` steps it is
    cut off. The best return is 1 - (steps of the one who has farther to go) / max_steps.
    """

    metadata = {"name": "rendezvous", "render_modes": []}

    def __init__(self, num_cells: int = 5, max_steps: int = 12) -> None:
        self.num_cells, self.max_steps = num_cells, max_steps
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self._observation_space = spaces.Box(0.0, 1.0, (3 * num_cells,), np.float32)
        self._action_space = spaces.Discrete(3)
        self._rng = np.random.default_rng()
        self._cells = {"left": 0, "right": num_cells - 1}
        self._lit = self._num_steps = 0

    def observation_space(self, agent: str) -> spaces.Box:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Discrete:
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._cells = {agent: int(self._rng.integers(self.num_cells)) for agent in self.agents}
        self._lit = int(self._rng.integers(self.num_cells))
        self._num_steps = 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._num_steps += 1
        for agent, action in actions.items():
            self._cells[agent] = min(max(self._cells[agent] + int(action) - 1, 0), self.num_cells - 1)
        met = all(cell == self._lit for cell in self._cells.values())
        is_late = self._num_steps >= self.max_steps
        agents, reward = list(self.agents), (1.0 if met else 0.0) - 1.0 / self.max_steps
        if met or is_late:
            self.agents = []
        return (
            self._observations(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, met),
            dict.fromkeys(agents, is_late and not met),
            {agent: {} for agent in agents},
        )

    def _observations(self) -> dict[str, Array]:
        eye = np.eye(self.num_cells, dtype=np.float32)
        left, right, lit = eye[self._cells["left"]], eye[self._cells["right"]], eye[self._lit]
        return {"left": np.concatenate([left, right, lit]), "right": np.concatenate([right, left, lit])}


class Nim(AECEnv):
    """Players take 1 to 3 stones in turn; who takes the last one wins (turn-based, competitive, with an action mask).

    Observation: one-hot of the stones that are left, float32[max_stones + 1]; mask: nobody takes more than there are.
    The winner gets 1, the loser -1. With perfect play, who is to move loses where the stones
    are a multiple of 4 and otherwise wins by taking `stones % 4` (`best_nim_action`).
    """

    metadata = {"name": "nim", "render_modes": [], "is_parallelizable": False}

    def __init__(self, max_stones: int = 9) -> None:
        super().__init__()
        self.max_stones = max_stones
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self._observation_space = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (max_stones + 1,), np.float32),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )
        self._action_space = spaces.Discrete(3)
        self._rng = np.random.default_rng()
        self.stones = 0

    def observation_space(self, agent: str) -> spaces.Dict:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Discrete:
        return self._action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.stones = int(self._rng.integers(1, self.max_stones + 1))
        self.agent_selection = "first"

    def observe(self, agent: str) -> dict[str, Array]:
        return {
            "observation": np.eye(self.max_stones + 1, dtype=np.float32)[self.stones],
            "action_mask": (np.arange(1, 4) <= self.stones).astype(np.int8),
        }

    def step(self, action: Any) -> None:
        player = self.agent_selection
        if self.terminations[player]:
            self._was_dead_step(action)
            return
        other = "second" if player == "first" else "first"
        taken = int(action) + 1
        if taken > self.stones:
            raise ValueError(f"'{player}' took {taken} of {self.stones} stones")
        self.stones -= taken
        self._cumulative_rewards[player] = 0.0
        self._clear_rewards()
        if self.stones == 0:
            self.rewards = {player: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self._accumulate_rewards()


def best_nim_action(stones: int) -> int | None:
    """What wins, as an action (stones taken - 1); None where every action loses against perfect play."""
    return stones % 4 - 1 if stones % 4 else None
