"""The public verbs. Same names and meaning as Ray's, so that a Ray user changes one import.

    rlplat.init()
    ref = f.remote(1, other_ref)          # @rlplat.remote def f: a task; refs as arguments are dependencies
    counter = Counter.remote()            # @rlplat.remote class Counter: an actor
    rlplat.get([ref, counter.add.remote(2)], timeout=5)

`init()` starts a cluster that is private to this process and ends with it.
"""

from __future__ import annotations

import atexit
import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, overload

from rlplat.errors import ConfigError
from rlplat.runtime import refs as connection
from rlplat.runtime.backend import Options, RemoteCode
from rlplat.runtime.refs import ObjectRef, backend

__all__ = [
    "ActorHandle",
    "ObjectRef",
    "available_resources",
    "cluster_resources",
    "get",
    "get_actor",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "put",
    "remote",
    "shutdown",
    "wait",
]


def init(
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    backend: str = "zmq",
    preload: Sequence[str] = (),
) -> None:
    """Start a private cluster on this machine.

    num_cpus, num_gpus: what tasks and actors may take in all; None: what the machine has.
    resources: custom resources by name.
    backend: "zmq" (worker processes) or "inproc" (everything in this process and thread, at once: for debuggers).
    preload: modules that the zygote imports once, so that every worker starts with them (for example "torch").
    """
    if connection.is_connected():
        raise ConfigError("rlplat.init() was called twice: call rlplat.shutdown() first")
    if backend == "inproc":
        from rlplat.runtime.inproc import InprocBackend

        connection.set_backend(InprocBackend(num_cpus, num_gpus, resources))
    elif backend == "zmq":
        from rlplat.runtime.start import start_private_cluster

        connection.set_backend(start_private_cluster(num_cpus, num_gpus, resources, preload))
    else:
        raise ConfigError(f"unknown backend {backend!r}: 'zmq' or 'inproc'")
    atexit.register(shutdown)


def shutdown() -> None:
    """End the cluster: every worker, actor and object of it. Does nothing when there is none."""
    if connection.is_connected():
        atexit.unregister(shutdown)
        backend().shutdown()
        connection.set_backend(None)


def is_initialized() -> bool:
    return connection.is_connected()


def _connected() -> Any:
    """The backend; starts a private cluster on first use, as Ray does."""
    current = connection._backend
    if current is None:
        if connection._forked_from:
            return backend()  # raises, and says why
        init()
        current = connection._backend
    return current


# ---------------------------------------------------------------- values


def put(value: Any) -> ObjectRef:
    """Store `value` (a copy) and return its ref."""
    if isinstance(value, ObjectRef):
        raise TypeError("rlplat.put takes a value, not an ObjectRef: pass the ref on as it is")
    return _connected().put(value)


