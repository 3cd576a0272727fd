"""Environments that end, block or litter the process that they live in."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Quit(BaseException):
    """Not an Exception."""


class UnrulyEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of `length` steps (0: without an end); misbehaves in its step `at`, counted since it was made."""

    def __init__(self, deed: str = "", at: int = 3, length: int = 10, file: str = "") -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._deed, self._at, self._length, self._file = deed, at, length, file
        self._step = self._total = 0
        if deed == "daemon":
            _start_daemon(Path(file))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._total += 1
        if self._total == self._at:
            self._misbehave()
        return np.zeros(2, np.float32), 1.0, self._step == self._length, False, {}

    def close(self) -> None:
        if self._deed == "close":
            raise RuntimeError("the door is stuck")

    def _misbehave(self) -> None:
        if self._deed == "exit":
            os._exit(0)
        if self._deed == "crash":
            ctypes.string_at(0)
        if self._deed == "quit":
            raise Quit("enough")
        if self._deed == "raise":
            raise ValueError("the pole fell off")
        if self._deed == "hold":
            ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock: no thread can look at the time


def _start_daemon(file: Path) -> None:
    """Two forks and a session of its own, as daemons do; its pid goes to the file."""
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() == 0:
        partial = file.with_suffix(".new")
        partial.write_text(str(os.getpid()))
        partial.rename(file)
        time.sleep(1000)
    else:
        while not file.exists():
            time.sleep(0.001)
    os._exit(0)
