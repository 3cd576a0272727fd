"""ASHA: worked examples by hand, ties, jumps, failures, restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import Continue, Pause, Resume, Stop
from rlplat.tune.schedulers.halving import ASHA
from rlplat.tune.trial import TrialState
from tests.tune.scheduler_histories import EVENTS, check_comes_to_an_end, check_restored_after_each_event
from tests.tune.scheduler_play import Play


def stopping(**settings):
    return Play(lambda: ASHA(**{"max_progress": 9, "min_progress": 1, "reduction_factor": 3, **settings}))


def promotion(**settings):
    return stopping(variant="promotion", **settings)


# ---------------------------------------------------------------- stopping


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


# ---------------------------------------------------------------- promotion


def test_promotion_the_worked_example_of_the_paper():
    """Bracket 0 of n = 9, r = 1, R = 9, eta = 3 (figures 1 and 2 of the paper), one worker, configs 1 ... 9: of the
    first three 1 is the best, of six also 6, of nine also 8; on the next rung 8 is the best of three."""
    scores = {1: 0.7, 2: 0.2, 3: 0.3, 4: 0.1, 5: 0.4, 6: 0.8, 7: 0.5, 8: 0.9, 9: 0.6}
    play = promotion()
    play.add(9)
    done = []  # (config, rung)

    def report(config, progress):
        done.append((config, progress))
        if isinstance(play.report(config - 1, progress, scores[config]), Continue):
            report(config, 3 * progress)
        for number, verdict in play.settle().items():
            assert verdict == Resume()
            report(number + 1, 3 * progress)

    for config in range(1, 10):
        report(config, 1)
    # 1 // 3 = 0 places for 1, which waits until 3 has come in (3 // 3 = 1). 6 // 3 = 2 places when 6 comes in, and it
    # is the best so far. 8 // 3 = 2 places when 8 comes in, and it is the best of all; so it does not wait for 9.
    assert done == [
        (1, 1),
        (2, 1),
        (3, 1),
        (1, 3),
        (4, 1),
        (5, 1),
        (6, 1),
        (6, 3),
        (7, 1),
        (8, 1),
        (8, 3),  # 3 on the rung at 3: 3 // 3 = 1 place, and 8 has it
        (8, 9),
        (9, 1),
    ]
    assert play.states()[7] == "complete"
    assert [n + 1 for n, t in enumerate(play.trials) if t.history[-1][0] == 3] == [1, 6]


def test_promotion_pauses_who_is_not_among_the_best_third_and_calls_it_when_it_is():
    play = promotion()
    play.add(6)
    assert play.report(0, 1, 0.5) == Pause()  # 1 // 3 = 0 places
    assert play.report(1, 1, 0.6) == Pause()  # 2 // 3 = 0
    assert play.settle() == {}
    assert play.report(2, 1, 0.1) == Pause()  # 3 // 3 = 1, and 1 is the best of them
    assert play.settle() == {1: Resume()}
    assert play.settle() == {}
    assert play.report(3, 1, 0.2) == Pause()  # 4 // 3 = 1
    assert play.report(4, 1, 0.3) == Pause()  # 5 // 3 = 1
    assert play.settle() == {}
    assert play.report(5, 1, 0.0) == Pause()  # 6 // 3 = 2: 0.6 and 0.5
    assert play.settle() == {0: Resume()}


def test_promotion_takes_exactly_a_third_of_equal_scores_by_number():
    play = promotion()
    play.add(6)
    for n in range(6):
        play.report(n, 1, 0.0)
    assert play.settle() == {0: Resume(), 1: Resume()}


def test_promotion_one_report_over_several_levels_waits_on_each():
    play = promotion(max_progress=27)
    play.add(3)
    assert play.report(0, 4, 0.9) == Pause()  # rungs at 1 and 3, alone on both
    assert play.report(1, 1, 0.1) == Pause()
    assert play.report(2, 1, 0.2) == Pause()  # 3 // 3 = 1 place at 1 for trial 0; at 3 there is 1 // 3 = 0
    assert play.settle() == {}
    assert play.close() == {0: Resume()}  # all paused: the one on the highest rung


def test_promotion_at_rest_the_best_of_the_highest_rung_is_trained_in_full_and_the_rest_stops():
    play = promotion()
    play.add(2)
    play.report(0, 1, 0.5)
    play.report(1, 1, 0.6)
    assert play.close() == {1: Resume()}
    assert play.report(1, 3, 0.6) == Pause()
    assert play.settle() == {1: Resume()}
    assert play.report(1, 9, 0.6).is_complete
    assert play.settle() == {0: Stop("not among the best third when there were no more trials")}


def test_promotion_at_rest_the_next_best_takes_the_place_of_one_that_fails():
    play = promotion()
    play.add(2)
    play.report(0, 1, 0.5)
    play.report(1, 1, 0.6)
    assert play.close() == {1: Resume()}
    play.end(1, TrialState.FAILED)
    assert play.settle() == {0: Resume()}


def test_promotion_a_pause_that_a_crash_prevented_is_said_again():
    play = promotion()
    play.add(2)
    assert play.report(0, 1, 0.5) == Pause()
    play.trials[0].state = TrialState.RUNNING  # it died before its checkpoint was written, and began again
    play.trials[0].progress = 0.0
    assert play.report(0, 0.5, 0.1) == Continue()
    assert play.report(0, 1, 0.5) == Pause()
    assert play.report(1, 1, 0.6) == Pause()
    assert play.close() == {1: Resume()}


def test_promotion_a_paused_trial_whose_report_on_the_rung_is_lost_goes_on_after_a_restart():
    play = promotion()
    play.add(1)
    assert play.report(0, 1, 0.5) == Pause()
    play.trials[0].history = [(0.5, 0.4)]  # it was paused at an earlier checkpoint, after a crash
    play.restore()
    assert play.settle() == {0: Resume()}
    assert play.report(0, 1, 0.5) == Pause()


def test_promotion_a_paused_trial_that_is_ended_from_outside_is_forgotten():
    play = promotion()
    play.add(3)
    play.report(0, 1, 0.5)
    play.report(1, 1, 0.4)
    play.end(0, TrialState.STOPPED)
    assert play.close() == {}  # trial 2 still runs
    play.report(2, 1, 0.1)  # 3 // 3 = 1: the place of trial 0, which does not come back
    assert play.settle() == {1: Resume()}  # at rest: the best of those who are left


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
        ({"variant": "promote"}, "bad value for 'variant': 'promote' .must be stopping or promotion"),
        (
            {"max_progress": None, "min_progress": None, "unit": "env_steps"},
            "needs max_progress or min_progress, in env_steps",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        stopping(**settings)


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_report_that_comes_to_two_rungs_at_once_waits_on_the_higher_one(is_restored):
    play = promotion(max_progress=27)
    play.add(6)
    assert [play.report(number, 1, 1) for number in (1, 2)] == [Pause()] * 2
    assert play.report(0, 3, 5) == Pause()  # best of three on rung 1, alone on rung 3
    assert play.report(3, 1, 9) == Continue()
    assert [play.report(number, 1, score) for number, score in ((4, 8), (5, 7))] == [Pause()] * 2
    assert play.settle() == {4: Resume()}  # trial 0 is not among the best third of rung 1 any more
    if is_restored:
        play.restore()
    assert [play.report(number, 3, 1) for number in (3, 4)] == [Pause()] * 2
    assert play.settle() == {0: Resume()}


# ---------------------------------------------------------------- any history


@pytest.mark.parametrize("variant", ["stopping", "promotion"])
@given(events=EVENTS, closed_at=st.integers(0, 80))
def test_a_restored_scheduler_says_what_the_other_would_have_said(variant, events, closed_at):
    check_restored_after_each_event(
        lambda: ASHA(max_progress=27, min_progress=1, reduction_factor=3, variant=variant), events, closed_at
    )


@given(scores=st.lists(st.integers(0, 5), min_size=1, max_size=40), crashes=st.sets(st.integers(0, 39)))
def test_promotion_every_trial_comes_to_an_end_and_one_to_the_last_level(scores, crashes):
    play = promotion(max_progress=27)
    play.add(len(scores))
    for number in sorted(crashes):
        if number < len(scores):
            play.end(number, TrialState.FAILED)
    reached = check_comes_to_an_end(play, lambda number: scores[number], longest=27)
    if len(crashes & set(range(len(scores)))) < len(scores):
        assert max(reached) == 27
