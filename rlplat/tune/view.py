"""What an experiment shows of itself while it runs: a live table on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rlplat.tune.roster import Snapshot, View, counts_text, ended, params_text, values_text

LINE_PERIOD_S = 10.0


def open_view(progress: bool = True, stream: TextIO | None = None) -> View:
    """progress: False for silence. stream: None for stderr."""
    stream = stream or sys.stderr
    if not progress:
        return View()
    if stream.isatty() and _has_a_size(stream) and os.environ.get("TERM", "") not in ("", "dumb"):
        from rich.console import Console

        from rlplat.tune.live_table import LiveTable

        return LiveTable(Console(file=stream, highlight=False))
    return PlainLines(stream)


def _has_a_size(stream: TextIO) -> bool:
    """Some containers' terminals say that they have no lines."""
    try:
        return os.get_terminal_size(stream.fileno()).lines > 1
    except (OSError, ValueError):
        return True


class PlainLines(View):
    """A line every ten seconds, and a last one."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._next_s = clock() + LINE_PERIOD_S

    def is_due(self) -> bool:
        return self._clock() >= self._next_s

    def show(self, snapshot: Snapshot) -> None:
        if self.is_due():
            self._next_s = self._clock() + LINE_PERIOD_S
            self.say(overview(snapshot))

    def say(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError, RuntimeError):  # nobody reads, or a signal came in mid-print
            pass

    def close(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.say(overview(snapshot))


def overview(snapshot: Snapshot) -> str:
    """`trials: 3 of 9 [00:12<00:24, 4.0s/trial], 2 running, 3 complete; slots 2 of 2; best now: accuracy 0.93, trial 1,
    alpha=0.2`

    The value is the trial's newest, as it is ranked by: it may be worse than one of a moment ago (`best now`)."""
    from tqdm import tqdm

    num_ended = ended(snapshot)
    form = "[{elapsed}<{remaining}, {rate_fmt}]" if snapshot.num_trials else "[{elapsed}, {rate_fmt}]"
    meter = tqdm.format_meter(num_ended, snapshot.num_trials or 0, snapshot.wall_s, unit="trial", bar_format=form)
    of = f" of {snapshot.num_trials:,}" if snapshot.num_trials is not None else ""
    in_use, in_all = snapshot.slots
    slots = f"; slots {in_use} of {in_all}" if in_all else ""
    best = snapshot.best[0] if snapshot.best else None
    best_text = ""
    if best:
        params = f", {params_text(best.params)}" if best.params else ""
        best_text = f"; best now: {values_text(snapshot.metric, best)}, trial {best.number}{params}"
    return f"trials: {num_ended:,}{of} {meter}, {counts_text(snapshot)}{slots}{best_text}"
