"""The search space: a config in which some values are domains.

    space = Space.parse({"optimizer": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}])})
    suggestion = space.draw(lambda name, domain: domain.sample(rng))
    suggestion.config    # {"optimizer": {"name": "sgd", "momentum": 0.83}}
    suggestion.params    # {"optimizer": "sgd", "optimizer.momentum": 0.83}

In YAML a domain is a mapping with one key, `{loguniform: [1e-5, 1e-2]}`; dicts in Python may have that form too.

A parameter is called by its place, `optimizer.momentum`; where two options have different domains at the same place,
by the option too: `optimizer[sgd].learning_rate`, `optimizer[adam].learning_rate`.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import numpy as np

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.domains import (
    Choice,
    Domain,
    Grid,
    LogRandInt,
    LogUniform,
    Normal,
    Options,
    QLogUniform,
    QNormal,
    QUniform,
    RandInt,
    Range,
    SampleFrom,
    Uniform,
)


@dataclass(frozen=True)
class Suggestion:
    config: dict[str, Any]
    """Complete: constants, drawn values, what `sample_from` computed."""
    params: dict[str, Any]
    """What was drawn, by dotted name: scalars; for an option that is a list or a dict, its label."""
    notes: dict[str, Any] = field(default_factory=dict)
    """JSON that the searcher wants back with the recorded trial, in `Trial.notes["searcher"]`."""


class Space:
    domains: dict[str, Domain]
    """Of every parameter, of all options, by its name."""
    grid_size: int
    """How many points the grids have together; 1 where there is none."""

    def __init__(self, root: DictNode) -> None:
        self._root = root
        self.domains = {draw.name: draw.domain for draw in root.draws()}
        self.grid_size = root.grid_size

    @staticmethod
    def parse(config: Mapping[str, Any], where: Where | None = None) -> Space:
        """config: constants and domains, at any depth. where: says for a key's path in which file and line it is.

        One ConfigError names everything that is wrong.
        """
        return Space(Parser(where or (lambda path: "")).parse(config))

    @property
    def conditions(self) -> dict[str, tuple[Any, ...]]:
        """For each parameter what must have been drawn before; equal for those that are always drawn together, and
        empty for those that are in every trial."""
        conditions: dict[str, tuple[Any, ...]] = {}
        for draw in self._root.draws():  # a name may stand in several options, with the same domain
            conditions[draw.name] = (*conditions.get(draw.name, ()), *draw.conditions)
        return conditions

    @property
    def grid_axes(self) -> dict[str, int]:
        """The grids and how many options each has."""
        return {name: len(domain.options) for name, domain in self.domains.items() if isinstance(domain, Grid)}

    def grid_point(self, index: int) -> dict[str, Any]:
        """The values of the grids at point `index`, the last grid changing fastest. 0 <= index < grid_size."""
        if not 0 <= index < self.grid_size:
            raise IndexError(f"grid point {index} of {self.grid_size}")
        point: dict[str, Any] = {}
        self._root.decode(index, point)
        return point

    def draw(self, choose: Choose, rng: np.random.Generator | None = None) -> Suggestion:
        """A config: `choose(name, domain)` gives each parameter that is needed its value. rng: for `sample_from`."""
        work = Work(choose)
        config = self._root.build(work)
        for place, key, name, function in work.computed:
            place[key] = compute(name, function, config, rng)
        return Suggestion(config, work.params)


def trial_rng(seed: int, number: int) -> np.random.Generator:
    """The random numbers of a trial's suggestion."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number))))


# -------------------------------------------------------------------------------- the tree of a space

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
            if isinstance(child, Computed):  # absent until it is computed: who reads it too early gets a KeyError
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
            self.branches[option].decode(index - (self._ends[option] - self.branches[option].grid_size), point)

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
        value = function(config, np.random.default_rng(0) if rng is None else rng) if wants_rng else function(config)
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


# -------------------------------------------------------------------------------- from dicts to the tree

Where = Callable[[tuple[str, ...]], str]

_RANGES: dict[str, type[Range]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "quniform": QUniform,
    "qloguniform": QLogUniform,
    "randint": RandInt,
    "lograndint": LogRandInt,
    "normal": Normal,
    "qnormal": QNormal,
}
_OPTIONS: dict[str, type[Options]] = {"choice": Choice, "grid": Grid}
_NAMES = [*_RANGES, *_OPTIONS, "sample_from"]
_NAMES_ELSEWHERE = {
    "grid_search": "grid",
    "categorical": "choice",
    "qrandint": "randint",
    "range": "randint",
    "randn": "normal",
    "qrandn": "qnormal",
    "gaussian": "normal",
}


