"""What a run shows of itself while it trains: a bar on a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

from rlplat.rl.interfaces import Result

LINE_PERIOD_S = 10.0


class Progress(Protocol):
    def show(self, result: Result, env_steps_per_s: float) -> None: ...

    def say(self, text: str) -> None:
        """A line of text that does not disturb the bar."""
        ...

    def close(self) -> None: ...


def open_progress(total_env_steps: int | None, stream: TextIO | None = None) -> Progress:
    stream = stream or sys.stderr
    if stream.isatty() and _has_a_size(stream):
        return ProgressBar(total_env_steps, stream)
    return ProgressLines(stream)


def _has_a_size(stream: TextIO) -> bool:
    """Some containers' terminals say that they have no lines; tqdm would then draw nothing."""
    try:
        return os.get_terminal_size(stream.fileno()).lines > 1
    except (OSError, ValueError):
        return True


def describe(result: Result, evaluated: float | None = None) -> str:
    """`return 312.4 (length 312.4, 57 episodes), evaluation 475.0`, or what can be said before an episode has finished.

    evaluated: the mean return of the last evaluation.
    """
    evaluation = f", evaluation {evaluated:.1f}" if evaluated is not None else ""
    if result.episode_return_mean is None:
        running = result.metrics.get("rollout/longest_running_episode")
        longest = f", longest running {running:,.0f} steps" if running is not None else ""
        return f"0 episodes finished{longest}{evaluation}"
    length = f"length {result.episode_length_mean:.1f}, " if result.episode_length_mean is not None else ""
    return f"return {result.episode_return_mean:.1f} ({length}{result.episodes:,} episodes){evaluation}"


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


class Silent:
    """For a run that is one of many: what it says is in its log.txt."""

    def show(self, result: Result, env_steps_per_s: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class ProgressLines:
    """The first result at once, then one line every ten seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._next_s = clock()
        self._evaluated: float | None = None

    def show(self, result: Result, env_steps_per_s: float) -> None:
        self._evaluated = result.metrics.get("eval/return_mean", self._evaluated)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + LINE_PERIOD_S
            shown = describe(result, self._evaluated)
            self.say(f"{result.env_steps:>12,} env steps  {env_steps_per_s:>8,.0f}/s  {shown}")

    def say(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError, RuntimeError):  # nobody reads, or a signal came in mid-print
            pass

    def close(self) -> None:
        pass


class ProgressBar:
    """tqdm's bar over env steps."""

    def __init__(self, total_env_steps: int | None, stream: TextIO) -> None:
        self._total_env_steps, self._stream = total_env_steps, stream
        self._bar: Any = None
        """There from the first result on, so that the start of the run is not in its rate."""
        self._evaluated: float | None = None

    def show(self, result: Result, env_steps_per_s: float) -> None:
        if self._bar is None:
            self._bar = _make_bar(self._total_env_steps, result.env_steps, self._stream)
        self._evaluated = result.metrics.get("eval/return_mean", self._evaluated)
        self._bar.set_postfix_str(describe(result, self._evaluated), refresh=False)
        self._bar.update(result.env_steps - self._bar.n)

    def say(self, text: str) -> None:
        try:
            if self._bar is None:
                print(text, file=self._stream, flush=True)
            else:
                self._bar.write(text, file=self._bar.fp)
        except (OSError, ValueError, RuntimeError):
            pass

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _make_bar(total_env_steps: int | None, initial_env_steps: int, stream: TextIO) -> Any:
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own one is a semaphore of multiprocessing
    tqdm.monitor_interval = 0  # its watch thread is for bars that stall; ours is told of every step
    return tqdm(
        total=total_env_steps,
        initial=initial_env_steps,
        unit=" env steps",
        unit_scale=True,
        dynamic_ncols=True,
        file=stream,
        smoothing=0.1,
    )
