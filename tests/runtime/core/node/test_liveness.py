"""Who hangs: readings and a clock in, verdicts out."""

from __future__ import annotations

from rlplat.runtime.core.node.liveness import Ask, Hung, Liveness, Reading, Verdict

IDLE = Reading(1.0, "S")


def run(
    liveness: Liveness, seconds: float, *, start: float = 0.0, answers: bool = True, reading: Reading = IDLE
) -> list[Verdict]:
    """Look every period for `seconds`; everything that was said."""
    said: list[Verdict] = []
    now = start
    while now <= start + seconds:
        verdicts = liveness.look({"w1": reading}, now)
        said += verdicts
        if answers and Ask("w1") in verdicts:
            liveness.answered("w1", now + 0.01)
        now += liveness.period_s
    return said


def test_one_that_answers_is_asked_each_period_and_lives() -> None:
    assert run(Liveness(10.0), 100) == [Ask("w1")] * 41


def test_one_that_is_stopped_is_hung_within_the_limit_and_once() -> None:
    said = run(Liveness(10.0), 60, answers=False, reading=Reading(1.0, "T"))
    assert said == [Ask("w1"), Hung("w1", 10.0, True)]


def test_the_verdict_falls_before_the_limit_however_late_the_last_answer_was() -> None:
    liveness = Liveness(10.0)
    liveness.look({"w1": IDLE}, 0.0)
    liveness.answered("w1", 1.2)  # it was stopped right then
    hung = [(t, v) for t in (2.5, 5.0, 7.5, 10.0) for v in liveness.look({"w1": IDLE}, t) if v != Ask("w1")]
    assert hung == [(10.0, Hung("w1", 8.8, False))]


def test_a_native_call_that_holds_the_gil_and_computes_lives() -> None:
    liveness = Liveness(10.0)
    for second in range(0, 1000, 2):
        verdicts = liveness.look({"w1": Reading(second * 0.5, "R")}, float(second))
        assert not any(isinstance(each, Hung) for each in verdicts)


def test_a_few_ticks_of_the_socket_thread_are_no_sign_of_life() -> None:
    liveness, said = Liveness(10.0), []
    for step in range(8):
        said += liveness.look({"w1": Reading(1 + step * 0.001, "S")}, 2.5 * step)
    assert Hung("w1", 10.0, False) in said


def test_one_in_a_debugger_lives() -> None:
    assert run(Liveness(10.0), 100, answers=False, reading=Reading(1.0, "t")) == [Ask("w1")]


def test_one_that_waits_for_a_disk_in_the_kernel_lives() -> None:
    assert run(Liveness(10.0), 100, answers=False, reading=Reading(1.0, "D")) == [Ask("w1")]


def test_a_gap_in_the_own_clock_earns_a_new_start() -> None:
    liveness = Liveness(10.0)
    liveness.look({"w1": IDLE}, 0.0)  # asked; then everything stands still for a minute
    assert liveness.look({"w1": IDLE}, 60.0) == []
    assert liveness.look({"w1": IDLE}, 62.5) == []
    liveness.answered("w1", 62.6)
    assert liveness.look({"w1": IDLE}, 65.0) == [Ask("w1")]
    # ... which does not save one that stays silent after it
    assert run(liveness, 12.5, start=67.5, answers=False) == [Hung("w1", 9.9, False)]


def test_one_that_was_idle_for_long_starts_anew_when_it_is_used() -> None:
    liveness = Liveness(10.0)
    assert liveness.look({"w1": IDLE}, 0.0) == [Ask("w1")]
    assert liveness.look({}, 2.5) == []
    assert liveness.look({"w1": IDLE}, 5.0) == [Ask("w1")]
    assert run(liveness, 10, start=7.5, answers=False)[-1] == Hung("w1", 10.0, False)


def test_a_short_limit_has_a_short_period() -> None:
    liveness = Liveness(2.0)
    assert liveness.period_s == 0.5
    assert run(liveness, 2, answers=False) == [Ask("w1"), Hung("w1", 2.0, False)]
