"""Who reads the socket, and when things are sent: the threads of a process, around one lock.

Only one thread at a time, the leader, waits for input, and it does so without the lock:
  - a thread that waits in `get` or `wait` leads itself: no hand-over on the way of a reply;
  - so does that of an event loop in which coroutines wait, while the loop sleeps (`waiters`);
  - when nobody waits, the background thread leads: it answers fetches, fails over, retries;
  - for a while after a user thread was here the background thread only ticks, so that a loop of calls and gets never
    meets it.
Sending never waits for the leader: whoever has something to send takes the lock and sends it. When little is under
way it leaves at once; when much is, messages gather into larger frames until the next tick, wait or full frame.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rlplat.errors import GetTimeout
from rlplat.runtime.link.chores import NEVER, Chores
from rlplat.runtime.link.dropped import Handler
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.process import signals
from rlplat.runtime.process.spans import Spans

_SPIN_S = 120e-6
_TICK_S = 0.005
_STANDBY_S = 0.02
_FRAME_MESSAGES = 64
_LONG_WAIT_S = 0.002
_AWAIT_S = 0.1


class Patience(Protocol):
    """Told how a wait goes on (a worker lends its CPU meanwhile)."""

    def patience(self, left_s: float | None) -> float | None:
        """Seconds to wait for input before asking again."""
        ...

    def finish(self) -> None: ...


class IoLoop:
    """`handlers[type(message)](sender, message)` is called with the lock held, each of `after_frame` once per frame.

    `on_lifeline` hears that the pipe given to `watch` has ended, `on_failure` that reading, sending or a chore has
    raised.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        spin: bool,
        handlers: Mapping[type, Handler],
        chores: Chores,
        system: System = SYSTEM,
        after_frame: Sequence[Callable[[], None]] = (),
        on_lifeline: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.transport = transport
        self.lock = signals.LoopLock(self.wake)
        self._clock, self._sleep = system.clock, system.sleep
        self._handlers, self._chores, self._after_frame = handlers, chores, after_frame
        self._on_lifeline, self._on_failure = on_lifeline, on_failure
        self.is_open = True
        """False as soon as nothing can be sent any more: closed, failed, or the cluster is lost."""
        self.is_closed = False
        self.failure: BaseException | None = None
        """What reading, sending or a chore has raised: the books cannot be trusted any more."""
        self.waits = Spans(2000)
        """(what, began, ended) of the last long waits of user threads, for `rlplat timeline`."""
        self._changed = threading.Condition(self.lock)
        self._background_wakes = threading.Condition(self.lock)
        self._spin_s = _SPIN_S if spin else 0.0
        self._has_leader = False
        self._num_users = 0
        self._last_use = 0.0
        self._awaits_until = 0.0
        self._beside: set[Callable[[], object]] = set()
        """Wake event loops that sleep while another thread leads: the next to lead is one of them."""
        self._background_leads = False
        self._background_sleeps = False
        self._sleeps_for_good = False
        """The background thread leads, and nothing was to be done when it fell asleep."""
        self._bell = system.bell()
        self._lifeline: int | None = None
        self._poller = system.poller()
        self._poller.register(transport.fd, select.POLLIN)
        self._poller.register(self._bell.fd, select.POLLIN)
        self._background = system.thread(target=self._run_background, name="rlplat-io", daemon=True)

    def watch(self, lifeline: int) -> None:
        """`on_lifeline` is told when this pipe ends."""
        self._lifeline = lifeline
        self._poller.register(lifeline, select.POLLIN)

    def start(self) -> None:
        self._background.start()

    # ---------------------------------------------------------------- sending (lock held)

    def send_now(self) -> bool:
        """Whether that has brought input."""
        self.transport.flush()
        return self._drain_if_unread()

    def send_soon(self, num_under_way: int) -> None:
        """Send at once when little is under way, else let messages gather."""
        self._last_use = self._clock()
        num_unsent = self.transport.num_unsent
        if num_unsent:
            if num_unsent >= _FRAME_MESSAGES or num_under_way <= 2:
                self.send_now()
            elif self._background_leads:
                self._background_leads = False
                self._bell.ring()
            elif self._background_sleeps:
                self._background_sleeps = False
                self._background_wakes.notify()

    def tick_soon(self) -> None:
        """Something must not wait for longer than a tick, although nobody waits for input."""
        self._last_use = self._clock()
        if self._background_leads:
            self._background_leads = False
            self._bell.ring()
        elif self._background_sleeps:
            self._background_sleeps = False
            self._background_wakes.notify()

    def _drain_if_unread(self) -> bool:
        """ZeroMQ signals new input on its descriptor once only, and a send may swallow the signal."""
        if self._has_leader and self.transport.has_input() and self.drain():
            self.wake()  # the leader sleeps on the descriptor still, and what has come may be for it
            return True
        return False

    def await_replies(self) -> None:
        """An event loop waits for something whose thread cannot read the socket: the background thread does."""
        self._awaits_until = self._clock() + _AWAIT_S

    def wake(self) -> None:
        """Whoever waits for input is to look at the clock again."""
        if not self.is_closed:
            self._bell.ring()

    def new_chore(self) -> None:
        """There is something to look after now (lock held): who fell asleep when there was nothing looks again."""
        if self._sleeps_for_good:
            self._sleeps_for_good = False
            self._bell.ring()

    def notify(self) -> None:
        """Something that a waiting thread may wait for has changed."""
        if self._num_users:
            self._changed.notify_all()

    # ---------------------------------------------------------------- receiving (lock held)

    def drain(self) -> bool:
        """Handle whatever input is here."""
        deliver, handler_of, did = self.transport.dropped.deliver, self._handlers.get, False
        try:
            for sender, batch in self.transport.receive():
                did = True
                deliver(sender, batch, handler_of)
                for act in self._after_frame:
                    act()
        except BaseException as error:
            self._fail(error)
            raise
        if did and self._num_users > 1:
            self._changed.notify_all()
        return did

    def _fail(self, error: BaseException) -> None:
        """Never a silent hang: whoever waits, or asks next, hears of it."""
        if self.failure is None:
            self.failure, self.is_open = error, False
            self._on_failure()
        self._changed.notify_all()
        self.wake()

    def keep_house(self) -> None:
        """Do the chores that are due."""
        try:
            self._chores.run_due()
        except BaseException as error:
            self._fail(error)
            raise

    def wait_until(
        self,
        is_done: Callable[[], bool],
        timeout_s: float | None,
        what: str,
        check: Callable[[], None] = lambda: None,
        patience: Patience | None = None,
    ) -> None:
        """Wait (lock held, given up while this sleeps); GetTimeout after `timeout_s`. `check` may raise."""
        if is_done():
            return
        signals.wrap_handlers()
        began = self._clock()
        deadline = None if timeout_s is None else began + timeout_s
        self.enter()
        spin_s = self._spin_s
        try:
            while not is_done():
                left_s = None if deadline is None else deadline - self._clock()
                if left_s is not None and left_s <= 0:
                    raise GetTimeout(f"timed out after {timeout_s:g} s waiting for {what}")
                check()
                if patience is not None:
                    left_s = patience.patience(left_s)
                try:
                    self.pump(left_s, spin_s)
                except Exception:
                    if self.failure is not None:
                        check()  # everybody hears of it in the same words
                    raise
                spin_s = 0.0
        finally:
            self.leave()
            if self._last_use - began > _LONG_WAIT_S:
                self.waits.append((what or "get", began, self._last_use))
                self.waits.pack()
            if self.transport.num_unsent and self.is_open:
                self.send_now()  # what came round while this waited (a deadline's cancel): its user may act on it now
            if patience is not None:
                patience.finish()

    def enter(self) -> None:
        """This thread is about to wait for input."""
        self._num_users += 1
        if self._background_leads:
            self._background_leads = False
            self._bell.ring()

    def leave(self) -> None:
        self._num_users -= 1
        self._last_use = self._clock()
        if self._num_users:
            self._changed.notify_all()
        if not self._has_leader:
            self._hand_over()

    def _hand_over(self) -> None:
        """Nobody leads now."""
        while self._beside:
            self._beside.pop()()

    def descriptors(self) -> list[int]:
        """What whoever leads waits for."""
        return [each for each in (self.transport.fd, self._bell.fd, self._lifeline) if each is not None]

    def glance(self) -> None:
        """Send and read what there is: an event loop has work of its own, and sleeps later (lock not held)."""
        with self.lock:
            if self.is_open and not self.send_now() and not self._has_leader:
                self.drain()

    @signals.uninterrupted
    def pump_beside(
        self, sleep: Callable[[float | None], None], timeout_s: float | None, wake: Callable[[], object]
    ) -> bool:
        """As `pump`, of an event loop's thread (lock not held): `sleep` waits for what the loop waits for, and for
        `descriptors`. False: another thread leads, and `wake` is called when it is this one's turn."""
        with self.lock:
            if not self.is_open:
                return False
            gives_way = self._background_leads
            self.enter()
            try:
                if gives_way and self._has_leader:
                    self._changed.wait(_TICK_S)
                if self._has_leader:
                    self._beside.add(wake)
                    return False
                if not self.send_now() and not self.drain():
                    chores_s = self.until_chores_s()
                    if chores_s is not None:
                        timeout_s = chores_s if timeout_s is None else min(chores_s, timeout_s)
                    self._lead(timeout_s, sleep)
                    if not self.is_closed:
                        self.keep_house()
            finally:
                self.leave()
        if signals.has_put_off():
            signals.run_put_off()
        return True

    @signals.uninterrupted
    def pump(self, timeout_s: float | None, spin_s: float = 0.0) -> None:
        """One step of waiting for input. Raises what a signal's handler raises that comes meanwhile."""
        if self.send_now():
            pass
        elif self._has_leader:
            self._changed.wait(0.1 if timeout_s is None else min(timeout_s, 0.1))
        elif not self.drain() and not self._spin(spin_s):
            chores_s = self.until_chores_s()
            if chores_s is not None:
                timeout_s = chores_s if timeout_s is None else min(chores_s, timeout_s)
            self._lead(timeout_s)
            if not self.is_closed:
                self.keep_house()
        if signals.has_put_off():
            self.lock.release()
            try:
                signals.run_put_off()
            finally:
                self.lock.acquire()

    def _spin(self, seconds: float) -> bool:
        """Whether input has come meanwhile."""
        if seconds and self.transport.has_sent_far:  # it takes longer, and the node needs the core meanwhile
            self.transport.has_sent_far = False
        elif seconds:
            end = self._clock() + seconds
            while self._clock() < end:
                if self.transport.has_input():
                    self.drain()
                    return True
                os.sched_yield()
        return False

    def until_chores_s(self) -> float | None:
        """How long the process may sleep when nothing comes in."""
        seconds = self._chores.next_s()
        return None if seconds == NEVER else seconds

    def _lead(self, timeout_s: float | None, sleep: Callable[[float | None], None] | None = None) -> None:
        """Sleep until something comes in. (`drain` has found nothing since the last send: that may swallow signals.)"""
        self._has_leader = True
        self.lock.release()
        try:
            if sleep is not None:
                sleep(timeout_s)
                timeout_s = 0.0
            ready = self._poller.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))
        finally:
            self.lock.acquire()
            self._has_leader = False
        if self.is_closed:  # and so may be what was polled: its numbers may be others' by now
            return
        for descriptor, _ in ready:
            if descriptor == self._bell.fd:
                self._bell.hear()
            elif descriptor == self._lifeline:
                self._poller.unregister(self._lifeline)
                self._lifeline = None
                self._on_lifeline()
        if self._background_sleeps:
            self._background_sleeps = False
            self._background_wakes.notify()
        if self.failure is None:
            self.drain()
        if self._num_users > 1:
            self._changed.notify_all()

    # ---------------------------------------------------------------- the background thread

    def _run_background(self) -> None:
        with self.lock:
            try:
                self._serve()
            except BaseException as error:
                self._fail(error)
                raise

    def _serve(self) -> None:
        while not self.is_closed and self.failure is None:
            if self._num_users and self._has_leader and self._clock() >= self._last_use + _STANDBY_S:
                # A user thread waits for input, and for long: it serves everybody, and wakes us when it has some.
                self._background_sleeps = True
                self._background_wakes.wait()
                self._background_sleeps = False
            elif self._num_users or self._awaits_until < self._clock() < self._last_use + _STANDBY_S:
                self.lock.release()
                self._sleep(_TICK_S)
                self.lock.acquire()
                self._chores.next_s()
                if not self.is_closed and not self._has_leader:
                    self.transport.flush()
                    self.drain()
            elif not self.drain():
                self._background_leads = True
                chores_s = self.until_chores_s()
                self._sleeps_for_good = chores_s is None
                self._lead(chores_s)
                self._background_leads = self._sleeps_for_good = False
                self.notify()
                self._hand_over()
            if not self.is_closed:
                self.keep_house()
                self.send_now()

    def close(self, linger_s: float = 0) -> None:
        """End the background thread, then the sockets; `linger_s`: how long what was sent may take to leave."""
        with self.lock:
            self.is_closed, self.is_open = True, False
            self._bell.ring()
            self._changed.notify_all()
            self._background_wakes.notify_all()
        if self._background.is_alive():
            self._background.join(5)
        with self.lock:
            self.transport.close(linger_s)
            self._bell.close()
