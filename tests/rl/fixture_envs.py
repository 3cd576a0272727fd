"""Small environments with known answers, and one for each way of breaking the contract."""

from __future__ import annotations

import io
import multiprocessing
import os
import pdb
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

Ending = tuple[int, bool, bool]
"""(length, terminated, truncated) of an episode."""


class ScriptedEnv(gym.Env):
    """Its episodes are written down beforehand: observation [episode, step, last action], reward 10*episode + step."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, endings: tuple[Ending, ...] = ((3, True, False), (2, False, True), (1, True, True))) -> None:
        self._endings = endings
        self._episode = -1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._obs(-1), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        length, terminated, truncated = self._endings[self._episode % len(self._endings)]
        ends = self._step >= length
        reward = 10.0 * self._episode + self._step
        return self._obs(action), reward, ends and terminated, ends and truncated, {"extra": self._step}

    def _obs(self, action: Any) -> np.ndarray:
        return np.array([self._episode, self._step, action], np.float32)


class SeededEnv(gym.Env):
    """Observation: one number from np_random; ends after 5 steps, cut off."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._obs(), float(action[0] + 100 * action[1]), False, self._step == 5, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.random(1).astype(np.float32)


class OneArrayEnv(gym.Env):
    """Observes one array that it changes in place: the step, twice. Cut off after 3 steps."""

    observation_space = spaces.Box(0.0, 3.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._obs = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._obs[:] = 0.0
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._obs += 1.0
        return self._obs, 1.0, False, bool(self._obs[0] == 3.0), {}


class UnseededEnv(SeededEnv):
    """Draws from a generator that no seed reaches."""

    _GENERATOR = np.random.default_rng(1)

    def _obs(self) -> np.ndarray:
        return self._GENERATOR.random(1).astype(np.float32)


class SampledEnv(gym.Env):
    """Draws what it shows, and how long an episode is, from its spaces."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(9)})
        self.action_space = spaces.MultiDiscrete([3, 7])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, bool(self.action_space.sample()[1] == 0), False, {}


def stop_at_a_breakpoint() -> None:
    """With a user who answers after 1.5 s."""

    class User(io.StringIO):
        def readline(self, size: Any = -1) -> str:
            time.sleep(1.5)
            return "continue\n"

    pdb.Pdb(stdin=User(), stdout=io.StringIO(), nosigint=True, readrc=False).set_trace()


class FaultyEnv(gym.Env):
    """Sound until the `at`-th step (0: reset), then `fault`; only where `who` is None or its own number."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3, start=-1)
    made = 0
    release = threading.Event()

    def __init__(self, fault: str = "", at: int = 3, who: int | None = None) -> None:
        self._fault, self._at, self._steps = fault, at, 0
        self._is_sound = who is not None and FaultyEnv.made % 3 != who
        FaultyEnv.made += 1
        if fault == "init":
            raise RuntimeError("no display")
        if multiprocessing.parent_process() is not None and not self._is_sound:
            if fault == "init in its process":
                raise RuntimeError("no display there")
            if fault == "exit in its process":
                os._exit(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self._at == 0 and not self._is_sound:
            return self._break_reset()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps < self._at or self._is_sound:
            return np.zeros(2, np.float32), 1.0, False, False, {}
        return self._break_step()

    def close(self) -> None:
        self.release.set()

    def _break_reset(self) -> Any:
        match self._fault:
            case "slow":
                time.sleep(0.3)
                return np.zeros(2, np.float32), {}
            case "raise":
                raise ValueError("reset went wrong")
            case "obs only":
                return np.zeros(2, np.float32)
            case "bounds":
                return np.array([0.0, 7.5], np.float32), {}
            case "nan obs":
                return np.array([np.nan, 0.0], np.float32), {}
            case "info":
                return np.zeros(2, np.float32), None
        raise AssertionError(self._fault)

    def _break_step(self) -> Any:
        obs: Any = np.zeros(2, np.float32)
        reward: Any = 1.0
        done: Any = False
        match self._fault:
            case "raise":
                raise ValueError("the pole fell off")
            case "exit":
                raise SystemExit(3)
            case "nan obs":
                obs[1] = np.nan
            case "inf obs":
                obs[0] = np.inf
            case "nan final obs":
                return np.array([np.nan, 0.0], np.float32), 1.0, True, False, {}
            case "nan reward":
                reward = float("nan")
            case "inf reward":
                reward = float("inf")
            case "shape":
                obs = np.zeros(3, np.float32)
            case "dtype":
                obs = np.zeros(2, np.int64)
            case "wide":
                obs = np.full(2, 0.25, np.float64)
            case "list":
                obs = [0.0, 0.0]
            case "old api":
                return obs, reward, False, {}
            case "None":
                return None
            case "reward None":
                reward = None
            case "reward array":
                reward = np.ones(2)
            case "done int":
                done = 1
            case "info":
                return obs, reward, False, False, None
            case "bounds":
                obs[1] = -3.25
            case "hang":
                time.sleep(1000)
            case "slow":
                time.sleep(0.3)
            case "breakpoint":
                stop_at_a_breakpoint()
            case "hang stubbornly":
                self._swallow()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                raise AssertionError(self._fault)
        return obs, reward, done, False, {}

    def _swallow(self) -> None:
        """Waits for `release`, whatever is raised meanwhile: as a C extension would."""
        while not self.release.is_set():
            try:
                self.release.wait()
            except BaseException:
                continue


class UnsupportedEnv(FaultyEnv):
    observation_space = spaces.Dict({"speed": spaces.Box(0.0, 1.0, (2,)), "log": spaces.Text(8)})
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 3, (1,), np.int64)))


