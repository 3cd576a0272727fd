"""How many replicas, from how many requests are running or waiting: pure, on the clock that it is given.

    scaler = Autoscaler(Autoscale(min_replicas=1, max_replicas=8, target_ongoing=4))
    num_replicas = scaler.decide(now, ongoing=37, num_replicas=2)

Up when the mean of the last `up_after_s` asks for more, down when the largest number of the last `down_after_s` asks
for fewer: one quiet moment under load removes nothing. Never to zero: the first request would wait for a process to
start.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated, Self

from pydantic import Field, model_validator

from rlplat.section import Count, Seconds, Section


class Autoscale(Section):
    min_replicas: Count = 1
    max_replicas: Count = 4
    target_ongoing: Annotated[float, Field(gt=0)] = 2.0
    """Requests of a replica, running or waiting, that are just right."""
    up_after_s: Seconds = 2.0
    down_after_s: Seconds = 60.0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} is more than max_replicas={self.max_replicas}")
        return self


class Autoscaler:
    def __init__(self, settings: Autoscale) -> None:
        self._settings = settings
        self._seen: deque[tuple[float, float]] = deque()
        """(when, ongoing), of the last `down_after_s`."""
        self._began: float | None = None

    def decide(self, now: float, ongoing: float, num_replicas: int) -> int:
        """The number of replicas to have. ongoing: requests that run or wait, of all replicas together."""
        settings = self._settings
        if self._began is None:
            self._began = now
        self._seen.append((now, ongoing))
        while self._seen[0][0] < now - max(settings.down_after_s, settings.up_after_s):
            self._seen.popleft()
        recent = [value for when, value in self._seen if when > now - settings.up_after_s]
        wanted = self._replicas_for(sum(recent) / len(recent))
        if wanted > num_replicas and now - self._began >= settings.up_after_s:
            return wanted
        busiest = self._replicas_for(max(value for _, value in self._seen))
        if busiest < num_replicas and now - self._began >= settings.down_after_s:
            return busiest
        return min(max(num_replicas, settings.min_replicas), settings.max_replicas)

    def _replicas_for(self, ongoing: float) -> int:
        wanted = math.ceil(ongoing / self._settings.target_ongoing)
        return min(max(wanted, self._settings.min_replicas), self._settings.max_replicas)
