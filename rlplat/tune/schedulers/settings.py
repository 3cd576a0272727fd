"""What the settings of a trial scheduler may be; every complaint names scheduler, setting and value."""

from __future__ import annotations

import math
from typing import Any

from rlplat.config import closest
from rlplat.errors import ConfigError


def checked_number(
    scheduler: str, name: str, value: Any, *, above: float | None = None, at_least: float | None = None
) -> float:
    """`value` as a finite float within the bounds, or a `ConfigError`."""
    bound = f" greater than {above:g}" if above is not None else ""
    bound += f" of at least {at_least:g}" if at_least is not None else ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ConfigError(f"trial scheduler '{scheduler}': {name} must be a number{bound}, not {value!r}")
    if (above is not None and value <= above) or (at_least is not None and value < at_least):
        raise ConfigError(f"trial scheduler '{scheduler}': {name} must be a number{bound}, not {value!r}")
    return float(value)


def checked_count(scheduler: str, name: str, value: Any, *, at_least: int) -> int:
    """`value` as an int, or a `ConfigError`."""
    number = checked_number(scheduler, name, value, at_least=at_least)
    if not number.is_integer():
        raise ConfigError(f"trial scheduler '{scheduler}': {name} must be a whole number, not {value!r}")
    return int(number)


def checked_choice(scheduler: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        hint = closest(value, choices) if isinstance(value, str) else ""
        raise ConfigError(
            f"trial scheduler '{scheduler}': {name} must be {' or '.join(choices)}, not {value!r}{hint}"
        )
    return str(value)
