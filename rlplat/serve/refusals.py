"""A request that gets no answer, and why; and the gate that refuses what is too much."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from rlplat.errors import RlplatError


class Refused(RlplatError):
    """What a caller gets in place of an answer: over HTTP the status and `{"error": {"code", "message"}}`.

    Codes of the library: busy (503), draining (503), deadline (504), unauthorized (401), not-found (404),
    method-not-allowed (405), too-large (413), failed (500), model-needed (400), bad-model-id (400). A deployment may
    raise its own: `Refused(409, "stale", "...")`. ValueError where the status is none of an error, 400 to 599.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None, allow: str = ""
    ) -> None:
        """allow: of a 405, the methods that there are, as the header `Allow` has them."""
        if status not in range(400, 600):
            raise ValueError(f"Refused: the status is {status!r}; expected that of an error, 400 to 599")
        super().__init__(status, code, message, retry_after_s, allow)
        self.status, self.code, self.message, self.retry_after_s = status, code, message, retry_after_s
        self.allow = allow

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
    """`sys.exit()` in a deployment is an error of its call: asyncio would end the loop, and the next replica get the
    call."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"it raised SystemExit({error})") from error


def busy(what: str, num_waiting: int) -> Refused:
    return Refused(503, "busy", f"{what}: {num_waiting} requests wait already; try again later", 1.0)


def require_method(method: str, expected: str, path: str) -> None:
    """expected: GET or POST or DELETE; HEAD is as GET."""
    if method != expected and not (method == "HEAD" and expected == "GET"):
        message = f"{path:.200} takes {expected}, not {method}"
        raise Refused(405, "method-not-allowed", message, allow="GET, HEAD" if expected == "GET" else expected)


class Gate:
    """`async with gate:` around each request: so many run at once, so many wait, the others are refused."""

    def __init__(self, name: str, max_running: int, max_waiting: int) -> None:
        self._name, self._max_running, self._max_waiting = name, max_running, max_waiting
        self._queue: deque[asyncio.Future[None]] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def ongoing(self) -> int:
        return self.running + self.waiting

    def enter_now(self) -> bool:
        """Whether there is a slot for which nobody waits: then it is the caller's, until `leave`."""
        if self.running >= self._max_running or self._queue:
            return False
        self.running += 1
        return True

    def leave(self) -> None:
        self.running -= 1
        while self._queue and self.running < self._max_running:
            self.running += 1
            self._queue.popleft().set_result(None)

    async def __aenter__(self) -> None:
        if self.enter_now():
            return
        if self.waiting >= self._max_waiting:
            raise busy(self._name, self.waiting)
        slot = asyncio.get_running_loop().create_future()
        self._queue.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                self._queue.remove(slot)
            else:  # it got the slot in the same turn
                self.leave()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        self.leave()
