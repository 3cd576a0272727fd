"""Answers to a command that looks on (`look.observer`): one report for one question, and the stacks of this process.

The asker is no client: it gets its report and is forgotten, so it can neither block nor outlive anything here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from rlplat.runtime.link import loop, waiters
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.wire.messages import ASKER, Inspect, Report

_MAX_FRAMES = 200
_OURS = (__file__, loop.__file__, waiters.__file__)


def reply(transport: Any, sender: str, message: Inspect, make: Callable[[], Report]) -> None:
    if not sender.startswith(ASKER):
        return
    try:
        report = make()
    except Exception as error:  # the thread that serves everybody must not end for an onlooker
        report = Report(0, error=f"{type(error).__name__}: {error}")
    report.request = message.request
    report.totals |= {"pid": os.getpid()}
    transport.reply_once(sender, report)


def answer_as_node(transport: Transport, sender: str, message: Inspect, view: Callable[[], dict[str, Any]]) -> None:
    """What the node says of itself."""

    def report() -> Report:
        return stacks(__file__) if message.what == "stacks" else Report(0, totals=view())

    reply(transport, sender, message, report)


def stacks(asked_in: str, doing: str = "", coroutines: Iterable[Any] = ()) -> Report:
    """A row for each Python thread: [file, line, function] of its frames, outermost first; then the coroutines.

    asked_in: the file from which this is called; its frames are none of the process's business.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, me = threading.main_thread().ident, threading.get_ident()
    rows = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        frames = _frames(frame)
        note = ""
        if ident == me:
            while frames and frames[-1][0] in (*_OURS, asked_in):
                frames.pop()
            note = "reads the socket (it gave this answer)"
        rows.append({"thread": names.get(ident, str(ident)), "is_main": ident == main, "frames": frames, "note": note})
    for coroutine in coroutines:
        frames = _awaits(coroutine)
        rows.append({"thread": "coroutine", "is_main": False, "frames": frames, "note": ""})
        if len(rows) >= _MAX_FRAMES:
            break
    return Report(0, rows, {"doing": doing})


def _frames(frame: FrameType | None) -> list[list[Any]]:
    frames: list[list[Any]] = []
    while frame is not None and len(frames) < _MAX_FRAMES:
        code = frame.f_code
        frames.append([code.co_filename, frame.f_lineno, code.co_qualname])
        frame = frame.f_back
    return frames[::-1]


def _awaits(coroutine: Any) -> list[list[Any]]:
    """Frames of a suspended coroutine and of what it awaits. (One that runs right now is in its thread's stack.)"""
    frames: list[list[Any]] = []
    while coroutine is not None and len(frames) < _MAX_FRAMES:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname])
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return frames
