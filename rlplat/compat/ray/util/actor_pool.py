"""`ray.util.ActorPool`: a list of actors, each with one call at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import rlplat

Call = Callable[[Any, Any], Any]
"""function(actor, value) -> ref."""


class ActorPool:
    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle = list(actors)
        self._waiting: list[tuple[int, Call, Any]] = []
        self._refs: dict[int, Any] = {}
        """Of the calls that were sent and not fetched, in the order of `submit`."""
        self._actors: dict[Any, Any] = {}
        """By ref of the calls that run."""
        self._num_submitted = 0

    def submit(self, function: Call, value: Any) -> None:
        self._waiting.append((self._num_submitted, function, value))
        self._num_submitted += 1
        self._send()

    def _send(self) -> None:
        while self._idle and self._waiting:
            number, function, value = self._waiting.pop(0)
            actor = self._idle.pop()
            self._refs[number] = ref = function(actor, value)
            self._actors[ref] = actor

    def _fetched(self, refs: list[Any], timeout: float | None, ignore_if_timedout: bool) -> Any:
        ready, _ = rlplat.wait(refs, timeout=timeout)
        if not ready:
            if ignore_if_timedout:
                self._drop(refs[0])
            raise TimeoutError("no result of the ActorPool came in time")
        self._drop(ready[0])
        return rlplat.get(ready[0])

    def _drop(self, ref: Any) -> None:
        """Nobody asks for this result any more: its actor is free."""
        number = next(number for number, each in self._refs.items() if each is ref)
        del self._refs[number]
        self.push(self._actors.pop(ref))

    def has_next(self) -> bool:
        return bool(self._refs)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The next result, in the order of `submit`; ignore_if_timedout: one that is late is not waited for again."""
        return self._fetched(self._known()[:1], timeout, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Any result that is there."""
        return self._fetched(self._known(), timeout, ignore_if_timedout)

    def _known(self) -> list[Any]:
        if not self._refs:
            raise StopIteration("No more results to get")
        return list(self._refs.values())

    def map(self, function: Call, values: Iterable[Any]) -> Iterator[Any]:
        return self._all(function, values, self.get_next)

    def map_unordered(self, function: Call, values: Iterable[Any]) -> Iterator[Any]:
        return self._all(function, values, self.get_next_unordered)

    def _all(self, function: Call, values: Iterable[Any], following: Callable[[], Any]) -> Iterator[Any]:
        while self._refs:  # what was submitted before is no result of this
            self._drop(next(iter(self._refs.values())))
        for value in values:
            self.submit(function, value)
        return iter(lambda: following() if self.has_next() else self, self)

    def has_free(self) -> bool:
        return bool(self._idle) and not self._waiting

    def push(self, actor: Any) -> None:
        if actor in self._idle or actor in self._actors.values():
            raise ValueError(f"{actor} belongs to this ActorPool already")
        self._idle.append(actor)
        self._send()

    def pop_idle(self) -> Any:
        return self._idle.pop() if self.has_free() else None