class TreeEnv(gym.Env):
    """Every kind of space, counted from odd places; observations say which action came last. Ends after `length` steps.

    `lies` replaces parts of the observations by path (a tuple of keys) from step `at` of an episode on.
    """

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "level": spaces.Discrete(5, start=2),
            "robot": spaces.Tuple(
                (
                    spaces.Dict({"joints": spaces.Box(-9.0, 9.0, (2, 2), np.float32)}),
                    spaces.MultiDiscrete([3, 4], start=[1, 0]),
                )
            ),
            "switches": spaces.MultiBinary((2, 2)),
            "clock": spaces.Box(0.0, np.inf, (), np.float64),
        }
    )
    action_space = spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=-1),
            "arm": spaces.Tuple((spaces.Box(-1.0, 1.0, (1, 2), np.float32), spaces.MultiDiscrete([2, 3]))),
            "lamps": spaces.MultiBinary(2),
        }
    )

    def __init__(
        self, length: int = 3, lies: dict[tuple[Any, ...], Any] | None = None, at: int = 2, base: int = 0
    ) -> None:
        self._length, self._lies, self._at = length, lies or {}, at
        self._base = base
        self.last_action: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._time += 1
        self.last_action = action
        ends = self._time == self._length
        return self._obs(), float(action["gear"]), ends, False, {}

    def _obs(self) -> Any:
        t = self._base + self._time
        obs: Any = {
            "camera": np.full((6, 5, 3), t, np.uint8),
            "level": 2 + t % 5,
            "robot": (
                {"joints": self.np_random.uniform(-9, 9, (2, 2)).astype(np.float32)},
                np.array([1 + t % 3, t % 4]),
            ),
            "switches": np.array([[t % 2, 0], [1, 1]], np.int8),
            "clock": np.array(t / 2),
        }
        for keys, value in self._lies.items() if self._time >= self._at else ():
            part = obs
            for key in keys[:-1]:
                part = part[key]
            if value is None:
                del part[keys[-1]]
            else:
                part[keys[-1]] = value
        return obs


class MaskEnv(gym.Env):
    """Where masks may come from: `source` is "dict", "info", "method" or "forgetful info" (none after the second step).

    In step t of an episode of 4, the actions t and t + 1 are legal, nothing after the last. `lies[step]` is the mask
    of that step since the beginning.
    """

    action_space: Any = spaces.Discrete(5, start=1)

    def __init__(self, source: str = "info", lies: dict[int, Any] | None = None, mask_space: Any = None) -> None:
        self._source, self._lies, self._steps = source, lies or {}, 0
        numbers = spaces.Box(0.0, 9.0, (1,), np.float32)
        self.observation_space: Any = numbers
        if source == "dict":
            mask_space = mask_space or spaces.Box(0, 1, (5,), np.int8)
            self.observation_space = spaces.Dict({"action_mask": mask_space, "numbers": numbers})
        if source == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        legal = self._mask()
        if self._steps not in self._lies:
            assert legal[action - 1], f"{action} is illegal under {legal}"
        self._steps += 1
        self._time += 1
        ends = self._time == 4
        return self._obs(), 1.0, ends, False, {} if ends else self._info()

    def _mask(self) -> Any:
        if self._steps in self._lies:
            return self._lies[self._steps]
        mask = np.zeros(5, np.int8)
        if self._time == 4:
            return mask
        mask[[self._time, self._time + 1]] = 1
        return mask

    def _obs(self) -> Any:
        numbers = np.array([self._time], np.float32)
        return {"numbers": numbers, "action_mask": self._mask()} if self._source == "dict" else numbers

    def _info(self) -> dict[str, Any]:
        is_given = self._source == "info" or (self._source == "forgetful info" and self._steps < 2)
        return {"action_mask": self._mask()} if is_given else {}


class ForgetfulEnv(SeededEnv):
    """What `reset` does not set decides what is observed next: cannot be played again."""

    def __init__(self) -> None:
        self._total = 0.0

    def step(self, action: Any) -> Any:
        self._total += float(action[0])
        return super().step(action)

    def _obs(self) -> np.ndarray:
        return np.abs(np.tanh(super()._obs() + self._total)).astype(np.float32)


class EndlessEnv(FaultyEnv):
    def __init__(self) -> None:
        super().__init__(at=10**9)


class NotAnEnv:
    pass


NUMBER = 5


class NativeVectorEnv:
    """A vector environment of its own, in NEXT_STEP mode, that returns what it was given."""

    single_observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, metadata: dict[str, Any] | None = None, **returned: Any) -> None:
        self.num_envs = 2
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP} if metadata is None else metadata
        self.returned = {
            "obs": np.zeros((2, 1), np.float32),
            "rewards": np.ones(2, np.float32),
            "terminated": np.zeros(2, np.bool_),
            "truncated": np.zeros(2, np.bool_),
        } | returned

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        return *(self.returned[key] for key in ("obs", "rewards", "terminated", "truncated")), {}

    def close(self) -> None:
        pass


class Blinking(gym.Env):
    """An image of 87 with one pixel that is 0 or 255; it ends at any step with a probability of 0.1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (20, 20, 1), np.uint8)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._picture(), 0.0, bool(self.np_random.random() < 0.1), False, {}

    def _picture(self) -> np.ndarray:
        picture = np.full((20, 20, 1), 87, np.uint8)
        picture[3, 4] = 255 * self.np_random.integers(2)
        return picture


class Counted(gym.Env):
    """Each one leaves a file while it is open: 10 steps an episode."""

    def __init__(self, folder: str) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.file = Path(folder) / uuid.uuid4().hex
        self.file.touch()
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return np.zeros(2, np.float32), 0.0, self.num_steps == 10, False, {}

    def close(self) -> None:
        self.file.unlink(missing_ok=True)
