"""The median stopping rule: worked examples by hand, grace, levels between reports, restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import Continue, Stop
from rlplat.tune.schedulers.median import MedianStopping
from tests.tune.scheduler_histories import EVENTS, check_restored_after_each_event
from tests.tune.scheduler_play import Play


def play_of(**settings):
    return Play(lambda: MedianStopping(**{"min_trials": 3, **settings}))


def three_others(play):
    """Trials 0, 1, 2 with two reports each; their averages up to 2 steps are 0.2, 0.5 and 0.3: the median is 0.3."""
    play.add(3)
    for number, scores in enumerate([(0.1, 0.3), (0.4, 0.6), (0.3, 0.3)]):
        for step, score in enumerate(scores, 1):
            assert play.report(number, step, score) == Continue()


def test_a_trial_stops_when_its_best_is_below_the_median_of_the_others_running_averages():
    play = play_of(min_progress=2)
    three_others(play)
    play.add(2)
    assert play.report(3, 1, 0.29) == Continue()  # before min_progress
    assert play.report(3, 2, 0.1) == Stop("its best is below the median of 3 others' averages at 2 steps (0.29 < 0.3)")
    # Of the averages 0.2, 0.5, 0.3 and trial 3's (0.29 + 0.1) / 2 = 0.195 the middle two are 0.2 and 0.3: 0.25.
    assert play.report(4, 1, 0.24) == Continue()
    assert play.report(4, 2, 0.0) == Stop("its best is below the median of 4 others' averages at 2 steps (0.24 < 0.25)")


def test_a_best_that_equals_the_median_goes_on_and_a_bad_last_score_does_not_matter():
    play = play_of(min_progress=2)
    three_others(play)
    play.add()
    play.report(3, 1, 0.3)
    assert play.report(3, 2, -5.0) == Continue()


def test_its_own_average_is_not_among_the_others():
    play = play_of(min_trials=2)
    play.add(3)
    play.report(0, 1, 0.2)
    play.report(1, 1, 0.4)
    # The others' median is (0.2 + 0.4) / 2 = 0.3; with its own 0.25 it would be 0.25, and nobody would be below.
    assert isinstance(play.report(2, 1, 0.25), Stop)


def test_nobody_is_judged_before_min_trials_others_came_as_far():
    play = play_of()
    play.add(5)
    assert play.report(0, 1, 0.5) == Continue()
    assert play.report(1, 1, 0.5) == Continue()
    assert play.report(2, 1, 0.0) == Continue()  # 2 others
    assert isinstance(play.report(3, 1, 0.0), Stop)  # 3 others
    assert play.report(4, 1, 0.6) == Continue()
    assert play.report(4, 2, 0.0) == Continue()  # nobody else is at 2


def test_in_env_steps_the_first_report_beyond_a_level_counts_for_it():
    play = play_of(unit="env_steps", period=100, min_progress=200)
    play.add(4)
    for number, score in enumerate([0.5, 0.6, 0.7]):
        assert play.report(number, 150, 0.0) == Continue()  # before the grace is over
        assert play.report(number, 320, 2 * score) == Continue()  # for 200 and 300: averages 0.5, 0.6, 0.7
    assert play.report(3, 299, 0.59) == Stop(
        "its best is below the median of 3 others' averages at 299 env_steps (0.59 < 0.6)"
    )


def test_it_is_through_at_max_progress():
    play = play_of(max_progress=3)
    play.add()
    assert [play.report(0, step, 0.1) for step in (1, 2)] == [Continue()] * 2
    assert play.report(0, 3, 0.1) == Stop("through: at 3 steps", is_complete=True)


def test_reports_repeated_after_a_crash_count_once():
    play = play_of(min_trials=1, min_progress=2)
    play.add(2)
    play.report(0, 1, 0.1)
    play.report(0, 1, 9.0)  # again, from a checkpoint at 0
    play.report(0, 2, 0.3)  # its average is 0.2
    play.report(1, 1, 0.0)
    assert play.report(1, 2, 0.2) == Continue()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "env_steps"}, "needs period or max_progress, in env_steps"),
        ({"period": 0}, "bad value for 'period'"),
        ({"min_trials": 0}, "bad value for 'min_trials'"),
        ({"min_trials": 2.5}, "bad value for 'min_trials'"),
        ({"min_progress": float("nan")}, "bad value for 'min_progress'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        play_of(**settings)


@given(events=EVENTS, closed_at=st.integers(0, 80))
def test_a_restored_scheduler_says_what_the_other_would_have_said(events, closed_at):
    check_restored_after_each_event(lambda: MedianStopping(min_trials=2, max_progress=27), events, closed_at)
