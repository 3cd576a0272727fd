"""What `rlplat.as_completed` returns: refs as they become ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from rlplat.runtime.refs import ObjectRef

Value = TypeVar("Value")


class AsCompleted(Generic[Value]):
    """Iterate over it, or `async for`: each ref once, in the order in which they become ready.

    By itself it has all that is to come; backends where something can be on its way override the two waits.
    """

    def __init__(self, ready: Iterable[ObjectRef[Value]] = ()) -> None:
        self._ready = deque(ready)

    def __iter__(self) -> AsCompleted[Value]:
        return self

    def __next__(self) -> ObjectRef[Value]:
        while True:
            try:
                return self._ready.popleft()
            except IndexError:
                if not self._wait():
                    raise StopIteration from None

    def __aiter__(self) -> AsCompleted[Value]:
        return self

    async def __anext__(self) -> ObjectRef[Value]:
        while True:
            try:
                return self._ready.popleft()
            except IndexError:
                if not await self._wait_async():
                    raise StopAsyncIteration from None

    def _wait(self) -> bool:
        """Wait until there is another one; False at the end. GetTimeout."""
        return False

    async def _wait_async(self) -> bool:
        return False
