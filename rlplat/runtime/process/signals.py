"""Handlers of signals, and books that must never be left half written.

Python runs the handler of a signal in the main thread, between any two steps of whatever that thread does, and what the
handler raises appears there: the KeyboardInterrupt of Ctrl-C, or a time-out by SIGALRM.

Rules
1. While the main thread holds a `LoopLock`, or is in a function marked `@uninterrupted`, handlers are put off.
2. One that was put off runs at the next step of Python outside. A wait is woken (`on_put_off`), and runs it at once.
3. To that end handlers are wrapped, where the user (or a notebook, for each cell) has put them: the main thread looks
   at those of SIGINT and SIGALRM whenever it takes the lock, at the other `_WATCHED` ones whenever it waits.
4. After `PATIENCE_S` nothing is put off any more: a runtime that hangs can be interrupted.

Handlers so may use the runtime themselves. The private signal `_AGAIN` never comes from outside: Python is told that it
has come each time that handlers are put off, so that it asks again after the next step.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
import weakref
from _signal import getsignal  # type: ignore[import-not-found]  # that of `signal` takes some µs to make an enum
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any, TypeVar

PATIENCE_S = 5.0
_AGAIN = signal.SIGRTMIN + 6
_WATCHED = tuple(
    int(signal.Signals[f"SIG{name}"]) for name in "INT ALRM HUP QUIT USR1 USR2 TERM CHLD XCPU VTALRM PROF".split()
)
_seen: list[Any] = [None] * len(_WATCHED)
"""Their handlers, as the main thread has last left them."""
_put_off: dict[int, Any] = {}
"""Wrapped handlers that wait, by signal."""
_since = 0.0
_MARK = "_rlplat_of_handler"
_uninterrupted: set[CodeType] = set()
_interruptible: set[CodeType] = set()
Handler = Callable[[int, FrameType | None], Any]
F = TypeVar("F", bound=Callable[..., Any])


def uninterrupted(function: F) -> F:
    """No handler runs while this function is on the main thread's stack (it calls none of the user's code)."""
    _uninterrupted.add(function.__code__)
    return function


def _user_code(function: F) -> F:
    """What this function calls is the user's, whoever has called it."""
    _interruptible.add(function.__code__)
    return function


class LoopLock(type(threading.RLock())):  # type: ignore[misc]
    """The lock around the books of one client: an RLock, because one can ask it who holds it."""

    def __init__(self, on_put_off: Callable[[], None] = lambda: None) -> None:
        """`on_put_off`: the main thread may be waiting for input, and is to come back from there."""
        self.on_put_off = on_put_off
        _locks.add(self)

    def take(self) -> bool:
        """As `with` does. `take(); try: ... finally: release()` is for where each 100 ns count."""
        if getsignal(2) is not _seen[0] or getsignal(14) is not _seen[1]:
            wrap_handlers()
        return self.acquire()

    __enter__ = take


_locks: weakref.WeakSet[LoopLock] = weakref.WeakSet()


class _Wrapped:
    """A user's handler, and when to run it."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    @uninterrupted
    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _may_run(frame):
            _put_off.pop(number, None)
            _run(self.handler, number, frame)
            return
        _put(number, self.handler)
        for lock in _locks:
            lock.on_put_off()
        _ask_again()


def _put(number: int, handler: Handler) -> None:
    global _since
    if not _put_off:
        _since = time.monotonic()
    _put_off[number] = handler


@uninterrupted
def _on_again(number: int, frame: FrameType | None) -> None:
    if _put_off:
        if _may_run(frame):
            run_put_off(frame)
        else:
            _ask_again()


_interrupt = partial(_thread.interrupt_main, _AGAIN)  # type: ignore[arg-type]


def _ask_again() -> None:
    """Python is to call `_on_again` after its next step, which must not be one of ours: it looks for signals after each
    call. A loop over an iterator that ends at once is none."""
    for _ in iter(_interrupt, None):
        pass


@_user_code
def _run(handler: Handler, number: int, frame: FrameType | None) -> None:
    try:
        handler(number, frame)
    except BaseException as error:
        error.__dict__[_MARK] = True
        raise


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler has raised this: it is no fault of the code in which it appeared."""
    return _MARK in error.__dict__


def has_put_off() -> bool:
    """Whether handlers wait for the caller, who may run them now."""
    return bool(_put_off) and threading.current_thread() is threading.main_thread()


@uninterrupted
def run_put_off(frame: FrameType | None = None) -> None:
    """Run the handlers that wait (in the main thread, without the lock); raises what they raise."""
    waiting = []
    while _put_off:
        waiting.append(_put_off.popitem())
    while waiting:
        number, handler = waiting.pop()
        try:
            _run(handler, number, frame)
        except BaseException:
            if waiting:
                for each in waiting:
                    _put(*each)
                _ask_again()
            raise


def _may_run(frame: FrameType | None) -> bool:
    """Whether the main thread, interrupted here, is not in the middle of something."""
    if _put_off and time.monotonic() - _since > PATIENCE_S:
        return True
    for lock in _locks:
        if lock._is_owned():
            return False
    while frame is not None:
        if frame.f_code in _uninterrupted:
            return False
        if frame.f_code in _interruptible:
            return True
        frame = frame.f_back
    return True


def wrap_handlers() -> None:
    """Wrap those that are not yet (by the main thread; for others it does nothing)."""
    if threading.current_thread() is threading.main_thread() and [*map(getsignal, _WATCHED)] != _seen:
        if getsignal(_AGAIN) is not _on_again:
            signal.signal(_AGAIN, _on_again)
        for index, number in enumerate(_WATCHED):
            handler = getsignal(number)
            if callable(handler) and type(handler) is not _Wrapped:
                handler = _Wrapped(handler)
                signal.signal(number, handler)
            _seen[index] = handler


def unwrap_handlers() -> None:
    """Give the user's handlers back; whoever takes a lock once more wraps them again."""
    if threading.current_thread() is threading.main_thread():
        for number in _WATCHED:
            handler = getsignal(number)
            if type(handler) is _Wrapped:
                signal.signal(number, handler.handler)
