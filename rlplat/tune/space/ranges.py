"""Domains of numbers.

    uniform(0, 1)              a float, 0 <= x < 1
    loguniform(1e-5, 1e-2)     a float whose logarithm is uniform
    quniform(0, 1, 0.1)        0, 0.1, ... 1 (both ends)
    qloguniform(1, 100, 1)     the same steps, small values more often
    randint(1, 10)             an integer, 1 <= x < 10
    lograndint(1, 1000)        the same, small ones more often
    normal(0, 1)               a float, by mean and standard deviation
    qnormal(0, 10, 5)          the same, rounded to a multiple of 5

Each maps the shares from 0 to 1 to its values and back (`at`, `share`): that is what searchers work on, so each of them
can search each of these.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any

from rlplat.tune.space.domains import Domain, is_number

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
    def is_ordered(self) -> bool:
        return True

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
