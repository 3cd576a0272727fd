"""The verbs in one process, a declared subset: a call runs to its end inside `.remote()`, in the caller's thread.

For debuggers, and for what is to stay in one process: a run with `num_rollout_workers=0`, a trial. Values still go
through `codec`, so what would fail on the wire fails here as well, and results are copies.

What differs from processes
1. Nothing runs beside anything: a ref's value is there before the ref, so `wait` and `timeout` wait for nothing. A
   coroutine of an async actor runs to its end like any call; one that waits for another call waits for ever (a line
   says so). A generator makes each value when it is asked for.
2. An actor cannot be called from its own call (`Deadlock`), unless it is async or has `max_concurrency`.
3. `timeout_s` cannot interrupt: a call that took longer fails when it ends. `cancel` ends generators; everything else
   has finished by then.
4. Nobody dies, so retries are for `retry_exceptions`, and restarts for `kill(no_restart=False)`.
5. Resources are not counted: what could run in this cluster runs, and a placement group is there at once.
   No call waits, so `max_pending_calls` bounds nothing.
6. Refused in words: packages of an environment (`pip`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rlplat.errors import NotInitialized, OptionError, UsageError
from rlplat.runtime.backend import Backend
from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.core.owner.retries import exception_names
from rlplat.runtime.core.resources import Resources, exact
from rlplat.runtime.core.scheduler.actors import name_is_taken, no_such_actor
from rlplat.runtime.demand import capture_of, captured, shape_of
from rlplat.runtime.envs.spec import checked, merged
from rlplat.runtime.generators import DynamicRefs, ObjectRefGenerator
from rlplat.runtime.inproc.calls import (
    Call,
    LocalActor,
    LocalStream,
    check_environment,
    current_call,
    environment,
)
from rlplat.runtime.inproc.objects import LocalObjects, Outcome, detached, open_packed
from rlplat.runtime.machine.hardware import machine_resources
from rlplat.runtime.options import Options, check_exactly_once, check_group, check_name, check_retries
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.refs import INPROC, ObjectRef
from rlplat.runtime.remote import TERMINATE, ActorExit, ActorHandle, describe_actor
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.errors import describe_error, to_exception
from rlplat.runtime.wire.messages import Cluster
from rlplat.runtime.wire.values import (
    DYNAMIC,
    STREAMING,
    ActorInfo,
    CallOptions,
    ErrorInfo,
    GroupState,
    NodeState,
    Place,
    Shape,
)

if TYPE_CHECKING:
    from rlplat.runtime.connect import Settings

_NODE = "node"


class InprocBackend:
    client_id = INPROC
    can_nest = False
    outer: Backend | None = None
    is_cancelled = False
    """What runs cannot be cancelled: its caller waits for it."""

    def __init__(self, settings: Settings) -> None:
        self.namespace = settings.namespace
        self._runtime_env = checked(settings.runtime_env or {})
        check_environment(self._runtime_env, "rlplat.init")
        self._total = machine_resources(settings.num_cpus, settings.num_gpus, settings.resources)
        self._objects = LocalObjects(self.client_id)
        self._objects.on_freed = self._on_freed
        self._streams: dict[int, LocalStream] = {}
        """Those that have not ended."""
        self._dropped: list[int] = []
        """Of them, what nobody reads any more."""
        self._actors: dict[str, LocalActor] = {}
        self._actor_by_name: dict[tuple[str, str], LocalActor] = {}
        self._groups: dict[str, tuple[PlacementGroup, ErrorInfo | None]] = {}
        """And why it is not there, or no more."""
        self._group_numbers = itertools.count(1)
        self._is_closed = False

    def nested_opened(self) -> None:
        raise AssertionError("nothing nests in this backend")

    # -- values

    def adopt(self, owner: str, id: int) -> ObjectRef:
        return self._objects.adopt(owner, id)

    def put(self, value: Any) -> ObjectRef:
        return self._objects.add(detached(codec.pack(value, "the value of rlplat.put")))

    def empty(self, shape: Any, dtype: Any) -> Any:
        import numpy as np

        return np.empty(shape, dtype)

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        return [self._objects.read(ref) for ref in refs]

    def wait(self, refs: Sequence[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        for ref in refs:
            if isinstance(ref, ObjectRef):
                self._objects.entry(ref)
        return list(refs[:num_returns]), list(refs[num_returns:])

    def as_completed(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> AsCompleted[Any]:
        for ref in refs:
            self._objects.entry(ref)
        return AsCompleted(refs)

    def future(self, ref: ObjectRef) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(self._objects.read(ref))
        except Exception as error:
            future.set_exception(error)
        return future

    async def value_of(self, ref: ObjectRef) -> Any:
        """`await ref`."""
        return self._objects.read(ref)

    # -- running

    def _call(self, what: str, target: Any, args: tuple, kwargs: dict, **more: Any) -> Call:
        packed = detached(codec.pack((args, kwargs), f"an argument of {what}"))
        deps = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, ObjectRef)]
        return Call(what, target, packed, deps, **more)

    def _submit(self, call: Call) -> Any:
        """Run it; what its caller gets."""
        if self._is_closed:
            raise NotInitialized("the runtime was shut down")
        self._objects.collect()
        while self._dropped:
            self._give_up(self._dropped.pop())
        if call.num_returns in (STREAMING, DYNAMIC):
            return self._stream(call)
        is_unread, call.num_returns = not call.num_returns, call.num_returns or 1
        call.out = [self._objects.add(None) for _ in range(call.num_returns)]
        outcome = self._run(call, call.outcomes)
        outcomes = [outcome] * call.num_returns if isinstance(outcome, ErrorInfo) else outcome
        for ref, each in zip(call.out, outcomes, strict=True):
            self._objects.fill(ref.id, each)
        return None if is_unread else call.out[0] if call.num_returns == 1 else list(call.out)

    def _run(self, call: Call, finish: Callable[[Any], Any]) -> Any:
        """What `finish` makes of what the target returns; an `ErrorInfo` in its place where that fails."""
        actor = call.actor
        with self._inside(call):
            reason = self._reason_not_to_run(call)
            while reason is None:
                try:
                    args, kwargs = self._arguments(call)
                    ready = functools.partial(call.target, *args, **kwargs)
                    value = ready() if actor is None or call is actor.make else actor.perform(call, ready)
                    reason = call.deadline_error()
                    if reason is None:
                        return finish(value)
                except ActorExit:
                    assert actor is not None
                    where = " in its constructor" if call is actor.make else ""
                    text = f"actor {actor.class_name} is gone: it called rlplat.exit_actor(){where}"
                    self._end(actor, ErrorInfo("ActorDied", text))
                    reason = actor.death
                except Exception as error:
                    reason = call.deadline_error() if isinstance(error, TimeoutError) else None
                    reason = reason or call.failed(error)
            return reason

    @contextmanager
    def _inside(self, call: Call) -> Iterator[None]:
        entered = nullcontext() if call.actor is None else call.actor.entered(call)
        with entered, environment(call.runtime_env):
            token = current_call.set(call)
            try:
                yield
            finally:
                current_call.reset(token)

    def _reason_not_to_run(self, call: Call) -> ErrorInfo | None:
        if call.actor is not None and call.actor.death is not None:
            return call.actor.death
        outcomes = map(self._objects.outcome, call.deps)
        return next((outcome for outcome in outcomes if isinstance(outcome, ErrorInfo)), None)

    def _arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """Copies, as a worker would get them; refs among them replaced by their values."""

        def value(arg: Any) -> Any:
            return self._objects.read(arg) if isinstance(arg, ObjectRef) else arg

        args, kwargs = open_packed(call.args)
        return list(map(value, args)), {key: value(arg) for key, arg in kwargs.items()}

    # -- generators

    def _stream(self, call: Call) -> Any:
        completed = self._objects.add(lambda: self._drain(stream))
        call.out = [completed]
        made = self._run(call, lambda value: value)
        stream = self._streams[completed.id] = LocalStream(call, made)
        if call.actor is not None:
            stream.actor = self._handle(call.actor)
        if isinstance(made, ErrorInfo):
            self._end_stream(stream, made)
        elif not isinstance(made, Iterator | AsyncIterator):
            text = f"it must be a generator to stream, and returned {type(made).__name__}"
            self._end_stream(stream, describe_error(ValueError(text), call.what))
        if call.num_returns == DYNAMIC:
            self._drain(stream)
            return completed
        return ObjectRefGenerator(self, stream, completed)

    def _drain(self, stream: LocalStream) -> None:
        while not stream.is_ended:
            self._advance(stream)

    def _advance(self, stream: LocalStream) -> None:
        """Make the next value, or the end."""
        call = stream.call
        reason = self._reason_not_to_run(call) or call.deadline_error()
        if reason is not None:
            self._end_stream(stream, reason)
            return
        with self._inside(call):
            try:
                outcome: Outcome = detached(codec.pack(stream.make_next(), f"a value of {stream.name}"))
            except (StopIteration, StopAsyncIteration):
                self._end_stream(stream, None)
                return
            except Exception as error:
                failure = call.failed(error)
                if failure is None:  # from its beginning, and on behind the values that are there
                    args, kwargs = self._arguments(call)
                    stream.iterator = itertools.islice(call.target(*args, **kwargs), stream.num_have, None)
                    return
                outcome = failure
        stream.ready.append(self._objects.add(outcome))
        stream.num_have += 1
        if isinstance(outcome, ErrorInfo):
            self._end_stream(stream, None)

    def _end_stream(self, stream: LocalStream, error: ErrorInfo | None) -> None:
        del self._streams[stream.task]
        stream.ended(error is not None)
        value: Any = None
        if stream.call.num_returns == DYNAMIC:
            value = DynamicRefs(list(stream.ready))
            stream.ready.clear()
        self._objects.fill(stream.task, error or codec.pack(value))
        stream.close()

    def next_ref(self, stream: Any, completed: ObjectRef, timeout_s: float | None = None) -> ObjectRef | None:
        if not stream.can_take():
            self._advance(stream)
            return self.next_ref(stream, completed)
        if stream.ready:
            ref: ObjectRef = stream.take()[0]
            return ref
        return completed if stream.take_failure() else None

    async def next_ref_async(self, stream: Any, completed: ObjectRef) -> ObjectRef | None:
        return self.next_ref(stream, completed)

    def is_ready(self, stream: Any) -> bool:
        return True

    def drop(self, task: int) -> None:
        self._dropped.append(task)

    def _give_up(self, task: int) -> None:
        stream = self._streams.get(task)
        if stream is not None:
            text = f"{stream.name} was cancelled by rlplat.cancel"
            self._end_stream(stream, ErrorInfo("TaskCancelled", text))

    def cancel(self, ref: ObjectRef, force: bool = False, recursive: bool = True) -> None:
        """Ends a generator; every other call has finished, and nothing happens."""
        self._give_up(ref.id)

    # -- tasks

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        return lambda args, kwargs: self._submit_task(code, args, kwargs, options)

    def _submit_task(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> Any:
        what = f"task {options.name or code.name}"
        options = _in_context(options)
        shape = self._shape(options, 1, f"task {code.name}")
        env = merged(self._runtime_env, options.runtime_env)
        check_environment(env, what)
        codec.dump_code(code)
        call = self._call(
            what,
            code.target,
            args,
            kwargs,
            shape=shape,
            num_returns=options.num_returns,
            timeout_s=options.timeout_s,
            num_retries=options.max_retries,
            retry_exceptions=exception_names(options.retry_exceptions),
            runtime_env=env,
            capture=capture_of(options),
        )
        return self._submit(call)

    def _shape(self, options: Options, default_cpus: float, who: str) -> Shape:
        """What it needs, which this cluster could give it."""
        shape = shape_of(options, default_cpus, self._total, who)
        if shape.group:
            error = self._error_of(shape.group, who)
            if error is not None:
                raise to_exception(error)
        return shape

    # -- actors

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        names = None
        check_name(options)
        if options.name is not None:
            names = (self.namespace if options.namespace is None else options.namespace, options.name)
            if names in self._actor_by_name:
                if options.get_if_exists:
                    return self._handle(self._actor_by_name[names])
                raise to_exception(name_is_taken(options.name))
        what = f"actor {code.name}"
        codec.dump_code(code)
        check_exactly_once(code, options)
        options = _in_context(options)
        shape = self._shape(options, 0, what)
        env = merged(self._runtime_env, options.runtime_env)
        check_environment(env, what)
        make = self._call(what, code.target, args, kwargs, runtime_env=env)
        info = describe_actor(code, options)
        creation = self._objects.add(codec.pack(None))
        overlaps = (options.max_concurrency or 1) > 1 or bool(options.concurrency_groups)
        actor = LocalActor(f"{creation.owner}:{creation.id}", info, make, options.max_restarts, overlaps)
        actor.shape, actor.capture, actor.names = shape, capture_of(options), names
        actor.concurrency_groups = dict(options.concurrency_groups)
        make.actor = actor
        self._actors[actor.id] = actor
        if names is not None:
            self._actor_by_name[names] = actor
        if options.lifetime == "detached":
            actor.creation = creation
        self._construct(actor)
        return ActorHandle(actor.id, info, creation)

    def _construct(self, actor: LocalActor) -> None:
        make = actor.make
        make.caller = current_call.get()
        make.out = [self._objects.add(None)]

        def keep(instance: Any) -> None:
            actor.instance = instance

        error = self._run(make, keep)
        if error is not None and actor.death is None:
            text = f"actor {actor.class_name} could not be created: {error.message}"
            self._end(actor, ErrorInfo("ActorDied", text, error.exception))

    def _handle(self, actor: LocalActor) -> ActorHandle:
        owner, id = actor.id.rsplit(":", 1)
        return ActorHandle(actor.id, actor.info, self.adopt(owner, int(id)))

    def _actor(self, handle: ActorHandle) -> LocalActor:
        actor = self._actors.get(handle._actor_id)
        if actor is None:
            raise NotInitialized(f"{handle!r} belongs to a cluster that was shut down")
        return actor

    def submit_call(self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions) -> Any:
        actor = self._actor(handle)
        what = options.name or f"{actor.class_name}.{method}"
        if method == TERMINATE:
            return self._submit(self._call(f"actor {actor.class_name}", self._terminate, (), {}, actor=actor))
        check_group(what, options.concurrency_group, actor.concurrency_groups)
        names = options.retry_exceptions
        if names:
            check_retries(what, actor.info.exactly_once)
        call = self._call(
            what,
            lambda *args, **kwargs: getattr(actor.instance, method)(*args, **kwargs),
            args,
            kwargs,
            runtime_env=actor.make.runtime_env,
            actor=actor,
            num_returns=options.num_returns,
            timeout_s=options.timeout_s,
            num_retries=options.max_task_retries or 0,
            retry_exceptions=names if isinstance(names, bool) else frozenset(names),
        )
        return self._submit(call)

    def kill(self, handle: ActorHandle, no_restart: bool = True) -> None:
        actor = self._actor(handle)
        if actor.death is not None:
            return
        if not no_restart and actor.num_restarts_left:
            actor.num_restarts_left -= 1
            actor.incarnation += 1
            actor.close()
            self._construct(actor)
            return
        self._end(actor, ErrorInfo("ActorDied", f"actor {actor.class_name} was killed by rlplat.kill"))

    def _terminate(self) -> None:
        raise ActorExit

    def exit_actor(self) -> None:
        """End the actor whose call this is."""
        call = current_call.get()
        if call is None or call.actor is None:
            raise TypeError("rlplat.exit_actor() is for the methods of an actor; this code runs in none")
        raise ActorExit

    def get_actor(self, name: str, namespace: str | None) -> ActorHandle:
        where = self.namespace if namespace is None else namespace
        self._objects.collect()
        actor = self._actor_by_name.get((where, name))
        if actor is None:
            raise to_exception(no_such_actor(name, where, self._actor_by_name))
        return self._handle(actor)

    def handle_of(self, actor_id: str, info: ActorInfo, is_detached: bool) -> ActorHandle:
        return self._handle(self._actors[actor_id])

    def actor_names(self, all_namespaces: bool) -> list[tuple[str, str]]:
        """(namespace, name) of the living named actors."""
        self._objects.collect()
        return [names for names in self._actor_by_name if all_namespaces or names[0] == self.namespace]

    def _on_freed(self, id: int) -> None:
        """The last ref to an object is gone; when it stood for an actor's handles, the actor ends."""
        actor = self._actors.pop(f"{self.client_id}:{id}", None)
        if actor is not None:
            self._end(actor, ErrorInfo("ActorDied", f"the last handle of actor {actor.class_name} is gone"))

    def on_death(self, handle: ActorHandle, callback: Callable[[Any], Any]) -> None:
        actor = self._actors[handle._actor_id]
        actor.watchers.append(callback)
        self._tell(actor)

    def _tell(self, actor: LocalActor) -> None:
        """Those who watch it, once it is dead, here and now."""
        while actor.death is not None and actor.watchers:
            actor.watchers.pop(0)(to_exception(actor.death))

    def _end(self, actor: LocalActor, death: ErrorInfo) -> None:
        if actor.death is None:
            actor.death = death
            self._tell(actor)
        actor.close()
        if actor.names is not None and self._actor_by_name.get(actor.names) is actor:
            del self._actor_by_name[actor.names]

    # -- the cluster

    def resources(self, available: bool) -> dict[str, float]:
        return dict(self._total)

    def create_group(
        self, bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str, is_detached: bool
    ) -> PlacementGroup:
        alive = [group for group, error in self._groups.values() if error is None]
        if name and any(group.name == name for group in alive):
            raise OptionError(f"a placement group named {name!r} exists already")
        group = PlacementGroup(f"inproc:{next(self._group_numbers)}", bundles, strategy, name)
        needed: Resources = {}
        for resource, amount in itertools.chain.from_iterable(bundles):
            needed[resource] = exact(needed.get(resource, 0) + amount)
        error = None
        if any(self._total.get(resource, 0) < amount for resource, amount in needed.items()):
            error = f"{group!r} needs {needed} in all, and there is {self._total}"
        elif strategy == "STRICT_SPREAD" and len(bundles) > 1:
            error = f"{group!r} needs {len(bundles)} nodes, and there is 1"
        self._groups[group.id] = group, None if error is None else ErrorInfo("InfeasibleResources", error)
        return group

    def _error_of(self, group_id: str, who: str) -> ErrorInfo | None:
        if group_id not in self._groups:
            raise OptionError(f"{who}: its placement group belongs to another cluster, or one that was shut down")
        return self._groups[group_id][1]

    def group_ready(self, group: PlacementGroup) -> ObjectRef:
        return self._objects.add(self._error_of(group.id, repr(group)) or codec.pack(group))

    def remove_group(self, group: PlacementGroup) -> None:
        self._error_of(group.id, repr(group))
        self._groups[group.id] = group, ErrorInfo("PlacementGroupRemoved", f"{group!r} was removed")
        for actor in list(self._actors.values()):
            if actor.shape.group == group.id and actor.death is None:
                text = f"actor {actor.class_name} is gone: its placement group was removed"
                self._end(actor, ErrorInfo("ActorDied", text))

    def cluster(self) -> Cluster:
        """The one node, the placement groups, and what the call that asks holds."""
        call, here = current_call.get(), Place(_NODE)
        if call is not None and call.actor is not None:
            actor, shape = call.actor, call.actor.shape
            name = actor.names[1] if actor.names else ""
            here = Place(_NODE, shape, actor.id, shape.bundle, name, actor.incarnation, actor.info)
        elif call is not None:
            here = Place(_NODE, call.shape, bundle=call.shape.bundle)
        node = NodeState(_NODE, True, dict(self._total), dict(self._total))
        states = {"PlacementGroupRemoved": "REMOVED", "InfeasibleResources": "PENDING"}
        groups = [
            GroupState(
                group.id,
                group.name,
                group.strategy,
                "CREATED" if error is None else states[error.kind],
                group.bundle_specs,
                [_NODE if error is None else ""] * group.bundle_count,
            )
            for group, error in self._groups.values()
        ]
        return Cluster(0, [node], groups, here)

    @property
    def running_task(self) -> str | None:
        """Of the call that asks; None in the driver."""
        call = current_call.get()
        return None if call is None else f"{self.client_id}:{call.out[0].id}"

    @property
    def running_name(self) -> str | None:
        call = current_call.get()
        if call is not None and call.actor is not None and call is call.actor.make:
            return f"{call.actor.class_name}.__init__"
        return None if call is None else call.what.removeprefix("task ")

    def shutdown(self) -> None:
        if current_call.get() is not None:
            raise UsageError(
                "rlplat.shutdown() is for the driver; a task or an actor cannot end the cluster it runs in"
            )
        self._is_closed = True
        self._actor_by_name.clear()
        for actor in self._actors.values():
            actor.close()
        self._actors.clear()
        self._streams.clear()
        self._objects.clear()


def _in_context(options: Options) -> Options:
    """What the running task or actor makes of its children's options: its placement group may capture them."""
    call = current_call.get()
    capture = None if call is None else call.capture if call.actor is None else call.actor.capture
    return options if capture is None else captured(options, capture)
