"""From dicts with domains in them, or their form in YAML, to the tree of a search space; finds all that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rlplat.errors import ConfigError
from rlplat.tune.space.domains import Choice, Domain, Grid, Options, SampleFrom
from rlplat.tune.space.ranges import (
    LogRandInt,
    LogUniform,
    Normal,
    QLogUniform,
    QNormal,
    QUniform,
    RandInt,
    Range,
    Uniform,
)
from rlplat.tune.space.tree import Computed, Constant, DictNode, Draw, ListNode, Node, plain

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
            nodes = {
                index: self._node(item, place.child(index, is_key=False)) for index, item in enumerate(value)
            }
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
            self.complain(
                place, f"{error}: a config is kept in files and holds numbers, text, lists and dicts"
            )
            return Constant(None)

    def _written(self, name: str, inner: Any, place: _Place) -> Node:
        """`{uniform: [0, 1]}`."""
        text = f"{name}: {inner!r}"
        if name == "sample_from":
            return self._sample_from_text(inner, place)
        if not isinstance(inner, list | tuple):
            self.complain(
                place, f"{text}: {name} takes a list; a mapping meant literally is {{constant: ...}}"
            )
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
            self.complain(
                place, f"sample_from takes ./file.py:function or pkg.module:function, not {inner!r}"
            )
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
