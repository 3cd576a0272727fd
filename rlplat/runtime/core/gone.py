"""Which processes are gone, in little memory however many there were. Pure.

Workers are numbered from 1 in the order of their birth, and no number is used twice: all but those that live are gone.
So their numbers are kept as ranges, one more of them than live at most.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

_MOST_REASONS = 100
_WORKER = re.compile(r"w([1-9][0-9]{0,17})")


class Gone:
    """A set of client ids that only grows."""

    def __init__(self) -> None:
        self._others: set[str] = set()
        self._bounds: list[int] = []
        """Number n is in the set when an odd number of these are at most n."""

    def __contains__(self, peer: object) -> bool:
        worker = _WORKER.fullmatch(peer) if isinstance(peer, str) else None
        if worker is None:
            return peer in self._others
        return bisect_right(self._bounds, int(worker[1])) % 2 == 1

    def add(self, peer: str) -> None:
        worker = _WORKER.fullmatch(peer)
        if worker is None:
            self._others.add(peer)
        elif peer not in self:
            number = int(worker[1])
            self._toggle(number)
            self._toggle(number + 1)

    def _toggle(self, bound: int) -> None:
        at = bisect_right(self._bounds, bound)
        if at and self._bounds[at - 1] == bound:  # two ranges that meet are one
            del self._bounds[at - 1]
        else:
            self._bounds.insert(at, bound)

    def begin_with(self, end: int, alive: Iterable[str]) -> None:
        """All workers with a number below `end` are gone but those alive. (The set is empty still.)"""
        living = sorted(int(worker[1]) for peer in alive if (worker := _WORKER.fullmatch(peer)))
        start = 1
        for number in (*living, end):
            if start < number:
                self._bounds += [start, number]
            start = number + 1

    def num_ranges(self) -> int:
        return len(self._bounds) // 2


class Dead(Gone):
    """With the reasons of the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}

    def add_with(self, peer: str, reason: str) -> None:
        self.add(peer)
        self.reasons[peer] = reason
        if len(self.reasons) > _MOST_REASONS:
            del self.reasons[next(iter(self.reasons))]

    def reason(self, peer: str) -> str:
        return self.reasons.get(peer, "long ago")
