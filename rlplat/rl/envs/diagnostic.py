"""Small environments that prove one part each: a policy without the part cannot do well, one with it soon does.

rlplat train --algo ppo --env rlplat.rl.envs.diagnostic:RememberCue --set policy.core=lstm
rlplat train --algo ppo --env rlplat.rl.envs.diagnostic:MaskedChoice
rlplat train --algo ppo --env rlplat.rl.envs.diagnostic:NestedTask
rlplat train --algo ppo --env rlplat.rl.envs.diagnostic:DeepSea --set exploration_bonus=rnd
rlplat train --algo dqn --env rlplat.rl.envs.diagnostic:FlipBits --set hindsight.goal_selection_strategy=future
rlplat train --algo sac --env rlplat.rl.envs.diagnostic:ReachPoint --set hindsight.goal_selection_strategy=future
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlplat.rl.interfaces import Array


class RememberCue(gymnasium.Env[Array, Any]):
    """Proves a core. The first observation shows a cue, which the last action of the episode must repeat.

    Observations float32[3]: one-hot cue (zeros but in the first step), 1 when the answer is asked for. The return is 1
    for the right answer, else 0: 0.5 in the mean without memory, 1 with it. An episode has delay + 1 steps.
    """

    def __init__(self, delay: int = 8) -> None:
        """delay: steps between the cue and the question, at least 1."""
        if delay < 1:
            raise ValueError(f"delay is {delay}; with less than 1 there is nothing to remember")
        self._delay = delay
        self._cue = self._step = 0
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        was_asked = self._step == self._delay
        self._step += 1
        return self._obs(), float(was_asked and action == self._cue), was_asked, False, {}

    def _obs(self) -> Array:
        obs = np.zeros(3, np.float32)
        if self._step == 0:
            obs[self._cue] = 1.0
        obs[2] = self._step == self._delay
        return obs


class _Task(gymnasium.Env[dict[str, Any], Any]):
    """Counts the steps of an episode. A subclass draws what it begins with, and says what is observed."""

    _step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        self._draw()
        return self._obs(), {}

    def _draw(self) -> None:
        raise NotImplementedError

    def _obs(self) -> dict[str, Any]:
        raise NotImplementedError


class MaskedChoice(_Task):
    """Proves action masks. Of many actions, `num_legal` consecutive ones are legal, and they move with every step.

    Actions come in `num_legal` kinds (action % num_legal), and of each kind one is legal. The legal one of the kind
    that the observation names earns 1, other legal ones 0; an illegal one earns -1 and ends the episode. Returns:
    `length` at best, length / num_legal at random under the mask, about -1 at random without it.
    """

    def __init__(self, num_actions: int = 48, num_legal: int = 3, length: int = 20) -> None:
        if not 1 <= num_legal <= num_actions or num_actions % num_legal:
            raise ValueError(f"num_actions is {num_actions}, which is no multiple of num_legal, {num_legal}")
        self._num_actions, self._num_legal, self._length = num_actions, num_legal, length
        self._first = self._kind = self._step = 0
        self.observation_space = spaces.Dict(
            {
                # The kind that is asked for.
                "kind": spaces.Discrete(num_legal),
                # The first legal action, as a fraction of all.
                "position": spaces.Box(0.0, 1.0, (1,), np.float32),
                "action_mask": spaces.MultiBinary(num_actions),
            }
        )
        self.action_space = spaces.Discrete(num_actions)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        offset = (int(action) - self._first) % self._num_actions
        is_legal = offset < self._num_legal
        reward = -1.0 if not is_legal else float(action % self._num_legal == self._kind)
        self._step += 1
        self._draw()
        return self._obs(), reward, not is_legal or self._step == self._length, False, {}

    def _draw(self) -> None:
        self._first = int(self.np_random.integers(self._num_actions))
        self._kind = int(self.np_random.integers(self._num_legal))

    def _obs(self) -> dict[str, Any]:
        mask = np.zeros(self._num_actions, np.int8)
        mask[(self._first + np.arange(self._num_legal)) % self._num_actions] = 1
        position = np.array([self._first / self._num_actions], np.float32)
        return {"kind": self._kind, "position": position, "action_mask": mask}


class NestedTask(_Task):
    """Proves trees of observations and composite actions.

    Observations: {"goal": Discrete(3), "robot": (Box[2], {"switches": MultiBinary(2)})}; actions: {"choose":
    Discrete(3), "move": Box[2]}. In each of `length` steps, choosing the goal earns 0.5, and moving to the target up to
    0.5, nothing from a distance of 2 on. The target is halfway between the shown place and 1 (-1 on the axes whose
    switch is off). The return is `length` at best.
    """

    def __init__(self, length: int = 10) -> None:
        self._length = length
        self._step = self._goal = 0
        self._place = np.zeros(2, np.float32)
        self._switches = np.zeros(2, np.int8)
        self.observation_space = spaces.Dict(
            {
                "goal": spaces.Discrete(3),
                "robot": spaces.Tuple(
                    (
                        spaces.Box(-1.0, 1.0, (2,), np.float32),
                        spaces.Dict({"switches": spaces.MultiBinary(2)}),
                    )
                ),
            }
        )
        self.action_space = spaces.Dict({"choose": spaces.Discrete(3), "move": spaces.Box(-1.0, 1.0, (2,), np.float32)})

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        target = (self._place + np.where(self._switches, 1.0, -1.0)) / 2.0
        distance = float(np.linalg.norm(action["move"] - target))
        reward = 0.5 * (int(action["choose"]) == self._goal) + 0.5 * max(0.0, 1.0 - distance / 2.0)
        self._step += 1
        self._draw()
        return self._obs(), reward, False, self._step == self._length, {}

    def _draw(self) -> None:
        self._goal = int(self.np_random.integers(3))
        self._place = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        self._switches = self.np_random.integers(2, size=2, dtype=np.int8)

    def _obs(self) -> dict[str, Any]:
        return {"goal": self._goal, "robot": (self._place.copy(), {"switches": self._switches.copy()})}


class DeepSea(gymnasium.Env[Array, Any]):
    """Proves exploration (Osband et al. 2019, "Deep sea"). A boat sinks through `size` rows and drifts to the left or
    to the right in each; which of two actions is which was drawn for every cell, and stays so.

    Observations float32[2 size]: row and column, one-hot. To the right costs 0.01 / size, and going there in every row
    earns 1 in the last: a return of 0.99. Everything else earns 0 at most, to the left in every row. By chance the one
    way is found once in 2^size episodes.
    """

    def __init__(self, size: int = 20) -> None:
        self._size, self._row, self._column = size, 0, 0
        self._right = np.random.default_rng(size).integers(2, size=(size, size))
        self.observation_space = spaces.Box(0.0, 1.0, (2 * size,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        is_right = int(action) == self._right[self._row, self._column]
        found = is_right and self._column == self._size - 1
        reward = float(found) - is_right * 0.01 / self._size
        self._column = min(self._column + 1, self._size - 1) if is_right else max(self._column - 1, 0)
        self._row += 1
        return self._obs(), reward, self._row == self._size, False, {}

    def _obs(self) -> Array:
        obs = np.zeros(2 * self._size, np.float32)
        if self._row < self._size:
            obs[self._row] = 1.0
        obs[self._size + self._column] = 1.0
        return obs


class FlipBits(_Task):
    """Proves hindsight with discrete actions (Andrychowicz et al. 2017, section 4.1). Each action flips one of
    `num_bits` bits, which are to become those of the goal; every step until then earns -1, the last one 0.

    An episode has `num_bits` steps at most. Of 2^num_bits states one earns something, so that what only tries around
    never learns of it. Returns: -num_bits without success, about 1 - num_bits / 2 at best.
    """

    def __init__(self, num_bits: int = 13) -> None:
        self._num_bits, self._step = num_bits, 0
        self._bits = self._goal = np.zeros(num_bits, np.int8)
        bits = spaces.MultiBinary(num_bits)
        self.observation_space = spaces.Dict([("observation", bits), ("achieved_goal", bits), ("desired_goal", bits)])
        self.action_space = spaces.Discrete(num_bits)

    def _draw(self) -> None:
        self._bits, self._goal = self.np_random.integers(2, size=(2, self._num_bits), dtype=np.int8)
        if (self._bits == self._goal).all():
            self._bits[0] ^= 1

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._bits[int(action)] ^= 1
        self._step += 1
        reached = bool(self.compute_terminated(self._bits, self._goal, {}))
        return self._obs(), float(reached) - 1.0, reached, self._step == self._num_bits and not reached, {}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """[..., num_bits] of both -> [...]"""
        reward: Array = self.compute_terminated(achieved_goal, desired_goal, info) - 1.0
        return reward

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        reached: Array = (achieved_goal == desired_goal).all(axis=-1)
        return reached

    def _obs(self) -> dict[str, Any]:
        bits = self._bits.copy()
        return {"observation": bits, "achieved_goal": bits.copy(), "desired_goal": self._goal.copy()}


class ReachPoint(_Task):
    """Proves hindsight with continuous actions: a point with inertia in a cube of `num_axes` axes is pushed to a goal.

    Every step farther than 0.1 from the goal earns -1, others 0; an episode is cut off after `length` steps, however it
    goes. Random pushes never came there in 150 episodes: a return of -50; a controller written by hand gets -10.
    """

    def __init__(self, num_axes: int = 3, length: int = 50) -> None:
        self._num_axes, self._length, self._step = num_axes, length, 0
        self._place = self._speed = self._goal = np.zeros(num_axes)
        place = spaces.Box(-1.0, 1.0, (num_axes,), np.float64)
        state = spaces.Box(-1.0, 1.0, (2 * num_axes,), np.float64)
        self.observation_space = spaces.Dict(
            [("observation", state), ("achieved_goal", place), ("desired_goal", place)]
        )
        self.action_space = spaces.Box(-1.0, 1.0, (num_axes,), np.float32)

    def _draw(self) -> None:
        self._speed = np.zeros(self._num_axes)
        self._place, self._goal = self.np_random.uniform(-1.0, 1.0, (2, self._num_axes))

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._speed = 0.7 * self._speed + 0.05 * np.clip(action, -1.0, 1.0)
        self._place = np.clip(self._place + self._speed, -1.0, 1.0)
        self._step += 1
        reward = float(self.compute_reward(self._place, self._goal, {}))
        return self._obs(), reward, False, self._step == self._length, {}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """[..., num_axes] of both -> [...]"""
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return np.where(distance < 0.1, 0.0, -1.0)

    def _obs(self) -> dict[str, Any]:
        place = self._place.copy()
        state = np.concatenate([place, self._speed])
        return {"observation": state, "achieved_goal": place, "desired_goal": self._goal.copy()}
