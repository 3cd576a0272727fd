"""The last calls, or waits, of a process: when each began and ended, in little memory.

A tuple with two floats takes 120 bytes. Ten thousand of them are more than a megabyte in every worker, which grows by
them for its first minutes as if it leaked. Packed they are 24 bytes each, and calls share their names.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import chain

Span = tuple[str, float, float]
"""(name, began, ended)"""
_PACKED_TOGETHER = 250


class Spans:
    """The last `capacity` (to within 250 more). Any thread may `append`, which costs no more than a deque's."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._recent: deque[Span] = deque(maxlen=capacity)
        self.append = self._recent.append
        self._packed: deque[tuple[tuple[str, ...], array[float]]] = deque(maxlen=-(-capacity // _PACKED_TOGETHER))
        """Names, and began and ended of each in turn; oldest first."""

    def pack(self) -> None:
        """Called now and then, by one thread at a time."""
        recent = self._recent
        while len(recent) >= _PACKED_TOGETHER:
            spans = [recent.popleft() for _ in range(_PACKED_TOGETHER)]
            shared: dict[str, str] = {}
            names = tuple(shared.setdefault(name, name) for name, _, _ in spans)
            times = array("d", chain.from_iterable((began, ended) for _, began, ended in spans))
            self._packed.append((names, times))

    def last(self, most: int | None = None) -> list[Span]:
        """At most `most` of them, oldest first (not while another thread packs)."""
        spans: list[Span] = []
        for names, times in self._packed:
            spans += zip(names, times[::2], times[1::2], strict=True)
        spans += self._recent.copy()
        most = self._capacity if most is None else min(most, self._capacity)
        return spans[-most:] if most else []
