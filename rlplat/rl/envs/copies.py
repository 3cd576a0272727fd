"""Which copy of an environment this is, for what must not be shared: ports, files, maps.

    class MyEnv(gym.Env):
        def __init__(self, size=10, copy_index=0):          # asked for by name
            self.port = 5000 + copy_index

        def reset(self, *, seed=None, options=None):
            self.map = MAPS[copy_index() % len(MAPS)]       # rlplat.rl.envs.copies.copy_index()

One numbering for all copies of a run that live at the same time:

    0 .. W*B - 1        environment i of rollout worker w: w*B + i (W workers, at least 1; B = num_envs_per_worker)
    W*B .. W*B + E - 1  evaluation (E = evaluation.num_envs); `worker_index` is W
    W*B + E             the one that is recorded as a video; W + 1
    W*B + E + 1         the pre-flight check; W + 2
    W*B + E + 2         the one that only hindsight asks for rewards; W + 3

A worker that is replaced takes the numbers of the one that died. Other runs on the machine count from 0 as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

KEYWORDS = ("copy_index", "worker_index")
"""Of a constructor that asks to be told."""
Role = Literal["rollout", "evaluation", "video", "check", "goals"]


@dataclass(frozen=True)
class Copies:
    """Of one vector environment: its first copy's number, and its worker's."""

    first: int = 0
    worker: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any], role: Role, worker: int = 0) -> Copies:
        """settings: a run's config as a dict; worker: of the role `rollout`."""
        workers, each = max(1, settings["num_rollout_workers"]), settings["num_envs_per_worker"]
        if role == "rollout":
            return cls(worker * each, worker)
        first = workers * each
        place = ("evaluation", "video", "check", "goals").index(role)
        return cls(first + (settings["evaluation"]["num_envs"] + place - 1 if place else 0), workers + place)


_now: tuple[int, int] = (0, 0)


def copy_index() -> int:
    """In the constructor and in reset() of an environment (its wrappers included): the number of this copy."""
    return _now[0]


def worker_index() -> int:
    """In the constructor and in reset() of an environment: the number of the process that steps it."""
    return _now[1]


def be(copy: int, worker: int) -> None:
    """What the two functions above say from now on."""
    global _now
    _now = copy, worker


@contextmanager
def made_as(copies: Copies, index: int = 0) -> Iterator[None]:
    """While environment `index` of a vector environment is made."""
    before = _now
    be(copies.first + index, copies.worker)
    try:
        yield
    finally:
        be(*before)


def with_numbers(constructor: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """kwargs, and `copy_index`, `worker_index` where the constructor has a parameter of that name and no value is
    given."""
    numbers = dict(zip(KEYWORDS, _now, strict=True))
    asked = parameters(constructor).keys() & numbers.keys()
    return {name: numbers[name] for name in asked} | dict(kwargs)


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Empty where they cannot be known."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
