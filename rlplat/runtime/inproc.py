"""The verbs in one process and thread: a call runs to its end inside `.remote()`. For debuggers and breakpoints.

Values still go through `codec`, so what would fail on the wire fails here as well, and results are copies. What
cannot work without a second process is refused in words: a call on an actor that is being executed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rlplat.errors import (
    ActorDied,
    ConfigError,
    InfeasibleResources,
    NotInitialized,
    RuntimeFault,
    SerializationError,
)
from rlplat.runtime import codec, exactly_once
from rlplat.runtime.api import ActorHandle, methods_of
from rlplat.runtime.backend import Options, RemoteCode
from rlplat.runtime.messages import ActorInfo, CallOptions
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.resources import check_feasible, machine_resources
from rlplat.runtime.retries import covers, exception_names

_ids = itertools.count(1)
"""Goes on counting in the next cluster of this process: no ref of an earlier one reads the new one's objects."""


class InprocBackend:
    client_id = "inproc"

    def __init__(
        self,
        num_cpus: float | None,
        num_gpus: int | None,
        resources: dict[str, float] | None,
        namespace: str = "",
    ) -> None:
        self.namespace = namespace
        self._total = machine_resources(num_cpus, num_gpus, resources)
        self._available = dict(self._total)
        self._ids = _ids
        self._values: dict[int, codec.Packed | codec.ErrorInfo] = {}
        self._num_refs: dict[int, int] = {}
        self._dropped: deque[int] = deque()
        self._actors: dict[int, _LocalActor] = {}
        self._actor_by_name: dict[tuple[str, str], tuple[int, ActorInfo]] = {}

    # -- refs

    def adopt(self, owner: str, id: int) -> ObjectRef:
        self._num_refs[id] = self._num_refs.get(id, 0) + 1
        return ObjectRef(owner, id, self._dropped.append, id)

    def _store(self, value: codec.Packed | codec.ErrorInfo) -> ObjectRef:
        self._collect()
        id = next(self._ids)
        self._values[id] = value
        return self.adopt(self.client_id, id)

    def _collect(self) -> None:
        while self._dropped:
            id = self._dropped.popleft()
            self._num_refs[id] -= 1
            if not self._num_refs[id]:
                del self._num_refs[id]
                self._values.pop(id, None)
                actor = self._actors.pop(id, None)
                if actor is not None:
                    self._end(actor)

    def _value(self, ref: ObjectRef) -> codec.Packed | codec.ErrorInfo:
        if ref.id not in self._values:
            raise NotInitialized(f"{ref!r} belongs to a cluster that was shut down")
        return self._values[ref.id]

    def _read(self, ref: ObjectRef) -> Any:
        value = self._value(ref)
        if isinstance(value, codec.ErrorInfo):
            raise codec.to_exception(value)
        # Out-of-band buffers are handed out read-only, as shared memory would be.
        return codec.unpack(value.data, [memoryview(b).toreadonly() for b in value.buffers])

    # -- verbs

    def put(self, value: Any) -> ObjectRef:
        return self._store(_detached(codec.pack(value)))

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        return [self._read(ref) for ref in refs]

    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        return list(refs[:num_returns]), list(refs[num_returns:])

    def future(self, ref: ObjectRef) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._read(ref))
        except Exception as error:
            future.set_exception(error)
        return future

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        return lambda args, kwargs: self._submit_task(code, args, kwargs, options)

    def _submit_task(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> Any:
        check_feasible(options.demand(default_cpus=1), self._total, f"task {code.name}")
        codec.dump_code(code)
        what = f"task {options.name or code.name}"
        retries_left, exceptions = options.max_retries, exception_names(options.retry_exceptions)
        results = self._run(code.target, args, kwargs, what, options.num_returns)
        while retries_left and isinstance(results[0], codec.ErrorInfo) and covers(exceptions, results[0]):
            retries_left -= 1
            results = self._run(code.target, args, kwargs, what, options.num_returns)
        return self._refs(results, options.num_returns)

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        codec.dump_code(code)
        exactly_once.check(code, options)
        demand = options.demand(default_cpus=0)
        check_feasible(demand, self._total, f"actor {code.name}")
        lacking = {k: v for k, v in demand.items() if self._available.get(k, 0) < v}
        if lacking:
            raise InfeasibleResources(
                f"actor {code.name} needs {lacking} and other actors hold it; the inproc backend cannot wait"
            )
        namespace = self.namespace if options.namespace is None else options.namespace
        key = None if options.name is None else (namespace, options.name)
        if options.get_if_exists and key is None:
            raise ConfigError("get_if_exists=True needs a name: .options(name=..., get_if_exists=True)")
        if key in self._actor_by_name:
            if options.get_if_exists:
                return self.get_actor(key[1], key[0])  # type: ignore[index]
            raise ConfigError(
                f"an actor named {options.name!r} exists already: use rlplat.get_actor({options.name!r})"
            )
        actor = _LocalActor(code.name, demand, key)
        ref = self._store(codec.pack(None))
        if options.lifetime == "detached":
            actor.itself = ref
        self._actors[ref.id] = actor
        for resource, amount in demand.items():
            self._available[resource] -= amount
        info = ActorInfo(code.name, methods_of(code.target), options.max_task_retries, options.exactly_once)
        handle = ActorHandle(f"{ref.owner}:{ref.id}", info, ref)
        if key is not None:
            self._actor_by_name[key] = (ref.id, info)
        made = self._run(
            lambda *a, **k: _Hidden(code.target(*a, **k)), args, kwargs, f"actor {code.name}", 1
        )[0]
        if isinstance(made, codec.ErrorInfo):
            what = f"actor {code.name} could not be created: {made.message}"
            actor.death = codec.ErrorInfo("ActorDied", what, made.exception)
            self._end(actor)
        else:
            actor.instance = made.instance
        return handle

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions
    ) -> Any:
        num_returns = options.num_returns
        actor = self._actors[_id(handle)]
        if actor.death is not None:
            return self._refs([actor.death] * num_returns, num_returns)
        what = f"{actor.class_name}.{method}"
        if actor.is_busy:
            raise RuntimeFault(
                f"{what} was called while this actor runs: with backend='inproc' a call runs inside .remote(), "
                "so an actor cannot be called from its own call"
            )
        actor.is_busy = True
        try:
            results = self._run(getattr(actor.instance, method), args, kwargs, what, num_returns)
        finally:
            actor.is_busy = False
        return self._refs(results, num_returns)

    def kill(self, handle: ActorHandle, no_restart: bool) -> None:
        if not no_restart:
            raise RuntimeFault(
                "rlplat.kill(actor, no_restart=False) ends the actor's process, and with backend='inproc' it has none"
            )
        actor = self._actors[_id(handle)]
        if actor.death is None:
            actor.death = codec.ErrorInfo("ActorDied", f"actor {actor.class_name} was killed by rlplat.kill")
            self._end(actor)

    def get_actor(self, name: str, namespace: str | None) -> ActorHandle:
        where = self.namespace if namespace is None else namespace
        if (where, name) not in self._actor_by_name:
            known = sorted(known for space, known in self._actor_by_name if space == where)
            place = f" in namespace {where!r}" if where else ""
            raise ActorDied(f"there is no actor named {name!r}{place} (named actors: {known or 'none'})")
        id, info = self._actor_by_name[where, name]
        return ActorHandle(f"{self.client_id}:{id}", info, self.adopt(self.client_id, id))

    def actor_names(self, all_namespaces: bool) -> list[tuple[str, str]]:
        self._collect()
        return [key for key in self._actor_by_name if all_namespaces or key[0] == self.namespace]

    def resources(self, available: bool) -> dict[str, float]:
        return dict(self._available if available else self._total)

    def shutdown(self) -> None:
        self._actor_by_name.clear()
        for actor in self._actors.values():
            actor.instance = None
        self._actors.clear()
        self._values.clear()

    # -- running

    def _run(self, target: Any, args: tuple, kwargs: dict, what: str, num_returns: int) -> list[Any]:
        """Results as they would arrive: packed, or one error for each return."""
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, ObjectRef) and isinstance(failed := self._value(arg), codec.ErrorInfo):
                return [failed] * num_returns
        try:
            packed = codec.pack((args, kwargs), f"an argument of {what}")
            args, kwargs = codec.unpack(packed.data, [memoryview(b).toreadonly() for b in packed.buffers])
            args = tuple(self._read(a) if isinstance(a, ObjectRef) else a for a in args)
            kwargs = {k: self._read(v) if isinstance(v, ObjectRef) else v for k, v in kwargs.items()}
        except SerializationError:
            raise
        except Exception as error:
            return [codec.describe_error(error, what)] * num_returns
        try:
            value = target(*args, **kwargs)
            if isinstance(value, _Hidden):
                return [value]
            parts = [value] if num_returns == 1 else codec.split_returns(value, num_returns, what)
            return [_detached(codec.pack(part, f"the result of {what}")) for part in parts]
        except Exception as error:
            return [codec.describe_error(error, what)] * num_returns

    def _refs(self, results: list[Any], num_returns: int) -> Any:
        refs = [self._store(result) for result in results]
        return refs[0] if num_returns == 1 else refs

    def _end(self, actor: _LocalActor) -> None:
        actor.instance = None
        for key, amount in actor.demand.items():
            self._available[key] += amount
        actor.demand = {}
        actor.itself = None
        if actor.key is not None:
            self._actor_by_name.pop(actor.key, None)


class _LocalActor:
    def __init__(self, class_name: str, demand: dict[str, float], key: tuple[str, str] | None) -> None:
        self.class_name, self.demand, self.key = class_name, demand, key
        self.itself: ObjectRef | None = None
        """Of a detached one: it does not end with its last handle."""
        self.instance: Any = None
        self.is_busy = False
        self.death: codec.ErrorInfo | None = None


class _Hidden:
    """An actor's instance, which is never packed."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance


def _detached(packed: codec.Packed) -> codec.Packed:
    """Copies of the out-of-band buffers: what was put cannot change any more."""
    import pickle

    packed.buffers = [pickle.PickleBuffer(bytes(buffer.raw())) for buffer in packed.buffers]
    return packed


def _id(handle: ActorHandle) -> int:
    return int(handle._actor_id.rsplit(":", 1)[1])
