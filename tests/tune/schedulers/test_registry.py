"""Trial schedulers by name, and what is said of a name or a setting that does not exist."""

import pytest

from rlplat.errors import ConfigError
from rlplat.tune import schedulers as registry
from rlplat.tune.schedulers import FIFO, Continue, Stop, make_scheduler
from tests.tune.scheduler_play import Play


class Made:
    """A scheduler that shows what it was made with."""

    def __init__(self, max_progress=None, eta=3, unit="step"):
        self.settings = (max_progress, eta, unit)


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setitem(registry.SCHEDULERS, "made", f"{__name__}:Made")


def test_a_name_gives_the_scheduler_with_the_default_unit():
    scheduler = make_scheduler("fifo", "env_steps")
    assert isinstance(scheduler, FIFO)
    assert scheduler.unit == "env_steps"


def test_a_mapping_gives_its_settings(made):
    assert make_scheduler({"name": "made", "eta": 4, "unit": "epoch"}, "step").settings == (None, 4, "epoch")


def test_the_stop_rule_on_the_unit_is_the_most_progress_a_trial_can_make(made):
    stop = {"env_steps": 1000, "episode_return_mean": 475}
    assert make_scheduler("made", "env_steps", stop).settings == (1000, 3, "env_steps")
    assert make_scheduler("made", "step", stop).settings == (None, 3, "step")
    assert make_scheduler({"name": "made", "max_progress": 81}, "env_steps", stop).settings[0] == 81


def test_a_scheduler_of_your_own_is_taken_as_it_is():
    scheduler = FIFO("epoch")
    assert make_scheduler(scheduler, "step") is scheduler


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("hyperbnd", "unknown trial scheduler 'hyperbnd'; did you mean 'hyperband'?"),
        ("zzz", "unknown trial scheduler 'zzz'; there are fifo, median, asha, hyperband, pbt, pb2"),
        ({"max_progress": 3}, "scheduler has no 'name'"),
        ({"name": ["asha"]}, "unknown trial scheduler \\['asha'\\]"),
        ({"name": "fifo", "unitt": "x"}, "scheduler 'fifo': unknown key 'unitt'; did you mean 'unit'?"),
        ({"name": "fifo", "unit": 3}, "bad value for 'unit'"),
        (FIFO, "is a class, not an instance of it"),
        (7, "7 has no 'open'"),
    ],
)
def test_what_is_wrong_is_named_with_the_fix(settings, message):
    with pytest.raises(ConfigError, match=message.replace("?", "\\?")):
        make_scheduler(settings, "step")


@pytest.mark.parametrize("name", ["asha", "median", "hyperband"])
def test_a_trial_that_was_through_and_repeats_its_reports_is_through_at_the_last_one(name: str) -> None:
    """The tuner died before the end was recorded, and there was no checkpoint to go on from."""
    play = Play(lambda: make_scheduler({"name": name, "max_progress": 2, "min_progress": 2}, "step"))
    play.add()
    play.close()
    play.record(0, 1, 0.5), play.record(0, 2, 0.6)
    play.restore()
    trial = play.trials[0]
    trial.history.clear()
    assert play.report(0, 1, 0.5) == Continue()
    verdict = play.report(0, 2, 0.6)
    assert isinstance(verdict, Stop) and verdict.is_complete


@pytest.mark.parametrize(
    "scheduler",
    [
        {"name": "asha", "max_progress": 9, "min_progress": 3},
        {"name": "hyperband", "max_progress": 9, "min_progress": 3},
        {"name": "median", "max_progress": 9, "min_progress": 3, "min_trials": 1},
    ],
    ids=lambda scheduler: scheduler["name"],
)
def test_who_was_let_go_on_is_not_stopped_when_it_repeats_its_reports_after_a_crash(scheduler: dict) -> None:
    play = Play(lambda: make_scheduler(scheduler, "step"))
    play.add(4)
    if scheduler["name"] == "hyperband":  # (a bracket of 3: one goes on when all are there)
        for number in (1, 2):
            play.report(number, 3, 0.1)
    for progress in (1, 2, 3):
        assert play.report(0, progress, 0.5) == Continue()
    for number in (1, 2, 3):
        if number in play.running():
            play.report(number, 3, 0.9)
    play.trials[0].progress = 0.0  # its process died
    for progress in (1, 2, 3, 4):
        assert play.report(0, progress, 0.5) == Continue()
