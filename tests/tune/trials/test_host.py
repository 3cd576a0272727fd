"""The actor in which trials run: a turn is one report, an end, or what the trial raised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.tune.trials import host as trial_host
from rlplat.tune.trials.host import Order, TrialHost, Turn


class Clock:
    """Stands still but for what the trials below take."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


def taking(config: dict[str, Any]) -> Iterator[Any]:
    """Reports that take config["durations"], then an error or the end."""
    for index, duration in enumerate(config["durations"]):
        CLOCK.now += duration
        yield ({"x": index}, index) if index in config.get("offers", ()) else {"x": index}
    CLOCK.now += 0.5
    if config.get("fails"):
        raise ValueError("the data ran out")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialHost]:
    monkeypatch.setattr(trial_host, "time", CLOCK)
    rlplat.init(backend="inproc")
    yield TrialHost(taking, str(tmp_path), "x", 1)
    rlplat.shutdown()


def begin(host: TrialHost, durations: list[float], **config: Any) -> Turn:
    return host.begin(Order(0, {"durations": durations, **config}, 1, 0, 0, ""))


def test_each_report_is_a_turn_with_its_own_time_and_checkpoint(host: TrialHost) -> None:
    assert begin(host, [0.25, 0.0, 2.0], offers=(1,)) == Turn({"x": 0}, 0.25, False)
    assert host.advance() == Turn({"x": 1}, 0.0, True)
    assert host.advance() == Turn({"x": 2}, 2.0, False)
    assert host.advance() == Turn(None, 0.5, False)  # its own end


def test_what_a_trial_raises_is_raised_until_the_next_begins(host: TrialHost) -> None:
    assert begin(host, [0.0], fails=True).metrics == {"x": 0}
    for _ in range(2):
        with pytest.raises(ValueError, match="the data ran out"):
            host.advance()
    assert begin(host, [0.0]).metrics == {"x": 0}  # nothing of it is left
    assert host.advance().metrics is None
