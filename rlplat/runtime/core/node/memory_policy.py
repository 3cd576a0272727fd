"""Which worker has to go when memory runs short. Pure: readings in, victims out.

Rules
1. A worker over its own limit (`memory=`) goes, whoever it is.
2. When the machine (or the cgroup) is over the threshold, one worker goes at a time, and the next only after the first
   is gone and `SETTLE_S` have passed: memory comes back later than the signal leaves.
3. It is the largest of the first of these kinds that has one: tasks that may run again, actors that restart, other
   tasks, other actors. One that holds less than 1 % of the memory is spared: its end would change nothing.
4. The driver and the node are no candidates.

What counts is memory that a process has to itself, its children's included; objects that it maps are everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

SETTLE_S = 1.0
_WORTH = 0.01


class Holding(msgspec.Struct, frozen=True):
    """A worker in use, and the bytes it holds."""

    worker: str
    name: str
    num_bytes: int
    limit: int = 0
    """Its own; 0 for none."""
    is_actor: bool = False
    can_run_again: bool = True


class Machine(msgspec.Struct, frozen=True):
    used: int
    total: int
    what: str = "the machine"
    """Or the cgroup: what has this total."""


class Victim(msgspec.Struct, frozen=True):
    worker: str
    reason: str


def over_their_limits(holdings: Iterable[Holding]) -> list[Victim]:
    """Rule 1."""
    return [
        Victim(
            each.worker,
            f"was killed because it held {_size(each.num_bytes)}, more than its limit of {_size(each.limit)} "
            "(memory=): raise the limit, or have it hold less at a time",
        )
        for each in holdings
        if each.limit and each.num_bytes > each.limit
    ]


class MachinePolicy:
    """Rules 2 to 4."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._last: str | None = None
        self._last_at = 0.0

    def look(self, holdings: Iterable[Holding], machine: Machine, now: float) -> Victim | None:
        holdings = list(holdings)
        if machine.used <= self.threshold * machine.total:
            return None
        if self._last is not None:
            if any(each.worker == self._last for each in holdings):
                return None
            if now - self._last_at < SETTLE_S:
                return None
        worth = [each for each in holdings if each.num_bytes >= _WORTH * machine.total]
        if not worth:
            return None
        chosen = min(worth, key=lambda each: (_rank(each), -each.num_bytes))
        self._last, self._last_at = chosen.worker, now
        why = [
            "its task may run again",
            "it restarts",
            "no task that may run again holds more than 1 %",
            "nothing else holds more than 1 %",
        ]
        return Victim(
            chosen.worker,
            f"was killed to free memory: {_size(machine.used)} of the {_size(machine.total)} of {machine.what} were in "
            f"use (over {self.threshold:.0%}), and it held {_size(chosen.num_bytes)}; "
            f"chosen because {why[_rank(chosen)]}",
        )


def _rank(holding: Holding) -> int:
    return (0 if holding.can_run_again else 2) + holding.is_actor


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.2f} GiB"
    return f"{num_bytes / (1 << 20):.0f} MiB"
