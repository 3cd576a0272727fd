"""HyperBand: the paper's table, a bracket by hand, failures, brackets that never fill, restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import Continue, Pause, Resume, Stop
from rlplat.tune.schedulers.hyperband import HyperBand, bracket_plans
from rlplat.tune.trial import TrialState
from tests.tune.scheduler_histories import EVENTS, check_comes_to_an_end, check_restored_after_each_event
from tests.tune.scheduler_play import Play


def play_of(**settings):
    return Play(lambda: HyperBand(**{"max_progress": 9, **settings}))


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
    """R = 9, eta = 3: 9 trials to 1, the best 3 to 3, the best of them to 9."""
    play = play_of()
    play.add(9)
    for number in range(8):
        assert play.report(number, 1, number / 10) == Pause()
        assert play.settle() == {}
    # The last one is the worst; 5, 6 and 7 are the best three.
    assert play.report(8, 1, -1.0) == Stop("not among the 3 of its bracket that go on at 1 step (-1 < 0.5)")
    due = play.settle()
    assert {number for number, verdict in due.items() if verdict == Resume()} == {5, 6, 7}
    assert due[4] == Stop("not among the 3 of its bracket that go on at 1 step (0.4 < 0.5)")
    assert len(due) == 8
    assert play.report(6, 2, 0.9) == Continue()
    assert play.report(6, 3, 0.7) == Pause()
    assert play.report(5, 3, 0.5) == Pause()
    assert play.report(7, 3, 0.8) == Continue()  # all three are there, and it is the best
    assert set(play.settle()) == {5, 6}
    assert play.report(7, 8, 0.1) == Continue()
    assert play.report(7, 9, 0.1) == Stop("through: at 9 steps", is_complete=True)
    assert play.scheduler._brackets == {}


def test_trials_fill_the_brackets_in_order_and_then_begin_again():
    """R = 9, eta = 3: n = 9, ceil(3 / 2 * 3) = 5, 3: together 17."""
    play = play_of()
    play.add(9 + 5 + 3 + 1)
    levels = [play.scheduler._brackets[n].plan.levels for n in range(18)]
    assert levels == [(1, 3, 9)] * 9 + [(3, 9)] * 5 + [(9,)] * 3 + [(1, 3, 9)]
    assert play.report(9, 1, 0.0) == Continue()
    assert play.report(9, 3, 0.0) == Pause()
    assert play.report(14, 8, 0.0) == Continue()
    assert play.report(14, 9, 0.0).is_complete


def test_the_place_of_a_trial_that_fails_goes_to_the_next_best_and_nobody_waits_for_it():
    play = play_of()
    play.add(9)
    for number in range(7):
        play.report(number, 1, number / 10)
    play.end(7, TrialState.FAILED)
    assert play.settle() == {}
    play.end(8, TrialState.FAILED)
    assert {number for number, verdict in play.settle().items() if verdict == Resume()} == {4, 5, 6}
    play.report(4, 3, 0.1)
    play.report(5, 3, 0.2)
    play.end(6, TrialState.FAILED)
    assert play.settle() == {
        5: Resume(),
        4: Stop("not among the 1 of its bracket that go on at 3 steps (0.1 < 0.2)"),
    }


def test_a_bracket_all_of_whose_trials_failed_ends():
    play = play_of()
    play.add(9)
    for number in range(9):
        play.end(number, TrialState.FAILED)
    assert play.settle() == {}
    assert play.scheduler._brackets == {}


def test_a_trial_that_ends_by_itself_is_not_waited_for():
    play = play_of()
    play.add(9)
    play.end(0, TrialState.COMPLETE)
    for number in range(1, 9):
        play.report(number, 1, number / 10)
    assert {number for number, verdict in play.settle().items() if verdict == Resume()} == {6, 7}
    assert play.running() == [6, 7, 8]


def test_a_bracket_that_never_fills_is_judged_for_those_it_has():
    """7 of 9: floor(7 / 3) = 2 go on to 3, then floor(7 / 9) = 0, but at least one goes on to 9."""
    play = play_of()
    play.add(7)
    for number in range(7):
        assert play.report(number, 1, number / 10) == Pause()
    due = play.close()
    assert {number for number, verdict in due.items() if verdict == Resume()} == {5, 6}
    assert play.report(6, 3, 0.1) == Pause()
    assert isinstance(play.report(5, 3, 0.0), Stop)
    assert play.settle() == {6: Resume()}


def test_equal_scores_go_on_by_number():
    play = play_of()
    play.add(9)
    verdicts = [play.report(number, 1, 0.0) for number in range(9)]
    assert verdicts[:8] == [Pause()] * 8
    assert isinstance(verdicts[8], Stop)
    assert {number for number, verdict in play.settle().items() if verdict == Resume()} == {0, 1, 2}


def test_one_report_over_several_levels_counts_on_each():
    play = play_of()
    play.add(9)
    assert play.report(0, 4, 0.9) == Pause()
    for number in range(1, 9):
        play.report(number, 1, number / 100)
    # 0, 8 and 7 go on; 0 is at 3 already and waits there for the other two.
    due = play.settle()
    assert {number for number, verdict in due.items() if verdict == Resume()} == {7}
    assert 0 not in due
    assert play.running() == [7, 8]
    play.report(7, 3, 0.1)
    assert isinstance(play.report(8, 3, 0.2), Stop)
    assert play.settle() == {
        0: Resume(),
        7: Stop("not among the 1 of its bracket that go on at 3 steps (0.1 < 0.9)"),
    }


def test_a_trial_that_completes_with_the_report_at_a_rung_keeps_its_place_and_is_not_waited_for():
    play = play_of()
    play.add(9)
    play.record(0, 1, 0.9)
    play.end(0, TrialState.COMPLETE)  # a stop rule held
    for number in range(1, 9):
        play.report(number, 1, number / 10)
    assert {number for number, verdict in play.settle().items() if verdict == Resume()} == {7}
    play.report(8, 3, 0.1)
    play.report(7, 3, 0.2)
    assert play.states()[7:] == ["running", "paused"]
    assert set(play.settle()) == {8}


def test_a_pause_that_a_crash_prevented_is_said_again():
    play = play_of()
    play.add(9)
    assert play.report(0, 1, 0.5) == Pause()
    play.trials[0].state = TrialState.RUNNING  # it died before its checkpoint was written, and began again
    play.trials[0].progress = 0.0
    assert play.report(0, 0.5, 0.1) == Pause()


def test_one_report_to_the_end_is_through():
    play = play_of()
    play.add(9)
    assert play.report(0, 9, 0.9).is_complete


def test_in_env_steps_the_first_report_beyond_a_level_counts_for_it():
    play = play_of(max_progress=9000, min_progress=1000, unit="env_steps")
    play.add(9)
    assert play.report(0, 999, 0.1) == Continue()
    assert play.report(0, 1024, 0.1) == Pause()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_progress": None, "unit": "env_steps"}, "needs max_progress, in env_steps"),
        ({"max_progress": None}, "needs max_progress, in steps"),
        ({"reduction_factor": 0.5}, "reduction_factor must be a number greater than 1, not 0.5"),
        ({"min_progress": -1}, "min_progress must be a number greater than 0, not -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        play_of(**settings)


def test_a_trial_that_waits_on_its_second_rung_still_waits_there_after_a_restart():
    play = play_of()
    play.add(9)
    for number in range(9):
        play.report(number, 1, number / 10)
    assert play.running() == [8]  # 6 and 7 are called by `due`
    assert play.report(8, 3, 0.5) == Pause()
    play.settle()
    play.restore()
    assert play.settle() == {}
    assert play.report(6, 3, 0.4) == Pause()
    assert isinstance(play.report(7, 3, 0.3), Stop)
    assert set(play.settle()) == {6, 8}


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
