"""The verbs of `api` on Ray: tasks, actors and objects are Ray's own, and so is where they run."""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import cloudpickle
import msgspec
import ray
import ray.cloudpickle
from ray.actor import exit_actor
from ray.exceptions import GetTimeoutError
from ray.experimental import internal_kv
from ray.util import list_named_actors

from rlplat import errors, node_types
from rlplat.errors import OptionError, PendingCallsLimitExceeded, SerializationError
from rlplat.machine_limits import cpu_count
from rlplat.runtime import refs as connection
from rlplat.runtime.backend import Backend
from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.core.scheduler.actors import name_is_taken, no_such_actor
from rlplat.runtime.envs.spec import NOT_CODE, checked
from rlplat.runtime.options import Options, check_group, check_name
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.ray import cluster, host
from rlplat.runtime.ray.host import CallSpec
from rlplat.runtime.ray.values import (
    FailedForNow,
    RayCompleted,
    RayStream,
    ours,
    ours_of,
    ref_of,
    text_of,
    theirs_of,
)
from rlplat.runtime.ray.watch import HeadWatch
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import TERMINATE, ActorHandle, describe_actor, is_async_class
from rlplat.runtime.wire.codec import RemoteCode, _culprit, dump_code
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.messages import Cluster
from rlplat.runtime.wire.values import DYNAMIC, STREAMING, ActorInfo, CallOptions, Place

if TYPE_CHECKING:
    from rlplat.runtime.connect import Settings

_NAMESPACE = "rlplat"
"""Ray's name for our namespace "": its own anonymous ones are new for each program."""
_NUM_RETURNS = {STREAMING: "streaming", DYNAMIC: "dynamic"}
_CANCEL_GRACE_S = 5.0
_SLICE_S = 5.0
_VERSION = str(sys.modules["rlplat"].__version__)
_DRIVERS_VERSION = "RLPLAT_VERSION_OF_DRIVER"


