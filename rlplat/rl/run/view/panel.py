"""The panel of a training on a terminal: four lines that stay where they are.

    env steps   120,832 of 300,000  ━━━━━━━━╸             40 %  12,345/s  15s left
    return      312.4  ▁▁▂▃▃▅▆▇▇█  length 312, 57 episodes
    evaluation  475.0 at 100,352 env steps
    time        58 % env stepping, 22 % acting, 20 % the learner's update

What is said meanwhile appears above it. It is drawn at most four times a second, by the thread that calls `show`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlplat.durations import duration_text
from rlplat.figures import env_figures, episodes_text, figure
from rlplat.given.folding import folded
from rlplat.given.spelling import spelled
from rlplat.rl.interfaces import Result
from rlplat.rl.run.bottleneck import MIN_S, add_seconds, shares
from rlplat.rl.run.view import Progress

DRAW_PERIOD_S = 0.25
RATE_WINDOW_S = 10.0
_NARROWEST = 20
_MOST_RETURNS = 512
_BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Shown:
    """What the panel knows of a run."""

    total_env_steps: int | None
    result: Result | None = None
    returns: list[float] = field(default_factory=list)
    """Mean returns so far, thinned to `_MOST_RETURNS`."""
    evaluated: tuple[float, float | None] | None = None
    """Mean return of the newest evaluation, and the env steps of its weights."""
    seconds: dict[str, float] = field(default_factory=dict)
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, env steps) of the last seconds, for the rate."""
    ended: tuple[str, float] | None = None
    """Why the training has ended, and the rate of the whole run."""
    keep_every: int = 1
    num_returns: int = 0

    def add(self, result: Result, now_s: float) -> None:
        self.result = result
        if result.episode_return_mean is not None:
            if self.num_returns % self.keep_every == 0:
                self.returns.append(result.episode_return_mean)
            self.num_returns += 1
            if len(self.returns) > _MOST_RETURNS:
                self.returns, self.keep_every = self.returns[::2], self.keep_every * 2
        if "eval/return_mean" in result.metrics:
            self.evaluated = (result.metrics["eval/return_mean"], result.metrics.get("eval/env_steps"))
        add_seconds(self.seconds, result.metrics)
        self.seen.append((now_s, result.env_steps))
        while len(self.seen) > 2 and now_s - self.seen[0][0] > RATE_WINDOW_S:
            self.seen.popleft()

    @property
    def rate(self) -> float | None:
        """Env steps per second over the last seconds; None before two results."""
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` bars, each the mean of its share of the values; the lowest is the lowest bar."""
    num = min(width, len(values))
    if num < 1:
        return ""
    edges = [len(values) * i // num for i in range(num + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    steps = len(_BARS) - 1
    return "".join(_BARS[round(steps * (mean - low) / span) if span > 0 else 0] for mean in means)


def bar(share: float, width: int) -> str:
    filled = round(min(1.0, max(0.0, share)) * width)
    return "━" * filled + "─" * (width - filled)


def lines(shown: Shown, width: int) -> list[Text]:
    """Four lines of at most `width` cells; a fifth where the environment tells numbers."""
    assert shown.result is not None
    rows = [
        ("env steps", _env_steps(shown, width - 12)),
        ("return", _returns(shown, width - 12)),
        ("evaluation", _evaluation(shown)),
        ("time", _time(shown)),
    ]
    if told := env_figures(shown.result.metrics):
        rows.insert(3, ("environment", ", ".join(told)))
    return [_line(name, text, width) for name, text in rows]


def _line(name: str, text: str, width: int) -> Text:
    line = Text(f"{name:<12}", style="dim", no_wrap=True)
    cut = text if cell_len(text) <= width - 12 else set_cell_size(text, width - 13) + "…"
    return line.append(cut, style="not dim")


def _env_steps(shown: Shown, width: int) -> str:
    assert shown.result is not None
    now, total, rate = shown.result.env_steps, shown.total_env_steps, shown.rate
    text = f"{now:,}" + (f" of {total:,}" if total else "")
    if shown.ended is not None:
        ended_by, rate = shown.ended
        rest = f"done: {ended_by}  {rate:,.0f}/s"
        return f"{text}  {rest}" if len(text) + len(rest) + 2 <= width else f"{now:,}  {rest}"
    after = f"{rate:,.0f}/s" if rate is not None else ""
    if not total:
        return f"{text}  {after}"
    share = min(1.0, now / total)
    after = f"{100 * share:.0f} %  {after}"
    if rate and now < total:
        after += f"  {duration_text((total - now) / rate)} left"
    room = min(40, width - len(text) - 4 - max(len(after), 28))
    if room >= 8:
        return f"{text}  {bar(share, room)}  {after}"
    return f"{text}  {after}" if len(text) + len(after) + 2 <= width else f"{now:,}  {after}"


def _returns(shown: Shown, width: int) -> str:
    assert shown.result is not None
    result = shown.result
    if result.episode_return_mean is None:
        running = result.metrics.get("rollout/longest_running_episode")
        return "0 episodes finished" + (f", longest running {running:,.0f} steps" if running is not None else "")
    text = figure(result.episode_return_mean)
    length = f"length {result.episode_length_mean:.0f}, " if result.episode_length_mean is not None else ""
    after = f"{length}{episodes_text(result.episodes)}"
    curve = sparkline(shown.returns, min(40, width - len(text) - len(after) - 4))
    return "  ".join(filter(None, [text, curve, after]))


def _evaluation(shown: Shown) -> str:
    if shown.evaluated is None:
        return "none yet"
    value, env_steps = shown.evaluated
    return figure(value) + (f" at {env_steps:,.0f} env steps" if env_steps is not None else "")


def _time(shown: Shown) -> str:
    parts = sorted(shares(shown.seconds).items(), key=lambda item: -item[1])
    if parts:
        return ", ".join(f"{100 * share:.0f} % {what}" for what, share in parts)
    is_measured = any(name.startswith("time/") for name in shown.seconds)
    return f"shown after the first {MIN_S:.0f} s of training" if is_measured else "not measured by this algorithm"


class TrainingPanel(Progress):
    def __init__(
        self, total_env_steps: int | None, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = Console(file=stream), clock
        self._shown = Shown(total_env_steps)
        self._next_s = clock()
        self._size = self._console.size
        self._live: Live | None = None

    def show(self, result: Result, env_steps_per_s: float) -> None:
        now_s = self._clock()
        self._shown.add(result, now_s)
        if now_s >= self._next_s:
            self._next_s = now_s + DRAW_PERIOD_S
            self._draw()

    def say(self, text: str) -> None:
        try:
            self._console.print(Text(folded(spelled(text), self._console.width)), soft_wrap=True)
        except (OSError, ValueError, RuntimeError):  # nobody reads, or a signal came in mid-print
            pass

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        self._shown.ended = (ended_by, env_steps_per_s)
        self._draw()

    def close(self) -> None:
        if self._live is None:
            return
        self._draw()
        try:
            self._live.stop()
        except (OSError, ValueError, RuntimeError):
            pass
        self._live = None

    def _draw(self) -> None:
        try:
            if self._live is not None and self._console.size != self._size:
                self._live.stop()  # the terminal has folded the lines: where they are is not known
                self._live = None
            self._size = self._console.size
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
                self._live.start()
            width = max(_NARROWEST, self._size.width)
            self._live.update(Group(*lines(self._shown, width)), refresh=True)
        except (OSError, ValueError, RuntimeError):
            pass
