"""The live table of an experiment on a terminal: a bar, what is there, the best trials, those that run.

It is drawn at most four times a second, by the thread that calls `show`. What this process and those of the runtime
print meanwhile appears above it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlplat.durations import duration_text
from rlplat.tune.roster import Snapshot, View, counts_text, ended, short_names, value_text
from rlplat.tune.trial import Trial, TrialState

DRAW_PERIOD_S = 0.25
_LONGEST_CELL = 32
_SHORTEST_CELL = 8
_NARROW = 60
_NUM_BEST = 5
_STYLES = {
    TrialState.RUNNING: "green",
    TrialState.FAILED: "red",
    TrialState.STOPPED: "dim",
    TrialState.PAUSED: "yellow",
    TrialState.WAITING: "cyan",
}


class LiveTable(View):
    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = clock()
        self.console = console
        self._size = console.size
        self._live: Live | None = None
        self._output: ChildOutput | None = None

    def taking_output(self) -> AbstractContextManager[None]:
        self._output = ChildOutput()
        return self._output.inherited()

    def finish(self) -> None:
        if self._output is not None and (text := self._output.close()):
            self.say(text)
        self._output = None

    def is_due(self) -> bool:
        return self._clock() >= self._next_s

    def show(self, snapshot: Snapshot) -> None:
        if self.is_due():
            self._next_s = self._clock() + DRAW_PERIOD_S
            if self._output is not None and (lines := self._output.lines()):
                self.say("\n".join(lines))
            self._draw(picture(snapshot, self.console.width, self.console.height))

    def say(self, text: str) -> None:
        try:
            self.console.print(Text(text), soft_wrap=True)
        except (OSError, ValueError, RuntimeError):  # nobody reads, or a signal came in mid-print
            pass

    def close(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self._draw(last_picture(snapshot, self.console.width))
        try:
            if self._live is not None:
                self._live.stop()
        except (OSError, ValueError, RuntimeError):
            pass

    def _draw(self, content: RenderableType) -> None:
        try:
            if self._live is not None and self.console.size != self._size:
                self._live.stop()  # the terminal has folded the lines: nobody knows where they are
                self.console.clear()
                self._live = None
            self._size = self.console.size
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
                self._live.start()
            self._live.update(content, refresh=True)
        except (OSError, ValueError, RuntimeError):
            pass


def picture(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """At most `height - 1` lines of at most `width` cells: the best trials, then the others, those that run first."""
    head = _head(snapshot, width)
    best = list(snapshot.best[:_NUM_BEST])
    numbers = {trial.number for trial in best}
    others = [trial for trial in snapshot.live if trial.number not in numbers]
    others.sort(key=lambda trial: trial.state is not TrialState.RUNNING)
    room = height - 1 - len(head) - 3  # the cursor's line, the table's header, two headings
    best = best[: max(1, room // 3, room - len(others))]
    shown = others if len(others) <= room - len(best) else others[: max(0, room - len(best) - 1)]
    rows: list[Trial | str] = ["best", *best] if best else []
    rows += ["now", *shown] if shown else []
    more = [_line(f"… and {hidden:,} more", width)] if (hidden := len(others) - len(shown)) and room > 2 else []
    return Group(*head, table(rows, snapshot.metric, width), *more)


def last_picture(snapshot: Snapshot, width: int) -> RenderableType:
    """What stays when the experiment has ended: the ten best with their parameters."""
    best = list(snapshot.best[:10])
    return Group(*_head(snapshot, width), *([table(best, snapshot.metric, width)] if best else []))


def _head(snapshot: Snapshot, width: int) -> list[Text]:
    from tqdm import tqdm

    name = snapshot.name if width >= 60 else ""
    if cell_len(name) > width // 3:
        name = set_cell_size(name, width // 3 - 1) + "…"
    bar = tqdm.format_meter(
        ended(snapshot), snapshot.num_trials or 0, snapshot.wall_s, ncols=width, prefix=name, unit="trial"
    )
    in_use, in_all = snapshot.slots
    slots = f"; slots {in_use} of {in_all}" if in_all else ""
    return [_line(bar, width), _line(counts_text(snapshot) + slots, width)]


def table(rows: Sequence[Trial | str], metric: tuple[str, ...], width: int) -> Table:
    """A text among the rows is a heading. Columns: trial, state, metrics, reports, seconds, and as many parameters as
    fit: where not all do, those that differ between the trials (`+3`: parameters that are missing)."""
    trials = [row for row in rows if isinstance(row, Trial)]
    fixed = {
        "trial": [str(trial.number) for trial in trials],
        "state": [str(trial.state) for trial in trials],
    }
    for index, name in enumerate(short_names(list(metric)).values()):
        fixed[name] = [value_text(trial.values[index]) if trial.values else "-" for trial in trials]
    fixed["steps"] = [f"{trial.step:,}" for trial in trials]
    if any(trial.progress != trial.step for trial in trials):
        fixed["progress"] = [_amount(trial.progress) for trial in trials]
    fixed["time"] = [duration_text(trial.run_s) for trial in trials]
    if width < _NARROW:
        fixed = {name: cells for name, cells in fixed.items() if name not in ("state", "steps", "progress", "time")}
    names = short_names(list(dict.fromkeys(name for trial in trials for name in trial.params)))
    params = {
        short: [value_text(trial.params[name]) if name in trial.params else "" for trial in trials]
        for name, short in names.items()
    }
    room = width - sum(max(map(cell_len, [name, *cells])) + 2 for name, cells in fixed.items())
    kept = params
    if len(params) > (num := max(0, room // (_SHORTEST_CELL + 2))):
        varying = {name: cells for name, cells in params.items() if len(set(cells)) > 1} or params
        kept = dict(itertools.islice(varying.items(), num))
    made = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in fixed:
        made.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for name, cells in kept.items():  # what is too wide of these, rich cuts
        is_number = all(re.fullmatch(r"[-+.\de]*", cell) for cell in cells)
        title = Text(name, no_wrap=True, overflow="ellipsis")
        made.add_column(title, justify="right" if is_number else "left", max_width=_LONGEST_CELL)
    if len(kept) < len(params):
        made.add_column(f"+{len(params) - len(kept)}", no_wrap=True)
    position = itertools.count()
    for row in rows:
        if isinstance(row, str):
            made.add_row(Text(row, justify="left"), style="bold dim")
            continue
        at = next(position)
        cells = [*(column[at] for column in fixed.values()), *(column[at] for column in kept.values())]
        style = _STYLES.get(row.state, "")
        made.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells), style=style)
    return made


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…", style=style)


def _amount(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.4g}"


# -------------------------------------------------------------------------------- what processes of the runtime print

_STDERR = 2
_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 20
"""At a time: a trial that prints without end must not hold up the experiment."""


class ChildOutput:
    """What processes of the runtime print, taken off the terminal on which a table is drawn.

    The node shares stderr with the driver. Started within `inherited`, it has a pipe there instead, and never waits for
    it:

        output = ChildOutput()
        with output.inherited():
            rlplat.init()
        for line in output.lines(): ...        # now and then
        print(output.close())                  # after rlplat.shutdown(): what is left
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._rest = b""

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Processes that are started within have the pipe as their stderr."""
        sys.stderr.flush()
        kept = fcntl.fcntl(_STDERR, fcntl.F_DUPFD_CLOEXEC, 3)
        os.dup2(self._write, _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STDERR)
            os.close(kept)

    def lines(self) -> list[str]:
        """Whole lines that have come since."""
        data = bytearray()
        while len(data) < _MOST_READ_BYTES:
            try:
                piece = os.read(self._read, _READ_BYTES)
            except BlockingIOError:
                break
            if not piece:
                break
            data += piece
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace").rpartition("\r")[2] for line in lines]

    def close(self) -> str:
        """The text that is left."""
        lines = self.lines()
        os.close(self._read)
        os.close(self._write)
        return "\n".join([*lines, *([self._rest.decode(errors="replace")] if self._rest else [])])
