"""The live table of an experiment on a terminal: a bar, what is there, the best trials, those that run.

    cartpole:  34%|█████████▏                 | 34/100 [01:12<02:20, 2.1 s/trial]
    4 running, 27 complete, 2 stopped, 1 failed; slots 4 of 4
    trial  state     accuracy  steps  time  alpha  beta
    best
       17  complete     0.931     12  4.1s    0.4     1
    running
       33  running      0.702      5  1.2s    0.2     2

It is drawn at most four times a second, by the thread that calls `show`. What this process and those of the runtime
print meanwhile appears above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from rlplat.durations import duration_text
from rlplat.tune.core.snapshot import Snapshot, View, counts_text, ended, short_names, value_text
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.view.child_output import ChildOutput

DRAW_PERIOD_S = 0.25
_LONGEST_CELL = 32
_SHORTEST_CELL = 8
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
    """At most `height - 1` lines of at most `width` cells."""
    lines = height - 1 - len(head := _head(snapshot, width)) - 1  # the table's own header
    running = [trial for trial in snapshot.live if trial.state is TrialState.RUNNING]
    others = [trial for trial in snapshot.live if trial.state is not TrialState.RUNNING]
    best = list(snapshot.best[:_NUM_BEST])
    best_numbers = {trial.number for trial in best}
    waiting = [trial for trial in [*running, *others] if trial.number not in best_numbers]
    if lines < len(best) + len(waiting) + 2:  # a short terminal shows both, the best first
        best = best[: max(1, min(_NUM_BEST, (lines - 2) // 3))]
        best_numbers = {trial.number for trial in best}
        waiting = [trial for trial in [*running, *others] if trial.number not in best_numbers]
    space = max(0, lines - len(best) - 2 - (0 if len(best) else 1))
    shown = waiting if len(waiting) <= space else waiting[: max(0, space - 1)]
    rows: list[Trial | str] = [*(["best"] if best else []), *best]
    rows += ["now", *shown] if shown else []
    if len(shown) < len(waiting):
        rows.append(f"… and {len(waiting) - len(shown):,} more")
    return Group(*head, *table(rows, snapshot.metric, width)[: max(0, lines + 1)])


def last_picture(snapshot: Snapshot, width: int) -> RenderableType:
    """What stays when the experiment has ended: the ten best with their parameters."""
    best = list(snapshot.best[:10])
    return Group(*_head(snapshot, width), *(table(list(best), snapshot.metric, width) if best else []))


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


def table(rows: Sequence[Trial | str], metric: tuple[str, ...], width: int) -> list[Text]:
    """Header and one line per row; a text among the rows is a heading. Columns: trial, state, metrics, reports,
    seconds, and as many parameters as fit; those that differ between the trials stay first."""
    trials = [row for row in rows if isinstance(row, Trial)]
    has_progress = any(trial.progress != trial.step for trial in trials)
    columns = [_Column("trial", [str(trial.number) for trial in trials], True)]
    columns.append(_Column("state", [str(trial.state) for trial in trials], False))
    names = short_names(list(metric))
    for index, name in enumerate(metric):
        cells = [value_text(trial.values[index]) if index < len(trial.values) else "-" for trial in trials]
        columns.append(_Column(names[name], cells, True))
    columns.append(_Column("steps", [f"{trial.step:,}" for trial in trials], True))
    if has_progress:
        columns.append(_Column("progress", [_amount(trial.progress) for trial in trials], True))
    columns.append(_Column("time", [duration_text(trial.run_s) for trial in trials], True))
    columns = _fitting(columns, _parameters(trials), width)
    lines = [Text(_joined([column.header() for column in columns], width), style="bold")]
    cells_by_trial = iter(range(len(trials)))
    for row in rows:
        if isinstance(row, str):
            lines.append(_line(row, width, "bold dim"))
            continue
        index = next(cells_by_trial)
        style = _STYLES.get(row.state, "")
        lines.append(Text(_joined([column.cell(index) for column in columns], width), style=style))
    return lines


class _Column:
    def __init__(self, name: str, cells: list[str], is_right: bool) -> None:
        self.name, self.cells, self.is_right = name, cells, is_right
        self.width = max(map(cell_len, [name, *cells]))
        self.varies = len(set(cells)) > 1

    def header(self) -> str:
        return self._fit(self.name)

    def cell(self, index: int) -> str:
        return self._fit(self.cells[index])

    def _fit(self, text: str) -> str:
        length = cell_len(text)
        if length > self.width:
            return set_cell_size(text, self.width - 1) + "…"
        return " " * (self.width - length) + text if self.is_right else text + " " * (self.width - length)


def _parameters(trials: Sequence[Trial]) -> list[_Column]:
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    short = short_names(names)
    columns = []
    for name in names:
        cells = [value_text(trial.params[name]) if name in trial.params else "" for trial in trials]
        values = [trial.params[name] for trial in trials if name in trial.params]
        is_right = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        column = _Column(short[name], cells, is_right)
        column.width = min(column.width, _LONGEST_CELL)
        columns.append(column)
    return columns


_LESS_NEEDED = ("time", "progress", "state", "steps")


def _fitting(fixed: list[_Column], parameters: list[_Column], width: int) -> list[_Column]:
    """What fits. On a narrow terminal parameters that are the same in every row go, the widest get narrower, the last
    ones go; before the first one would go, so do columns that are needed less. `+3`: parameters that are missing."""
    for num_without in range(len(_LESS_NEEDED) + 1):
        columns = [column for column in fixed if column.name not in _LESS_NEEDED[:num_without]]
        kept = _squeezed(parameters, width - _total(columns) - 2)
        if _total(columns) <= width and (kept or not parameters):
            break
    if num_missing := len(parameters) - len(kept):
        more = _Column(f"+{num_missing}", [""] * len(fixed[0].cells), False)
        if _total([*columns, *kept, more]) <= width:
            kept.append(more)
    return [*columns, *kept]


def _squeezed(parameters: list[_Column], width: int) -> list[_Column]:
    kept = list(parameters)
    if _total(kept) > width:
        kept = [column for column in kept if column.varies] or kept[:1]
    widths = [column.width for column in kept]
    while kept and sum(widths) + 2 * len(widths) - 2 > width:
        if (most := max(widths)) > _SHORTEST_CELL:
            widths[widths.index(most)] -= 1
        else:
            widths.pop()
            kept.pop()
    for column, narrower in zip(kept, widths, strict=True):
        column.width = narrower
    return kept


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + 2 for column in columns) - 2


def _joined(cells: Sequence[str], width: int) -> str:
    text = "  ".join(cells).rstrip()
    return text if cell_len(text) <= width else set_cell_size(text, width)


def _line(text: str, width: int, style: str = "") -> Text:
    return Text(text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…", style=style)


def _amount(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.4g}"