@overload
def get(refs: ObjectRef, *, timeout: float | None = None) -> Any: ...
@overload
def get(refs: Sequence[ObjectRef], *, timeout: float | None = None) -> list[Any]: ...
def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Wait for the values of one ref or of a list of refs.

    Numpy arrays of 64 KiB and more are read-only views of shared memory (copy them to write); smaller ones are copies.
    timeout: seconds; then `GetTimeout`, which says what is being waited for.
    Raises what the task raised: an exception that is both `TaskError` and the user's own class.
    """
    if isinstance(refs, ObjectRef):
        return _connected().get([refs], timeout)[0]
    refs = list(refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"rlplat.get takes an ObjectRef or a list of them, not {type(ref).__name__}")
    return _connected().get(refs, timeout)


def wait(
    refs: Sequence[ObjectRef], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """(ready, not ready), both in the order of `refs`, once `num_returns` are ready or `timeout` seconds passed."""
    refs = list(refs)
    if any(not isinstance(ref, ObjectRef) for ref in refs):
        raise TypeError("rlplat.wait takes a list of ObjectRefs")
    if len(set(refs)) != len(refs):
        raise ValueError("rlplat.wait: the list has the same ref twice")
    if not 0 < num_returns <= len(refs):
        raise ValueError(f"rlplat.wait: num_returns is {num_returns}, and there are {len(refs)} refs")
    return _connected().wait(refs, num_returns, timeout)


# ---------------------------------------------------------------- tasks and actors


def remote(*args: Any, **options: Any) -> Any:
    """Make a function a task or a class an actor: `@remote`, `@remote(num_cpus=2)`, or `remote(f)`."""
    if len(args) == 1 and not options and callable(args[0]):
        return _make_remote(args[0], Options())
    if args:
        raise TypeError(
            "use @rlplat.remote, @rlplat.remote(num_cpus=...) or rlplat.remote(function_or_class)"
        )
    checked = _merge(Options(), options)
    return lambda target: _make_remote(target, checked)


def method(*, num_returns: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`@rlplat.method(num_returns=2)` on a method of an actor class: its calls return that many refs."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__rlplat_num_returns__ = num_returns  # type: ignore[attr-defined]
        return function

    return mark


def _make_remote(target: Any, options: Options) -> Any:
    if not callable(target):
        raise TypeError(f"rlplat.remote takes a function or a class, not {type(target).__name__}")
    name = getattr(target, "__qualname__", repr(target))
    code = RemoteCode(target, name)
    return RemoteClass(code, options) if inspect.isclass(target) else RemoteFunction(code, options)


def _merge(options: Options, changes: dict[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    for key, value in changes.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
            raise ConfigError(f"unknown option {key!r} for a task or actor; {hint}")
        if key in ("num_cpus", "num_gpus", "max_retries") and value is not None and value < 0:
            raise ConfigError(f"{key} must be at least 0, not {value!r}")
        if key in ("num_returns", "max_concurrency") and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{key} must be a whole number of at least 1, not {value!r}")
    return replace(options, **changes)


class RemoteFunction:
    """A task: `f.remote(*args)` returns its ref (a list of refs with `num_returns` > 1)."""

    def __init__(self, code: RemoteCode, options: Options) -> None:
        self._code, self._options = code, options
        self.__name__ = code.name
        self.__doc__ = code.target.__doc__

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return _connected().submit_task(self._code, args, kwargs, self._options)

    def options(self, **changes: Any) -> RemoteFunction:
        return RemoteFunction(self._code, _merge(self._options, changes))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._code.name} is a remote function: call {self._code.name}.remote(...)")


class RemoteClass:
    """An actor class: `Class.remote(*args)` starts an actor and returns its handle."""

    def __init__(self, code: RemoteCode, options: Options) -> None:
        self._code, self._options = code, options
        self.__name__ = code.name
        self.__doc__ = code.target.__doc__

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        return _connected().create_actor(self._code, args, kwargs, self._options)

    def options(self, **changes: Any) -> RemoteClass:
        return RemoteClass(self._code, _merge(self._options, changes))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._code.name} is an actor class: call {self._code.name}.remote(...)")


@dataclass(eq=False, slots=True, weakref_slot=True)
class ActorHandle:
    """A way to call an actor; pass it to tasks and other actors. The actor ends when the last handle goes."""

    _actor_id: str
    _class_name: str
    _methods: dict[str, int]
    """Number of returns by method name."""
    _creation: ObjectRef
    """The actor's entry in its creator's book: it counts the handles."""

    def __getattr__(self, name: str) -> ActorMethod:
        num_returns = self._methods.get(name)
        if num_returns is None:
            close = difflib.get_close_matches(name, self._methods, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise AttributeError(f"actor class {self._class_name} has no method {name!r}{hint}")
        return ActorMethod(self, name, num_returns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"ActorHandle({self._class_name}, {self._actor_id})"

    def __reduce__(self) -> Any:
        return ActorHandle, (self._actor_id, self._class_name, self._methods, self._creation)


class ActorMethod:
    __slots__ = ("_handle", "_name", "_num_returns")

    def __init__(self, handle: ActorHandle, name: str, num_returns: int) -> None:
        self._handle, self._name, self._num_returns = handle, name, num_returns

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return backend().submit_call(self._handle, self._name, args, kwargs, self._num_returns)

    def options(self, *, num_returns: int) -> ActorMethod:
        return ActorMethod(self._handle, self._name, num_returns)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._name} is an actor method: call .{self._name}.remote(...)")


def methods_of(actor_class: Any) -> dict[str, int]:
    """Public methods and their number of returns."""
    members = inspect.getmembers(actor_class, callable)
    return {
        name: getattr(member, "__rlplat_num_returns__", 1)
        for name, member in members
        if not name.startswith("_") or (name == "__call__" and "__call__" in vars(actor_class))
    }


def kill(actor: ActorHandle) -> None:
    """End an actor at once; calls that wait for it raise `ActorDied`."""
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"rlplat.kill takes an actor handle, not {type(actor).__name__}")
    backend().kill(actor)


def get_actor(name: str) -> ActorHandle:
    """The actor that was created with `.options(name=name)`."""
    return _connected().get_actor(name)


def cluster_resources() -> dict[str, float]:
    return _connected().resources(available=False)


def available_resources() -> dict[str, float]:
    return _connected().resources(available=True)


@dataclass(frozen=True)
class RuntimeContext:
    """Where this code runs."""

    client_id: str
    """Of this process: "driver", or the worker's id."""
    gpu_ids: tuple[int, ...]
    """GPUs that this worker's lease holds (also in CUDA_VISIBLE_DEVICES)."""


def get_runtime_context() -> RuntimeContext:
    current = _connected()
    return RuntimeContext(current.client_id, tuple(getattr(current, "gpu_ids", ())))
