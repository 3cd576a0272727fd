"""The actor in which trials run: which reports share a turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.tune.trials import host as trial_host
from rlplat.tune.trials.host import MAX_QUICK, NUM_QUICK, QUICK_S, SLOW_S, TURN_S, Order, TrialHost, Turn


class Clock:
    """Stands still but for what the trials below take."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


def taking(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Reports that take config["durations"], then an error or the end."""
    for index, duration in enumerate(config["durations"]):
        CLOCK.now += duration
        yield ({"x": index}, index) if index in config.get("offers", ()) else {"x": index}
    if config.get("fails"):
        raise ValueError("the data ran out")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialHost]:
    monkeypatch.setattr(trial_host, "time", CLOCK)
    rlplat.init(backend="inproc")
    yield TrialHost(taking, str(tmp_path), "x", 1)
    rlplat.shutdown()


def begin(host: TrialHost, durations: list[float], num_reports: int = 1_000, **config: Any) -> Turn:
    return host.begin(Order(0, {"durations": durations, **config}, 1, 0, 0, ""), num_reports)


def turns_of(host: TrialHost, durations: list[float], num_reports: int = 1_000, **config: Any) -> list[int]:
    """How many reports the turns of a trial have."""
    turns = [begin(host, durations, num_reports, **config)]
    while not turns[-1].has_ended:
        turns.append(host.advance(num_reports))
    reported = [(metrics["x"], run_s) for turn in turns for metrics, run_s in turn.reports]
    assert [x for x, _ in reported] == list(range(len(durations)))
    assert [run_s for _, run_s in reported] == pytest.approx(durations)
    return [len(turn.reports) for turn in turns]


def test_quick_reports_share_turns_after_some_alone(host: TrialHost) -> None:
    assert turns_of(host, [0.0001] * 20) == [1] * NUM_QUICK + [20 - NUM_QUICK]
    assert turns_of(host, [0.0001] * 20) == [20]  # the next trial is the same code


def test_a_turn_ends_after_a_while(host: TrialHost) -> None:
    turns_of(host, [0.0] * NUM_QUICK)
    assert 14 * 0.0007 < TURN_S < 15 * 0.0007
    assert turns_of(host, [0.0007] * 40) == [15, 15, 10]


def test_slow_reports_go_alone_and_none_waits_for_a_slow_one_twice(host: TrialHost) -> None:
    slow, quick = 2 * QUICK_S, QUICK_S / 100
    assert turns_of(host, [slow] * 3) == [1, 1, 1, 0]
    # Two reports in a row after each epoch: the second never waits for the next epoch.
    assert turns_of(host, [slow, quick] * 4) == [1] * 8 + [0]


def test_where_quick_reports_have_waited_for_a_slow_one_as_many_go_alone(host: TrialHost) -> None:
    epoch = [2 * SLOW_S, *[0.0] * 6]
    assert turns_of(host, epoch * 4) == [1, 1, 1, 1, 4, *[1] * 20, 0]
    assert turns_of(host, [2 * SLOW_S, *[0.0] * 30]) == [1, *[1] * 6, 24]
    turns_of(host, [2 * SLOW_S, *[0.0] * 3 * MAX_QUICK, 2 * SLOW_S])
    assert turns_of(host, [0.0] * 3 * MAX_QUICK)[-1] == 2 * MAX_QUICK  # not for ever


def test_a_report_with_a_checkpoint_ends_its_turn(host: TrialHost) -> None:
    turns_of(host, [0.0] * NUM_QUICK)
    assert turns_of(host, [0.0] * 12, offers=(4, 9)) == [5, 5, 2]
    assert begin(host, [0.0] * 12, offers=(4,)).can_save
    assert turns_of(host, [0.0] * 12, offers=range(12)) == [1, 11]  # always one: the first, and the last


def test_a_turn_has_not_more_reports_than_are_free(host: TrialHost) -> None:
    turns_of(host, [0.0] * NUM_QUICK)
    assert turns_of(host, [0.0] * 7, num_reports=3) == [3, 3, 1]
    assert turns_of(host, [0.0] * 6, num_reports=3) == [3, 3, 0]  # on the third something may be decided


def test_what_a_trial_raises_comes_after_what_it_reported(host: TrialHost) -> None:
    turns_of(host, [0.0] * NUM_QUICK)
    turn = begin(host, [0.0, 0.0], fails=True)
    assert len(turn.reports) == 2 and not turn.has_ended and not turn.can_save
    with pytest.raises(ValueError, match="the data ran out"):
        host.advance(5)
    turn = begin(host, [0.0, 0.0], fails=True)
    host.end()
    assert begin(host, [0.0]).has_ended  # nothing of it is left
