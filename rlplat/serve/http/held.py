"""Bytes that a server holds: of one request at most so many, of all together at most so many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rlplat.serve.refusals import Refused


class Held:
    """Of all requests and messages that are not finished."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0


class HeldByOne:
    def __init__(self, all: Held) -> None:
        self._all, self.num_bytes = all, 0

    def set(self, num_bytes: int) -> bool:
        """It holds so many now; False, and it holds what it held, where that is too much."""
        more = num_bytes - self.num_bytes
        if more > 0 and self._all.num_bytes + more > self._all.max_bytes:
            return False
        self._all.num_bytes += more
        self.num_bytes = num_bytes
        return True


class Body:
    """The body of a request on its way to the application, which is told that its client has left where the body is too
    much: then `refusal` says why."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Any]],
        max_bytes: int,
        held: Held,
        on_whole: Callable[[], Awaitable[None]],
    ) -> None:
        self._receive, self._max_bytes, self._on_whole = receive, max_bytes, on_whole
        self.held = HeldByOne(held)
        self.is_whole = False
        self.refusal: Refused | None = None

    async def receive(self) -> Any:
        if self.refusal is not None:
            return {"type": "http.disconnect"}
        message = await self._receive()
        size = self.held.num_bytes + len(message.get("body", b""))
        if size > self._max_bytes:
            self.refusal = too_large(self._max_bytes)
        elif not self.held.set(size):
            self.refusal = Refused(503, "busy", "the bodies of other requests fill the server's memory", 1.0)
        else:
            if not message.get("more_body"):
                self.is_whole = True
                await self._on_whole()
            return message
        self.held.set(0)  # at once: there is room for those that wait in the same turn
        return {"type": "http.disconnect"}


def too_large(max_bytes: int) -> Refused:
    return Refused(413, "too-large", f"the body is larger than {max_bytes:,} bytes (max_body_bytes)")
