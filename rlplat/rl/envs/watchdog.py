"""A deadline on every step of an environment, for the price of two attribute writes.

An environment that hangs holds the very thread that would notice. A second thread looks at the deadline now and then:
past it, a signal makes the stepping thread raise `EnvHung` inside the environment's own code. Where no Python code runs
there to be interrupted (a C extension that waits, a thread other than the main one), the process ends itself with the
stacks of all threads and, as its last line on stderr, what hung. While a debugger holds the stepping thread there is
no limit.

    result = watchdog.call(lambda: raw_env.step(actions), "step()")
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypedDict

from rlplat.errors import EnvError, RlplatError

GRACE_S = 2.0
"""Between asking (the signal) and ending the process."""
SIGNAL = signal.SIGURG
"""Ignored by default and used by nobody: a late one does no harm."""


class EnvHung(BaseException):
    """Not an Exception: an environment's own `except Exception` must not swallow it."""


def is_environments_own(error: BaseException) -> bool:
    """Whether the environment itself raised it: neither Ctrl-C nor what stops an actor, a trial or a hung step."""
    if isinstance(error, Exception | SystemExit):
        return True
    return not isinstance(error, KeyboardInterrupt | GeneratorExit) and not type(error).__module__.startswith("rlplat.")


class LimitArguments(TypedDict):
    step_timeout_s: float
    reset_timeout_s: float


class Limits(NamedTuple):
    """Seconds that one environment may take."""

    step_s: float = 60.0
    reset_s: float = 60.0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Limits:
        """settings: a run's config as a dict."""
        step_s: float = settings.get("env_step_timeout_s", 60.0)
        return cls(step_s, settings.get("env_reset_timeout_s") or step_s)

    def arguments(self) -> LimitArguments:
        """For `make_vector_env` and `check_env`."""
        return {"step_timeout_s": self.step_s, "reset_timeout_s": self.reset_s}


NO_LIMITS = Limits(math.inf, math.inf)


def too_long(what: str, limit_s: float, where: str) -> str:
    """what: "step()" or "reset()"; where: " at FILE:LINE", or nothing."""
    flag = "--env-reset-timeout-s" if what == "reset()" else "--env-step-timeout-s"
    took = f"{what} took longer than the limit of {limit_s:g} s{where}"
    return f"{took}; mend the environment, or raise the limit: {flag}"


