"""What a machine has, and whether a demand could ever be met. Resources are floats by name: CPU, GPU, custom.

Amounts are whole ten-thousandths, and so is every sum: `exact` after each addition makes it the float next to
n / 10,000. So ten tenths are one, and what was taken and given back a million times is what it was.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

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


def machine_resources(num_cpus: float | None, num_gpus: int | None, custom: Resources | None) -> Resources:
    for name, amount in {"num_cpus": num_cpus, "num_gpus": num_gpus, **(custom or {})}.items():
        if amount is not None and amount < 0:
            raise OptionError(f"rlplat.init: {name} must be at least 0, not {amount!r}")
    found = {
        "CPU": float(len(os.sched_getaffinity(0)) if num_cpus is None else num_cpus),
        "GPU": float(len(visible_gpus()) if num_gpus is None else num_gpus),
    }
    return {name: exact(amount) for name, amount in (found | (custom or {})).items()}


def check_at_least(name: str, value: Any, least: float, at_most: float = float("inf")) -> None:
    """OptionError unless a number argument of `rlplat.init` is within its bounds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not least <= value <= at_most
        or not value
    ):
        bounds = (
            f"at least {least:g}"
            if at_most == float("inf")
            else f"more than {least:g} and at most {at_most:g}"
        )
        raise OptionError(f"rlplat.init: {name} must be a number of {bounds}, not {value!r}")


def visible_gpus() -> list[str]:
    """Ids of the GPUs that this process may use, without loading a framework."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [part.strip() for part in listed.split(",") if part.strip() not in ("", "-1")]
    return [str(n) for n, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*")))]


def raise_file_limit() -> None:
    """Every mapped segment holds a file descriptor, and the usual soft limit of 1,024 is for other programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
