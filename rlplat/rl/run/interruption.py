"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) in a training run: once ends it in order, twice ends it at once.

    with Interruption(say) as interruption:
        with interruption.deferred():            # here the first signal only sets `signal_number`
            for result in training_loop(...):
                if interruption.signal_number: break
        if interruption.signal_number: save(); raise Interrupted(interruption.signal_number)

Outside `deferred()` the first signal raises `Interrupted` on the spot. The second one raises it too, and a timer
ends the process should the way out hang. SIGHUP is never the second one: the shell and the kernel both send it when a
terminal is closed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

GRACE_S = 1.5
"""Seconds that the way out may take after the second signal."""


_open: list[Interruption] = []
"""Innermost last."""


def raise_pending() -> None:
    """For waits within `deferred()`: raise `Interrupted` where a signal has come."""
    if _open and _open[-1].signal_number:
        raise Interrupted(_open[-1].signal_number)


class Interrupted(KeyboardInterrupt):
    """The user (SIGINT, SIGHUP) or the system (SIGTERM) ended the run; `exit_code` is 130, 129 or 143."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class Interruption:
    def __init__(self, say: Callable[[str], None], hard_exit: Callable[[int], Any] = os._exit) -> None:
        self._say = say
        self._hard_exit = hard_exit
        self._deferring = False
        self._previous: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self.signal_number: int | None = None
        """The first signal that came."""

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._previous[number] = signal.signal(number, self._handle)
            _open.append(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self in _open:
            _open.remove(self)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self.signal_number is None
        if first:
            self.signal_number = number
            if self._deferring:
                self._say(
                    f"{signal.Signals(number).name}: finishing this step, then saving a checkpoint "
                    "(once more: leave at once)"
                )
                return
        elif number == signal.SIGHUP:
            return
        elif self._timer is None:
            self._timer = threading.Timer(GRACE_S, self._hard_exit, (128 + number,))
            self._timer.daemon = True
            self._timer.start()
        raise Interrupted(number)
