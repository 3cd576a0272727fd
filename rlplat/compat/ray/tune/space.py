"""Ray's search spaces as rlplat's: `grid_search`, `sample_from(lambda spec: ...)`, and what a config cannot hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlplat import tune
from rlplat.errors import ConfigError


class Spec(dict[str, Any]):
    """`spec.config.lr` of a `sample_from`: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the config has no {name!r}")
        return Spec(self[name]) if isinstance(self[name], dict) else self[name]


def sample_from(function: Callable[..., Any]) -> Any:
    takes_spec = bool(inspect.signature(function).parameters)
    return tune.sample_from(lambda config: function(Spec(config=config)) if takes_spec else function())


def grid_search(values: Sequence[Any]) -> Any:
    return tune.grid(values)


def randint(lower: int, upper: int | None = None) -> Any:
    return tune.randint(0, lower) if upper is None else tune.randint(lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Any:
    return tune.choice(list(range(-(-lower // q) * q, upper + 1, q)))


def loguniform(lower: float, upper: float, base: float = 10) -> Any:
    """base: that of the logarithm, which changes nothing."""
    return tune.loguniform(lower, upper)


def randn(mean: float = 0.0, sd: float = 1.0) -> Any:
    return tune.normal(mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Any:
    return tune.qnormal(mean, sd, q)


def is_domain(value: Any) -> bool:
    return type(value).__module__ == "rlplat.tune.domains"


def split(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the space, what it cannot hold: objects, which each trial gets as they are)."""
    space = {name: _translated(value, name) for name, value in config.items()}
    held = (Mapping, list, tuple, str, int, float, type(None))
    objects = {
        name: value
        for name, value in space.items()
        if not (isinstance(value, held) or is_domain(value) or type(value).__module__ == "numpy")
    }
    return {name: value for name, value in space.items() if name not in objects}, objects


def _translated(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"grid_search"}:
            return tune.grid(value["grid_search"])
        if set(value) == {"eval"}:
            raise ConfigError(f"config {name}: {{'eval': ...}} is not here: tune.sample_from(lambda spec: ...)")
        return {key: _translated(inner, f"{name}.{key}") for key, inner in value.items()}
    if inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["spec"]:
        return sample_from(value)  # of 2017, before `sample_from`
    return value
