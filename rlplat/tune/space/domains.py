"""Domains: the sets from which a trial's values are drawn. Numbers are in ranges.py; here:

    choice([a, b])             one of these, each as likely
    grid([a, b])               every one of these, with every point of the other grids
    sample_from(function)      what function(config) returns

Options of `choice` and `grid` may be numbers, text, lists or dicts, and may hold domains of their own, which are drawn
only where their option was. A parameter's value (in `Trial.params`) is always a scalar: a number, text, bool or None.
For an option that is a list or a dict it is a short text, its *label*; the config has the list or dict itself.

A domain is plain data: it is checked when a `Space` is made of it, where its name is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Scalar = float | int | str | bool | None


@dataclass(frozen=True)
class Domain:
    @property
    def is_ordered(self) -> bool:
        """Whether "a little more" has a meaning, as for numbers."""
        return False

    def problem(self) -> str:
        """What is wrong with it (`low must be below high`), or the empty string."""
        return ""

    @property
    def text(self) -> str:
        """As it is written: uniform(0, 1)."""
        raise NotImplementedError

    def at(self, share: float) -> Any:
        """The value at a share of the domain, 0 <= share < 1: where the share is uniform, the value is drawn without
        knowledge. For options, the label."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator) -> Any:
        return self.at(float(rng.random()))

    def clip(self, value: Any) -> Any:
        """The nearest value that is in the domain; for options, a label that it knows, or a TypeError."""
        raise NotImplementedError

    def contains(self, value: Any) -> bool:
        try:
            return bool(self.clip(value) == value)
        except TypeError:
            return False


@dataclass(frozen=True)
class Options(Domain):
    options: tuple[Any, ...]

    @property
    def is_ordered(self) -> bool:
        return all(is_number(label) for label in self.labels)

    @property
    def text(self) -> str:
        return f"{type(self).__name__.lower()}({list(self.labels)})"

    @cached_property
    def labels(self) -> tuple[Scalar, ...]:
        """The parameter's value for each option: the option itself, or a text that stands for it."""
        return _labels(self.options)

    @cached_property
    def index_by_label(self) -> dict[Any, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def index(self, label: Any) -> int:
        """Which option a parameter's value means. TypeError: none."""
        try:
            return self.index_by_label[label]
        except (KeyError, TypeError):
            raise TypeError(f"{label!r} is none of {list(self.labels)}") from None

    def problem(self) -> str:
        if not self.options:
            return "there is nothing to choose from: the list is empty"
        seen: set[Scalar] = set()
        for label in self.labels:
            if isinstance(label, float) and math.isnan(label):
                return "one of the options is NaN"
            if label in seen:
                return f"{label!r} is in the list twice (1, 1.0 and true count as one)"
            seen.add(label)
        return ""

    def at(self, share: float) -> Scalar:
        return self.labels[int(share * len(self.labels))]

    def clip(self, value: Any) -> Scalar:
        return self.labels[self.index(value)]


class Choice(Options):
    pass


class Grid(Options):
    pass


@dataclass(frozen=True)
class SampleFrom:
    """Not drawn but computed, after everything else: function(config) or function(config, rng)."""

    function: Callable[..., Any]

    text = "sample_from"

    def problem(self) -> str:
        return "" if callable(self.function) else f"{self.function!r} cannot be called"


def choice(options: Sequence[Any]) -> Choice:
    """One of the options; they may hold domains, of which only the drawn option's are drawn."""
    return Choice(tuple(options))


def grid(options: Sequence[Any]) -> Grid:
    """Each of the options, crossed with the other grids; `num_samples` says how often the whole."""
    return Grid(tuple(options))


def sample_from(function: Callable[..., Any]) -> SampleFrom:
    """function(config) gives the value, from the trial's config so far: a plain dict with all that was drawn and the
    `sample_from`s above this one. Ray's gets a `spec` with `spec.config`; write `config["a"]` for `spec.config.a`.

    A function with two arguments also gets a `numpy.random.Generator` of this trial: function(config, rng). Numbers
    from elsewhere would be others each time.
    """
    return SampleFrom(function)


def is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or isinstance(value, Real)  # numpy's; Real alone is slow


def _labels(options: Sequence[Any]) -> tuple[Scalar, ...]:
    dicts = [option for option in options if isinstance(option, Mapping)]
    telling = _telling_key(dicts)
    labels: list[Scalar] = []
    for index, option in enumerate(options):
        if option is None or isinstance(option, str | bool | int | float):
            labels.append(option)
        elif isinstance(option, Mapping) and telling is not None:
            told = option[telling]
            labels.append(told if isinstance(told, str) else f"{telling}={told}")
        elif isinstance(option, Mapping) and len(option) == 1:
            labels.append(str(next(iter(option))))
        else:
            labels.append(_text(option) or f"option {index}")
    # two one-key dicts with the same key, say: numbers keep them apart
    if len(set(labels)) < len(labels):
        for index, option in enumerate(options):
            if isinstance(option, Mapping):
                labels[index] = _text(option) or f"option {index}"
    return tuple(labels)


def _telling_key(dicts: Sequence[Mapping[str, Any]]) -> str | None:
    """The first key that all of these have, with a different scalar in each: `name` in [{name: sgd}, {name: adam}]."""
    if not dicts:
        return None
    for key in dicts[0]:
        values = [option.get(key) for option in dicts]
        if all(isinstance(value, str | int | float) for value in values) and len(
            set(map(str, values))
        ) == len(values):
            return key
    return None


def _text(option: Any) -> str:
    """A list or dict of constants as JSON; empty where it holds domains."""
    try:
        text = json.dumps(option)
    except (TypeError, ValueError):
        return ""
    return text if len(text) <= 100 else ""
