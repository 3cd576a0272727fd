"""Numbers that change over a run: a plain float, or a schedule over progress (0 at the start, 1 at its horizon).

learning_rate: 3e-4
learning_rate: {schedule: linear, start: 3e-4, end: 0}
learning_rate: {schedule: cosine, start: 3e-4, end: 1e-5}
learning_rate: {schedule: piecewise, points: [[0, 1e-3], [0.5, 3e-4], [1, 0]]}
epsilon: {schedule: linear, start: 1, end: 0.05, horizon: 250_000}

The horizon is in env steps. Without one it is the run's `stop.env_steps`; a run that is resumed with another stop keeps
the first one (`with_horizon`), so that no learning rate that has come down goes up again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Discriminator, Field, PositiveInt, Tag, model_validator

from rlplat.section import Section, Share, Within
from rlplat.setting_types import Words


class LinearSchedule(Section):
    """A straight line from `start` to `end`."""

    schedule: Literal["linear"] = "linear"
    start: float
    """Value at the start of the run."""
    end: float
    """Value once `until` is reached."""
    until: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Share of the run after which the value stays at `end`."""
    horizon: PositiveInt | None = None
    """Env steps at which progress is 1; null: the run's (first) stop.env_steps."""

    @property
    def named_values(self) -> list[float]:
        return [self.start, self.end]

    def value(self, progress: float) -> float:
        share = min(max(progress / self.until, 0.0), 1.0)
        return self.start + share * (self.end - self.start)


class CosineSchedule(LinearSchedule):
    """Half a cosine from `start` to `end` (Loshchilov & Hutter 2017, equation 5, without restarts)."""

    schedule: Literal["cosine"] = "cosine"  # type: ignore[assignment]

    def value(self, progress: float) -> float:
        share = min(max(progress / self.until, 0.0), 1.0)
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * share))


class PiecewiseSchedule(Section):
    """Straight lines between points (progress, value); constant before the first and after the last."""

    schedule: Literal["piecewise"] = "piecewise"
    points: list[tuple[Share, float]] = Field(min_length=1)
    """(progress, value), progress ascending."""
    horizon: PositiveInt | None = None
    """Env steps at which progress is 1; null: the run's (first) stop.env_steps."""

    @property
    def named_values(self) -> list[float]:
        return [value for _, value in self.points]

    @model_validator(mode="after")
    def _check_ascending(self) -> PiecewiseSchedule:
        if any(left[0] >= right[0] for left, right in pairwise(self.points)):
            raise ValueError(f"points must ascend in progress, got {[progress for progress, _ in self.points]}")
        return self

    def value(self, progress: float) -> float:
        first, last = self.points[0], self.points[-1]
        if progress <= first[0]:
            return first[1]
        for (left, low), (right, high) in pairwise(self.points):
            if progress <= right:
                return low + (progress - left) / (right - left) * (high - low)
        return last[1]


def _kind(value: Any) -> Any:
    return value.get("schedule") if isinstance(value, dict) else getattr(value, "schedule", None)


Schedule = (
    float
    | Annotated[
        Annotated[LinearSchedule, Tag("linear")]
        | Annotated[CosineSchedule, Tag("cosine")]
        | Annotated[PiecewiseSchedule, Tag("piecewise")],
        Discriminator(_kind),
        Words("a schedule of such numbers, {schedule: linear, start: A, end: B}"),
    ]
)
"""A config field's type: what it accepts is shown at the head of this file."""

LearningRate = Annotated[Schedule, Within(0.0, 10.0)]
ClipRange = Annotated[Schedule, Within(0.0, 10.0)]
EntropyCoef = Annotated[Schedule, Within(0.0, 10.0)]
ScheduledShare = Annotated[Schedule, Within(0.0, 1.0)]


def schedule_value(schedule: Schedule, env_steps: float, run_env_steps: float) -> float:
    """The value after `env_steps` of a run whose `stop.env_steps` is `run_env_steps` (beyond the horizon: the end)."""
    if not isinstance(schedule, LinearSchedule | PiecewiseSchedule):
        return float(schedule)
    return schedule.value(env_steps / (schedule.horizon or run_env_steps))


LEAST_RATE, LARGEST_RATE, RATE_FACTOR = 1e-5, 1e-2, 1.5


def adapted_rate(rate: float, kl: float, desired_kl: float) -> float:
    """The learning rate after an epoch that moved the policy by `kl`: divided by 1.5 beyond twice the desired KL
    divergence, times 1.5 below half of it, from 1e-5 to 1e-2 (rsl_rl's PPO, schedule "adaptive", of Rudin et al. 2022;
    RL-games' AdaptiveScheduler)."""
    if kl > 2.0 * desired_kl:
        return max(rate / RATE_FACTOR, min(rate, LEAST_RATE))
    if 0.0 < kl < 0.5 * desired_kl:
        return min(rate * RATE_FACTOR, max(rate, LARGEST_RATE))
    return rate


Config = TypeVar("Config", bound=BaseModel)


def with_horizon(config: Config, env_steps: int) -> Config:
    """The same with `env_steps` as horizon of every schedule that has none of its own."""
    changes = {
        name: value.model_copy(update={"horizon": env_steps})
        for name, value in config
        if isinstance(value, LinearSchedule | PiecewiseSchedule) and value.horizon is None
    }
    return config.model_copy(update=changes) if changes else config


def config_at(config: Config, env_steps: float, run_env_steps: float) -> Config:
    """The same with every schedule as the number that it has come to (`schedule_value`)."""
    changes = {
        name: schedule_value(value, env_steps, run_env_steps)
        for name, value in config
        if isinstance(value, LinearSchedule | PiecewiseSchedule)
    }
    return config.model_copy(update=changes) if changes else config


def scaled_horizons(settings: Mapping[str, Any], share: float) -> dict[str, Any]:
    """settings: a config as plain data -> its schedules that have a horizon, with that share of it."""
    return {
        name: value | {"horizon": max(1, round(value["horizon"] * share))}
        for name, value in settings.items()
        if isinstance(value, dict) and "schedule" in value and value.get("horizon")
    }
