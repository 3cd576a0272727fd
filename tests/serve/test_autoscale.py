"""The autoscaler on a virtual clock: it follows the load, does not swing, and never goes to zero."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from rlplat.errors import ConfigError
from rlplat.serve.autoscale import Autoscale, Autoscaler
from rlplat.serve.deployments import deployment


def play(settings: Autoscale, load: list[float], start_s: float = 3.0, period_s: float = 0.25) -> list[int]:
    """Replicas second by second, under the requests that arrive a second (each takes one second in a replica that has a
    slot for it); a replica that is asked for is there `start_s` later."""
    scaler = Autoscaler(settings)
    ready, coming, backlog, history = settings.min_replicas, [], 0.0, []
    wanted = ready
    for second, arriving in enumerate(load):
        for tick in range(int(1 / period_s)):
            now = second + tick * period_s
            ready += sum(when <= now for when in coming)
            coming = [when for when in coming if when > now]
            capacity = ready * settings.target_ongoing * 2
            backlog = max(0.0, backlog + (arriving - capacity) * period_s)
            decided = scaler.decide(now, min(arriving, capacity) + backlog, wanted)
            coming += [now + start_s] * max(0, decided - wanted)
            ready -= max(0, wanted - decided)
            wanted = decided
        history.append(wanted)
    return history


SETTINGS = Autoscale(min_replicas=1, max_replicas=8, target_ongoing=4, up_after_s=2, down_after_s=20)


def test_it_follows_a_rise_and_a_fall() -> None:
    history = play(SETTINGS, [2] * 20 + [24] * 60 + [2] * 60)
    assert history[:20] == [1] * 20
    assert history[60] >= 6 and history[-1] == 1
    changes = sum(a != b for a, b in itertools.pairwise(history))
    assert changes <= 8


def test_load_that_swings_faster_than_the_window_does_not_swing_the_replicas() -> None:
    history = play(SETTINGS, [24.0 if second % 6 < 3 else 0.0 for second in range(120)])
    late = history[40:]
    assert len(set(late)) == 1


def test_a_short_burst_starts_nothing() -> None:
    scaler = Autoscaler(SETTINGS)
    for tick in range(80):
        assert scaler.decide(tick * 0.25, 1, 1) == 1
    assert scaler.decide(20.0, 12, 1) == 1  # the mean of two seconds is about 2.4: one replica


def test_the_first_seconds_are_no_mean_yet() -> None:
    scaler = Autoscaler(SETTINGS)
    assert [scaler.decide(tick * 0.5, 24, 1) for tick in range(5)] == [1, 1, 1, 1, 6]


def test_bounds_hold_whatever_the_load() -> None:
    scaler = Autoscaler(SETTINGS)
    number = 1
    for tick in range(400):
        number = scaler.decide(tick * 0.25, [0.0, 1e9][tick // 200], number)
        assert 1 <= number <= 8
    assert number == 8


def test_where_least_and_most_are_equal_nothing_moves() -> None:
    scaler = Autoscaler(Autoscale(min_replicas=1, max_replicas=1))
    assert [scaler.decide(float(second), 100.0, 1) for second in range(100)] == [1] * 100


@pytest.mark.parametrize(
    ("bad", "text"),
    [({"min_replicas": 0}, "'autoscale.min_replicas'"), ({"min_replicas": 5}, "min_replicas=5 is more than"),
     ({"target_ongoing": math.nan}, "'autoscale.target_ongoing'"), ({"max_replica": 3}, "did you mean"),
     (4, "bad value for 'autoscale'")],
)  # fmt: skip
def test_senseless_settings_are_refused(bad: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        deployment(autoscale=bad)(lambda: 1)
