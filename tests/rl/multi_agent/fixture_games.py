"""PettingZoo environments that do what is written here, and a policy whose every number can be foretold."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from rlplat.rl.interfaces import Array, PolicyOutput, Weights
from rlplat.rl.obs_tree import obs_rows


class Dying(ParallelEnv):
    """Agents a, b, c; observation [number of the agent (1, 2, 3), time]. c terminates in step 2; a and b go on: step 4
    terminates a and cuts b off. Rewards: 10 * number + time of the step (1..4)."""

    possible_agents = ["a", "b", "c"]
    metadata = {"name": "dying"}
    render_mode = None

    def __init__(self, late: bool = False) -> None:
        """late: c is there only from step 1 on, not after reset."""
        self.late = late
        self.agents: list[str] = []
        self.time = 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(5)

    def _obs(self, agents: list[str]) -> dict[str, Array]:
        return {agent: np.array(["abc".index(agent) + 1, self.time], np.float32) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        self.agents = ["a", "b"] if self.late else ["a", "b", "c"]
        return self._obs(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.time += 1
        before = list(self.agents)
        rewards = {agent: 10.0 * ("abc".index(agent) + 1) + self.time for agent in before}
        terminations = {
            agent: (agent == "c" and self.time == 2) or (agent == "a" and self.time == 4) for agent in before
        }
        truncations = {agent: agent == "b" and self.time == 4 for agent in before}
        self.agents = [agent for agent in before if not terminations[agent] and not truncations[agent]]
        if self.late and self.time == 1:
            self.agents.append("c")
        shown = list(dict.fromkeys([*before, *self.agents]))
        return self._obs(shown), rewards, terminations, truncations, {agent: {} for agent in shown}


class Turns(AECEnv):
    """x, y, x, y, ... with a mask; observation [number (1, 2), turns so far]. Every turn gives 1 to who moves and
    -0.5 to the other. After `num_turns` turns both are cut off (`is_cut`) or terminate, with 10 for x and -10 for y
    besides."""

    metadata = {"name": "turns"}
    render_mode = None

    def __init__(self, num_turns: int = 5, is_cut: bool = False, mask_in_info: bool = False) -> None:
        super().__init__()
        self.num_turns, self.is_cut, self.mask_in_info = num_turns, is_cut, mask_in_info
        self.possible_agents = ["x", "y"]
        self.agents: list[str] = []
        self.turn = 0

    def observation_space(self, agent: str) -> Any:
        box = spaces.Box(0, 100, (2,), np.float32)
        if self.mask_in_info:
            return box
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(3)

    def mask(self) -> Array:
        """Forbids the action that is the number of the turn, modulo 3."""
        return (np.arange(3) != self.turn % 3).astype(np.int8)

    def observe(self, agent: str) -> Any:
        obs = np.array(["xy".index(agent) + 1, self.turn], np.float32)
        mask = self.mask() if agent == self.agent_selection else np.zeros(3, np.int8)
        return obs if self.mask_in_info else {"observation": obs, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.turn = 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.agent_selection = "x"
        self._set_infos()

    def _set_infos(self) -> None:
        self.infos = {agent: {"action_mask": self.mask()} if self.mask_in_info else {} for agent in self.agents}

    def step(self, action: Any) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        assert self.mask()[int(action)], f"turn {self.turn}: illegal action {action}"
        other = "y" if mover == "x" else "x"
        self._cumulative_rewards[mover] = 0.0
        self.rewards = {mover: 1.0, other: -0.5}
        self.turn += 1
        if self.turn == self.num_turns:
            self.rewards["x"] += 10.0
            self.rewards["y"] -= 10.0
            ends = self.truncations if self.is_cut else self.terminations
            for agent in self.agents:
                ends[agent] = True
        self.agent_selection = other
        self._set_infos()
        self._accumulate_rewards()


class Different(Turns):
    """y sees more than x."""

    def observation_space(self, agent: str) -> Any:
        box = spaces.Box(0, 100, (2 if agent == "x" else 4,), np.float32)
        if self.mask_in_info:
            return box
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def observe(self, agent: str) -> Any:
        seen = super().observe(agent)
        if agent == "y" and self.mask_in_info:
            return np.repeat(seen, 2)
        if agent == "y":
            seen["observation"] = np.repeat(seen["observation"], 2)
        return seen


class TablePolicy:
    """V = weights["scale"] * (10 * number + time), log_prob = -V, action: the first legal one. Its core (`size` > 0)
    counts the decisions since the episode began and adds 1000 * count to V."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.core_state = np.zeros((0, size), np.float32)
        self.scale = 1.0

    def set_weights(self, weights: Weights) -> None:
        self.scale = float(weights["scale"][0])

    def _values(self, obs: Any, state: Array) -> Array:
        seen = next(iter(obs.values())) if isinstance(obs, dict) else obs
        values = self.scale * (10 * seen[:, 0] + seen[:, 1])
        return (values + 1000 * state[:, 0] if self.size else values).astype(np.float32)

    def _state(self, obs: Any) -> Array:
        rows = obs_rows(obs)
        return self.core_state if len(self.core_state) == rows else np.zeros((rows, self.size), np.float32)

    def act(self, obs: Any, *, deterministic: bool = False) -> PolicyOutput:
        state = self._state(obs)
        values = self._values(obs, state)
        if self.size:
            self.core_state = state + 1
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        actions = np.zeros(len(values), np.int64) if mask is None else mask.argmax(axis=1)
        return PolicyOutput(actions, -values, values, values - 1)

    def values(self, obs: Any) -> Array:
        return self._values(obs, self._state(obs))

    def reset_core(self, ended: Array) -> None:
        if self.size:
            self.core_state = self.core_state * ~ended[:, None]

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def make_table_policy(settings: dict[str, Any], spaces: Any, seed: Any) -> TablePolicy:
    return TablePolicy(1 if settings["policy"]["core"] != "none" else 0)
