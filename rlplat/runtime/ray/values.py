"""Refs that stand for Ray's, and Ray's errors in the words of `rlplat.errors`.

Values travel by Ray's own pickler, so Ray sees the refs inside them and keeps its own account of who holds what: the
owner's books of `core.owner` have no part here.
"""

from __future__ import annotations

import asyncio
import math
import re
import traceback
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import ray
import ray.cloudpickle
from ray import exceptions as theirs

from rlplat import errors
from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.generators import DynamicRefs, ObjectRefGenerator
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.errors import describe_error, to_exception
from rlplat.runtime.wire.values import ErrorInfo, class_names


class RayRef(ObjectRef, eq=False, gc=False):
    """An `ObjectRef` that holds Ray's: while it lives, so does the object."""

    ray: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ref_of, (self.ray,)


def ref_of(ray_ref: Any) -> RayRef:
    key = ray_ref.binary()
    return RayRef("ray", int.from_bytes(key, "big"), _nothing, key, ray_ref)


def _nothing(key: bytes) -> None:
    """Ray hears of dropped refs from its own."""


class RayStream(ObjectRefGenerator):
    """A generator's refs, as Ray delivers them."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def __next__(self) -> ObjectRef:
        return ref_of(next(self.ray))

    async def __anext__(self) -> ObjectRef:
        return ref_of(await anext(self.ray))

    def completed(self) -> ObjectRef:
        return ref_of(self.ray.completed())

    def next_ready(self) -> bool:
        return bool(self.ray.next_ready())

    @property
    def value(self) -> ObjectRefGenerator | None:
        return self if self.next_ready() else None

    @property
    def owner(self) -> str:
        return "ray"

    def is_finished(self) -> bool:
        return bool(self.ray.is_finished())

    def __del__(self) -> None:
        """Ray's own closes the generator."""

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self.ray!r})"


class RayCompleted(AsCompleted[Any]):
    """Ray is asked for all that are ready, and only when those of the last answer are taken."""

    def __init__(self, wait: Callable[..., list[Any]], refs: Sequence[Any], timeout_s: float | None) -> None:
        super().__init__()
        self._ask, self._pending = wait, {ref.ray: ref for ref in refs}
        self._num_refs, self._timeout_s = len(refs), timeout_s
        self._end = math.inf if timeout_s is None else monotonic() + timeout_s

    def _wait(self) -> bool:
        theirs = list(self._pending)
        if not theirs:
            return False
        left_s = None if self._timeout_s is None else max(0.0, self._end - monotonic())
        if not self._ask(theirs, 1, left_s):
            raise errors.GetTimeout(
                f"as_completed() timed out after {self._timeout_s:g} s: {len(theirs)} of {self._num_refs} values are "
                "missing"
            )
        found, _ = ray.wait(theirs, num_returns=len(theirs), timeout=0, fetch_local=False)
        self._ready.extend(self._pending.pop(each) for each in found)
        return True

    async def _wait_async(self) -> bool:
        return await asyncio.to_thread(self._wait)


def theirs_of(value: Any) -> Any:
    """An argument as Ray takes it: a ref is a dependency, whose value the call gets."""
    return value.ray if isinstance(value, RayRef) else value


def ours_of(value: Any) -> Any:
    """A value as `get` gives it: of a call with `num_returns="dynamic"` the refs of what it yielded."""
    return DynamicRefs([ref_of(ref) for ref in value]) if isinstance(value, ray.DynamicObjectRefGenerator) else value


# ---------------------------------------------------------------- errors


class Failed(Exception):
    """What a task or a call raised, described where it happened; never seen by users."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info)
        self.info = info

    def __reduce__(self) -> Any:
        return type(self), (self.info,)


class FailedForNow(Failed):
    """It may be tried again (`retry_exceptions`)."""


def failure(error: Exception, what: str, retry: bool | tuple[Any, ...]) -> Failed:
    """retry: what the option `retry_exceptions` says: True, or classes, or their names."""
    info = describe_error(error, what, ray.cloudpickle.dumps)
    if not isinstance(retry, bool):
        wanted = {each if isinstance(each, str) else class_names(each)[0] for each in retry}
        retry = not wanted.isdisjoint(info.classes)
    return FailedForNow(info) if retry else Failed(info)


_KINDS: tuple[tuple[type[Exception], type[errors.RlplatError]], ...] = (
    (theirs.TaskCancelledError, errors.TaskCancelled),
    (theirs.OutOfMemoryError, errors.OutOfMemory),
    (theirs.WorkerCrashedError, errors.WorkerCrashed),
    (theirs.ActorPlacementGroupRemoved, errors.PlacementGroupRemoved),
    (theirs.TaskPlacementGroupRemoved, errors.PlacementGroupRemoved),
    (theirs.ActorUnschedulableError, errors.InfeasibleResources),
    (theirs.TaskUnschedulableError, errors.InfeasibleResources),
    (theirs.RayActorError, errors.ActorDied),
    (theirs.OwnerDiedError, errors.OwnerDied),
    (theirs.ObjectReconstructionFailedError, errors.ObjectRebuildFailed),
    (theirs.ObjectLostError, errors.ObjectLost),
    (theirs.ObjectStoreFullError, errors.ObjectStoreFull),
    (theirs.OutOfDiskError, errors.ObjectStoreFull),
    (theirs.RuntimeEnvSetupError, errors.RuntimeEnvFailed),
    (theirs.GetTimeoutError, errors.GetTimeout),
    (theirs.NodeDiedError, errors.NodeLost),
    (theirs.RaySystemError, errors.NodeLost),
)
"""The first that fits."""


def ours(error: BaseException) -> BaseException:
    """What `get` raises for an error of Ray's; other exceptions as they are."""
    if isinstance(error, theirs.RayTaskError):
        cause = error.cause
        if isinstance(cause, Failed):
            return to_exception(cause.info)
        if isinstance(cause, theirs.RayError):
            return ours(cause)
        if isinstance(cause, TypeError):  # raised by Ray's pickler: what users' code raises is a `Failed`
            called = re.search(r"ray::(.*?)\(\)", str(error))
            return errors.SerializationError(
                f"the result of {called[1] if called else 'a call'} cannot be pickled: {cause}"
            )
        return errors.TaskError(str(error))
    text = str(error)
    if isinstance(error, theirs.RayActorError):
        name, last = re.search(r"class_name: (.*)", text), text.rpartition("\n")[2]
        text = f"actor {name[1] if name else ''} is gone: {last}\n{text}".replace("`ray.kill`", "rlplat.kill")
    for kind, our_kind in _KINDS:
        if isinstance(error, kind):
            return our_kind(text)
    return error


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