def is_domain(value: Any) -> bool:
    """Whether it is one thing, drawn or computed: a domain, or `{uniform: [0, 1]}`."""
    if isinstance(value, Mapping):
        return len(value) == 1 and next(iter(value)) in (*_NAMES, "constant")
    return isinstance(value, Domain | SampleFrom)


@dataclass(frozen=True)
class _Place:
    """Where the parser is. keys: those of the mappings, as a file's origins have them; name: dotted, with list
    indices; qualified: with the options taken; conditions: (id of a draw, option) on the way here."""

    keys: tuple[str, ...] = ()
    name: str = ""
    qualified: str = ""
    conditions: tuple[tuple[int, Any], ...] = ()
    in_choice: str = ""

    def child(self, key: Any, *, is_key: bool = True) -> _Place:
        keys = (*self.keys, str(key)) if is_key else self.keys
        name = f"{self.name}.{key}" if self.name else str(key)
        qualified = f"{self.qualified}.{key}" if self.qualified else str(key)
        return _Place(keys, name, qualified, self.conditions, self.in_choice)

    def option(self, draw: Draw, index: int, label: Any) -> _Place:
        in_choice = self.name if isinstance(draw.domain, Choice) else self.in_choice
        taken = (*self.conditions, (id(draw), index))
        return _Place(self.keys, self.name, f"{self.qualified}[{label}]", taken, in_choice)


class Parser:
    def __init__(self, where: Where) -> None:
        self.where = where
        self.complaints: list[str] = []

    def parse(self, config: Mapping[str, Any]) -> DictNode:
        if not isinstance(config, Mapping):
            raise ConfigError(f"a search space is a dict of names and values, not {config!r}")
        root = self._dict(config, _Place())
        draws = root.draws()
        self._name(draws)
        if self.complaints:
            raise ConfigError("\n".join(self.complaints))
        return root

    def complain(self, place: _Place, text: str) -> None:
        origin = self.where(place.keys)
        self.complaints.append(f"'{place.name}'{' in ' + origin if origin else ''}: {text}")

    def _node(self, value: Any, place: _Place) -> Node:
        if isinstance(value, Domain | SampleFrom):
            return self._domain(value, _spoken(value), place)
        if isinstance(value, Mapping):
            if len(value) == 1:
                (key, inner), *_ = value.items()
                if key == "constant":
                    return self._constant(inner, place)
                if key in _NAMES:
                    return self._written(key, inner, place)
                if isinstance(inner, list | tuple) and (near := _near(key)):
                    self.complain(place, f"there is no domain '{key}'; did you mean '{near}'?")
                    return Constant(None)
            elif value and all(key in _NAMES for key in value):
                self.complain(
                    place,
                    f"{' and '.join(value)}: one domain is wanted; a mapping meant literally is {{constant: ...}}",
                )
                return Constant(None)
            return self._dict(value, place)
        if isinstance(value, list | tuple):
            nodes = {index: self._node(item, place.child(index, is_key=False)) for index, item in enumerate(value)}
            if all(isinstance(node, Constant) for node in nodes.values()):
                return Constant([node.value for node in nodes.values() if isinstance(node, Constant)])
            return ListNode(nodes)
        return self._constant(value, place)

    def _dict(self, value: Mapping[str, Any], place: _Place) -> Any:
        nodes: dict[Any, Node] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                self.complain(place.child(key), f"a key must be text, not {key!r}")
                continue
            nodes[key] = self._node(inner, place.child(key))
        if place.name and all(isinstance(node, Constant) for node in nodes.values()):
            return Constant({key: node.value for key, node in nodes.items() if isinstance(node, Constant)})
        return DictNode(nodes)

    def _constant(self, value: Any, place: _Place) -> Node:
        try:
            return Constant(plain(value))
        except TypeError as error:
            self.complain(place, f"{error}: a config is kept in files and holds numbers, text, lists and dicts")
            return Constant(None)

    def _written(self, name: str, inner: Any, place: _Place) -> Node:
        """`{uniform: [0, 1]}`."""
        text = f"{name}: {inner!r}"
        if name == "sample_from":
            return self._sample_from_text(inner, place)
        if not isinstance(inner, list | tuple):
            self.complain(place, f"{text}: {name} takes a list; a mapping meant literally is {{constant: ...}}")
            return Constant(None)
        if name in _OPTIONS:
            return self._domain(_OPTIONS[name](tuple(inner)), name, place)
        takes = [item.name for item in fields(_RANGES[name])]
        if len(inner) != len(takes):
            self.complain(place, f"{text}: {name} takes [{', '.join(takes)}]")
            return Constant(None)
        return self._domain(_RANGES[name](*inner), name, place)

    def _sample_from_text(self, inner: Any, place: _Place) -> Node:
        if callable(inner):
            return Computed(place.name, inner)
        if not isinstance(inner, str):
            self.complain(place, f"sample_from takes ./file.py:function or pkg.module:function, not {inner!r}")
            return Constant(None)
        from rlplat.rl.class_path import load_class

        try:
            return self._domain(SampleFrom(load_class(inner)), f"sample_from {inner}", place)
        except ConfigError as error:
            self.complain(place, f"sample_from: {error}")
            return Constant(None)

    def _domain(self, domain: Domain | SampleFrom, spoken: str, place: _Place) -> Node:
        if isinstance(domain, Options):
            domain = type(domain)(tuple(_plain_option(option) for option in domain.options))
        if problem := domain.problem():
            self.complain(place, f"{spoken}: {problem}")
            return Constant(None)
        if isinstance(domain, SampleFrom):
            return Computed(place.name, domain.function)
        if isinstance(domain, Range):
            domain = _with_plain_numbers(domain)
        draw = Draw(place.name, place.conditions, place.qualified, domain)
        if isinstance(domain, Options):
            if isinstance(domain, Grid) and place.in_choice:
                self.complain(
                    place,
                    f"a grid inside an option of the choice '{place.in_choice}' has no fixed number of points; "
                    "make the outer one a grid too, or this one a choice",
                )
            branches: list[Node] = []
            for index, (option, label) in enumerate(zip(domain.options, domain.labels, strict=True)):
                node = self._node(option, place.option(draw, index, label))
                if isinstance(node, Computed):
                    self.complain(place, "an option cannot be a sample_from; put it into a dict")
                branches.append(node)
            draw.branch(branches)
        return draw

    def _name(self, draws: list[Draw]) -> None:
        """Where parameters share a place but are not the same, their names say in which option they are."""
        by_name: dict[str, list[Draw]] = {}
        for draw in draws:
            by_name.setdefault(draw.name, []).append(draw)
        for group in by_name.values():
            if any(draw.domain != group[0].domain for draw in group[1:]) or not _exclude_each_other(group):
                for draw in group:
                    draw.name = draw.qualified
        names: dict[str, Domain] = {}
        for draw in draws:
            if draw.name in names and (
                names[draw.name] != draw.domain or not _exclude_each_other(by_name.get(draw.name, []))
            ):
                self.complaints.append(f"two parameters are called '{draw.name}': rename a key")
            names[draw.name] = draw.domain


