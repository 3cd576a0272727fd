"""What a run shows: a line now and then, a bar on a terminal, never a bare nan."""

from __future__ import annotations

import io

from rlplat.rl.interfaces import Result
from rlplat.rl.run.view.progress import ProgressBar, ProgressLines, describe, open_progress


def result(env_steps: int, **metrics: float) -> Result:
    return Result(1, env_steps, 57, 312.41, 200.0, dict(metrics))


def test_before_an_episode_has_finished_it_says_so() -> None:
    assert describe(Result(1, 10, 0, None, None)) == "0 episodes finished"
    waiting = Result(1, 10, 0, None, None, {"rollout/longest_running_episode": 12345.0})
    assert describe(waiting) == "0 episodes finished, longest running 12,345 steps"
    assert describe(result(1)) == "return 312.4 (length 200.0, 57 episodes)"
    assert describe(result(1), 475.0) == "return 312.4 (length 200.0, 57 episodes), evaluation 475.0"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_at_once_and_then_one_every_ten_seconds() -> None:
    clock = Clock()
    stream = io.StringIO()
    lines = ProgressLines(stream, clock=clock)
    for index, clock.now_s in enumerate((100.0, 101.0, 109.9, 110.0, 119.0, 121.0)):
        lines.show(result(1000 * (index + 1)), 1234.5)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["1,000", "4,000", "6,000"]
    assert "1,234/s" in stream.getvalue()


def test_the_last_evaluation_stays_in_view() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = ProgressLines(stream, clock=clock)
    lines.show(result(1000), 1.0)
    lines.show(result(2000, **{"eval/return_mean": 33.0}), 1.0)
    clock.now_s += 10.0
    lines.show(result(3000), 1.0)
    assert [line.partition("episodes)")[2] for line in stream.getvalue().splitlines()] == [
        "",
        ", evaluation 33.0",
    ]


def test_nobody_reading_does_not_stop_the_training() -> None:
    stream = io.StringIO()
    lines = ProgressLines(stream)
    stream.close()
    lines.show(result(1), 1.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_whose_clock_begins_with_the_first_result() -> None:
    assert isinstance(open_progress(1000, io.StringIO()), ProgressLines)
    terminal = Terminal()
    bar = open_progress(1000, terminal)
    assert isinstance(bar, ProgressBar)
    bar.say("starting")
    assert terminal.getvalue() == "starting\n"  # no bar yet, and no rate that counts the start
    bar.show(result(750), 10.0)
    assert "75%" in terminal.getvalue() and "?" in terminal.getvalue()  # a rate needs a second result
    bar.say("a note")
    bar.close()
    assert "a note" in terminal.getvalue()
    open_progress(1000, Terminal()).close()
