"""What a run shows: a line now and then, a panel on a terminal, never a bare nan."""

from __future__ import annotations

import io
import os
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rlplat.rl.interfaces import Result
from rlplat.rl.run.view.panel import Shown, TrainingPanel, lines, sparkline
from rlplat.rl.run.view.progress import ProgressLines, describe, open_progress


def result(env_steps: int, **metrics: float) -> Result:
    return Result(1, env_steps, 57, 312.41, 200.0, dict(metrics))


def test_before_an_episode_has_finished_it_says_so() -> None:
    assert describe(Result(1, 10, 0, None, None)) == "0 episodes finished"
    waiting = Result(1, 10, 0, None, None, {"rollout/longest_running_episode": 12345.0})
    assert describe(waiting) == "0 episodes finished, longest running 12,345 steps"
    assert describe(result(1)) == "return 312 (length 200.0, 57 episodes)"
    assert describe(result(1), 475.0) == "return 312 (length 200.0, 57 episodes), evaluation 475"


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
        ", evaluation 33",
    ]


def test_at_the_end_it_says_why_and_the_rate_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    plain = ProgressLines(stream)
    plain.show(result(1000), 9.0)
    plain.finish("return 475 reached", 2175.4)
    plain.show(result(1000), 0.0)  # the closing line, with the evaluation
    assert stream.getvalue().splitlines()[1:] == ["done: return 475 reached, 2,175 env steps/s"]
    shown = Shown(300_000)
    for now_s in (1.0, 2.0, 30.0):
        shown.add(result(118_332), now_s)
    shown.ended = ("return 475 reached", 2175.4)
    text = lines(shown, 80)[0].plain
    assert text == "env steps   118,332 of 300,000  done: return 475 reached  2,175/s"


def test_a_notebook_has_one_output_that_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[str] = []

    class Handle:
        def update(self, told: dict[str, str], *, raw: bool) -> None:
            outputs[-1] = told["text/plain"]

    def display(told: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        outputs.append(told["text/plain"])
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})()
    ipython, of_display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    of_display.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", of_display)
    line = open_progress(1000)
    line.say("starting")
    line.show(result(750, **{"env/success_mean": 0.934}), 10.0)
    line.finish("1,000 env steps reached", 12.0)
    line.show(result(1000), 0.0)
    line.close()
    assert outputs == [
        "starting\n750 of 1,000 env steps  10/s  return 312 (length 200.0, 57 episodes), success 0.934\n"
        "done: 1,000 env steps reached, 12 env steps/s"
    ]


def test_nobody_reading_does_not_stop_the_training() -> None:
    stream = io.StringIO()
    lines = ProgressLines(stream)
    stream.close()
    lines.show(result(1), 1.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def small_console(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)


def test_a_terminal_gets_a_panel_from_the_first_result_on(small_console: None) -> None:
    assert isinstance(open_progress(1000, io.StringIO()), ProgressLines)
    terminal = Terminal()
    panel = open_progress(1000, terminal)
    panel.say("starting")
    assert terminal.getvalue().strip() == "starting"
    panel.show(result(750), 10.0)
    assert "750 of 1,000" in terminal.getvalue() and "75 %" in terminal.getvalue()
    panel.say("a note")
    panel.close()
    assert "a note" in terminal.getvalue()
    assert "\x1b[3" not in terminal.getvalue()  # NO_COLOR
    open_progress(1000, Terminal()).close()


def test_a_terminal_that_cannot_hold_a_panel_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_progress(1000, Terminal()), ProgressLines)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Terminal, "fileno", lambda self: 1)
    for columns, num_lines, is_panel in ((39, 24, False), (40, 8, False), (40, 9, True), (0, 0, False)):
        size = os.terminal_size((columns, num_lines))
        monkeypatch.setattr("os.get_terminal_size", lambda *args, size=size: size)
        assert isinstance(open_progress(1000, Terminal()), TrainingPanel) is is_panel


@pytest.mark.parametrize("width", [20, 40, 57, 80, 200])
@pytest.mark.parametrize("total", [None, 1, 10**9])
def test_every_line_fits_whatever_the_width(width: int, total: int | None) -> None:
    shown = Shown(total)
    for index in range(1200):
        episodes = index > 3
        metrics = {"eval/return_mean": 1e12, "eval/env_steps": 5.0} if index > 5 else {}
        metrics |= {"time/sample_s": 1.0, "time/update_s": 1.0, "rollout/sample_s": 1.0}
        metrics |= {"rollout/env_s": 0.5, "rollout/act_s": 0.25, "rollout/longest_running_episode": 1e6}
        mean = float(index) if episodes else None
        shown.add(Result(index, 1000 * index, index, mean, mean, metrics), now_s=0.5 * index)
        if index in (0, 4, 1199):
            texts = [line.plain for line in lines(shown, width)]
            assert len(texts) == 4 and all(cell_len(text) <= width for text in texts)
    if width == 200:
        assert "2,000/s" in texts[0] and ("left" in texts[0]) is (total == 10**9)
        assert "▁" in texts[1] and "█" in texts[1]
        assert texts[3].split(maxsplit=1)[1] == "50 % the learner's update, 25 % env stepping, 12 % acting"


@given(st.lists(st.floats(-1e9, 1e9), max_size=50), st.integers(-2, 60))
def test_a_sparkline_has_a_bar_for_each_share_and_the_extremes(values: list[float], width: int) -> None:
    text = sparkline(values, width)
    assert len(text) == max(0, min(width, len(values)))
    if text and len(values) <= width:
        assert text[values.index(min(values))] == "▁"
        if max(values) > min(values):
            assert text[values.index(max(values))] == "█"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"time/sample_s": 1.0, "time/update_s": 1.0}, "shown after the first 5 s of training"),
        ({"loss": 1.0}, "not measured by this algorithm"),
    ],
)
def test_where_no_shares_of_the_time_are_known_the_panel_says_why(metrics: dict[str, float], expected: str) -> None:
    shown = Shown(None)
    shown.add(result(1000, **metrics), 1.0)
    assert lines(shown, 80)[3].plain.split(maxsplit=1)[1] == expected
