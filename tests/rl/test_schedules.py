from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from rlplat.rl.schedules import (
    LinearSchedule,
    PiecewiseSchedule,
    Schedule,
    adapted_rate,
    scaled_horizons,
    schedule_value,
    with_horizon,
)


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    learning_rate: Schedule = 1.0


def value(setting: object, progress: float) -> float:
    return schedule_value(Settings.model_validate({"learning_rate": setting}).learning_rate, progress, 1)


def test_constant() -> None:
    assert [value(3e-4, p) for p in (0.0, 0.5, 2.0)] == [3e-4] * 3
    assert value("3e-4", 0.0) == 3e-4  # what some YAML readers make of 3e-4


def test_linear() -> None:
    setting = {"schedule": "linear", "start": 1.0, "end": 0.5}
    assert [value(setting, p) for p in (-1.0, 0.0, 0.5, 1.0, 3.0)] == [1.0, 1.0, 0.75, 0.5, 0.5]
    assert value({**setting, "until": 0.5}, 0.25) == 0.75


def test_piecewise() -> None:
    setting = {"schedule": "piecewise", "points": [[0.2, 1.0], [0.4, 3.0], [1.0, 0.0]]}
    assert [value(setting, p) for p in (0.0, 0.2, 0.4, 1.0, 2.0)] == [1.0, 1.0, 3.0, 0.0, 0.0]
    assert value(setting, 0.3) == pytest.approx(2.0)
    assert value(setting, 0.7) == pytest.approx(1.5)


@pytest.mark.parametrize(
    "setting",
    [
        {"schedule": "linear", "start": 1.0, "end": 0.0, "horizon": 100},
        {"schedule": "piecewise", "points": [[0.0, 1.0], [1.0, 0.0]], "horizon": 100},
    ],
)
def test_a_horizon_of_its_own(setting: dict[str, object]) -> None:
    schedule = Settings.model_validate({"learning_rate": setting}).learning_rate
    for run_env_steps in (50, 100, 1_000_000):
        assert [schedule_value(schedule, steps, run_env_steps) for steps in (0, 25, 100, 500)] == [
            1,
            0.75,
            0,
            0,
        ]
    without = Settings.model_validate({"learning_rate": setting | {"horizon": None}}).learning_rate
    assert schedule_value(without, 25, 50) == 0.5


def test_a_cosine_falls_slowly_at_both_ends() -> None:
    """Loshchilov & Hutter 2017, equation 5: end + (start - end) (1 + cos(pi T_cur / T_i)) / 2."""
    setting = {"schedule": "cosine", "start": 3.0, "end": 1.0, "until": 0.5}
    expected = {-1.0: 3.0, 0.0: 3.0, 0.125: 2.0 + 0.5**0.5, 0.25: 2.0, 0.5: 1.0, 2.0: 1.0}
    assert {progress: value(setting, progress) for progress in expected} == pytest.approx(expected)


def test_the_rate_follows_the_kl_divergence() -> None:
    """rsl_rl's PPO.update, "adaptive": desired 0.01."""
    rates = {0.021: 1e-3 / 1.5, 0.02: 1e-3, 0.01: 1e-3, 0.005: 1e-3, 0.0049: 1.5e-3, 0.0: 1e-3}
    assert {kl: adapted_rate(1e-3, kl, 0.01) for kl in rates} == pytest.approx(rates)
    assert adapted_rate(1.2e-5, 1.0, 0.01) == 1e-5 and adapted_rate(9e-3, 1e-4, 0.01) == 1e-2
    assert adapted_rate(1e-6, 1.0, 0.01) == 1e-6 and adapted_rate(0.1, 1e-4, 0.01) == 0.1  # as given, if beyond


def test_a_horizon_for_the_schedules_that_have_none() -> None:
    plain, own = (
        Settings(learning_rate=1.0),
        Settings(learning_rate=LinearSchedule(start=1, end=0, horizon=5)),
    )
    assert with_horizon(plain, 100) is plain and with_horizon(own, 100) is own
    pinned = with_horizon(Settings(learning_rate=LinearSchedule(start=1, end=0)), 100)
    assert schedule_value(pinned.learning_rate, 50, 1_000) == 0.5
    assert scaled_horizons(pinned.model_dump(), 0.5) == {
        "learning_rate": {"schedule": "linear", "start": 1.0, "end": 0.0, "until": 1.0, "horizon": 50}
    }
    assert scaled_horizons(plain.model_dump() | {"policy": {"core": "none"}}, 0.5) == {}


def test_round_trip_through_plain_data() -> None:
    for schedule in (LinearSchedule(start=1.0, end=0.1), PiecewiseSchedule(points=[(0.0, 1.0), (1.0, 0.0)])):
        settings = Settings(learning_rate=schedule)
        assert Settings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize(
    "setting",
    [
        {"schedule": "cosine", "start": 1.0},
        {"schedule": "exponential", "start": 1.0, "end": 0.0},
        {"schedule": "linear"},
        {"schedule": "linear", "start": 1.0, "stop": 0.0},
        {"schedule": "piecewise", "points": []},
        {"schedule": "piecewise", "points": [[0.5, 1.0], [0.5, 2.0]]},
        "fast",
    ],
)
def test_what_is_refused(setting: object) -> None:
    with pytest.raises(ValidationError):
        value(setting, 0.0)
