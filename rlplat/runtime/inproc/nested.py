"""A cluster of its own inside a task or an actor: the in-process backend, for the code between `init` and `shutdown`.

    @rlplat.remote
    def trial(config):
        rlplat.init(backend="inproc")        # actors and tasks that are made from here on live in this process
        try:
            return train(config)
        finally:
            rlplat.shutdown()                # the worker's own connection is back

The whole process sees it, whatever the thread: a worker runs one task, or is one actor. Refs and actor handles of the
cluster outside go on working in between: who owns a ref says which of the two it belongs to. The other way round there
is no way: nobody outside could ask for an object of the nested cluster, so its refs do not travel.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from rlplat.errors import UsageError
from rlplat.runtime import refs
from rlplat.runtime.backend import Backend
from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.inproc.backend import InprocBackend
from rlplat.runtime.inproc.calls import Call, current_call
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import ActorHandle
from rlplat.runtime.wire.values import CallOptions

if TYPE_CHECKING:
    from rlplat.runtime.connect import Settings


def open_backend(settings: Settings) -> InprocBackend:
    """In this process; in a task or an actor, nested in its connection."""
    outer = refs.backend() if refs.connection() is not None else None
    if outer is None:
        return InprocBackend(settings)
    nested = NestedBackend(outer, settings)
    outer.nested_opened()
    return nested


class NestedBackend(InprocBackend):
    """`InprocBackend` over the connection of a worker, which it hands everything to that is not its own."""

    def __init__(self, outer: Backend, settings: Settings) -> None:
        self.outer = self._outside = outer
        self.gpu_ids: tuple[int, ...] = getattr(outer, "gpu_ids", ())
        if settings.num_gpus is None:  # what the worker holds, not what the machine has
            settings = msgspec.structs.replace(settings, num_gpus=len(self.gpu_ids))
        super().__init__(settings)

    def _is_ours(self, ref: Any) -> bool:
        return ref.owner == self.client_id

    def _is_our_actor(self, handle: ActorHandle) -> bool:
        return handle._actor_id.startswith(f"{self.client_id}:")

    # -- values

    def adopt(self, owner: str, id: int) -> ObjectRef:
        return super().adopt(owner, id) if owner == self.client_id else self._outside.adopt(owner, id)

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        theirs = [ref for ref in refs if not self._is_ours(ref)]
        if not theirs:
            return super().get(refs, timeout)
        values = dict(zip(theirs, self._outside.get(theirs, timeout), strict=True))
        ours = [ref for ref in refs if self._is_ours(ref)]
        values |= dict(zip(ours, super().get(ours, timeout), strict=True))
        return [values[ref] for ref in refs]

    def wait(self, refs: Sequence[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        if self._are_ours(refs, "wait"):
            return super().wait(refs, num_returns, timeout)
        return self._outside.wait(refs, num_returns, timeout)

    def as_completed(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> AsCompleted[Any]:
        if self._are_ours(refs, "as_completed"):
            return super().as_completed(refs, timeout_s)
        return self._outside.as_completed(refs, timeout_s)

    def _are_ours(self, refs: Sequence[Any], verb: str) -> bool:
        num_ours = sum(map(self._is_ours, refs))
        if 0 < num_ours < len(refs):
            raise UsageError(
                f"rlplat.{verb} was given refs of the nested cluster and of the one outside: wait for them one after "
                "the other"
            )
        return num_ours > 0

    def future(self, ref: ObjectRef) -> Future[Any]:
        return super().future(ref) if self._is_ours(ref) else self._outside.future(ref)

    def value_of(self, ref: ObjectRef) -> Coroutine[Any, Any, Any]:
        return super().value_of(ref) if self._is_ours(ref) else self._outside.value_of(ref)

    def cancel(self, ref: ObjectRef, force: bool = False, recursive: bool = True) -> None:
        if self._is_ours(ref):
            super().cancel(ref, force, recursive)
        else:
            self._outside.cancel(ref, force, recursive)

    # -- calls

    def _call(self, what: str, target: Any, args: tuple, kwargs: dict, **more: Any) -> Call:
        """Refs from outside among the arguments are replaced by their values here, before the call exists."""
        args = tuple(map(self._value_from_outside, args))
        kwargs = {key: self._value_from_outside(value) for key, value in kwargs.items()}
        return super()._call(what, target, args, kwargs, **more)

    def _value_from_outside(self, value: Any) -> Any:
        if isinstance(value, ObjectRef) and not self._is_ours(value):
            return self._outside.get([value], None)[0]
        return value

    def submit_call(self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions) -> Any:
        if self._is_our_actor(handle):
            return super().submit_call(handle, method, args, kwargs, options)
        return self._outside.submit_call(handle, method, args, kwargs, options)

    def kill(self, handle: ActorHandle, no_restart: bool = True) -> None:
        if self._is_our_actor(handle):
            super().kill(handle, no_restart)
        else:
            self._outside.kill(handle, no_restart)

    def on_death(self, handle: ActorHandle, callback: Callable[[Any], Any]) -> None:
        if self._is_our_actor(handle):
            super().on_death(handle, callback)
        else:
            self._outside.on_death(handle, callback)

    def exit_actor(self) -> None:
        if current_call.get() is None:
            self._outside.exit_actor()  # the actor in whose process this is
        super().exit_actor()
