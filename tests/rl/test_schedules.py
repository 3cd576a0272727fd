from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from rlplat.rl.schedules import LinearSchedule, PiecewiseSchedule, Schedule, schedule_value


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    learning_rate: Schedule = 1.0


def value(setting: object, progress: float) -> float:
    return schedule_value(Settings.model_validate({"learning_rate": setting}).learning_rate, progress)


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


def test_round_trip_through_plain_data() -> None:
    for schedule in (LinearSchedule(start=1.0, end=0.1), PiecewiseSchedule(points=[(0.0, 1.0), (1.0, 0.0)])):
        settings = Settings(learning_rate=schedule)
        assert Settings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize(
    "setting",
    [
        {"schedule": "cosine", "start": 1.0},
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
