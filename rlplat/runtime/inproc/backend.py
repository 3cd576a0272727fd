"""The verbs in one process: a call runs to its end inside `.remote()`, in the caller's thread. For debuggers.

Values still go through `codec`, so what would fail on the wire fails here as well, and results are copies.

What differs from processes
1. Calls run one after the other: a breakpoint stops the program where it is. Methods of async actors are the exception
   (see `inproc.calls`): they run on one event loop in a second thread, all at once as they do elsewhere.
2. Threads of an actor (`max_concurrency`) do not exist; such an actor may be called from its own call.
3. `timeout_s` cannot interrupt: a call that took longer fails when it ends. `cancel` ends coroutines and generators;
   everything else has finished by then.
4. Nobody dies, so retries are for `retry_exceptions`, and restarts for `kill(no_restart=False)`. Memory limits and
   resources of tasks bound nothing; those of actors and placement groups are counted.
5. Refused in words: a call on an actor that runs one, `pip` environments, a coroutine that blocks in `get`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rlplat.errors import NotInitialized, UsageError
from rlplat.runtime.backend import Backend
from rlplat.runtime.core.owner.retries import exception_names
from rlplat.runtime.core.scheduler.actors import name_is_taken, no_such_actor
from rlplat.runtime.demand import capture_of, captured, shape_of
from rlplat.runtime.envs.spec import checked, merged
from rlplat.runtime.inproc.calls import (
    Call,
    LocalActor,
    LocalStreams,
    LoopThread,
    call_options,
    check_environment,
    current_call,
)
from rlplat.runtime.inproc.objects import LocalObjects, detached
from rlplat.runtime.inproc.resources import NODE, LocalResources
from rlplat.runtime.inproc.runs import Runs
from rlplat.runtime.machine.hardware import machine_resources
from rlplat.runtime.options import Options, check_exactly_once, check_group, check_name, check_retries
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.refs import INPROC, ObjectRef
from rlplat.runtime.remote import TERMINATE, ActorExit, ActorHandle, describe_actor, is_async_class
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.messages import Cluster
from rlplat.runtime.wire.values import ActorInfo, CallOptions, ErrorInfo, Place

if TYPE_CHECKING:
    from rlplat.runtime.connect import Settings

_ASYNC_CONCURRENCY = 1000


class InprocBackend:
    client_id = INPROC
    can_nest = False
    outer: Backend | None = None

    def __init__(self, settings: Settings) -> None:
        self.namespace = settings.namespace
        self._runtime_env = checked(settings.runtime_env or {})
        check_environment(self._runtime_env, "rlplat.init", is_async=False)
        self._resources = LocalResources(
            machine_resources(settings.num_cpus, settings.num_gpus, settings.resources)
        )
        self._objects = LocalObjects(self.client_id)
        self._objects.on_freed = self._on_freed
        self._loop = LoopThread()
        self._streams = LocalStreams(self._objects, self._loop)
        self._actors: dict[str, LocalActor] = {}
        self._actor_by_name: dict[tuple[str, str], LocalActor] = {}
        self._runs = Runs(self._objects, self._streams, self._loop, self._end)

    def nested_opened(self) -> None:
        raise AssertionError("nothing nests in this backend")

    # -- values

    def adopt(self, owner: str, id: int) -> ObjectRef:
        return self._objects.adopt(owner, id)

    def put(self, value: Any) -> ObjectRef:
        return self._objects.add(detached(codec.pack(value, "the value of rlplat.put")))

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        return self._objects.get(refs, timeout)

    def wait(
        self, refs: Sequence[Any], num_returns: int, timeout: float | None
    ) -> tuple[list[Any], list[Any]]:
        self._objects.wait_for(refs, num_returns, timeout)
        ready: list[Any] = []
        rest: list[Any] = []
        for ref in refs:
            is_ready = self._objects.is_there(ref) and len(ready) < num_returns
            (ready if is_ready else rest).append(ref)
        return ready, rest

    def future(self, ref: ObjectRef) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                future.set_result(self._objects.read(ref))
            except Exception as error:
                future.set_exception(error)

        if not self._objects.when_ready(ref, settle):
            settle()
        return future

    async def value_of(self, ref: ObjectRef) -> Any:
        """`await ref`."""
        await self._runs.arrived([ref])
        return self._objects.read(ref)

    # -- tasks

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        return lambda args, kwargs: self._submit_task(code, args, kwargs, options)

    def _submit_task(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> Any:
        what = f"task {options.name or code.name}"
        options = _in_context(options)
        shape = shape_of(options, 1, self._resources.total, f"task {code.name}")
        self._resources.check(shape, what)
        env = merged(self._runtime_env, options.runtime_env)
        check_environment(env, what, is_async=False)
        codec.dump_code(code)
        call = self._call(
            what,
            code.target,
            args,
            kwargs,
            shape=shape,
            num_returns=options.num_returns,
            window=options.generator_backpressure,
            timeout_s=options.timeout_s,
            num_retries=options.max_retries,
            retry_exceptions=exception_names(options.retry_exceptions),
            runtime_env=env,
            capture=capture_of(options),
        )
        return self._runs.submit(call)

    def _call(self, what: str, target: Any, args: tuple, kwargs: dict, **more: Any) -> Call:
        packed = detached(codec.pack((args, kwargs), f"an argument of {what}"))
        deps = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, ObjectRef)]
        return Call(what, target, packed, deps, **more)

    def cancel(self, ref: ObjectRef, force: bool = False, recursive: bool = True) -> None:
        """Ends coroutines and generators; every other call has finished, and nothing happens."""
        stream = self._streams.find(ref.id)
        if stream is not None and stream.is_begun:
            self._streams.cancel(stream)
        elif self._objects.outcome(ref) is None:
            self._runs.cancel(ref.id)

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
        shape = shape_of(options, 0, self._resources.total, what)
        is_async = is_async_class(code.target)
        env = merged(self._runtime_env, options.runtime_env)
        check_environment(env, what, is_async)
        make = self._call(what, code.target, args, kwargs, runtime_env=env)
        info = describe_actor(code, options)
        give_back = self._resources.take(shape, what)
        creation = self._objects.add(codec.pack(None))
        most = options.max_concurrency or (_ASYNC_CONCURRENCY if is_async else 1)
        actor = LocalActor(f"{creation.owner}:{creation.id}", info, make, options.max_restarts, most)
        actor.shape, actor.give_back, actor.capture = shape, give_back, capture_of(options)
        actor.concurrency_groups = dict(options.concurrency_groups)
        make.actor, actor.names = actor, names
        self._actors[actor.id] = actor
        if names is not None:
            self._actor_by_name[names] = actor
        if options.lifetime == "detached":
            actor.creation = creation
        self._runs.submit(make)
        return ActorHandle(actor.id, info, creation)

    def _handle(self, actor: LocalActor) -> ActorHandle:
        owner, id = actor.id.rsplit(":", 1)
        return ActorHandle(actor.id, actor.info, self.adopt(owner, int(id)))

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions
    ) -> Any:
        actor = self._actors.get(handle._actor_id)
        if actor is None:
            raise NotInitialized(f"{handle!r} belongs to a cluster that was shut down")
        what = f"{actor.class_name}.{method}"
        if method == TERMINATE:
            call = self._call(f"actor {actor.class_name}", self._terminate, (), {}, actor=actor)
            return self._runs.submit(call)
        check_group(what, options.concurrency_group, actor.concurrency_groups)
        if options.retry_exceptions:
            check_retries(what, actor.info.exactly_once)
        call = self._call(
            what,
            lambda *args, **kwargs: getattr(actor.instance, method)(*args, **kwargs),
            args,
            kwargs,
            runtime_env=actor.make.runtime_env,
            actor=actor,
            **call_options(options),
        )
        return self._runs.submit(call)

    def kill(self, handle: ActorHandle, no_restart: bool = True) -> None:
        actor = self._actors.get(handle._actor_id)
        if actor is None:
            raise NotInitialized(f"{handle!r} belongs to a cluster that was shut down")
        if actor.death is not None:
            return
        if not no_restart and actor.num_restarts_left:
            actor.num_restarts_left -= 1
            actor.incarnation += 1
            actor.instance = None
            actor.make.out = [self._objects.add(None, actor.make.what)]
            self._runs.run(actor.make)
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
        actor.instance = None
        give_back, actor.give_back = actor.give_back, _nothing
        give_back()
        if actor.names is not None and self._actor_by_name.get(actor.names) is actor:
            del self._actor_by_name[actor.names]

    # -- the cluster

    def resources(self, available: bool) -> dict[str, float]:
        self._objects.collect()
        return dict(self._resources.free if available else self._resources.total)

    def create_group(
        self, bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str, is_detached: bool
    ) -> PlacementGroup:
        return self._resources.create(bundles, strategy, name)

    def group_ready(self, group: PlacementGroup) -> ObjectRef:
        ref = self._objects.add(None, repr(group))
        self._resources.when_ready(group, lambda outcome: self._objects.fill(ref.id, outcome))
        return ref

    def remove_group(self, group: PlacementGroup) -> None:
        for actor in list(self._actors.values()):
            if actor.shape.group == group.id and actor.death is None:
                text = f"actor {actor.class_name} is gone: its placement group was removed"
                self._end(actor, ErrorInfo("ActorDied", text))
        self._resources.remove(group)

    def cluster(self) -> Cluster:
        """The one node, the placement groups, and what the call that asks holds."""
        call, here = current_call.get(), Place(NODE)
        if call is not None and call.actor is not None:
            actor, shape = call.actor, call.actor.shape
            name = actor.names[1] if actor.names else ""
            here = Place(NODE, shape, actor.id, shape.bundle, name, actor.incarnation, actor.info)
        elif call is not None:
            here = Place(NODE, call.shape, bundle=call.shape.bundle)
        return Cluster(0, self._resources.nodes(), self._resources.groups(), here)

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

    @property
    def is_cancelled(self) -> bool:
        """Only a coroutine can be cancelled while it runs."""
        call = current_call.get()
        return call is not None and self._runs.is_cancelled(call)

    def shutdown(self) -> None:
        if threading.current_thread() is self._loop.thread or current_call.get() is not None:
            raise UsageError(
                "rlplat.shutdown() is for the driver; a task or an actor cannot end the cluster it runs in"
            )
        self._runs.close()
        self._actor_by_name.clear()
        for actor in self._actors.values():
            actor.instance = None
        self._actors.clear()
        self._objects.clear()


def _in_context(options: Options) -> Options:
    """What the running task or actor makes of its children's options: its placement group may capture them."""
    call = current_call.get()
    capture = None if call is None else call.capture if call.actor is None else call.actor.capture
    return options if capture is None else captured(options, capture)


def _nothing() -> None:
    pass
