"""Which failed tasks run again. Pure.

Rules
1. A task whose worker died runs again up to `max_retries` times (-1: for ever), and so does one that raised what its
   `retry_exceptions` name; both draw on the same number.
2. A death because the machine was short of memory draws on a number of its own, `OOM_RETRIES`: it says little about
   the task. A task with a limit of its own (`memory=`) has outgrown that: an ordinary failure. (Without retries at all,
   `max_retries=0`, nothing runs twice.)
3. A task that died in company is charged too, but never with its last retry: from then on it runs alone, to tell the
   guilty one. So a task that kills its workers ends after exactly `max_retries` + 1 deaths, and takes no other with it.
4. A task without retries travels alone from the start: what happened to its worker happened to it.
5. The error at the end tells of the last `KEPT_TEXTS` attempts.
"""

from __future__ import annotations

import msgspec

from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.wire.values import ErrorInfo, class_names

OOM_RETRIES = 15
KEPT_TEXTS = 3


class History(msgspec.Struct):
    """What is remembered of a task that failed before, or that retries exceptions (`TaskRecord.history`)."""

    exceptions: bool | frozenset[str] = False
    """`retry_exceptions`: any (True), or classes by name."""
    num_failures: int = 0
    oom_left: int = OOM_RETRIES
    texts: list[str] = []
    """Of the last failures."""


def exception_names(retry_exceptions: bool | tuple[type[BaseException], ...]) -> bool | frozenset[str]:
    """By name, because an exception may not be picklable, and unpickling it would run user code in the owner."""
    if isinstance(retry_exceptions, bool):
        return retry_exceptions
    return frozenset(class_names(kind)[0] for kind in retry_exceptions)


def covers(exceptions: bool | frozenset[str], error: ErrorInfo) -> bool:
    """Whether this is something that user code raised, and `retry_exceptions` names it."""
    if error.kind != "TaskError" or not exceptions:
        return False
    return exceptions is True or not exceptions.isdisjoint(error.classes)


def runs_again_after_death(
    record: TaskRecord, was_alone: bool, reason: str, kind: str, has_limit: bool = False
) -> bool:
    """Its worker died (`kind`: the class of the error that this would be). `has_limit`: on its memory."""
    history = _note(record, reason)
    record.is_suspect = True
    if kind == "OutOfMemory" and record.retries_left and not has_limit:
        history.oom_left -= was_alone
        return history.oom_left >= 0
    if not record.retries_left:
        return not was_alone
    record.retries_left -= record.retries_left > 0
    return True


def runs_again_after_error(record: TaskRecord, error: ErrorInfo) -> bool:
    """It raised."""
    history = record.history
    if history is None or not record.retries_left or not covers(history.exceptions, error):
        return False
    _note(record, error.message)
    record.retries_left -= record.retries_left > 0
    return True


def death_error(record: TaskRecord, worker: str, reason: str, kind: str) -> ErrorInfo:
    """What its caller is told when no retries are left."""
    text = f"task {record.name}: its worker {worker} died and no retries are left: {reason}"
    history: History | None = record.history
    if history is not None and history.num_failures > 1:
        text += f"\n{history.num_failures} attempts failed; those before the last one:"
        text += "".join(f"\n- {each}" for each in history.texts[:-1])
    return ErrorInfo(kind, text)


def _note(record: TaskRecord, text: str) -> History:
    if record.history is None:
        record.history = History()
    history: History = record.history
    history.num_failures += 1
    history.texts = [*history.texts, text][-KEPT_TEXTS:]
    return history
