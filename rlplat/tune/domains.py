"""Domains: the sets from which a trial's values are drawn; docs/tuning-reference.md has the table of them.

Options of `choice` and `grid` may be numbers, text, lists or dicts, and may hold domains of their own, which are drawn
only where their option was. A parameter's value (in `Trial.params`) is always a scalar: a number, text, bool or None.
For an option that is a list or a dict it is a short text, its *label*; the config has the list or dict itself.

A range of numbers maps the shares from 0 to 1 to its values and back (`at`, `share`): that is what searchers work on,
so each of them can search each of these. A domain is plain data: it is checked when a `Space` is made of it, where its
name is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from numbers import Real
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


Scalar = float | int | str | bool | None


@dataclass(frozen=True)
class Domain:
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
        """Whether "a little more" has a meaning, as for numbers."""
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
        if all(isinstance(value, str | int | float) for value in values) and len(set(map(str, values))) == len(values):
            return key
    return None


def _text(option: Any) -> str:
    """A list or dict of constants as JSON; empty where it holds domains."""
    try:
        text = json.dumps(option)
    except (TypeError, ValueError):
        return ""
    return text if len(text) <= 100 else ""


# -------------------------------------------------------------------------------- numbers

REACH = 8.0
"""In standard deviations: what is further from the mean is not in a normal domain. Of 10^15 draws one would be."""


class Range(Domain):
    """Numbers."""

    low: float
    high: float
    """Nothing is below `low` or above `high`; whether `high` itself is in it, `top` says."""
    is_log = False
    is_integer = False
    q: float | None = None

    @property
    def top(self) -> float:
        """The largest value that is in it."""
        raise NotImplementedError

    @property
    def arguments(self) -> tuple[float, ...]:
        """With which it was made: (low, high) or (low, high, q), of a normal one mean and deviation."""
        return astuple(self)

    @property
    def usual_ends(self) -> tuple[float, float]:
        """Between which nearly everything lies that is drawn: for an axis, and to try whether a trainable takes it."""
        return self.low, self.top if self.is_integer else self.high

    def share(self, value: Any) -> float:
        """Where `at` has this value: 0 <= share <= 1."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        return f"{type(self).__name__.lower()}({', '.join(f'{number:g}' for number in self.arguments)})"


@dataclass(frozen=True)
class _Interval(Range):
    """Numbers between two ends."""

    low: float
    high: float

    @property
    def top(self) -> float:
        return math.nextafter(self.high, self.low)

    def problem(self) -> str:
        if found := _not_finite(low=self.low, high=self.high):
            return found
        if not self.low < self.high:
            return f"the range is empty: low ({self.low:g}) must be below high ({self.high:g})"
        if self.is_log and self.low <= 0:
            return f"low is {self.low:g}, and only positive numbers have a logarithm"
        return ""

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
        low, high = self.edges
        if self.is_log:
            return (math.log(self.clip(value)) - math.log(low)) / (math.log(high) - math.log(low))
        return (self.clip(value) - low) / (high - low)

    def clip(self, value: Any) -> float:
        return min(max(float(_number(value)), float(self.low)), self.top)


class Uniform(_Interval):
    """A float, low <= x < high."""


class LogUniform(_Interval):
    """A float, low <= x < high, whose logarithm is uniform; 0 < low."""

    is_log = True


@dataclass(frozen=True)
class QUniform(_Interval):
    """low, low + q, low + 2 q, ...: up to high, if it is one of them, each as likely."""

    q: float = field()

    @property
    def steps(self) -> int:
        """How many there are beyond `low`."""
        return math.floor((self.high - self.low) / self.q + 1e-9)

    @cached_property
    def top(self) -> float:
        return self.clip(self.high)

    def problem(self) -> str:
        if found := super().problem():
            return found
        if found := _no_step(self.q):
            return found
        if self.q > self.high - self.low:
            return f"the step {self.q:g} is larger than the range"
        return ""

    @property
    def edges(self) -> tuple[float, float]:
        half = self.q / 2  # each value has its step's share of the range, the ends included
        return max(self.low - half, self.low / 2) if self.is_log else self.low - half, self.top + half

    def clip(self, value: Any) -> float:
        inside = min(max(float(_number(value)), self.low), self.high)
        step = min(round((inside - self.low) / self.q), self.steps)
        return _plain(self.low + step * self.q)


class QLogUniform(QUniform):
    """The values of `quniform`, as likely as their share of the logarithmic range."""

    is_log = True


class RandInt(_Interval):
    """An integer, low <= x < high, as Ray and numpy have it; random.randint has both ends."""

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
        return round(min(max(_number(value), int(self.low)), self.top))


class LogRandInt(RandInt):
    """An integer, low <= x < high; as likely to be in [1, 10) as in [10, 100)."""

    is_log = True


@dataclass(frozen=True)
class Normal(Range):
    """A float from the normal distribution; Ray's `randn(mean, sd)`."""

    mean: float
    deviation: float

    def problem(self) -> str:
        if found := _not_finite(mean=self.mean, deviation=self.deviation):
            return found
        if self.deviation <= 0:
            return f"the standard deviation is {self.deviation:g}, not a positive number"
        if not self.low < self.mean < self.high:
            return f"the standard deviation {self.deviation:g} is nothing beside the mean {self.mean:g}"
        return ""

    @property
    def low(self) -> float:  # type: ignore[override]
        return self.mean - REACH * self.deviation

    @property
    def high(self) -> float:  # type: ignore[override]
        return self.mean + REACH * self.deviation

    @property
    def top(self) -> float:
        return self.clip(self.high)

    @property
    def usual_ends(self) -> tuple[float, float]:
        """Of 1,000 draws 997 are in there."""
        return self.mean - 3 * self.deviation, self.mean + 3 * self.deviation

    def at(self, share: float) -> float:
        inside = min(max(share, 1e-300), math.nextafter(1.0, 0.0))  # 0 and 1 are infinitely far away
        return self.clip(NormalDist(self.mean, self.deviation).inv_cdf(inside))

    def share(self, value: Any) -> float:
        return NormalDist(self.mean, self.deviation).cdf(self.clip(value))

    def clip(self, value: Any) -> float:
        return min(max(float(_number(value)), self.low), self.high)


@dataclass(frozen=True)
class QNormal(Normal):
    """The same, rounded to a multiple of q; Ray's `qrandn(mean, sd, q)`."""

    q: float = field()

    def problem(self) -> str:
        if found := super().problem() or _no_step(self.q):
            return found
        if self.q > self.high - self.low:
            return f"the step {self.q:g} is larger than all that is drawn ({REACH:g} deviations to each side)"
        return ""

    def clip(self, value: Any) -> float:
        return _plain(round(super().clip(value) / self.q) * self.q)


def _number(value: Any) -> float:
    """TypeError: it is none."""
    if not is_number(value) or math.isnan(value):
        raise TypeError(f"{value!r} is not a number")
    return value


def _plain(value: float) -> float:
    """0.3, not 0.30000000000000004."""
    return float(f"{value:.12g}")


def _not_finite(**numbers: Any) -> str:
    for name, value in numbers.items():
        if not is_number(value):
            return f"{name} is {value!r}, not a number"
        if not math.isfinite(value):
            return f"{name} is {value}, which is no finite number"
    return ""


def _no_step(q: Any) -> str:
    is_good = is_number(q) and 0 < q < math.inf
    return "" if is_good else f"the step between two values is {q!r}, not a positive number"


uniform, loguniform, quniform, qloguniform = Uniform, LogUniform, QUniform, QLogUniform
randint, lograndint, normal, qnormal = RandInt, LogRandInt, Normal, QNormal
