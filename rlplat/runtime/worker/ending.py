"""The end of a worker's process, as that of a program: pools of processes end, `atexit` handlers run.

A worker is forked, from a zygote whose imports have registered handlers of the zygote's own. Those are forgotten.
Modules of the standard library register theirs once, which the zygote may have done as well: they begin anew.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import weakref
from threading import Timer, local
from types import FrameType
from typing import Any

from rlplat.given.say import flush

_HANDLERS_S = 5.0
_POOLS = ("concurrent.futures.process", "joblib.externals.loky.process_executor", "loky.process_executor")
"""Python calls their `_python_exit` before the `atexit` handlers, at the end of `threading`: the handlers wait for the
processes that this ends. (A pool of threads waits for the user's code, which a worker does not.)"""

_masks = local()


def forget_handlers_of_zygote() -> None:
    atexit._clear()
    atexit.register(logging.shutdown)
    finalize: Any = weakref.finalize
    finalize._registry.clear()
    finalize._registered_with_atexit = False
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def run_handlers() -> None:
    """In `_HANDLERS_S` at the most."""
    limit = Timer(_HANDLERS_S, os._exit, [1])
    limit.daemon = True
    limit.start()
    for name in _POOLS:
        module = sys.modules.get(name)
        if module is not None:
            module._python_exit()
    atexit._run_exitfuncs()
    flush()
    limit.cancel()


def run_handlers_at_sigterm() -> None:
    """With which the node asks at the end of the cluster, whatever the worker is about."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_forget_in_child)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        run_handlers()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _hold_back() -> None:
    """Python drops what comes for a child that has just been forked."""
    _masks.before_fork = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before_fork)


def _forget_in_child() -> None:
    """A child that user code forks has no part in this."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    if getattr(handler, "handler", handler) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_through()
