"""Functions and classes that the runtime benchmark runs in other processes; a process pool needs to import them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np


def noop() -> None:
    pass


def identity(value: Any) -> Any:
    return value


def last_byte(array: np.ndarray) -> int:
    """Reads one element: the array has to be there, but is not copied."""
    return int(array[-1])


def make_array(num_bytes: int) -> np.ndarray:
    """uint8[num_bytes], made once per process: what is measured is its way home."""
    array = _arrays.get(num_bytes)
    if array is None:
        array = _arrays[num_bytes] = np.ones(num_bytes, np.uint8)
    return array


_arrays: dict[int, np.ndarray] = {}


def note_pid_and_hang(file: str) -> str:
    """The first attempt writes its pid and hangs until it is killed; the next one returns."""
    path = Path(file)
    if path.exists():
        return "again"
    write_whole(path, str(os.getpid()))
    time.sleep(600)
    return "never killed"


def write_whole(path: Path, text: str) -> None:
    """A reader sees nothing or all of it."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.rename(path)


class Echo:
    """An actor that does next to nothing."""

    def ping(self) -> None:
        pass

    def make_array(self, num_bytes: int) -> np.ndarray:
        return make_array(num_bytes)

    def hang(self, file: str) -> str:
        return note_pid_and_hang(file)


class AsyncEcho:
    async def ping(self) -> None:
        pass


class Weights:
    """A parameter server: float32[n], plain gradient steps."""

    def __init__(self, num_floats: int) -> None:
        self._weights = np.zeros(num_floats, np.float32)

    def latest(self) -> np.ndarray:
        return self._weights

    def apply_gradients(self, gradient: np.ndarray) -> None:
        self._weights -= 0.01 * gradient
