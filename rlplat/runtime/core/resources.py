"""Amounts of resources, and whether a demand could ever be met. Floats by name: CPU, GPU, custom. Pure.

Amounts are whole ten-thousandths, and so is every sum: `exact` after each addition makes it the float next to
n / 10,000. So ten tenths are one, and what was taken and given back a million times is what it was.
"""

from __future__ import annotations

from rlplat.errors import InfeasibleResources, OptionError

Resources = dict[str, float]
_UNITS = 10_000


def units(amount: float) -> int:
    return round(amount * _UNITS)


def exact(amount: float) -> float:
    return round(amount * _UNITS) / _UNITS


def exact_demand(demand: Resources, who: str) -> tuple[tuple[str, float], ...]:
    """Sorted; OptionError for an amount that is too small to be counted."""
    for name, amount in demand.items():
        if amount > 0 and not units(amount):
            raise OptionError(
                f"{who}: {name}={amount!r} is less than {1 / _UNITS}, the smallest amount there is"
            )
    return tuple(sorted((name, exact(amount)) for name, amount in demand.items() if amount))


def check_feasible(demand: Resources, total: Resources, who: str) -> None:
    """Raise `InfeasibleResources`, naming each lack, when no amount of waiting would help."""
    lacks = [
        f"{amount:g} {name} (the cluster has {total.get(name, 0):g})"
        for name, amount in demand.items()
        if exact(amount) > total.get(name, 0)
    ]
    if lacks:
        raise InfeasibleResources(
            f"{who} needs {' and '.join(lacks)}: lower the demand or start with more, e.g. rlplat.init("
            + ", ".join({"CPU": "num_cpus=", "GPU": "num_gpus="}.get(n, "resources=") + "..." for n in demand)
            + ")"
        )