class StepWatchdog:
    """One thread per vector env, none where the limits are infinite; `describe()` says what is being stepped,
    `end_process(message)` is for tests.

    `progress()`: which of the environments that step by turns under one deadline; each has the whole limit. It is asked
    for by the watching thread, so that the loop which steps them has nothing to do for it. `is_resetting()`, likewise:
    None of those that step and reset in one call of which nothing is seen; without it, while `call` is told so."""

    def __init__(
        self,
        limits: Limits,
        describe: Callable[[], str],
        *,
        is_resetting: Callable[[], bool | None] | None = None,
        progress: Callable[[], Any] = lambda: None,
        places_errors: bool = False,
        end_process: Callable[[str], None] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """places_errors: EnvErrors that come out of a call do not say yet where they were raised."""
        self._limits, self._describe, self._is_resetting = limits, describe, is_resetting
        self.timeout_s = min(limits)
        """By which deadlines are set; the limit of what is being done now may be longer."""
        self.deadline = math.inf
        self._resets, self._places_errors = False, places_errors
        self._end_process = end_process or _end_process
        self._grace_s = grace_s
        self.progress = progress
        self._stop = threading.Event()
        self._can_interrupt = False
        self._thread: threading.Thread | None = None
        self.bind_thread()
        if math.isfinite(self.timeout_s):
            watched = weakref.ref(self), self._stop, min(1.0, self.timeout_s / 10)
            self._thread = threading.Thread(target=_watch, args=watched, name="env-watchdog", daemon=True)
            self._thread.start()

    @property
    def limit_s(self) -> float:
        resets = self._resets if self._is_resetting is None else self._is_resetting()
        return max(self._limits) if resets is None else self._limits[resets]

    def call(self, call: Callable[[], Any], what: str, num_steps: int = 1) -> Any:
        """What it returns; EnvError where it hangs, and where the environment raises in it. what: "reset()", say."""
        self._resets = what == "reset()"
        try:
            self.deadline = monotonic() + self.timeout_s * num_steps
            result = call()
            self.deadline = math.inf
        except BaseException as error:
            self.fail(error, what)
        return result

    def fail(self, error: BaseException, what: str) -> NoReturn:
        """As `call`, of what was raised in it."""
        self.deadline = math.inf
        if isinstance(error, EnvHung):
            what = "reset()" if self._is_resetting is not None and self._is_resetting() else what
            raise EnvError(f"{self._describe()}: {too_long(what, self.limit_s, f', at {error}')}") from None
        if isinstance(error, EnvError) and self._places_errors:
            raise EnvError(f"{self._describe()}: {error}") from error.__cause__
        if isinstance(error, RlplatError) or not is_environments_own(error):
            raise error
        raise EnvError(f"{self._describe()}: {what} raised {type(error).__name__}: {error}") from error

    def bind_thread(self) -> None:
        """The calling thread is the one that will step; only the main thread can be interrupted."""
        if not math.isfinite(self.timeout_s):
            return
        self.thread_id = threading.get_ident()
        self._can_interrupt = threading.current_thread() is threading.main_thread()
        if self._can_interrupt:
            _install_handler()

    def close(self) -> None:
        self.deadline = math.inf
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def trip(self) -> None:
        """The watching thread's side: interrupt, and if that does not help, end the process."""
        hung_deadline = self.deadline
        message = f"{self._describe()} took longer than the limit of {self.limit_s:g} s"
        if self._can_interrupt:
            global _tripped
            _tripped = weakref.ref(self)
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
            if self._stop.wait(self._grace_s) or self.deadline != hung_deadline:
                return
        self._end_process(
            f"{message} and cannot be interrupted, so the process ends; mend the "
            "environment, or raise the limit (--env-step-timeout-s, --env-reset-timeout-s)"
        )


_tripped: weakref.ref[StepWatchdog] | None = None
_previous_handler: Any = None


def _install_handler() -> None:
    global _previous_handler
    current = signal.getsignal(SIGNAL)
    if current is not _on_signal:
        _previous_handler = current
        signal.signal(SIGNAL, _on_signal)


def _on_signal(signum: int, frame: FrameType | None) -> None:
    """In the main thread, between two lines of whatever hangs."""
    global _tripped
    watchdog = _tripped() if _tripped is not None else None
    _tripped = None
    if watchdog is not None and monotonic() > watchdog.deadline:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown"
        raise EnvHung(where)
    if callable(_previous_handler):
        _previous_handler(signum, frame)


def _watch(watchdog_ref: weakref.ref[StepWatchdog], stop: threading.Event, tick_s: float) -> None:
    last = monotonic()
    patience_until = -math.inf
    seen: Any = None
    while not stop.wait(tick_s):
        watchdog = watchdog_ref()
        if watchdog is None:
            return
        now = monotonic()
        if now - last > 5 * tick_s + 1.0:
            # This thread itself did not run: the process was stopped or starved, and so was the environment.
            patience_until = now + watchdog.limit_s
        last = now
        now_seen = watchdog.deadline, watchdog.progress(), watchdog.limit_s
        if now_seen != seen or (watchdog.deadline < math.inf and is_debugged(watchdog.thread_id)):
            seen, patience_until = now_seen, now + watchdog.limit_s
        if now > watchdog.deadline and now > patience_until:
            watchdog.trip()
            last = monotonic()
        del watchdog


def is_debugged(thread_id: int) -> bool:
    """Whether a debugger traces this thread, or holds it at its prompt."""
    monitoring: Any = getattr(sys, "monitoring", None)  # of Python 3.12, which debuggers of editors use there
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        # bdb leaves its mark on the outermost frame after `continue`.
        is_traced = frame.f_trace is not None and frame.f_back is not None
        if is_traced or frame.f_globals.get("__name__") in ("bdb", "pdb"):
            return True
        frame = frame.f_back
    return False


def _end_process(message: str) -> None:
    try:
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
    finally:
        os.write(2, f"rlplat: {message}\n".encode())
        os._exit(1)
