"""How returns and other measured numbers are written for people: three significant digits, whole digits always."""

from __future__ import annotations

import math
from collections.abc import Mapping


def figure(value: float) -> str:
    """-1103.4 -> `-1103`, 475.0 -> `475`, 21.35 -> `21.4`, 0.9344 -> `0.934`, 0.98 -> `0.98`, 0.00031 -> `0.00031`."""
    if not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 999.5:  # where .3g would write an exponent
        return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.3g}"


def episodes_text(count: int) -> str:
    return "1 episode" if count == 1 else f"{count:,} episodes"


def env_figures(metrics: Mapping[str, float], at_most: int = 4) -> list[str]:
    """`success 0.85` for the numbers that the environment's infos told."""
    told = [name for name in metrics if name.startswith("env/") and name.endswith("_mean")]
    return [f"{name[4:-5]} {figure(metrics[name])}" for name in told[:at_most]]
