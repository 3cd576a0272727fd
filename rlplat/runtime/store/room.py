"""Room in the object store when it is full: what a writer tries, in this order, until its deadline.

1. Its own spares (`Store` itself), and what its dropped refs set free.
2. The spares of all other processes, mappings that nobody looks through any more, copies of what other machines have.
3. Its own objects go to disk, oldest first, those that nobody has mapped.
4. Those of the others, the process with the most first.
5. It waits for somebody to free something, and begins again; at the deadline `ObjectStoreFull`.

Copying to disk happens in the waiting thread, or in a thread of its own when another process asks; under the loop's
lock only where no thread can be started. A disk that is full is an error for whoever waits for room, and for nobody
else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import TypeVar

from rlplat.errors import GetTimeout, ObjectStoreFull
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.loop import Patience
from rlplat.runtime.process import signals
from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.store.segments import Store
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import NODE

T = TypeVar("T")
_ANSWER_S = 0.25
"""How long to wait for the others to give up spares; a stopped process must not hold up a writer."""
_SPILL_ANSWER_S = 5.0
_LOOK_AGAIN_S = 0.02


class Spiller:
    """Moves objects of this process to disk, one at a time."""

    def __init__(self, store: Store, lock: signals.LoopLock) -> None:
        self._store, self._lock = store, lock
        self._one_at_a_time = threading.Lock()
        self.failure = ""
        """Why the last attempt ended early."""

    @signals.uninterrupted
    def spill(self, needed: int, has_lock: bool = False) -> int:
        """Move objects until `needed` bytes are free; returns how many are. With the lock: unless another does it."""
        freed, tried = 0, set[str]()
        if not self._one_at_a_time.acquire(blocking=not has_lock):
            return 0
        self.failure = ""
        try:
            while freed < needed:
                with self._lock:
                    name = self._store.begin_move(tried) if self._store.can_spill() else None
                if name is None:
                    break
                tried.add(name)
                outcome = "mapped"
                try:
                    crash_point("before_spill")
                    outcome = self._store.move(name)
                    crash_point("after_spill")
                except OSError as error:
                    self.failure = f"spilling to disk failed: {error.strerror}"
                finally:
                    with self._lock:
                        freed += self._store.end_move(name, outcome)
                if self.failure:
                    break
                if signals.has_put_off() and not has_lock:
                    signals.run_put_off()
        finally:
            self._one_at_a_time.release()
        return freed


class Room:
    """Finds room for a value, and makes room for others."""

    def __init__(self, link: Link, store: Store, dead: Container[str], collect: Callable[[], None]) -> None:
        """`collect` frees what this process has dropped."""
        self._link, self._store, self._dead, self._collect = link, store, dead, collect
        self._client_id, self._loop = link.client_id, link.loop
        self._spiller = Spiller(store, link.lock)
        self._waited_for: set[str] = set()
        link.on(messages.MakeRoom, self._on_make_room)
        link.on(messages.RoomMade, lambda sender, _: self._waited_for.discard(sender))

    def find(self, needed: int, use: Callable[[], T], full: ObjectStoreFull) -> T:
        """What `use` makes of so many bytes once they are there. Without the lock, after it raised `full` at once."""
        account = self._store.account
        if needed > account.limit:
            raise full
        deadline = time.monotonic() + account.full_timeout_s
        while True:
            for step in (self._ask_for_spares, self._spill_own, self._ask_to_spill, self._wait):
                with self._loop.lock:
                    self._collect()
                    self._store.drop_mappings()
                if self._store.has_memory(needed):
                    with suppress(ObjectStoreFull):
                        return use()
                if time.monotonic() >= deadline:
                    full_text = self._store.full_text(needed)
                    notes = [f"after waiting {account.full_timeout_s:g} s"]
                    notes += ["it may not spill to disk"] if not self._store.can_spill() else []
                    notes += [self._spiller.failure] if self._spiller.failure else []
                    raise ObjectStoreFull(f"{full_text} ({'; '.join(notes)})")
                step(needed, deadline)

    def _has_room(self, needed: int) -> bool:
        account = self._store.account
        return account.used() + needed <= account.limit and self._store.has_memory(needed)

    def _peers(self) -> list[str]:
        """Other processes with something in the store, the one with most to spill first."""
        holdings = [h for h in self._store.account.holdings() if h.client != self._client_id]
        holdings.sort(key=lambda h: h.spare - h.used)
        return [h.client for h in holdings if h.client not in self._dead]

    def _ask_for_spares(self, needed: int, deadline: float) -> None:
        with self._loop.lock:
            to_free = {peer: needed if peer == NODE else 0 for peer in self._peers()}  # the node has copies only
            self._ask(to_free, min(deadline, time.monotonic() + _ANSWER_S))

    def _spill_own(self, needed: int, deadline: float) -> None:
        self._spiller.spill(needed)

    def _ask_to_spill(self, needed: int, deadline: float) -> None:
        with self._loop.lock:
            for peer in self._peers():
                if self._has_room(needed) or not self._store.can_spill():
                    return
                self._ask({peer: needed}, min(deadline, time.monotonic() + _SPILL_ANSWER_S))

    def _wait(self, needed: int, deadline: float) -> None:
        """Not without a pause, whatever the figures say: writing has just failed."""
        began = time.monotonic()
        with self._loop.lock:
            self._pump(
                lambda: time.monotonic() >= began + _LOOK_AGAIN_S and self._has_room(needed),
                min(deadline, began + 0.2),
            )

    def _ask(self, peers: dict[str, int], until: float) -> None:
        """Ask for so many bytes, besides spares, and wait for the answers (lock held, given up meanwhile)."""
        for peer, to_spill in peers.items():
            self._loop.transport.post(peer, messages.MakeRoom(to_spill))
        self._waited_for |= set(peers)
        try:
            self._pump(lambda: not any(p in self._waited_for and p not in self._dead for p in peers), until)
        finally:
            self._waited_for -= set(peers)

    def _pump(self, is_done: Callable[[], bool], until: float) -> None:
        patience = _Restless(self._link.patience(None))
        try:
            left_s = max(0.0, until - time.monotonic())
            self._loop.wait_until(is_done, left_s, "room", self._link.check_open, patience)
        except GetTimeout:
            pass

    def _on_make_room(self, sender: str, message: messages.MakeRoom) -> None:
        """Another process needs room (lock held)."""
        self._collect()
        self._store.drop_mappings()
        freed = self._store.drop_spares(1 << 62)
        if freed < message.to_spill:

            def spill(has_lock: bool = False) -> None:
                self._spiller.spill(message.to_spill - freed, has_lock)
                with self._loop.lock:
                    if not self._loop.is_closed:
                        self._loop.transport.post(sender, messages.RoomMade())
                        self._loop.send_now()

            try:
                threading.Thread(target=spill, name="rlplat-spill", daemon=True).start()
            except RuntimeError:  # the interpreter ends, or a limit of threads
                spill(has_lock=True)
        else:
            self._loop.transport.post(sender, messages.RoomMade())
            self._loop.transport.flush()


class _Restless:
    """Waits in short steps: room that others make in the account comes without a message."""

    def __init__(self, inner: Patience | None) -> None:
        self._inner = inner

    def patience(self, left_s: float | None) -> float | None:
        if self._inner is not None:
            left_s = self._inner.patience(left_s)
        return _LOOK_AGAIN_S if left_s is None else min(left_s, _LOOK_AGAIN_S)

    def finish(self) -> None:
        if self._inner is not None:
            self._inner.finish()
