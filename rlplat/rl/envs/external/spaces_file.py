"""The spaces of an external environment, as a file says them; a stand-in environment that has them.

observation: {box: {low: -.inf, high: .inf, shape: [4]}}
action: {discrete: {n: 2}}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.config import parse_yaml
from rlplat.errors import ConfigError
from rlplat.paths import expanded

FORMS = (
    "box: {low, high, shape, dtype}, discrete: {n, start, dtype}, multi_discrete: {nvec, start, dtype}, "
    "multi_binary: {n}, dict: {NAME: ...}, tuple: [...]"
)


def read_spaces(spaces: Any) -> dict[str, Any]:
    """spaces: a file's name, or what would be in it -> {"observation": ..., "action": ...}, plain values."""
    where = "env_kwargs.spaces"
    if isinstance(spaces, str | Path):
        where = str(spaces)
        try:
            spaces = parse_yaml(expanded(spaces).read_text(), where).values
        except OSError as error:
            raise ConfigError(f"{where}: the file of spaces cannot be read: {error.strerror}") from None
    if not isinstance(spaces, dict) or set(spaces) != {"observation", "action"}:
        got = ", ".join(map(str, spaces)) if isinstance(spaces, dict) else repr(spaces)
        raise ConfigError(f"{where} has to have the keys observation and action, each one of {FORMS}; it has {got}")
    for name in ("observation", "action"):
        make_space(spaces[name], f"{where}: {name}")
    return spaces


def require_inference(said: Any) -> str:
    """`env_kwargs.inference`: where actions are computed."""
    if said not in ("remote", "local"):
        raise ConfigError(
            f"env_kwargs.inference is {said!r}; it is remote (simulators ask for every action) or local (they act by "
            "themselves, with the policy that they are sent)"
        )
    return str(said)


def make_space(said: Any, where: str) -> Any:
    """gymnasium's space. ConfigError that says where, and what there may be."""
    from gymnasium import spaces

    if not isinstance(said, dict) or len(said) != 1:
        raise ConfigError(f"{where} is {said!r}; it is one of {FORMS}")
    [(kind, given)] = said.items()
    if kind == "dict" and isinstance(given, dict):
        return spaces.Dict({str(name): make_space(part, f"{where}.{name}") for name, part in given.items()})
    if kind == "tuple" and isinstance(given, list):
        return spaces.Tuple([make_space(part, f"{where}.{i}") for i, part in enumerate(given)])
    makers: dict[str, Callable[..., Any]] = {
        "box": _box,
        "discrete": lambda n, start=0, dtype="int64": spaces.Discrete(
            int(n), start=int(start), dtype=np.dtype(dtype).type
        ),
        "multi_discrete": lambda nvec, start=None, dtype="int64": spaces.MultiDiscrete(
            nvec, dtype=np.dtype(dtype).type, start=start
        ),
        "multi_binary": lambda n: spaces.MultiBinary(n),
    }
    if kind not in makers or not isinstance(given, dict):
        raise ConfigError(f"{where} is {said!r}; it is one of {FORMS}")
    try:
        return makers[kind](**given)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{where}: {kind} {given!r}: {error}; it is one of {FORMS}") from None


class StandIn:
    """In the place of the simulators before any is there: for the pre-flight, and to look at the spaces."""

    metadata: dict[str, Any] = {}
    render_mode = None

    def __init__(self, spaces: Any, listen: str = "", inference: str = "remote") -> None:
        require_inference(inference)
        said = read_spaces(spaces)
        self.observation_space = make_space(said["observation"], "observation")
        self.action_space = make_space(said["action"], "action")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}

    def close(self) -> None:
        """There is nothing to close."""


def _box(low: Any, high: Any, shape: Any = None, dtype: str = "float32") -> Any:
    from gymnasium import spaces

    size = None if shape is None else tuple(shape)
    kind = np.dtype(dtype)
    # A run's config.yaml has null for what is infinite.
    bounds = [
        np.array([none if each is None else each for each in bound], np.float64)
        if isinstance(bound, list)
        else float(none if bound is None else bound)
        for bound, none in ((low, -np.inf), (high, np.inf))
    ]
    if size is not None:
        bounds = [np.broadcast_to(bound, size) for bound in bounds]
    least, largest = (np.asarray(bound).astype(kind) for bound in bounds)
    made: Any = spaces.Box(least, largest, shape=size, dtype=kind.type)
    return made
