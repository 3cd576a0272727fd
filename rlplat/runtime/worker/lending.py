"""When this process lends its CPUs: while every call that runs in it waits for others, in whatever thread or coroutine.

Rules
1. The process is blocked when each call that it runs waits, and when no new wait has begun for `_BLOCKED_AFTER_S`. A
   coroutine that blocks the event loop of its actor stops all of them.
2. It is not blocked any more as soon as one wait ends, or a call begins.
3. A call that awaits refs and something else at once counts as one that waits.

Threads that wait ask now and then (`Blocking`), event loops have a timer. Called with the lock held unless said
otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlplat.runtime.link.link import Link
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.worker.queue import Call, Key, Running

if TYPE_CHECKING:
    import asyncio

_BLOCKED_AFTER_S = 0.002
_LOOK_AGAIN_S = 0.1


class Lending:
    def __init__(self, link: Link, running: Running, on_lend: Callable[[], None]) -> None:
        self._link, self._running, self._on_lend = link, running, on_lend
        self.is_lent = False
        self.waits: dict[Key, int] = {}
        """Of each call that waits: how often."""
        self._since = 0.0
        """When the last wait has begun."""
        self._timers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = (
            weakref.WeakKeyDictionary()
        )
        running.on_begin_beside = self._on_begin

    def begin(self, key: Key) -> None:
        self.waits[key] = self.waits.get(key, 0) + 1
        self._since = self._link.clock()

    def end(self, key: Key) -> None:
        left = self.waits.pop(key, 0) - 1
        if left > 0:
            self.waits[key] = left
        if left >= 0:  # else its call has ended meanwhile
            self._take_back()

    def call_ended(self) -> None:
        """The only one: coroutines that it has left in a loop that stands still are no business of the next."""
        self.waits.clear()
        self._take_back()

    def due_s(self) -> float:
        return self._since + _BLOCKED_AFTER_S - self._link.clock()

    def lend(self, on: list[tuple[str, int]], blocks_all: bool) -> None:
        """Unless a call runs that does not wait. (`blocks_all`: none can.)"""
        if self.is_lent:
            return
        self.is_lent = True  # ahead of the look at what runs: a call that begins meanwhile takes it back
        if blocks_all or all(key in self.waits for key in self._running.keys()):
            self._link.transport.post(NODE, messages.Blocked(on))
            self._on_lend()
        else:
            self.is_lent = False

    def _take_back(self) -> None:
        if self.is_lent:
            self.is_lent = False
            self._link.transport.post(NODE, messages.Unblocked())

    def _on_begin(self) -> None:
        """A call begins in a thread or coroutine (without the lock)."""
        if self.is_lent:
            with self._link.lock:
                self._take_back()
                self._link.loop.send_now()

    # ---------------------------------------------------------------- coroutines

    def awaits(self, waiter: asyncio.Future[Any]) -> None:
        """A coroutine is about to wait for this."""
        call = self._running.here()
        if call is None:
            return
        key, loop = (call[0], call[1].task), waiter.get_loop()
        self.begin(key)
        waiter.add_done_callback(lambda _: self._goes_on(key))
        timer = self._timers.get(loop)
        if timer is None or timer.when() - loop.time() > _BLOCKED_AFTER_S:
            if timer is not None:
                timer.cancel()
            self._timers[loop] = loop.call_later(_BLOCKED_AFTER_S, self._tick, loop)

    def _goes_on(self, key: Key) -> None:
        with self._link.lock:
            was_lent = self.is_lent
            self.end(key)
            if was_lent and self._link.loop.is_open:
                self._link.loop.send_now()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._link.lock:
            del self._timers[loop]
            if self.waits and self._link.loop.is_open:
                left_s = self.due_s()
                if left_s <= 0:
                    self.lend([], False)
                    self._link.loop.send_now()
                    left_s = _LOOK_AGAIN_S
                self._timers[loop] = loop.call_later(left_s, self._tick, loop)


class Blocking:
    """A thread waits (see `loop.Patience`)."""

    def __init__(
        self,
        lending: Lending,
        call: Call,
        ref: ObjectRef | None,
        refuse: Callable[[ObjectRef], None] | None,
        blocks_all: bool,
    ) -> None:
        """`refuse`: of the one call that runs in this process; it raises when it waits for what comes after it."""
        self._lending, self._key = lending, (call[0], call[1].task)
        self._ref, self._refuse, self._blocks_all = ref, refuse, blocks_all
        self._has_begun = False

    def patience(self, left_s: float | None) -> float | None:
        lending, is_alone = self._lending, self._refuse is not None
        if not self._has_begun:
            self._has_begun = True
            lending.begin(self._key)
        if is_alone and lending.is_lent:
            return left_s
        until_s = lending.due_s()
        if until_s <= 0:
            if self._refuse is not None and self._ref is not None:
                self._refuse(self._ref)
            lending.lend([(self._ref.owner, self._ref.id)] if is_alone and self._ref else [], self._blocks_all)
            if is_alone:
                return left_s
            until_s = _LOOK_AGAIN_S
        return until_s if left_s is None else min(left_s, until_s)

    def finish(self) -> None:
        if self._has_begun:
            self._lending.end(self._key)
