"""Domains: the sets from which a trial's values are drawn.

    uniform(0, 1)              a float, 0 <= x < 1
    loguniform(1e-5, 1e-2)     a float whose logarithm is uniform
    quniform(0, 1, 0.1)        0, 0.1, ... 1 (both ends)
    qloguniform(1, 100, 1)     the same steps, small values more often
    randint(1, 10)             an integer, 1 <= x < 10
    lograndint(1, 1000)        the same, small ones more often
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
class Range(Domain):
    """Numbers between two ends."""

    low: float
    high: float

    is_log = False
    is_integer = False
    quantum: float | None = None

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def top(self) -> float:
        """The largest value that is in it."""
        return math.nextafter(self.high, self.low)

    def problem(self) -> str:
        for end in ("low", "high"):
            value = getattr(self, end)
            if isinstance(value, bool) or not _is_number(value):
                return f"{end} is {value!r}, not a number"
            if not math.isfinite(value):
                return f"{end} is {value}, which is no finite number"
        if not self.low < self.high:
            return f"the range is empty: low ({self.low:g}) must be below high ({self.high:g})"
        if self.is_log and self.low <= 0:
            return f"low is {self.low:g}, and only positive numbers have a logarithm"
        return ""

    @property
    def text(self) -> str:
        step = "" if self.quantum is None else f", {self.quantum:g}"
        return f"{type(self).__name__.lower()}({self.low:g}, {self.high:g}{step})"

    @property
    def edges(self) -> tuple[float, float]:
        """Where the first value's share begins and the last one's ends."""
        return self.low, self.high

    def at(self, share: float) -> float:
        low, high = self.edges
        if self.is_log:
            return self.clip(math.exp(math.log(low) + share * (math.log(high) - math.log(low))))
        return self.clip(low + share * (high - low))

    def share(self, value: Any) -> float:
        """Where `at` has this value: 0 <= share <= 1."""
        low, high = self.edges
        if self.is_log:
            return (math.log(self.clip(value)) - math.log(low)) / (math.log(high) - math.log(low))
        return (self.clip(value) - low) / (high - low)

    def clip(self, value: Any) -> float:
        if isinstance(value, bool) or not _is_number(value) or math.isnan(value):
            raise TypeError(f"{value!r} is not a number")
        return min(max(float(value), float(self.low)), self.top)


class Uniform(Range):
    pass


class LogUniform(Range):
    is_log = True


@dataclass(frozen=True)
class QUniform(Range):
    """low, low + quantum, low + 2 quantum, ...: up to high, if it is one of them."""

    quantum: float = 1.0

    @property
    def steps(self) -> int:
        """How many there are beyond `low`."""
        return math.floor((self.high - self.low) / self.quantum + 1e-9)

    @cached_property
    def top(self) -> float:
        return self.clip(self.high)

    def problem(self) -> str:
        if found := super().problem():
            return found
        if isinstance(self.quantum, bool) or not _is_number(self.quantum) or not 0 < self.quantum < math.inf:
            return f"the step between two values is {self.quantum!r}, not a positive number"
        if self.quantum > self.high - self.low:
            return f"the step {self.quantum:g} is larger than the range"
        return ""

    @property
    def edges(self) -> tuple[float, float]:
        half = self.quantum / 2  # each value has its step's share of the range, the ends included
        return max(self.low - half, self.low / 2) if self.is_log else self.low - half, self.top + half

    def clip(self, value: Any) -> float:
        if isinstance(value, bool) or not _is_number(value) or math.isnan(value):
            raise TypeError(f"{value!r} is not a number")
        inside = min(max(float(value), self.low), self.high)
        step = min(round((inside - self.low) / self.quantum), self.steps)
        return float(f"{self.low + step * self.quantum:.12g}")  # 0.3, not 0.30000000000000004


class QLogUniform(QUniform):
    is_log = True


class RandInt(Range):
    """Integers, low <= x < high."""

    is_integer = True

    @property
    def top(self) -> int:
        return int(self.high) - 1

    def problem(self) -> str:
        if found := super().problem():
            return found
        for end in ("low", "high"):
            value = getattr(self, end)
            if value != int(value):
                return f"{end} is {value:g}, not an integer"
        return ""

    def at(self, share: float) -> int:
        low, high = self.edges
        if self.is_log:  # each integer k has the range [k, k + 1)
            return self.clip(math.floor(math.exp(math.log(low) + share * (math.log(high) - math.log(low)))))
        return self.clip(math.floor(low + share * (high - low)))

    def share(self, value: Any) -> float:
        low, high = self.edges
        middle = self.clip(value) + 0.5
        if self.is_log:
            return (math.log(middle) - math.log(low)) / (math.log(high) - math.log(low))
        return (middle - low) / (high - low)

    def clip(self, value: Any) -> int:
        if isinstance(value, bool) or not _is_number(value) or math.isnan(value):
            raise TypeError(f"{value!r} is not a number")
        return round(min(max(value, int(self.low)), self.top))


class LogRandInt(RandInt):
    is_log = True


@dataclass(frozen=True)
class Options(Domain):
    options: tuple[Any, ...]

    @property
    def is_ordered(self) -> bool:
        return all(_is_number(label) and not isinstance(label, bool) for label in self.labels)

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


def uniform(low: float, high: float) -> Uniform:
    """A float, low <= x < high."""
    return Uniform(low, high)


def loguniform(low: float, high: float) -> LogUniform:
    """A float, low <= x < high, whose logarithm is uniform; 0 < low."""
    return LogUniform(low, high)


def quniform(low: float, high: float, q: float) -> QUniform:
    """low, low + q, low + 2 q, ... up to high itself, each as likely."""
    return QUniform(low, high, q)


def qloguniform(low: float, high: float, q: float) -> QLogUniform:
    """The values of `quniform`, as likely as their share of the logarithmic range."""
    return QLogUniform(low, high, q)


def randint(low: int, high: int) -> RandInt:
    """An integer, low <= x < high, as Ray and numpy have it; random.randint has both ends."""
    return RandInt(low, high)


def lograndint(low: int, high: int) -> LogRandInt:
    """An integer, low <= x < high; as likely to be in [1, 10) as in [10, 100)."""
    return LogRandInt(low, high)


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


def _is_number(value: Any) -> bool:
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
