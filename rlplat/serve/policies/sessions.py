"""Sessions: the recurrent state of each caller's episode, kept in the server; pure, on the clock that it is given.

    book = SessionBook(max_sessions=100_000, idle_s=600.0)
    session = book.open("model-0.5f3a...", state_size=256, now=0.0)
    answer = session.repeated(7, digest)         # what was answered before, or None: act, then
    session.keep(state, 7, digest, answer)

A session's id begins with the name of the replica that opened it. Steps may be numbered: one that is repeated (its
answer was lost on the way) gets the same answer, and the state moves once. A repeated number with another observation
is refused: it is another step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.serve.refusals import Refused

MAX_ID = 200
Kept = tuple[str, Array, int, bytes, Any]
"""(id, state, seq, digest, answer) of a session."""


@dataclass
class Session:
    id: str
    state: Array
    """float32[S]; S = 0 without a core."""
    seq: int = 0
    """Of the last step; they count from 1."""
    answer: Any = None
    """Of the last step that was numbered."""
    digest: bytes = b""
    """Of that step's request."""
    used_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False, compare=False)
    """Held while a step is computed: two at once would begin with the same state."""
    has_moved: bool = False
    """Another replica has it: what waited for the lock goes there."""

    def repeated(self, seq: int | None, digest: bytes) -> Any:
        """The answer where this step was done already, None where it is the next one; Refused otherwise."""
        if seq is None or seq == self.seq + 1:
            return None
        if seq == self.seq and self.answer is not None:
            if digest == self.digest:
                return self.answer
            raise Refused(
                409,
                "other-step",
                f"step {seq} was done with another observation, mask, greedy or reset: this one is {seq + 1}",
            )
        raise Refused(
            409,
            "out-of-order",
            f"seq is {seq}, expected {self.seq + 1} (the next step)"
            + (f" or {self.seq} (the last one again)" if self.answer is not None else ""),
        )

    def keep(self, state: Array, seq: int | None, digest: bytes, answer: Any) -> None:
        self.state = state
        self.seq = self.seq + 1 if seq is None else seq
        self.answer, self.digest = (None, b"") if seq is None else (answer, digest)

    def reset(self) -> None:
        """A new episode begins; the numbers of steps go on."""
        self.state = np.zeros_like(self.state)


class SessionBook:
    def __init__(self, max_sessions: int, idle_s: float) -> None:
        self.max_sessions, self.idle_s = max_sessions, idle_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """The one that was used last is the last."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, id: str, state_size: int, now: float) -> Session:
        self.expire(now)
        if len(self._sessions) >= self.max_sessions:
            raise Refused(503, "busy", f"{len(self._sessions):,} sessions are open; end some (DELETE)", 1.0)
        session = Session(id, np.zeros(state_size, np.float32), used_at=now)
        self._sessions[id] = session
        return session

    def find(self, id: str, now: float) -> Session | None:
        self.expire(now)
        session = self._sessions.get(id)
        if session is not None:
            session.used_at = now
            self._sessions.move_to_end(id)
        return session

    async def close(self, id: str) -> bool:
        """Whether it was here; one that moves just now is ended where it arrives."""
        session = self._sessions.get(id)
        if session is None:
            return False
        async with session.lock:
            return not session.has_moved and self._sessions.pop(id, None) is not None

    def expire(self, now: float) -> None:
        while self._sessions:
            first = next(iter(self._sessions.values()))
            if now - first.used_at <= self.idle_s:
                return
            del self._sessions[first.id]

    async def move_all(self, adopt: Callable[[list[Kept]], Awaitable[object]]) -> None:
        """Give `Kept` of each to the replica that takes over; what it raises leaves them here.

        No step runs meanwhile: one that was lost between would be done twice, or refused as out of order."""
        sessions = list(self._sessions.values())
        async with contextlib.AsyncExitStack() as held:
            for session in sessions:
                await held.enter_async_context(session.lock)
            sessions = [each for each in sessions if each.id in self._sessions]  # a step may have waited: some ended
            if sessions:
                await adopt([(each.id, each.state, each.seq, each.digest, each.answer) for each in sessions])
            for session in sessions:
                session.has_moved = True
                self._sessions.pop(session.id, None)

    def adopt(self, sessions: list[Kept], now: float) -> None:
        for id, state, seq, digest, answer in sessions:
            self._sessions[id] = Session(id, np.array(state), seq, answer, digest, now)
