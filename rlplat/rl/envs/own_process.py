"""`in_own_process`: a call of code that may end, hang or litter the process it runs in, in a process of its own.

    report = in_own_process(lambda beat: play(env, beat), silence_s=65.0)     # raises ProcessEnded, in words

    caller ──fork──▶ keeper ──fork──▶ the call, which says `beat("step()")` before everything that may hang
       ▲                │             and pickles what it returns, or raises
       └───── pipe ─────┘

The keeper is a subreaper (prctl(2)): whatever the call has started becomes its child in the end, daemons too. When the
call is over, or the caller gives up or dies, it ends all of them, then itself.

A fork costs milliseconds and needs nothing to be imported or pickled on the way there. It takes the calling thread
alone along, so the call runs in place instead

- in any thread but the main one (another thread may be in the midst of an import), and in workers of the runtime:
  their end is noticed by the runtime, which ends what they have started;
- where a framework is loaded whose own threads or device do not survive a fork: JAX, TensorFlow, CUDA in use.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn, TypeVar

import rlplat
from rlplat.errors import EnvError
from rlplat.rl.envs.watchdog import is_debugged

Result = TypeVar("Result")
Beat = Callable[[str], None]
"""Told what comes next: it may hang for as long as the caller's `silence_s` allows."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICK_S = 0.25
_LENGTH = struct.Struct("<q")
_BEAT = struct.Struct("<q240s")


class ProcessEnded(EnvError):
    """The process of the call ended, or was ended, before the call was over; the message says how."""


def in_own_process(call: Callable[[Beat], Result], *, silence_s: float) -> Result:
    """What `call(beat)` returns or raises, which must pickle. ProcessEnded where it does neither, and where `silence_s`
    seconds pass between two beats."""
    if not _can_fork():
        return call(lambda what: None)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()  # else both processes would write what waits there
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, _BEAT.size) as board:  # shared with the forked processes
        _BEAT.pack_into(board, 0, 0, b"its start")
        answer, answer_in = os.pipe()
        caller = os.getpid()
        keeper = _fork()
        if keeper == 0:
            _keep(call, board, answer_in, caller, libc)
        os.close(answer_in)
        try:
            received = _receive(answer, board, silence_s)
        finally:
            with suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)  # not reaped yet, so it is nobody else's number
            os.close(answer)
            os.waitpid(keeper, 0)
        return _open(received, _last_beat(board))


def _can_fork() -> bool:
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return False
    if {"jax", "tensorflow"} & sys.modules.keys():
        return False
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    return not (rlplat.is_initialized() and rlplat.get_runtime_context().is_worker)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: what is done about them, see above
        return os.fork()


# ---------------------------------------------------------------- the caller's side


def _receive(answer: int, board: mmap.mmap, silence_s: float) -> bytes:
    """Everything that comes until the keeper has ended, and with it all processes that could write."""
    received = b""
    poller = select.poll()
    poller.register(answer, select.POLLIN)
    count, since = -1, monotonic()
    while True:
        if poller.poll(_TICK_S * 1000):
            part = os.read(answer, 1 << 16)
            if not part:
                return received
            received += part
            since = monotonic()
        elif (now_count := _BEAT.unpack_from(board)[0]) != count:
            count, since = now_count, monotonic()
        elif monotonic() - since > silence_s:
            raise ProcessEnded(f"no answer for {silence_s:g} s during {_last_beat(board)}: it was ended")


def _last_beat(board: mmap.mmap) -> str:
    return str(_BEAT.unpack_from(board)[1].rstrip(b"\0").decode(errors="replace"))


def _open(received: bytes, last_beat: str) -> Any:
    """received: the length of the pickle and the pickle, from the call; its wait status, from the keeper."""
    ended = f"its process ended during {last_beat}"
    status = _LENGTH.unpack(received[-_LENGTH.size :])[0] if len(received) >= _LENGTH.size else None
    body = received[: -_LENGTH.size]
    if status is None:
        raise ProcessEnded(f"{ended}: it was killed from outside")
    if len(body) < _LENGTH.size or len(body) != _LENGTH.size + _LENGTH.unpack_from(body)[0]:
        raise ProcessEnded(f"{ended} ({_describe(status)})")
    is_result, value = pickle.loads(body[_LENGTH.size :])
    if not is_result:
        raise value
    return value


def _describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


# ---------------------------------------------------------------- the keeper and the call


def _keep(call: Callable[[Beat], Any], board: mmap.mmap, answer: int, caller: int, libc: ctypes.CDLL) -> NoReturn:
    try:
        gc.freeze()  # what the caller made is the caller's to collect
        for number in (signal.SIGINT, signal.SIGHUP):  # the caller's, which ends this process by SIGTERM
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: _end_all(1))
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if os.getppid() != caller:
            os._exit(1)
        keeper = os.getpid()
        process = _fork()
        if process == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if os.getppid() == keeper:
                _call(call, board, answer)
            os._exit(1)
        reaped, status = os.wait()
        while reaped != process:  # some daemon that has ended
            reaped, status = os.wait()
        os.write(answer, _LENGTH.pack(status))
    finally:
        _end_all(0)


def _call(call: Callable[[Beat], Any], board: mmap.mmap, answer: int) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # OpenMP's pool did not survive the fork: waiting for it would hang
    count, doing = 0, ""

    def beat(what: str) -> None:
        nonlocal count, doing
        count, doing = count + 1, what
        _BEAT.pack_into(board, 0, count, what.encode()[:240])

    def beat_while_debugged(thread_id: int) -> None:
        """At a debugger's prompt a call takes as long as its user likes."""
        while True:
            sleep(_TICK_S)
            if is_debugged(thread_id):
                beat(doing)

    threading.Thread(target=beat_while_debugged, args=(threading.get_ident(),), daemon=True).start()
    is_result = True
    try:
        value = call(beat)
    except BaseException as error:
        is_result, value = False, error
        is_known = type(error).__module__.startswith(("rlplat.", "builtins"))
        if not is_known or not isinstance(error, Exception):  # of the user's module, or Ctrl-C, or sys.exit()
            value = ProcessEnded(f"{type(error).__name__}: {error} was raised during {doing}")
    pickled = pickle.dumps((is_result, value))
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    rest = memoryview(_LENGTH.pack(len(pickled)) + pickled)
    while rest:
        rest = rest[os.write(answer, rest) :]
    os._exit(0)


def _end_all(code: int) -> NoReturn:
    """The keeper's end: first everything else that the call has started; orphans become the keeper's children."""
    me = os.getpid()
    with suppress(OSError):
        while children := Path(f"/proc/{me}/task/{me}/children").read_text().split():
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            os.wait()
    os._exit(code)
