"""What an experiment shows of itself: the live table fits the terminal, plain lines come seldom, silence is silent."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from rlplat.tune.live_table import ChildOutput, LiveTable, last_picture, picture
from rlplat.tune.roster import Snapshot, View, params_text, short_names
from rlplat.tune.trial import Trial, TrialState
from rlplat.tune.view import PlainLines, open_view
from tests.patience import soon

_PRINTS = "import sys; [print(line, end='', file=sys.stderr, flush=True) for line in sys.stdin]"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def a_trial(number: int, value: float | None = None, **params: Any) -> Trial:
    params = params or {
        "optimizer.learning_rate": 10.0 ** -(number % 5),
        "optimizer.name": "adam",
        "layers": [64, 64],
    }
    trial = Trial(number=number, config={}, params=params, seed=number, state=TrialState.RUNNING, run_s=number * 7.3)
    if value is not None:
        trial.values, trial.step, trial.progress = (value,), number + 1, number + 1
    return trial


def a_snapshot(num_running: int, num_best: int, *, num_trials: int | None = 1000, **params: Any) -> Snapshot:
    best = [a_trial(1000 + i, 1 - i / 100, **params) for i in range(num_best)]
    for trial in best:
        trial.state = TrialState.COMPLETE
    live = [a_trial(i, 0.1 * i if i % 3 else None, **params) for i in range(num_running)]
    counts = {TrialState.RUNNING: num_running, TrialState.COMPLETE: num_best}
    return Snapshot("an-experiment", ("accuracy",), counts, num_trials, live, best, 72.0, (num_running, 4))


def lines_of(content: Any, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(content)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [8, 24, 60])
@pytest.mark.parametrize("num_running", [0, 3, 100])
@pytest.mark.parametrize("num_best", [0, 10])
def test_the_table_fits_the_terminal(width: int, height: int, num_running: int, num_best: int) -> None:
    lines = lines_of(picture(a_snapshot(num_running, num_best), width, height), width, height)
    assert len(lines) < height, "the last line is the cursor's"
    assert max(map(cell_len, lines)) <= width
    if num_best and width > 20:
        assert any("1000" in line for line in lines[3:]), "the best trial is always there"
    if num_running == 100 and height > 8 and width > 20:
        num_shown = len(lines) - lines.index("now") - 2 if num_best else len(lines) - 5
        assert lines[-1] == f"… and {100 - num_shown} more"


def test_long_wide_and_many_parameters_are_cut_to_the_width() -> None:
    params = {f"group{i}.parameter_{i}": f"{'长' * 30}{i}" for i in range(20)}
    lines = lines_of(picture(a_snapshot(3, 2, **params), 80, 24), 80, 24)
    assert max(map(cell_len, lines)) <= 80 and "…" in lines[-1]


def test_parameters_that_differ_stay_where_there_is_no_room_for_all() -> None:
    trials = [
        a_trial(i, 0.5, constant="x" * 30, **{f"same_{n}": 1.5 for n in range(8)}, alpha=i, beta=-i) for i in range(3)
    ]
    snapshot = Snapshot("e", ("accuracy",), {}, 3, trials, [], 1.0, (3, 4))
    header = next(line for line in lines_of(picture(snapshot, 80, 24), 80, 24) if "accuracy" in line)
    assert "alpha" in header and "beta" in header and "same_1" not in header and "+9" in header


def test_the_last_picture_shows_the_ten_best() -> None:
    lines = lines_of(last_picture(a_snapshot(0, 10), 120), 120, 24)
    assert sum("complete" in line for line in lines[3:]) == 10 and "learning_rate" in lines[2]


def test_the_live_table_draws_four_times_a_second_and_text_goes_above_it() -> None:
    clock, stream = Clock(), io.StringIO()
    view = LiveTable(Console(file=stream, force_terminal=True, width=80, height=24), clock)
    view.show(a_snapshot(2, 1))
    drawn = len(stream.getvalue())
    assert drawn and not view.is_due()
    view.show(a_snapshot(2, 1))
    assert len(stream.getvalue()) == drawn
    clock.now_s = 0.26
    assert view.is_due()
    view.show(a_snapshot(2, 1))
    assert len(stream.getvalue()) > drawn
    view.say("a word with [brackets]")
    assert "a word with [brackets]" in stream.getvalue()
    view.close(a_snapshot(0, 3))
    assert "an-experiment" in stream.getvalue()[drawn:]


def test_a_terminal_of_another_size_is_drawn_anew() -> None:
    clock, stream = Clock(), io.StringIO()
    view = LiveTable(Console(file=stream, force_terminal=True, width=80, height=24), clock)
    view.show(a_snapshot(2, 1))
    assert "\x1b[2J" not in stream.getvalue()
    view.console.width = 60
    clock.now_s = 1
    view.show(a_snapshot(2, 1))
    assert "\x1b[2J" in stream.getvalue() and "learning_rate" in stream.getvalue().rpartition("\x1b[2J")[2]
    view.close(None)


@pytest.mark.process
def test_what_child_processes_print_goes_above_the_table() -> None:
    clock, stream = Clock(), io.StringIO()
    view = LiveTable(Console(file=stream, force_terminal=True, width=80, height=24), clock)
    with view.taking_output():
        process = subprocess.Popen([sys.executable, "-c", _PRINTS], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    print("one\ntwo", file=process.stdin, flush=True)

    def shows(text: str) -> bool:
        clock.now_s += 1
        view.show(a_snapshot(1, 1))
        return text in stream.getvalue()

    assert soon(lambda: shows("one\r\n") or shows("one\n"))
    view.close(a_snapshot(0, 1))
    print("last", end="", file=process.stdin)
    process.stdin.close()
    assert process.wait(60) == 0
    view.finish()
    assert stream.getvalue().rstrip().endswith("last")


def test_output_without_end_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    output = ChildOutput()
    with output.inherited():
        os.write(2, b"half")
    assert output.lines() == []
    with output.inherited():
        os.write(2, " a line\n10%\r50%\nrest ü".encode())
    assert output.lines() == ["half a line", "50%"]
    assert output.close() == "rest ü"


def test_a_line_that_is_longer_than_one_reading_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlplat.tune.live_table._MOST_READ_BYTES", 1_000)
    output = ChildOutput()
    for _ in range(5):
        with output.inherited():
            os.write(2, b"x" * 1_000)
        assert output.lines() == []
    with output.inherited():
        os.write(2, b"\nnext\n")
    assert output.lines() == ["x" * 5_000, "next"]
    assert output.close() == ""


def test_plain_lines_come_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    view = PlainLines(stream, clock)
    assert isinstance(open_view(stream=stream), PlainLines), "not a terminal"
    for clock.now_s in (0, 5, 10, 12):
        view.show(a_snapshot(2, 1))
    line = (
        "trials: 1 of 1,000 [01:12<19:58:48, 72.00s/trial], 2 running, 1 complete; slots 2 of 4; "
        "best now: accuracy 1, trial 1000, learning_rate=1, name=adam, layers=[64, 64]"
    )
    assert stream.getvalue().splitlines() == [line]
    view.close(a_snapshot(2, 2))
    assert stream.getvalue().splitlines()[1].startswith("trials: 2 of 1,000")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    view = open_view(progress=False)
    assert type(view) is View and not view.is_due()
    view.show(a_snapshot(1, 1))
    view.say("x")
    view.close(None)
    assert capsys.readouterr() == ("", "")


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names(["a.lr", "b.lr", "b.c.size"]) == {"a.lr": "a.lr", "b.lr": "b.lr", "b.c.size": "size"}
    assert params_text({"a.flag": True, "sizes": [64, 0.25], "none": None}) == "flag=true, sizes=[64, 0.25], none=none"
