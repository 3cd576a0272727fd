"""What is to be seen of an experiment while it runs: made by the experiment, drawn by a `View`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rlplat.figures import figure
from rlplat.tune.core.trial import Trial, TrialState


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
