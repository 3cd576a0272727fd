"""When a death is settled: nobody can hear anything new any more of what the dead process had passed on. Pure.

The node tells all clients that X died; each says when it has told the owners what it has from X (`DeathHeard`).
Decision 0011 (docs/decisions) says what owners do with that, and why it takes these rules:

1. A death is settled when each of its witnesses, the clients of that moment, has been heard.
2. A witness that dies first is heard no more; but then the death is not settled before its own.
3. Deaths are settled in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Death:
    number: int
    waits_for: dict[str, None]
    """Witnesses that were not heard."""
    until: int
    """It is not settled before the death of this number."""


class Settling:
    """Each event returns the processes whose deaths are settled by it, in order."""

    def __init__(self) -> None:
        self._num_deaths = 0
        self._open: dict[str, _Death] = {}

    def died(self, process: str, witnesses: Iterable[str]) -> list[str]:
        """A process died; `witnesses`: the clients that are told."""
        self._num_deaths += 1
        for death in self._open.values():
            if process in death.waits_for:
                del death.waits_for[process]
                death.until = self._num_deaths
        self._open[process] = _Death(self._num_deaths, dict.fromkeys(witnesses), self._num_deaths)
        return self._settled()

    def heard(self, witness: str, process: str) -> list[str]:
        """A client has told the owners what it has from the dead process."""
        death = self._open.get(process)
        if death is None:
            return []
        death.waits_for.pop(witness, None)
        return self._settled()

    def _settled(self) -> list[str]:
        settled, until, group = [], 0, []
        for process, death in self._open.items():
            if death.waits_for:
                break
            group.append(process)
            until = max(until, death.until)
            if death.number >= until:
                settled += group
                group = []
        for process in settled:
            del self._open[process]
        return settled