def _exclude_each_other(draws: list[Draw]) -> bool:
    """Whether no two of them can be in one config: they are in different options of one draw."""
    for position, one in enumerate(draws):
        for other in draws[position + 1 :]:
            theirs = dict(other.conditions)
            if not any(theirs.get(draw, option) != option for draw, option in one.conditions):
                return False
    return True


def _with_plain_numbers(domain: Range) -> Range:
    kind = int if domain.is_integer else float
    return type(domain)(*map(kind, domain.arguments))


def as_yaml(domain: Domain | SampleFrom) -> dict[str, Any]:
    """What `Space.parse` reads again: `{"uniform": [0, 1]}`. A function of Python's is "module:name", and is found
    there only if it is one of a module."""
    name = _spoken(domain)
    if isinstance(domain, Options):
        return {name: list(domain.options)}
    if isinstance(domain, Range):
        return {name: list(domain.arguments)}
    assert isinstance(domain, SampleFrom)
    function = domain.function
    return {"sample_from": f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', '?')}"}


def _plain_option(option: Any) -> Any:
    """As `plain`; domains stay, and so does what is to be complained about."""
    if isinstance(option, Mapping):
        return {key: _plain_option(inner) for key, inner in option.items()}
    if isinstance(option, list | tuple):
        return [_plain_option(inner) for inner in option]
    try:
        return plain(option)
    except TypeError:
        return option


def _near(key: Any) -> str:
    """The domain that was meant by a key such as `unifrom`, or the empty string."""
    if not isinstance(key, str):
        return ""
    if key in _NAMES_ELSEWHERE:
        return _NAMES_ELSEWHERE[key]
    near = difflib.get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.8)
    return near[0] if near else ""


def _spoken(domain: Domain | SampleFrom) -> str:
    return "sample_from" if isinstance(domain, SampleFrom) else type(domain).__name__.lower()
