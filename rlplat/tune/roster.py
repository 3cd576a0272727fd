"""Where each trial of an experiment is: live, or ended (counted, and the best ten kept); and a `Snapshot` of that, for
those who look."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rlplat.figures import figure
from rlplat.tune.schedulers import Due
from rlplat.tune.trial import Trial, TrialState


def scores_of(trial: Trial, signs: Sequence[float]) -> tuple[float, ...]:
    """Of its last report; higher is better in each. signs: 1 where the metric is so anyway, else -1."""
    return tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))


def best_first(trials: Sequence[Trial], signs: Sequence[float]) -> list[Trial]:
    """With several metrics the Pareto front comes first. Of equal ones the earlier trial is the better."""
    front, rest = split_at_front(trials, signs)
    return front + rest


def split_at_front(trials: Sequence[Trial], signs: Sequence[float]) -> tuple[list[Trial], list[Trial]]:
    """(the Pareto front, the others): on the front is what no other trial beats in one metric without being worse in
    another. Both best first by the first metric."""
    front, rest = split([(scores_of(trial, signs), trial) for trial in trials])
    return [trial for _, trial in front], [trial for _, trial in rest]


def split(scored: list[tuple[tuple[float, ...], Any]]) -> tuple[list[Any], list[Any]]:
    """The same of whatever has scores and a number."""
    front: list[tuple[tuple[float, ...], Any]] = []
    rest: list[tuple[tuple[float, ...], Any]] = []
    for scores, one in sorted(scored, key=lambda pair: (*(-score for score in pair[0]), pair[1].number)):
        # what could beat it comes before it in this order
        (rest if any(_dominates(better, scores) for better, _ in front) else front).append((scores, one))
    return front, rest


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """At least as good in each, better in one."""
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


NUM_BEST = 10


@dataclass
class Live:
    """What is known of a trial only while it lives."""

    trial: Trial
    pausing: bool = False
    """Its checkpoint is under way, and then its slot is given back."""
    due: Due | None = None
    """What the scheduler wants of it once that is done."""
    completing: str = ""
    """Why it is complete, while its last checkpoint is under way."""
    saved_run_s: float = 0.0
    """`trial.run_s` at its last checkpoint."""
    save_s: float = 0.0
    """What the last checkpoint took."""
    save_has_failed: bool = False
    """And the user was told."""
    catch_up: float = -math.inf
    """Where it was paused and could not be saved: up to there it was judged already, and repeats its reports."""


class Roster:
    def __init__(self, signs: Sequence[float]) -> None:
        """signs: of each metric, 1 where higher is better, else -1."""
        self._signs = tuple(signs)
        self.live: dict[int, Live] = {}
        self.counts = dict.fromkeys(TrialState, 0)
        self._waiting: deque[int] = deque()
        self._best: list[Trial] = []
        """Of those that have ended."""

    def enter(self, trial: Trial, *, saved_run_s: float = 0.0) -> None:
        """It lives from now on, in the state that it has."""
        self.counts[trial.state] += 1
        self.live[trial.number] = Live(trial, saved_run_s=saved_run_s)

    def move(self, trial: Trial, state: TrialState) -> None:
        self.counts[trial.state] -= 1
        self.counts[state] += 1
        trial.state = state
        if state is TrialState.WAITING:
            self._waiting.append(trial.number)

    def take_waiting(self) -> Trial | None:
        """The one that has waited longest runs now."""
        if not self._waiting:
            return None
        trial = self.live[self._waiting.popleft()].trial
        self.move(trial, TrialState.RUNNING)
        return trial

    def end(self, trial: Trial, state: TrialState) -> None:
        self.move(trial, state)
        del self.live[trial.number]
        self._keep_best(trial)

    def ended_before(self, trial: Trial) -> None:
        """In an earlier life of this tuner."""
        self.counts[trial.state] += 1
        self._keep_best(trial)

    @property
    def num_ended(self) -> int:
        return sum(count for state, count in self.counts.items() if state.has_ended)

    def live_trials(self) -> list[Trial]:
        return [live.trial for live in self.live.values()]

    def best(self) -> list[Trial]:
        """The best ones, ended or running; best first."""
        going_on = [trial for trial in self.live_trials() if trial.values]
        return best_first([*self._best, *going_on], self._signs)[:NUM_BEST]

    def _keep_best(self, trial: Trial) -> None:
        if trial.values and trial.state is not TrialState.FAILED:
            self._best = best_first([*self._best, trial], self._signs)[:NUM_BEST]


@dataclass(frozen=True)
class Snapshot:
    name: str
    metric: tuple[str, ...]
    counts: dict[TrialState, int]
    """How many trials are in each state; those that ended are counted, not kept."""
    num_trials: int | None
    """How many there will be; None: not known."""
    live: Sequence[Trial]
    """Running, waiting and paused, by number."""
    best: Sequence[Trial]
    """The best ended or running ones, best first (with several objectives: the Pareto front); at most ten."""
    wall_s: float
    slots: tuple[int, int]
    """(in use, in all)."""


class View:
    """What an experiment shows of itself while it runs; this one shows nothing (`progress=False`)."""

    def taking_output(self) -> AbstractContextManager[None]:
        """Around the start of the runtime: what its processes print does not disturb the table either."""
        return nullcontext()

    def finish(self) -> None:
        """After `close`, when the runtime has ended."""

    def is_due(self) -> bool:
        """Whether `show` would do anything now: else no snapshot need be made."""
        return False

    def show(self, snapshot: Snapshot) -> None:
        """Called often; draws when enough time has passed."""

    def say(self, text: str) -> None:
        """A line of text that does not disturb the table."""

    def close(self, snapshot: Snapshot | None) -> None:
        """The last picture stays on the terminal."""


def ended(snapshot: Snapshot) -> int:
    return sum(count for state, count in snapshot.counts.items() if state.has_ended)


def counts_text(snapshot: Snapshot) -> str:
    """`4 running, 30 complete`; what there is none of is left out."""
    shown = [f"{count:,} {state}" for state in TrialState if (count := snapshot.counts.get(state, 0))]
    return ", ".join(shown) or "none yet"


def values_text(metric: tuple[str, ...], trial: Trial) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in zip(metric, trial.values, strict=False))


def params_text(params: Mapping[str, Any], limit: int = 160) -> str:
    """`alpha=0.2, momentum=0.9`: by the last part of the name where that is enough."""
    names = short_names(list(params))
    text = ", ".join(f"{names[name]}={value_text(value)}" for name, value in params.items())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short_names(names: list[str]) -> dict[str, str]:
    """Dotted name -> the fewest last parts that tell it from the others."""
    short: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            tail = parts[-length:]
            if sum(other.split(".")[-length:] == tail for other in names) == 1:
                break
        short[name] = ".".join(tail)
    return short


def value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return str(value).replace("\n", " ")