class RayBackend:
    outer: Backend | None = None

    def __init__(self, namespace: str, can_nest: bool, watch: HeadWatch | None = None) -> None:
        """watch: of a driver."""
        self._watch = watch
        self.namespace, self.can_nest = namespace, can_nest
        self.client_id = ray.get_runtime_context().get_worker_id() if can_nest else "driver"
        self._late: deque[bytes] = deque(maxlen=1000)
        """Refs whose deadline passed before they were there, the latest of them."""

    @classmethod
    def start(cls, settings: Settings) -> Self:
        """Connect to the cluster at `settings.address`, or start one on this machine, with what they say of it."""
        address, user_code = settings.address, settings.user_code
        machine: dict[str, Any] = {
            name: getattr(settings, name) for name in ("num_cpus", "num_gpus", "resources", "object_store_memory")
        }
        env = {name: value for name, value in checked(settings.runtime_env or {}).items() if value}
        if address is None:
            own: dict[str, Any] = machine | {"address": "local", "include_dashboard": False}
        elif any(value is not None for value in machine.values()):
            raise OptionError(
                f"rlplat.init(backend='ray', address={address!r}): the cluster has its {', '.join(machine)}: leave "
                "them out"
            )
        else:
            own = {"address": address}
            if user_code is not None and "working_dir" not in env:
                env |= {"working_dir": user_code, "excludes": [*env.get("excludes", ()), *NOT_CODE]}
        for name in cloudpickle.list_registry_pickle_by_value():  # Ray's copy of cloudpickle has its own list
            ray.cloudpickle.register_pickle_by_value(sys.modules[name])
        # Thread counts as in our own workers: one for OpenBLAS, and what the user's environment
        # says; with others, sums have other last bits, and a run goes another way.
        passed = (node_types.VARIABLE, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        known = {"OPENBLAS_NUM_THREADS": "1"} | {name: os.environ[name] for name in passed if os.environ.get(name)}
        env["env_vars"] = {_DRIVERS_VERSION: _VERSION} | known | env.get("env_vars", {})
        env["worker_process_setup_hook"] = attach
        try:
            ray.init(
                **own,
                namespace=settings.namespace or _NAMESPACE,
                runtime_env=env,
                log_to_driver=settings.log_to_driver,
                logging_level=logging.ERROR,  # its greetings and advice: what matters comes as an exception
            )
        except Exception as error:
            raise OptionError(f"rlplat.init(backend='ray', address={address!r}): {text_of(error)}") from error
        return cls(settings.namespace, can_nest=False, watch=HeadWatch(ray.get_runtime_context().gcs_address))

    @classmethod
    def of_worker(cls) -> Self:
        namespace = ray.get_runtime_context().namespace
        return cls("" if namespace == _NAMESPACE else namespace, can_nest=True)

    def nested_opened(self) -> None:
        pass

    # -- values

    def put(self, value: Any) -> ObjectRef:
        with _pickling("the value of rlplat.put", value):
            return ref_of(ray.put(value))

    def empty(self, shape: Any, dtype: Any) -> Any:
        import numpy as np

        return np.empty(shape, dtype)

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        theirs = [theirs_of(ref) for ref in refs]
        try:
            return [ours_of(value) for value in self._values(theirs, timeout)]
        except Exception as error:
            found = self._error(error, refs, timeout)
        raise found from found.__cause__

    def _error(self, error: Exception, refs: Sequence[Any], timeout: float | None = None) -> BaseException:
        found = ours(error)
        if isinstance(error, GetTimeoutError):
            missing = [ref for ref in refs if not ray.wait([ref.ray], timeout=0, fetch_local=False)[0]]
            text = f"get() timed out after {timeout:g} s: {len(missing)} of {len(refs)} values are missing"
            return errors.GetTimeout(text)
        if isinstance(found, errors.TaskCancelled) and any(ref.ray.binary() in self._late for ref in refs):
            return errors.DeadlineExceeded("it took longer than its timeout_s")
        return found

    def wait(self, refs: Sequence[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        """Values stay where they were made: `get` brings them."""
        theirs = [ref.ray for ref in refs]
        found = self._wait(theirs, num_returns, timeout)
        if 0 < len(found) < len(refs):  # the first that are there, not those that Ray looked at first
            found, _ = ray.wait(theirs, num_returns=len(refs), timeout=0, fetch_local=False)
        there = set(found)
        ready = [ref for ref in refs if ref.ray in there][:num_returns]
        taken = {id(ref) for ref in ready}
        return ready, [ref for ref in refs if id(ref) not in taken]

    def _wait(self, theirs: list[Any], num_returns: int, timeout: float | None) -> list[Any]:
        """Those that are there. In slices: NodeLost when the head is gone, of which Ray itself says nothing."""
        end = math.inf if timeout is None else monotonic() + timeout
        while True:
            rest = max(0.0, min(_SLICE_S, end - monotonic()))
            found, _ = ray.wait(theirs, num_returns=num_returns, timeout=rest, fetch_local=False)
            if len(found) >= num_returns or monotonic() >= end:
                return found
            if self._watch is not None and self._watch.lost:
                raise errors.NodeLost(self._watch.lost)

    def as_completed(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> AsCompleted[Any]:
        return RayCompleted(self._wait, refs, timeout_s)

    def _values(self, theirs: list[Any], timeout: float | None) -> list[Any]:
        """All at once where they come soon; else as they come, so that the loss of the head is noticed."""
        end = math.inf if timeout is None else monotonic() + timeout
        is_short = timeout is not None and timeout <= _SLICE_S
        try:
            found: list[Any] = ray.get(theirs, timeout=timeout if self._watch is None or is_short else _SLICE_S)
            return found
        except GetTimeoutError:
            if monotonic() >= end:
                raise
        values: dict[Any, Any] = {}
        missing = list(dict.fromkeys(theirs))
        while missing:
            left = None if timeout is None else max(0.0, end - monotonic())
            self._wait(missing, 1, left)
            found, missing = ray.wait(missing, num_returns=len(missing), timeout=0, fetch_local=False)
            values |= zip(found, ray.get(found, timeout=left), strict=True)
            if missing and monotonic() >= end:
                raise GetTimeoutError
        return [values[one] for one in theirs]

    def future(self, ref: ObjectRef) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                future.set_result(ours_of(done.result()))
            else:
                future.set_exception(self._error(error, [ref]))  # type: ignore[arg-type]

        ref.ray.future().add_done_callback(settle)  # type: ignore[attr-defined]
        return future

    async def value_of(self, ref: ObjectRef) -> Any:
        try:
            return ours_of(await ref.ray)  # type: ignore[attr-defined]
        except Exception as error:
            found = self._error(error, [ref])
        raise found from found.__cause__

    def adopt(self, owner: str, id: int) -> ObjectRef:
        raise errors.NotInitialized("this ref belongs to another cluster")

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        try:
            ray.cancel(ref.ray, force=force, recursive=recursive)
        except (TypeError, ValueError):  # `put`, or force for a call of an actor
            if force:
                self.cancel(ref, False, recursive)
            return
        if not force:
            _after(_CANCEL_GRACE_S, lambda: self._cancel_at_last(ref))

    def _cancel_at_last(self, ref: Any) -> None:
        if ray.is_initialized() and not ray.wait([ref.ray], timeout=0, fetch_local=False)[0]:
            try:
                ray.cancel(ref.ray, force=True)
            except ValueError:
                pass  # a call of an actor: it goes on

    # -- tasks

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        name = options.name or code.name
        what = f"task {name}"
        is_generator = options.num_returns in (STREAMING, DYNAMIC)
        given = cluster.placed(options, 1, f"task {code.name}") | {
            "name": name,
            "max_retries": options.max_retries,
            "retry_exceptions": [FailedForNow] if options.retry_exceptions else False,
            "num_returns": _NUM_RETURNS.get(options.num_returns, options.num_returns),
        }
        if options.num_returns == STREAMING and options.generator_backpressure:
            given["_generator_backpressure_num_objects"] = options.generator_backpressure
        function = _function(code.target, is_generator, options.max_calls).options(**given)
        call = host.packed(CallSpec(what, options.retry_exceptions, options.num_returns))

        def submit(args: tuple, kwargs: dict) -> Any:
            with _pickling(f"an argument of {what}", (args, kwargs), code):
                answer = function.remote(call, *map(theirs_of, args), **_mapped(kwargs))
            return self._given(answer, options.num_returns, options.timeout_s)

        return submit

    def _given(self, answer: Any, num_returns: int, timeout_s: float | None) -> Any:
        """What the caller gets: a ref, refs, a generator, None."""
        if num_returns == STREAMING:
            return RayStream(answer)
        refs = [ref_of(each) for each in (answer if num_returns > 1 else [answer] if num_returns else [])]
        if timeout_s is not None and refs:
            _after(timeout_s, lambda: self._expire(refs[0]))
        return None if not refs else refs if num_returns > 1 else refs[0]

    def _expire(self, ref: Any) -> None:
        if ray.is_initialized() and not ray.wait([ref.ray], timeout=0, fetch_local=False)[0]:
            self._late.append(ref.ray.binary())
            self.cancel(ref, True, True)

    # -- actors

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        what = f"actor {code.name}"
        if options.exactly_once:
            raise OptionError(f"{what}: exactly_once=True is not there on Ray (docs/on-ray.md)")
        check_name(options)
        info = describe_actor(code, options)
        given = cluster.placed(options, 0, what) | {
            "max_restarts": options.max_restarts,
            "max_task_retries": options.max_task_retries,
        }
        if options.max_pending_calls > 0:
            given["max_pending_calls"] = options.max_pending_calls
        if options.max_concurrency is not None:
            given["max_concurrency"] = options.max_concurrency
        if options.lifetime:
            given["lifetime"] = options.lifetime
        if options.name is not None:
            if (found := self._find(options.name, options.namespace)) is not None:
                if options.get_if_exists:
                    return found
                raise to_exception(name_is_taken(options.name))
            given |= {"name": options.name, "namespace": self._ray_namespace(options.namespace)}
        kind = _actor_class(code.target, code.name, tuple(options.concurrency_groups.items()))
        identity = host.Identity(info, options.lifetime == "detached")
        with _pickling(f"an argument of {what}", (args, kwargs), code):
            theirs = kind.options(**given).remote(code.target, identity, *map(theirs_of, args), **_mapped(kwargs))
        handle = _handle(theirs, info)
        if options.name is not None:
            internal_kv._internal_kv_put(_kv_key(handle._actor_id), msgspec.msgpack.encode(info))
        return handle

    def submit_call(self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions) -> Any:
        theirs: Any = handle._creation
        info = handle._info
        if method == TERMINATE:
            return ref_of(theirs.__ray_terminate__.remote())
        what = options.name or f"{info.class_name}.{method}"
        group = options.concurrency_group
        check_group(what, group, info.groups)
        given: dict[str, Any] = {"num_returns": _NUM_RETURNS.get(options.num_returns, options.num_returns)}
        if options.name:
            given["name"] = options.name
        if group:
            given["concurrency_group"] = group
        if options.max_task_retries is not None:
            given["max_task_retries"] = options.max_task_retries
        if options.retry_exceptions:
            given["retry_exceptions"] = [FailedForNow]
        is_generator = options.num_returns in (STREAMING, DYNAMIC)
        leading: tuple[bytes, ...] = ()
        if given == {"num_returns": 1} and not hasattr(host.Host, method) and hasattr(theirs, method):
            call = getattr(theirs, method)
        else:
            spec = CallSpec(what, options.retry_exceptions, options.num_returns, method)
            call = (theirs.stream if is_generator else theirs.call).options(**given)
            leading = (host.packed(spec),)
        with _pickling(f"an argument of {what}", (args, kwargs)):
            try:
                answer = call.remote(*leading, *map(theirs_of, args), **_mapped(kwargs))
            except ray.exceptions.PendingCallsLimitExceeded as error:
                raise PendingCallsLimitExceeded(str(error)) from None
        return self._given(answer, options.num_returns, options.timeout_s)

    def kill(self, handle: ActorHandle, no_restart: bool) -> None:
        ray.kill(handle._creation, no_restart=no_restart)

    def on_death(self, handle: ActorHandle, callback: Callable[[Any], Any]) -> None:
        raise OptionError("on_death: Ray tells nobody of an actor's death but those who call it (docs/on-ray.md)")

    def exit_actor(self) -> None:
        if host.here is None:
            raise TypeError("rlplat.exit_actor() is for the methods of an actor; this code runs in none")
        exit_actor()

    def _ray_namespace(self, namespace: str | None) -> str:
        return (self.namespace if namespace is None else namespace) or _NAMESPACE

    def _find(self, name: str, namespace: str | None) -> ActorHandle | None:
        try:
            theirs = ray.get_actor(name, namespace=self._ray_namespace(namespace))
        except ValueError:
            return None
        info = internal_kv._internal_kv_get(_kv_key(theirs._actor_id.hex()))
        if info is None:
            raise OptionError(f"the actor named {name!r} on this Ray cluster was not made by rlplat")
        return _handle(theirs, msgspec.msgpack.decode(info, type=ActorInfo))

    def get_actor(self, name: str, namespace: str | None) -> ActorHandle:
        found = self._find(name, namespace)
        if found is None:
            where = self.namespace if namespace is None else namespace
            raise to_exception(no_such_actor(name, where, self.actor_names(all_namespaces=True)))
        return found

    def handle_of(self, actor_id: str, info: ActorInfo, is_detached: bool) -> ActorHandle:
        return ActorHandle(actor_id, info, ray.get_runtime_context().current_actor)

    def actor_names(self, all_namespaces: bool) -> list[tuple[str, str]]:
        if not all_namespaces:
            return [(self.namespace, name) for name in list_named_actors()]
        listed = [(each["namespace"], each["name"]) for each in list_named_actors(all_namespaces=True)]
        return [("" if space == _NAMESPACE else space, name) for space, name in listed]

    # -- the cluster

    resources = staticmethod(cluster.resources)
    create_group = staticmethod(cluster.create_group)
    remove_group = staticmethod(cluster.remove_group)

    def group_ready(self, group: PlacementGroup) -> ObjectRef:
        cluster.require_possible(group)
        return ref_of(_second.remote(cluster.ray_group(group).ready(), group))

    def cluster(self) -> Cluster:
        here = cluster.place(host.here) if self.can_nest else Place(ray.get_runtime_context().get_node_id())
        return Cluster(0, cluster.nodes(), cluster.groups(), here)

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        return tuple(int(gpu) for gpu in ray.get_gpu_ids()) if self.can_nest else ()

    @property
    def running_task(self) -> str | None:
        return ray.get_runtime_context().get_task_id() if self.can_nest else None

    @property
    def running_name(self) -> str | None:
        return host.running.get()

    @property
    def is_cancelled(self) -> bool:
        return bool(ray.get_runtime_context().is_canceled())

    def shutdown(self) -> None:
        if self.can_nest:
            raise errors.UsageError(
                "rlplat.shutdown() is for the driver; a task or an actor cannot end the cluster it runs in"
            )
        if self._watch is not None:
            self._watch.close()
        ray.shutdown()


def attach() -> None:
    """Each worker of Ray begins with this: the verbs work in it."""
    drivers = os.environ.get(_DRIVERS_VERSION, _VERSION)
    if drivers != _VERSION:
        raise RuntimeError(
            f"{os.uname().nodename} has rlplat {_VERSION}, the driver {drivers}: install the same everywhere"
        )
    # Ray would set 1 for every actor that asks for no CPUs; how many threads there are is said where they are used.
    os.environ.setdefault("OMP_NUM_THREADS", str(cpu_count()))
    connection.set_backend(RayBackend.of_worker())


def _mapped(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: theirs_of(value) for name, value in kwargs.items()}


class _pickling:  # noqa: N801
    """`with _pickling("an argument of task f", value):` an error of Ray's pickler names the part that it means."""

    def __init__(self, what: str, value: Any, code: RemoteCode | None = None) -> None:
        self._what, self._value, self._code = what, value, code

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TypeError):
            if self._code is not None:
                dump_code(self._code)  # raises when it is the function that cannot be pickled
            raise SerializationError(
                f"{self._what} cannot be pickled: {_culprit(self._value)} ({text_of(error)})"
            ) from error
        if error is not None and ours(error) is not error:
            raise ours(error) from error


@functools.lru_cache(1000)
def _function(target: Callable[..., Any], is_generator: bool, max_calls: int) -> Any:
    return ray.remote(max_calls=max_calls)((host.generator_task if is_generator else host.task)(target))


@functools.lru_cache(1000)
def _actor_class(target: Any, name: str, concurrency_groups: tuple[tuple[str, int], ...]) -> Any:
    options = {"concurrency_groups": dict(concurrency_groups)} if concurrency_groups else {"num_cpus": 0}
    return ray.remote(**options)(host.host_class(target, name, is_async_class(target)))


_second: Any = ray.remote(num_cpus=0)(lambda _, value: value)


def _handle(theirs: Any, info: ActorInfo) -> ActorHandle:
    return ActorHandle(theirs._actor_id.hex(), info, theirs)


def _kv_key(actor_id: str) -> bytes:
    return f"rlplat:actor:{actor_id}".encode()


def _after(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
