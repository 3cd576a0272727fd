"""HyperBand: the paper's table, the order of brackets, a bracket by hand, failures, restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import Continue, Pause, Resume, Stop
from rlplat.tune.schedulers.halving import HyperBand, bracket_plans
from rlplat.tune.trial import TrialState
from tests.tune.scheduler_histories import EVENTS, check_comes_to_an_end, check_restored_after_each_event
from tests.tune.scheduler_play import Play


def play_of(**settings):
    return Play(lambda: HyperBand(**{"max_progress": 9, **settings}))


def bold_play(count=9):
    """R = 9, eta = 3: trials 0 ... 4 were in the bracket of s = 1, 5 ... 7 in that of s = 0, and all failed. From 8 on
    they are in that of s = 2: 9 trials to 1, the best 3 to 3, the best of them to 9."""
    play = play_of()
    play.add(8)
    for number in range(8):
        play.end(number, TrialState.FAILED)
    play.add(count)
    return play


def resumed(due):
    return {number for number, verdict in due.items() if verdict == Resume()}


def below(score, bound, count=9, where="1 step"):
    return Stop(f"below the best third of {count} of its bracket at {where} ({score:g} < {bound:g})")


def test_the_brackets_are_those_of_the_papers_table_1():
    """R = 81, eta = 3: s_max = 4. n = ceil(5 / (s + 1) * 3^s) = 81, ceil(33.75), 15, ceil(7.5), 5."""
    assert [list(zip(plan.sizes, plan.levels, strict=True)) for plan in bracket_plans(81, 1, 3)] == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


def test_brackets_where_nothing_divides():
    """R = 100, eta = 4, r = 2: 100 / 16 = 6.25 >= 2 > 100 / 64, so s_max = 2; n = 16, ceil(3 / 2 * 4) = 6, 3."""
    assert [(plan.sizes, plan.levels) for plan in bracket_plans(100, 2, 4)] == [
        ((16, 4, 1), (6.25, 25, 100)),
        ((6, 1), (25, 100)),
        ((3,), (100,)),
    ]


def test_rounding_costs_no_bracket():
    assert len(bracket_plans(243, 1, 3)) == 6  # log(243) / log(3) = 4.999...
    assert len(bracket_plans(0.3, 0.1, 3)) == 2


def test_a_bracket_by_hand():
    play = bold_play()
    assert play.report(8, 1, 0.3) == Pause()
    assert play.report(9, 1, 0.5) == Pause()
    assert play.settle() == {}
    assert play.report(10, 1, 0.1) == Pause()
    assert play.settle() == {9: Resume()}  # the best of three
    assert play.report(11, 1, 0.4) == Pause()
    assert play.report(12, 1, 0.6) == Continue()
    assert play.report(13, 1, 0.2) == Pause()
    assert play.settle() == {}  # the best two of six are on their way
    assert play.report(14, 1, 0.9) == Continue()
    assert play.report(15, 1, 0.8) == Continue()
    # All nine are there. 9 went on early and is the fourth now: it stays.
    assert play.report(16, 1, 0.0) == below(0.0, 0.6)
    assert play.settle() == {
        11: below(0.4, 0.6),
        8: below(0.3, 0.6),
        13: below(0.2, 0.6),
        10: below(0.1, 0.6),
    }
    assert play.running() == [9, 12, 14, 15]
    assert play.report(9, 2, 0.9) == Continue()
    assert play.report(9, 3, 0.7) == Pause()
    assert play.report(12, 3, 0.65) == Pause()
    assert play.report(14, 3, 0.6) == Pause()
    assert play.settle() == {9: Resume()}
    assert play.report(15, 3, 0.95) == Continue()
    assert play.settle() == {12: below(0.65, 0.95, 4, "3 steps"), 14: below(0.6, 0.95, 4, "3 steps")}
    assert play.report(15, 8, 0.1) == Continue()
    assert play.report(15, 9, 0.1) == Stop("through: at 9 steps", is_complete=True)
    assert play.report(9, 9, 0.1).is_complete
    assert play.scheduler._brackets == {} and play.settle() == {}


def test_a_bracket_whose_trials_come_best_first_is_that_of_the_table():
    """Nobody is beaten later: 9, 3, 1."""
    play = bold_play()
    for number in range(16, 7, -1):  # the best first
        play.report(number, 1, number / 10)
        play.settle()
    assert play.running() == [14, 15, 16]
    for number in (16, 15, 14):
        play.report(number, 3, number / 10)
        play.settle()
    assert play.running() == [16]


def test_trials_fill_the_brackets_in_order_the_boldest_last_and_then_begin_again():
    """R = 9, eta = 3: n = ceil(3 / 2 * 3) = 5, 3, 9: together 17."""
    play = play_of()
    play.add(5 + 3 + 9 + 1)
    levels = [play.scheduler._brackets[n].plan.levels for n in range(18)]
    assert levels == [(3, 9)] * 5 + [(9,)] * 3 + [(1, 3, 9)] * 9 + [(3, 9)]
    assert len({play.scheduler._brackets[n] for n in range(18)}) == 4  # the next round's are new ones
    assert play.report(0, 1, 0.0) == Continue()
    assert play.report(0, 3, 0.0) == Pause()
    assert play.report(5, 8, 0.0) == Continue()
    assert play.report(5, 9, 0.0).is_complete


def test_the_place_of_a_trial_that_fails_goes_to_the_next_best_and_nobody_waits_for_it():
    """Three of nine go on, though only seven came to the rung."""
    play = bold_play()
    for number in range(14, 7, -1):
        play.report(number, 1, number / 10)
    assert resumed(play.settle()) == {14, 13}
    play.end(15, TrialState.FAILED)
    assert play.settle() == {}
    play.end(16, TrialState.FAILED)
    assert resumed(play.settle()) == {12}
    play.report(14, 3, 0.1)
    play.report(13, 3, 0.2)
    assert play.settle() == {}
    play.end(12, TrialState.FAILED)
    assert play.settle() == {13: Resume(), 14: below(0.1, 0.2, 2, "3 steps")}


def test_a_bracket_all_of_whose_trials_failed_ends():
    play = play_of()
    play.add(5)
    for number in range(5):
        play.end(number, TrialState.FAILED)
    assert play.settle() == {}
    assert play.scheduler._brackets == {}


def test_a_trial_that_ends_by_itself_is_not_waited_for():
    play = bold_play()
    play.end(8, TrialState.COMPLETE)
    for number in range(16, 9, -1):
        play.report(number, 1, number / 10)
    assert resumed(play.settle()) == {15, 16}
    play.report(9, 1, 0.9)
    assert resumed(play.settle()) == {14}
    assert play.running() == [14, 15, 16]


def test_a_bracket_that_never_fills_is_judged_for_those_it_has():
    """2 of 5: floor(2 / 3) = 0, but at least one goes on to 9."""
    play = play_of()
    play.add(2)
    assert [play.report(number, 3, number / 10) for number in range(2)] == [Pause(), Pause()]
    assert play.settle() == {}
    assert play.close() == {1: Resume(), 0: below(0.0, 0.1, 2, "3 steps")}


def test_equal_scores_go_on_by_number():
    play = bold_play()
    for number in range(8, 17):
        play.report(number, 1, 0.0)
    assert resumed(play.settle()) == {8, 9, 10}
    assert play.running() == [8, 9, 10]


def test_one_report_over_several_levels_counts_on_each():
    play = bold_play()
    assert play.report(8, 4, 0.9) == Pause()
    play.report(9, 1, 0.1)
    play.report(10, 1, 0.2)
    assert play.settle() == {}  # the best of three, but it is at 3 already, and alone there
    play.report(11, 1, 0.8)
    play.report(12, 1, 0.3)
    play.report(13, 1, 0.3)
    assert play.settle() == {11: Resume()}
    play.report(11, 3, 0.7)
    for number in range(14, 17):
        play.report(number, 1, 0.0)
    assert resumed(play.settle()) == {12}
    play.report(12, 3, 1.0)
    assert play.settle() == {8: below(0.9, 1.0, 3, "3 steps"), 11: below(0.7, 1.0, 3, "3 steps")}


def test_a_trial_that_completes_with_the_report_at_a_rung_keeps_its_place_and_is_not_waited_for():
    play = bold_play()
    play.record(8, 1, 9.0)
    play.end(8, TrialState.COMPLETE)  # a stop rule held
    for number in range(16, 8, -1):
        play.report(number, 1, number / 10)
    assert resumed(play.settle()) == {15, 16}
    play.report(16, 3, 0.1)
    play.report(15, 3, 0.2)
    assert set(play.settle()) == {16}
    assert play.running() == [15]


def test_a_pause_that_a_crash_prevented_is_said_again():
    play = play_of()
    play.add(5)
    assert play.report(0, 3, 0.5) == Pause()
    play.trials[0].state = TrialState.RUNNING  # it died before its checkpoint was written, and began again
    play.trials[0].progress = 0.0
    assert play.report(0, 1, 0.1) == Continue()
    assert play.report(0, 3, 0.5) == Pause()


def test_one_report_to_the_end_is_through():
    play = play_of()
    play.add(5)
    assert play.report(0, 9, 0.9).is_complete


def test_in_env_steps_the_first_report_beyond_a_level_counts_for_it():
    play = play_of(max_progress=9000, min_progress=1000, unit="env_steps")
    play.add(5)
    assert play.report(0, 2999, 0.1) == Continue()
    assert play.report(0, 3072, 0.1) == Pause()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_progress": None, "unit": "env_steps"}, "needs max_progress, in env_steps"),
        ({"max_progress": None}, "needs max_progress, in steps"),
        ({"reduction_factor": 0.5}, "bad value for 'reduction_factor'"),
        ({"min_progress": -1}, "bad value for 'min_progress'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        play_of(**settings)


def test_a_trial_that_waits_on_its_second_rung_still_waits_there_after_a_restart():
    play = bold_play()
    for number in range(16, 7, -1):
        play.report(number, 1, number / 10)
    play.settle()
    assert play.report(16, 3, 0.5) == Pause()
    play.settle()
    play.restore()
    assert play.settle() == {}
    assert play.report(14, 3, 0.4) == Pause()
    assert isinstance(play.report(15, 3, 0.3), Stop)
    assert resumed(play.settle()) == {16}


def test_a_trial_that_went_on_early_and_was_beaten_goes_on_after_a_restart_as_well():
    """It was killed with the tuner before its next report, so it is asked once more what becomes of it."""
    play = play_of()
    play.add(5)
    for number, score in enumerate([0.1, 0.0, 0.2, 0.9]):
        play.report(number, 3, score)
    assert play.running() == [2, 3, 4]
    assert play.scheduler.judge(play.trials[2]) == Continue()
    play.restore()
    assert play.scheduler.judge(play.trials[2]) == Continue()


@given(events=EVENTS, closed_at=st.integers(0, 80), max_progress=st.sampled_from([3, 9, 27]))
def test_a_restored_scheduler_says_what_the_other_would_have_said(events, closed_at, max_progress):
    check_restored_after_each_event(lambda: HyperBand(max_progress=max_progress), events, closed_at)


@given(scores=st.lists(st.integers(0, 5), min_size=1, max_size=60), crashes=st.sets(st.integers(0, 59)))
def test_every_trial_comes_to_an_end_and_one_to_the_last_level(scores, crashes):
    play = play_of(max_progress=27)
    play.add(len(scores))
    failed = {number for number in crashes if number < len(scores)}
    for number in sorted(failed):
        play.end(number, TrialState.FAILED)
        play.settle()
    reached = check_comes_to_an_end(play, lambda number: scores[number], longest=27)
    if len(failed) < len(scores):
        assert max(reached) == 27
    assert play.scheduler._brackets == {}
