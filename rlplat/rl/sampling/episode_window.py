"""`EpisodeWindow`: the figures everybody looks at, over the last 100 finished episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from rlplat.rl.interfaces import Episode

WINDOW = 100


class EpisodeWindow:
    """Counts finished episodes and averages the last 100 of them; raw returns."""

    def __init__(self) -> None:
        self.episodes = 0
        self._last: deque[Episode] = deque(maxlen=WINDOW)

    def extend(self, episodes: Iterable[Episode]) -> None:
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

    def get_state(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "last": [[e.episode_return, e.length] for e in self._last]}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episodes = int(state["episodes"])
        self._last = deque((Episode(float(r), int(n)) for r, n in state["last"]), maxlen=WINDOW)
