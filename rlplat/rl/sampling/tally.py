"""`RunTally`: what the driver counts of a run, and the `Result` of every step made of it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from rlplat.rl.info_metrics import episode_means
from rlplat.rl.interfaces import Episode, Result
from rlplat.rl.saved import Saved

WINDOW = 100


class EpisodeWindow:
    """Counts finished episodes and averages the last 100 of them; raw returns."""

    def __init__(self) -> None:
        self.episodes = 0
        self._last: deque[Episode] = deque(maxlen=WINDOW)

    def extend(self, episodes: Iterable[Episode], num_before: int = 0) -> None:
        """num_before: episodes that finished before these, of which nothing is known."""
        self.episodes += num_before
        for episode in episodes:
            self.episodes += 1
            self._last.append(episode)

    @property
    def return_mean(self) -> float | None:
        """None until an episode has finished."""
        return sum(e.episode_return for e in self._last) / len(self._last) if self._last else None

    @property
    def length_mean(self) -> float | None:
        return sum(e.length for e in self._last) / len(self._last) if self._last else None

    @property
    def env_metrics(self) -> dict[str, float]:
        """`env/<name>_mean`: what the infos of these episodes told, each over those that have it."""
        return episode_means(e.metrics for e in self._last if e.metrics)

    def get_state(self) -> dict[str, Any]:
        last = [[e.episode_return, e.length, dict(e.metrics)] for e in self._last]
        return {"episodes": self.episodes, "last": last}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episodes = int(state["episodes"])
        self._last = deque((Episode(float(r), int(n), *told) for r, n, *told in state["last"]), maxlen=WINDOW)


FIRST_END, NEXT_END = 2_000, 30_000
"""Steps of each environment without the end of an episode, at the beginning of a run and later, that are worth a
warning."""
log = logging.getLogger("rlplat.start")


class RunTally(Saved):
    """tally.count(report.env_steps, report.episodes)
    return tally.result(report.metrics | {"time/sample_s": sampled - started})
    """

    saved = {"iteration": "iteration", "env_steps": "env_steps", "episode_window": "_window"}

    def __init__(self) -> None:
        self.iteration = self.env_steps = 0
        self._window = EpisodeWindow()
        self.num_envs = 0
        """Environments that are stepped, where a word is due when none of their episodes ends; 0: none is."""
        self._ended_at: int | None = None
        """`env_steps` when an episode ended last."""

    def count(self, env_steps: int, episodes: Iterable[Episode], num_unlisted: int = 0) -> None:
        """Agent decisions that were learnt from, and episodes that finished meanwhile (`UpdateReport`)."""
        self.env_steps += env_steps
        ended = self._window.episodes
        self._window.extend(episodes, num_unlisted)
        if self._window.episodes > ended:
            self._ended_at = self.env_steps
        elif self.num_envs:
            self._warn_of_no_end()

    def _warn_of_no_end(self) -> None:
        """Once."""
        patience = FIRST_END if self._ended_at is None else NEXT_END
        steps = (self.env_steps - (self._ended_at or 0)) // self.num_envs
        if steps < patience:
            return
        self.num_envs = 0
        log.warning(
            "warning: no episode has ended%s for %s steps of each environment, so that no return is known: where the "
            "task has no end, return truncated=True after some steps, or wrap it in gymnasium.wrappers.TimeLimit",
            "" if self._ended_at is None else " any more",
            f"{steps:,}",
        )

    def result(self, metrics: dict[str, float]) -> Result:
        """One more iteration."""
        self.iteration += 1
        return Result(
            iteration=self.iteration,
            env_steps=self.env_steps,
            episodes=self._window.episodes,
            episode_return_mean=self._window.return_mean,
            episode_length_mean=self._window.length_mean,
            metrics=metrics | self._window.env_metrics,
        )

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._ended_at = self.env_steps
