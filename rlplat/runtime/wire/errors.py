"""Exceptions to data and back: what `get` raises of what happened in another process (R6)."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from rlplat import errors
from rlplat.errors import RlplatError, TaskError
from rlplat.runtime.process import own_frames
from rlplat.runtime.refs import collecting_refs
from rlplat.runtime.wire.pickler import Portable, built_in_base, copy_fields, dumps, exception_args
from rlplat.runtime.wire.values import ErrorInfo, class_names

_MAX_EXCEPTION_BYTES = 8 << 20
_MAX_ERROR_TEXT = 1 << 20
"""Characters. Code and errors travel inside messages, and a frame of more than 1 GiB is refused by the receiver."""
_ASYNCIO = os.path.join(os.path.dirname(os.__file__), "asyncio") + os.sep
"""With the runtime's own: the code that calls the user's."""


def describe_error(error: BaseException, where: str, dumps: Callable[[Any], bytes] = dumps) -> ErrorInfo:
    """What the caller will see of an exception that `where` ("task f (pid 12)") raised.

    dumps: the pickler that brought the user's classes here: one that came by value is then the caller's own again.
    """
    if isinstance(error, RlplatError) and not isinstance(error, TaskError):
        exception = _pickled_exception(error, dumps)
        kind = "TaskError" if exception else type(error).__name__
        return ErrorInfo(kind, _shortened(f"{where}: {error}"), exception, class_names(type(error)))
    # What came out of a task that this one waited for: the user's own exception goes on, the text tells the whole way.
    own = error.cause if isinstance(error, TaskError) and error.cause is not None else error
    try:
        text = _traceback(error)
    except Exception as failure:  # of a SyntaxError whose parts are not what Python puts there, for one
        text = f"{_repr(own)} (its traceback cannot be formatted: {type(failure).__name__})"
    exception = _pickled_exception(own, dumps)
    note = "" if exception else " (which cannot be pickled, or is too large: it arrives as TaskError only)"
    message = f"{where} raised {type(own).__name__}{note}\n{text.rstrip()}"
    if type(own).__name__ == "CancelledError" and not isinstance(own, Exception):
        # asyncio's own: a coroutine that awaits this call would pass for cancelled itself.
        return ErrorInfo("TaskCancelled", _shortened(message))
    return ErrorInfo("TaskError", _shortened(message), exception, class_names(type(own)))


def _traceback(error: BaseException) -> str:
    frames = traceback.TracebackException(type(error), error, error.__traceback__)
    # The first frames are the runtime's own call of the user's function: of no use to its author.
    while len(frames.stack) > 1 and _calls_users(frames.stack[0].filename):
        del frames.stack[0]
    return "".join(frames.format())


def _repr(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:
        return object.__repr__(error)


def _calls_users(filename: str) -> bool:
    return own_frames.is_own(filename) or filename.startswith(_ASYNCIO)


def _shortened(text: str) -> str:
    """Without its middle where it is very long."""
    half = _MAX_ERROR_TEXT // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters are left out ...\n{text[-half:]}"


def _pickled_exception(error: BaseException, dumps: Callable[[Any], bytes]) -> bytes:
    """Without those of its attributes that cannot be pickled (an open response, a lock)."""
    with collecting_refs():
        blob = _pickled(Portable(error), dumps)
        if not blob:
            drop = (name for name, value in error.__dict__.items() if not _pickled(value, dumps))
            blob = _pickled(Portable(error, frozenset(drop)), dumps)
    return blob if len(blob) <= _MAX_EXCEPTION_BYTES else b""


def _pickled(value: Any, dumps: Callable[[Any], bytes]) -> bytes:
    try:
        blob = dumps(value)
        pickle.loads(blob)
    except BaseException:  # an exception's own pickling may do anything: its text is enough then
        return b""
    return blob


def to_exception(info: ErrorInfo) -> BaseException:
    """The exception that `get` raises for `info`."""
    cause: BaseException | None = None
    if info.exception:
        try:
            cause = pickle.loads(info.exception)
        except Exception:
            cause = None
    if info.kind != "TaskError":
        fault: BaseException = getattr(errors, info.kind, errors.RuntimeFault)(info.message)
        fault.__cause__ = cause  # of an actor that could not be created: what its constructor raised
        return fault
    if isinstance(cause, RlplatError) and not isinstance(cause, TaskError):
        cause.add_note(info.message)
        return cause
    return _task_error(info.message, cause)


def _task_error(message: str, cause: BaseException | None) -> BaseException:
    """An error of both classes; the user's own, with a note, where its class is final (pydantic's): `except` of it
    counts more than that of TaskError."""
    if cause is None:
        return TaskError(message)
    kind = _both_classes(type(cause))
    try:
        if kind is TaskError and isinstance(cause, Exception):
            cause.add_note(message)
            return cause
        error: Any = kind.__new__(kind, message, cause)
        error.__init__(message)
        if kind is not TaskError:
            copy_fields(cause, error)
            error.args = cause.args
    except Exception:  # a group of exceptions that are none of `Exception`
        error = TaskError(message)
    error.cause = cause
    return error


_classes: dict[type, type[TaskError]] = {}


def _both_classes(user_class: type) -> type[TaskError]:
    """A class that is both TaskError and the user's exception class, so that either `except` catches it."""
    if user_class not in _classes:

        def init(self: Any, message: str) -> None:
            self._message = message

        def new(kind: Any, message: str, cause: BaseException | None = None) -> Any:
            if issubclass(kind, BaseExceptionGroup):  # one as well: `except*` looks into it
                inner = [ValueError()] if cause is None else cause.exceptions  # type: ignore[attr-defined]
                return BaseExceptionGroup.__new__(kind, getattr(cause, "message", ""), inner)
            return built_in_base(user_class).__new__(kind, *(exception_args(cause) if cause else (message,)))

        body = {
            "__new__": new,
            "__init__": init,
            "__str__": lambda self: self._message,
            "__reduce__": lambda self: (_task_error, (self._message, self.cause)),
            "__module__": user_class.__module__,
        }
        try:
            made = type(user_class.__name__, (TaskError, user_class), body)
            made.__new__(made, "")
        except Exception:  # some classes cannot be a second base
            made = TaskError
        _classes[user_class] = made
    return _classes[user_class]
