"""Returns by agent, by policy, and of whole games: the headline.

returns = AgentReturns(plan.trained, "mean")
games = returns.extend({"main": report.episodes})       # list[Episode], for the run's own window
result.metrics |= returns.metrics()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlplat.rl.info_metrics import episode_means
from rlplat.rl.interfaces import Episode
from rlplat.rl.sampling.tally import EpisodeWindow


class AgentEpisode(NamedTuple):
    """One agent's part in a finished game; stands where an `Episode` does."""

    episode_return: float
    """Raw, undiscounted; with what it got before its first decision."""
    length: int
    """Its decisions."""
    agent: str
    game: tuple[int, int, int, int]
    """(worker, incarnation, copy, number): equal for all agents of one game."""
    game_length: int
    """Steps of the environment (turn-based: turns of all agents)."""
    metrics: Mapping[str, float] = {}
    """What this agent's infos told, by name."""


class AgentReturns:
    """Windows over the last 100 games by policy and by agent."""

    def __init__(self, trained: Sequence[str], episode_return: str) -> None:
        """trained: whose agents count for the headline; episode_return: mean or sum over them."""
        self._trained = tuple(trained)
        self._is_sum = episode_return == "sum"
        self._by_policy: dict[str, EpisodeWindow] = {}
        self._by_agent: dict[str, EpisodeWindow] = {}

    def extend(self, episodes: Mapping[str, Sequence[AgentEpisode]]) -> list[Episode]:
        """episodes by policy, all those of a game in one call; returns one `Episode` per game."""
        games: dict[tuple[int, int, int, int], list[AgentEpisode]] = {}
        for policy, parts in episodes.items():
            self._by_policy.setdefault(policy, EpisodeWindow()).extend(_plain(parts))
            for part in parts:
                self._by_agent.setdefault(part.agent, EpisodeWindow()).extend(_plain([part]))
                if policy in self._trained:
                    games.setdefault(part.game, []).append(part)
        return [game_episode(parts, is_sum=self._is_sum) for parts in games.values()]

    def metrics(self) -> dict[str, float]:
        """`policy/<name>/episode_return_mean`, `.../episode_length_mean`, `agent/<name>/episode_return_mean`,
        `agent/<name>/env/<number>_mean`."""
        metrics: dict[str, float] = {}
        for policy, window in self._by_policy.items():
            if window.return_mean is not None and window.length_mean is not None:
                metrics[f"policy/{policy}/episode_return_mean"] = window.return_mean
                metrics[f"policy/{policy}/episode_length_mean"] = window.length_mean
        for agent, window in self._by_agent.items():
            if window.return_mean is not None:
                metrics[f"agent/{agent}/episode_return_mean"] = window.return_mean
            metrics |= {f"agent/{agent}/{name}": value for name, value in window.env_metrics.items()}
        return metrics

    def get_state(self) -> dict[str, Any]:
        return {
            "by_policy": {name: window.get_state() for name, window in self._by_policy.items()},
            "by_agent": {name: window.get_state() for name, window in self._by_agent.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._by_policy = _windows(state["by_policy"])
        self._by_agent = _windows(state["by_agent"])


def game_episode(parts: Sequence[AgentEpisode], *, is_sum: bool) -> Episode:
    """The game as one episode: mean or sum of the agents' returns, length in steps of the environment. What their infos
    told is averaged over the agents that have it."""
    total = sum(part.episode_return for part in parts)
    metrics = episode_means((part.metrics for part in parts), "", "")
    return Episode(total if is_sum else total / len(parts), parts[0].game_length, metrics)


def _plain(parts: Sequence[AgentEpisode]) -> list[Episode]:
    return [Episode(part.episode_return, part.length, part.metrics) for part in parts]


def _windows(states: dict[str, Any]) -> dict[str, EpisodeWindow]:
    windows = {name: EpisodeWindow() for name in states}
    for name, window in windows.items():
        window.set_state(states[name])
    return windows
