"""ASHA: worked examples by hand, ties, jumps, failures, restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import Continue, Stop
from rlplat.tune.schedulers.halving import ASHA
from tests.tune.scheduler_histories import EVENTS, check_restored_after_each_event
from tests.tune.scheduler_play import Play


def stopping(**settings):
    return Play(lambda: ASHA(**{"max_progress": 9, "min_progress": 1, "reduction_factor": 3, **settings}))


def test_a_trial_goes_on_if_it_is_among_the_best_third_of_those_before_it():
    play = stopping()
    play.add(7)
    assert play.report(0, 1, 0.5) == Continue()  # the first: 1 on the rung, and the best goes on
    assert play.report(1, 1, 0.3) == Stop("below the best third of 2 at 1 step (0.3 < 0.5)")
    assert play.report(2, 1, 0.6) == Continue()  # 3 on the rung, 3 // 3 = 1 place: the best so far
    assert isinstance(play.report(3, 1, 0.55), Stop)  # 4 // 3 = 1 place, one is better
    assert isinstance(play.report(4, 1, 0.54), Stop)  # 5 // 3 = 1 place, two are better
    assert play.report(5, 1, 0.56) == Continue()  # 6 // 3 = 2 places, only 0.6 is better
    assert play.report(6, 1, 0.57) == Continue()  # 7 // 3 = 2 places, only 0.6 is better
    # The next rung is at 3, with its own scores: nothing is judged at 2.
    assert play.report(0, 2, 0.0) == Continue()
    assert play.report(2, 3, 0.6) == Continue()
    assert play.report(0, 3, 0.5) == Stop("below the best third of 2 at 3 steps (0.5 < 0.6)")


def test_it_is_through_at_max_progress():
    play = stopping()
    play.add()
    assert [play.report(0, step, 0.1) for step in range(1, 9)] == [Continue()] * 8
    assert play.report(0, 9, 0.1) == Stop("through: at 9 steps", is_complete=True)


def test_without_max_progress_the_rungs_go_on_and_the_trial_ends_by_itself():
    play = stopping(max_progress=None)
    play.add(2)
    assert [play.report(0, 3**k, 1.0) for k in range(8)] == [Continue()] * 8
    assert [play.report(1, 3**k, 2.0) for k in range(7)] == [Continue()] * 7
    assert isinstance(play.report(1, 3**7, 0.5), Stop)


def test_equal_scores_go_on_together():
    play = stopping()
    play.add(9)
    assert [play.report(n, 1, 0.0) for n in range(9)] == [Continue()] * 9


def test_one_report_over_several_levels_is_judged_on_each():
    play = stopping()
    play.add(3)
    assert play.report(0, 1, 0.5) == Continue()
    assert play.report(0, 3, 0.6) == Continue()
    # From 0 to 4: better than the 0.5 of the rung at 1, worse than the 0.6 of the rung at 3.
    assert play.report(1, 4, 0.55) == Stop("below the best third of 2 at 3 steps (0.55 < 0.6)")
    assert play.report(2, 4, 0.7) == Continue()


def test_a_metric_that_is_minimised_is_shown_with_its_own_sign():
    play = stopping()
    play.add(2)
    play.report(0, 1, -0.5)
    play.trials[1].values, play.trials[1].progress = (0.7,), 1
    play.scheduler.record(play.trials[1], 1, -0.7)
    assert play.scheduler.judge(play.trials[1]).reason.endswith("(0.7 > 0.5)")


def test_a_trial_that_repeats_reports_after_a_crash_is_not_counted_twice():
    play = stopping(max_progress=81)
    play.add(2)
    play.report(0, 1, 0.5)
    play.report(0, 2, 0.5)
    play.report(0, 1, 9.0)  # again, from a checkpoint at 0
    assert play.report(1, 1, 0.4) == Stop("below the best third of 2 at 1 step (0.4 < 0.5)")


def test_nan_is_worse_than_everything():
    play = stopping()
    play.add(3)
    assert play.report(0, 1, float("nan")) == Continue()
    assert play.report(1, 1, -1e9) == Continue()
    assert isinstance(play.report(2, 1, float("nan")), Stop)


# ---------------------------------------------------------------- settings


def test_the_first_rung_is_an_81st_of_max_progress_but_at_least_one_step():
    def first_judged(unit, reports, **settings):
        """The first of the reports at which the worse of two trials is stopped; max_progress is 810."""
        play = Play(lambda: ASHA(810, unit=unit, **settings))
        play.add(2)
        for progress in reports:
            play.report(0, progress, 1.0)
            if isinstance(play.report(1, progress, 0.0), Stop):
                return progress
        return None

    assert first_judged("env_steps", [0.5, 5, 9, 10, 30]) == 10  # 810 / 3^4
    assert first_judged("step", range(1, 81)) == 10
    assert first_judged("env_steps", [1, 3, 4, 10, 30], reduction_factor=4) == 4  # 810 / 256 = 3.16
    play = Play(lambda: ASHA(9))
    play.add(2)
    play.report(0, 1, 1.0)
    assert play.report(1, 1, 0.0).reason.startswith("below the best third of 2 at 1 step")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction_factor": 1}, "bad value for 'reduction_factor': 1 "),
        ({"max_progress": "far"}, "bad value for 'max_progress': 'far' "),
        ({"min_progress": 10}, "min_progress \\(10\\) is greater than max_progress \\(9\\)"),
        (
            {"max_progress": None, "min_progress": None, "unit": "env_steps"},
            "needs max_progress or min_progress, in env_steps",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        stopping(**settings)


# ---------------------------------------------------------------- any history


@given(events=EVENTS, closed_at=st.integers(0, 80))
def test_a_restored_scheduler_says_what_the_other_would_have_said(events, closed_at):
    check_restored_after_each_event(
        lambda: ASHA(max_progress=27, min_progress=1, reduction_factor=3), events, closed_at
    )
