"""Amounts of resources, and whether a demand could ever be met. Floats by name: CPU, GPU, custom. Pure.

Amounts are whole ten-thousandths, and so is every sum: `exact` after each addition makes it the float next to
n / 10,000. So ten tenths are one, and what was taken and given back a million times is what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

from rlplat.errors import InfeasibleResources, OptionError, OptionTypeError

Resources = dict[str, float]
_UNITS = 10_000
_MOST = 1e15
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus"}


class Growing(dict[str, float]):
    """Resources of a cluster that more machines may join: `get` never finds too little."""

    def get(self, name: str, default: Any = None) -> Any:
        return _MOST


def check_amount(what: str, amount: Any) -> None:
    """Raise OptionError, or OptionTypeError, for what is no amount: infinity and NaN cannot be counted."""
    is_number = isinstance(amount, Real) and not isinstance(amount, bool)
    if not is_number:
        raise OptionTypeError(f"{what} must be a number, not {amount!r}")
    if not 0 <= amount <= _MOST:
        raise OptionError(f"{what} must be at least 0 and at most {_MOST:g}, not {amount!r}")


def check_gpus(what: str, amount: float) -> None:
    """The same for a demand of GPUs: 1.5 of them would be one, and half of another that no process is given."""
    if amount > 1 and exact(amount) % 1:
        raise OptionError(f"{what} must be a share of one GPU or a whole number of them, not {amount!r}")


def check_text(what: str, value: Any) -> None:
    """The same for a name: one that is not text, or that no message can carry."""
    if not isinstance(value, str):
        raise OptionTypeError(f"{what} must be text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{what} must be text that UTF-8 can encode, not {value!r}") from None


def check_texts(what: str, value: Any) -> None:
    """The same for several names: one text alone would be taken for its letters."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise OptionTypeError(f"{what} must be a list of texts, not {value!r}")
    for each in value:
        check_text(f"{what}: each", each)


def check_resources(what: str, value: Any) -> None:
    """The same for amounts by name."""
    if not isinstance(value, dict):
        raise OptionTypeError(f"{what} must be a dict of amounts by name, not {value!r}")
    for name, amount in value.items():
        check_text(f"{what}: a name", name)
        check_amount(f"{what}: {name!r}", amount)


def check_custom(what: str, resources: Resources) -> None:
    """The same for names that have an option of their own, which would be overruled."""
    for name, option in _OPTIONS.items():
        if name in resources:
            raise OptionError(f"{what}: give {name} as {option}={resources[name]!r}")


def units(amount: float) -> int:
    return round(amount * _UNITS)


def exact(amount: float) -> float:
    return round(amount * _UNITS) / _UNITS


def exact_demand(demand: Resources, who: str) -> tuple[tuple[str, float], ...]:
    """Sorted; OptionError for an amount that is too small to be counted, or that no GPUs can be."""
    for name, amount in demand.items():
        if amount > 0 and not units(amount):
            raise OptionError(f"{who}: {name}={amount!r} is less than {1 / _UNITS}, the smallest amount there is")
        if name == "GPU":
            check_gpus(f"{who}: GPU", amount)
    return tuple(sorted((name, exact(amount)) for name, amount in demand.items() if amount))


def check_feasible(demand: Resources, total: Resources, who: str) -> None:
    """Raise `InfeasibleResources`, naming each lack, when no amount of waiting would help."""
    lacks = [
        f"{float(amount):g} {name} (the cluster has {total.get(name, 0):g})"
        for name, amount in demand.items()
        if exact(amount) > total.get(name, 0)
    ]
    if lacks:
        raise InfeasibleResources(
            f"{who} needs {' and '.join(lacks)}: lower the demand or start with more, e.g. rlplat.init("
            + ", ".join(f"{_OPTIONS.get(name, 'resources')}=..." for name in demand)
            + ")"
        )
