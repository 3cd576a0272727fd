"""What this machine has: CPUs, GPUs; and the bounds of what `rlplat.init` is told of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlplat.errors import OptionError
from rlplat.machine_limits import cpu_count
from rlplat.runtime.core.resources import Resources, check_amount, check_custom, check_resources, exact

OF_INIT = ("rlplat.init: num_cpus", "rlplat.init: num_gpus", "rlplat.init: resources")


def machine_resources(
    num_cpus: float | None, num_gpus: int | None, custom: Resources | None, given_as: tuple[str, str, str] = OF_INIT
) -> Resources:
    """given_as: what complaints call the three."""
    for name, amount in zip(given_as, (num_cpus, num_gpus), strict=False):
        if amount is not None:
            check_amount(name, amount)
    check_resources(given_as[2], {} if custom is None else custom)
    check_custom(given_as[2], custom or {})
    found = {
        "CPU": float(cpu_count() if num_cpus is None else num_cpus),
        "GPU": float(len(visible_gpus()) if num_gpus is None else num_gpus),
    }
    return {name: exact(amount) for name, amount in (found | (custom or {})).items()}


def check_at_least(name: str, value: Any, least: float, at_most: float = float("inf")) -> None:
    """OptionError unless a number argument of `rlplat.init` is within its bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= at_most or not value:
        bounds = f"at least {least:g}" if at_most == float("inf") else f"more than {least:g} and at most {at_most:g}"
        raise OptionError(f"rlplat.init: {name} must be a number of {bounds}, not {value!r}")


def visible_gpus() -> list[str]:
    """Ids of the GPUs that this process may use, without loading a framework."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [part.strip() for part in listed.split(",") if part.strip() not in ("", "-1")]
    return [str(n) for n, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*")))]
