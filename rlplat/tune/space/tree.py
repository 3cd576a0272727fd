"""The places of a search space: constants, dicts and lists with domains in them, draws, and `sample_from`.

`build` makes a config, `decode` the grid's values of a point of the grid; a place knows the size of the grid below it.
"""

from __future__ import annotations

import copy
import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.space.domains import Domain, Grid, Options

Choose = Callable[[str, Domain], Any]


@dataclass
class Work:
    """One config being made."""

    choose: Choose
    params: dict[str, Any] = field(default_factory=dict)
    computed: list[tuple[Any, Any, str, Callable[..., Any]]] = field(default_factory=list)
    """(dict or list, key, name, function) of each `sample_from`, in their order."""


class Node:
    """A place in the space. Constants, dicts and lists with domains in them, draws, and `sample_from`."""

    grid_size = 1

    def build(self, work: Work) -> Any:
        raise NotImplementedError

    def decode(self, index: int, point: dict[str, Any]) -> None:
        """Put the values of the grids at point `index` of this place's own grid into `point`."""

    def draws(self) -> list[Draw]:
        return []


class Constant(Node):
    def __init__(self, value: Any) -> None:
        self.value = value
        self._is_scalar = not isinstance(value, dict | list)

    def build(self, work: Work) -> Any:
        return self.value if self._is_scalar else copy.deepcopy(self.value)


class Computed(Node):
    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function

    def build(self, work: Work) -> Any:
        raise AssertionError("its dict or list leaves it for the end")


class DictNode(Node):
    def __init__(self, children: dict[Any, Node]) -> None:
        self.children = children
        self.grid_size = math.prod(child.grid_size for child in children.values())

    def build(self, work: Work) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, child in self.children.items():
            if isinstance(
                child, Computed
            ):  # absent until it is computed: who reads it too early gets a KeyError
                work.computed.append((built, key, child.name, child.function))
            else:
                built[key] = child.build(work)
        return built

    def decode(self, index: int, point: dict[str, Any]) -> None:
        for child in reversed(self.children.values()):
            if child.grid_size > 1:
                index, own = divmod(index, child.grid_size)
            else:
                own = 0
            child.decode(own, point)

    def draws(self) -> list[Draw]:
        return [draw for child in self.children.values() for draw in child.draws()]


class ListNode(DictNode):
    def build(self, work: Work) -> Any:
        built: list[Any] = [None] * len(self.children)
        for index, child in self.children.items():
            if isinstance(child, Computed):
                work.computed.append((built, index, child.name, child.function))
            else:
                built[index] = child.build(work)
        return built


class Draw(Node):
    """A parameter, and for options what each of them is."""

    def __init__(self, path: str, conditions: tuple[tuple[int, Any], ...], qualified: str, domain: Domain):
        self.name, self.qualified, self.conditions, self.domain = path, qualified, conditions, domain
        self.branches: list[Node] = []

    def branch(self, branches: list[Node]) -> None:
        self.branches = branches
        if isinstance(self.domain, Grid):
            self._ends = list(accumulate(branch.grid_size for branch in branches))
            self.grid_size = self._ends[-1] if self._ends else 1

    def build(self, work: Work) -> Any:
        value = work.params[self.name] = work.choose(self.name, self.domain)
        if isinstance(self.domain, Options):
            option = self.branches[self.domain.index(value)]
            if isinstance(option, Computed):
                raise AssertionError("refused when the space was parsed")
            return option.build(work)
        return value

    def decode(self, index: int, point: dict[str, Any]) -> None:
        if isinstance(self.domain, Grid):
            option = bisect_right(self._ends, index)
            point[self.name] = self.domain.labels[option]
            self.branches[option].decode(
                index - (self._ends[option] - self.branches[option].grid_size), point
            )

    def draws(self) -> list[Draw]:
        return [self, *(draw for branch in self.branches for draw in branch.draws())]


def compute(name: str, function: Callable[..., Any], config: dict[str, Any], rng: Any) -> Any:
    wants_rng = False
    try:
        parameters = inspect.signature(function).parameters.values()
        needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        wants_rng = len([p for p in needed if p.default is p.empty]) == 2
    except (TypeError, ValueError):  # a builtin without a signature
        pass
    try:
        value = (
            function(config, np.random.default_rng(0) if rng is None else rng)
            if wants_rng
            else function(config)
        )
        return plain(value)
    except ConfigError:
        raise
    except Exception as error:
        known = closest(str(error.args[0]), config) if isinstance(error, KeyError) and error.args else ""
        raise ConfigError(f"'{name}': sample_from raised {type(error).__name__}: {error}{known}") from error


def plain(value: Any) -> Any:
    """The value as JSON and YAML have it: numbers of numpy as Python's, tuples as lists. TypeError: it has no such
    form."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    for kind in (bool, int, float, str):  # enums of text, subclasses of float
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} is of type {type(value).__name__}")
