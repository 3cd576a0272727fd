"""What a run shows of itself while it trains: a panel on a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import rlplat
from rlplat.figures import env_figures, episodes_text, figure
from rlplat.given.folding import for_stream
from rlplat.given.spelling import spelled
from rlplat.rl.interfaces import Result
from rlplat.rl.run.view import Progress

LINE_PERIOD_S = 10.0
NOTEBOOK_PERIOD_S = 1.0
LEAST_LINES, LEAST_COLUMNS = 4, 40
"""Of a panel; a terminal needs twice the lines, or what is said would have no place."""


def open_progress(total_env_steps: int | None, stream: TextIO | None = None) -> Progress:
    if stream is None and in_notebook():
        return NotebookLine(total_env_steps)
    stream = stream or sys.stderr
    if stream.isatty() and _has_room(stream):
        from rlplat.rl.run.view.panel import TrainingPanel

        return TrainingPanel(total_env_steps, stream)
    return ProgressLines(stream)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose front end shows what is displayed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _has_room(stream: TextIO) -> bool:
    """Some containers' terminals say that they have no lines; a dumb one cannot move its cursor."""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return True
    return size.lines > 2 * LEAST_LINES and size.columns >= LEAST_COLUMNS


def describe(result: Result, evaluated: float | None = None) -> str:
    """`return 312.4 (length 312.4, 57 episodes), evaluation 475.0`, or what can be said before an episode has finished.

    evaluated: the mean return of the last evaluation.
    """
    evaluation = f", evaluation {figure(evaluated)}" if evaluated is not None else ""
    evaluation += "".join(f", {told}" for told in env_figures(result.metrics))
    if result.episode_return_mean is None:
        running = result.metrics.get("rollout/longest_running_episode")
        longest = f", longest running {running:,.0f} steps" if running is not None else ""
        return f"0 episodes finished{longest}{evaluation}"
    length = f"length {result.episode_length_mean:.1f}, " if result.episode_length_mean is not None else ""
    return f"return {figure(result.episode_return_mean)} ({length}{episodes_text(result.episodes)}){evaluation}"


class _Shown(logging.Handler):
    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.say(record.getMessage())


@contextlib.contextmanager
def showing_log(name: str, progress: Progress) -> Iterator[None]:
    """What is logged under this name meanwhile is said by `progress`."""
    logger, handler = logging.getLogger(name), _Shown(progress)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _FromTimeToTime(Progress):
    """The first result at once, then one in every `period_s` seconds."""

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self._period_s, self._clock = period_s, clock
        self._next_s = clock()
        self._evaluated: float | None = None

    def show(self, result: Result, env_steps_per_s: float) -> None:
        self._evaluated = result.metrics.get("eval/return_mean", self._evaluated)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + self._period_s
            self._show(result.env_steps, env_steps_per_s, describe(result, self._evaluated))

    def _show(self, env_steps: int, env_steps_per_s: float, described: str) -> None:
        raise NotImplementedError


class ProgressLines(_FromTimeToTime):
    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(LINE_PERIOD_S, clock)
        self._stream = stream

    def _show(self, env_steps: int, env_steps_per_s: float, described: str) -> None:
        self.say(f"{env_steps:>12,} env steps  {env_steps_per_s:>8,.0f}/s  {described}")

    def say(self, text: str) -> None:
        try:
            print(for_stream(spelled(text), self._stream), file=self._stream, flush=True)
        except (OSError, ValueError, RuntimeError):  # nobody reads, or a signal came in mid-print
            pass

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self.say(f"done: {ended_by}, {env_steps_per_s:,.0f} env steps/s")
        self._next_s = math.inf


class NotebookLine(_FromTimeToTime):
    """One output of a cell that is written anew: what was said, and below it where the training is."""

    def __init__(self, total_env_steps: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(NOTEBOOK_PERIOD_S, clock)
        self._display: Any = importlib.import_module("IPython.display").display
        self._total = f" of {total_env_steps:,}" if total_env_steps else ""
        self._said: list[str] = []
        self._line = ""
        self._handle: Any = None

    def _show(self, env_steps: int, env_steps_per_s: float, described: str) -> None:
        self._line = f"{env_steps:,}{self._total} env steps  {env_steps_per_s:,.0f}/s  {described}"
        self._write()

    def say(self, text: str) -> None:
        self._said.append(text)
        self._write()

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self._next_s = math.inf
        self._line += f"\ndone: {ended_by}, {env_steps_per_s:,.0f} env steps/s"
        self._write()

    def _write(self) -> None:
        told = {"text/plain": "\n".join(filter(None, [*self._said, self._line]))}
        if self._handle is None:
            self._handle = self._display(told, raw=True, display_id=True)
        else:
            self._handle.update(told, raw=True)


class StillStarting(Progress):
    """The same as `progress`, and until the first result a line where nothing was said for `period_s` seconds."""

    def __init__(self, progress: Progress, num_workers: int, period_s: float = 10.0) -> None:
        self._progress, self._num_workers, self._period_s = progress, num_workers, period_s
        self._is_on_ray = os.environ.get("RLPLAT_BACKEND") == "ray"
        self._began_s = self._said_s = time.monotonic()
        self.is_made = False
        """Whether the learner is there, so that the first rollouts are what is waited for."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlplat-still-starting", daemon=True)
        if num_workers:  # else everything is in this process
            self._thread.start()

    def show(self, result: Result, env_steps_per_s: float) -> None:
        self._end()
        self._progress.show(result, env_steps_per_s)

    def say(self, text: str) -> None:
        self._said_s = time.monotonic()
        self._progress.say(text)

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self._end()
        self._progress.finish(ended_by, env_steps_per_s)

    def close(self) -> None:
        self._end()
        self._progress.close()

    def _end(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(max(0.001, self._said_s + self._period_s - time.monotonic())):
            if time.monotonic() >= self._said_s + self._period_s:
                self.say(f"{self._what()}: {time.monotonic() - self._began_s:.0f} s so far")

    def _what(self) -> str:
        if not rlplat.is_initialized():
            address = os.environ.get("RLPLAT_ADDRESS")
            if self._is_on_ray and address:
                return f"connecting to the Ray cluster at {address}"
            return "Ray is starting" if self._is_on_ray else "the runtime is starting"
        if not self.is_made:
            where = " on Ray, which starts a Python process for each" if self._is_on_ray else ""
            return f"the learner and the parameter server are starting{where}"
        workers = f"{self._num_workers:,} rollout worker{'s' if self._num_workers > 1 else ''}"
        return f"waiting for the first steps of {workers}"
