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
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from rlplat.errors import OptionError, OptionTypeError
from rlplat.runtime import refs as connection
from rlplat.runtime.backend import Options, RemoteCode
from rlplat.runtime.client.streams import ObjectRefGenerator
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.refs import ObjectRef, backend
from rlplat.runtime.wire.codec import class_names
from rlplat.runtime.wire.messages import DYNAMIC, PLAIN_CALL, STREAMING, ActorInfo, CallOptions
from rlplat.runtime.wire.signatures import ANYTHING, Signature, method_signature, signature_of

if TYPE_CHECKING:
    from rlplat.runtime.backend import Backend
    from rlplat.runtime.context import RuntimeContext

__all__ = [
    "ActorHandle",
    "ObjectRef",
    "ObjectRefGenerator",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exit_actor",
    "get",
    "get_actor",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "list_named_actors",
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
    runtime_env: dict[str, Any] | None = None,
    hang_timeout_s: float = 10.0,
    memory_usage_threshold: float = 0.9,
    log_dir: str | None = None,
    log_to_driver: bool = True,
    namespace: str = "",
    object_store_memory: int | None = None,
    spill_dir: str | None = None,
    store_full_timeout_s: float = 10.0,
    ignore_reinit_error: bool = False,
) -> None:
    """Start a private cluster on this machine. In a task or an actor, `backend="inproc"` opens one inside its process,
    until `shutdown()`; refs and actor handles from outside work on.

    num_cpus, num_gpus: what tasks and actors may take in all; None: what the machine has.
    resources: custom resources by name.
    backend: "zmq" (worker processes) or "inproc" (everything in this process and thread, at once: for debuggers).
    namespace: where the names of this program's actors count.
    preload: modules that the zygote imports once, so that every worker starts with them (for example "torch").
    object_store_memory: bytes of shared memory that large objects may take; None: 30 % of RAM, as far as it is free.
    spill_dir: where objects go that find no room there; None: the temp directory; "": nowhere.
    store_full_timeout_s: how long a value waits for room before `ObjectStoreFull`.
    runtime_env: for every task and actor: `env_vars`, `working_dir`, `py_modules`, `pip` or `uv` (docs/runtime.md).
    hang_timeout_s: a worker in use that neither answers nor uses CPU time for so long is killed, and counts as dead.
    memory_usage_threshold: share of the machine's (or cgroup's) memory above which workers are killed, one at a time.
    log_dir: where folders with the output of workers are kept; None: $RLPLAT_LOG_DIR, or a temporary directory.
    log_to_driver: whether the output of workers is shown on this process's stderr as well.
    ignore_reinit_error: where there is a cluster already, keep it as it is; else a second call is an error.
    """
    if connection.is_connected():
        outer = connection.backend()
        if ignore_reinit_error and not (outer.can_nest and backend == "inproc"):
            return
        if not outer.can_nest:
            raise OptionError(
                "rlplat.init() was called twice: call rlplat.shutdown() first, or pass ignore_reinit_error=True"
            )
        if backend != "inproc":
            raise OptionError(
                "this code runs in a task or an actor, so it has a cluster: leave rlplat.init() away, or open a "
                "cluster inside this process by rlplat.init(backend='inproc')"
            )
        from rlplat.runtime.inproc.nested import NestedBackend

        nested = NestedBackend(outer, num_cpus, num_gpus, resources, namespace, runtime_env)
        outer.nested_opened()
        _connect(nested)
    elif backend == "inproc":
        from rlplat.runtime.inproc.backend import InprocBackend

        _connect(InprocBackend(num_cpus, num_gpus, resources, namespace, runtime_env))
    elif backend == "zmq":
        from rlplat.runtime.start.start import start_private_cluster

        _connect(
            start_private_cluster(
                num_cpus,
                num_gpus,
                resources,
                preload,
                namespace,
                object_store_memory=object_store_memory,
                spill_dir=spill_dir,
                store_full_timeout_s=store_full_timeout_s,
                runtime_env=runtime_env,
                hang_timeout_s=hang_timeout_s,
                memory_usage_threshold=memory_usage_threshold,
                log_dir=log_dir,
                log_to_driver=log_to_driver,
            )
        )
    else:
        raise OptionError(f"unknown backend {backend!r}: 'zmq' or 'inproc'")


@uninterrupted
def _connect(opened: Backend) -> None:
    connection.set_backend(opened)
    atexit.register(shutdown)


@uninterrupted
def shutdown() -> None:
    """End the cluster: every worker, actor and object of it. Does nothing when there is none.

    In a task or an actor it ends the cluster that was opened there by `init(backend="inproc")`.
    """
    if connection.is_connected():
        atexit.unregister(shutdown)
        ended = backend()
        ended.shutdown()
        connection.set_backend(ended.outer)


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
    Large torch tensors are views too, of memory that is copied when written: changes stay in this value alone.
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


_Waitable = TypeVar("_Waitable", ObjectRef, ObjectRefGenerator, ObjectRef | ObjectRefGenerator)


def wait(
    refs: Sequence[_Waitable],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[_Waitable], list[_Waitable]]:
    """(ready, not ready), both in the order of `refs`, once `num_returns` are ready or `timeout` seconds passed.

    refs: of an empty list both are empty. A generator among them is ready when `next` of it would return at once.
    fetch_local: as Ray's; on one machine everything is local, and it changes nothing.
    """
    if isinstance(refs, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(f"rlplat.wait takes a list: put the {type(refs).__name__} into [...]")
    refs = list(refs)
    for ref in refs:
        if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
            raise TypeError(f"rlplat.wait takes a list of ObjectRefs, and in it is a {type(ref).__name__}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"rlplat.wait: timeout must be seconds, at least 0, not {timeout!r}")
    if not refs:
        return [], []
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
    checked = _merge(Options(), options, "a task or actor")
    return lambda target: _make_remote(target, checked, "num_returns" in options)


def method(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`@rlplat.method(num_returns=2)` on a method of an actor class: its calls return that many refs.

    Options: num_returns, concurrency_group, max_task_retries, retry_exceptions, timeout_s, generator_backpressure;
    `.options(...)` of a handle's method takes the same, for one call.
    """
    checked = _merge(CallOptions(), options, "a method")

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        own = checked
        if "num_returns" not in options and _is_generator(function):
            own = msgspec.structs.replace(checked, num_returns=STREAMING)
        function.__rlplat_options__ = own  # type: ignore[attr-defined]
        return function

    return mark


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _make_remote(target: Any, options: Options, has_num_returns: bool = False) -> Any:
    if not callable(target):
        raise TypeError(f"rlplat.remote takes a function or a class, not {type(target).__name__}")
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise ValueError(
            f"{target.__qualname__} is an 'async def' function and cannot be a task: make it a method of an actor, or "
            "call asyncio.run(...) in a plain function"
        )
    if not has_num_returns and _is_generator(target):
        options = replace(options, num_returns=STREAMING)
    name = getattr(target, "__qualname__", repr(target))
    code = RemoteCode(target, name)
    return RemoteClass(code, options) if inspect.isclass(target) else RemoteFunction(code, options)


_AT_LEAST = {
    "num_cpus": 0, "num_gpus": 0, "memory": 0, "generator_backpressure": 0, "timeout_s": 0,
    "max_concurrency": 1, "num_returns": 0, "max_calls": 0,
    "max_retries": -1, "max_restarts": -1, "max_task_retries": -1,
}  # fmt: skip
_WHOLE = (
    "num_returns", "max_concurrency", "generator_backpressure", "max_retries", "max_restarts", "memory", "max_calls",
)  # fmt: skip
_RETURNS = {"streaming": STREAMING, "dynamic": DYNAMIC}


def _merge(options: Any, changes: dict[str, Any], what: str) -> Any:
    """`options` with checked changes."""
    is_call = isinstance(options, CallOptions)
    known = options.__struct_fields__ if is_call else [field.name for field in fields(options)]
    for key, value in changes.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
            raise OptionError(f"unknown option {key!r} for {what}; {hint}")
        if key == "num_returns" and isinstance(value, str):
            if value not in _RETURNS:
                raise OptionError(
                    f"num_returns must be a whole number, 'streaming' or 'dynamic', not {value!r}"
                )
            changes = changes | {key: _RETURNS[value]}
        elif value is not None and (least := _AT_LEAST.get(key)) is not None:
            if isinstance(value, bool) or not isinstance(value, int if key in _WHOLE else (int, float)):
                raise OptionTypeError(
                    f"{key} must be a {'whole ' if key in _WHOLE else ''}number, not {value!r}"
                )
            if not value >= least:
                raise OptionError(f"{key} must be at least {least}, not {value!r}")
        elif key == "retry_exceptions" and not isinstance(value, bool):
            classes = _exception_classes(value)
            changes = changes | {key: tuple(class_names(each)[0] for each in classes) if is_call else classes}
        elif key == "resources":
            _check_resources(value)
        elif key == "runtime_env":
            from rlplat.runtime.envs.spec import checked

            changes = changes | {key: checked(value or {})}
        elif key == "lifetime" and value not in (None, "detached"):
            raise OptionError(f"lifetime must be None or 'detached', not {value!r}")
    return msgspec.structs.replace(options, **changes) if is_call else replace(options, **changes)


def _check_resources(value: Any) -> None:
    if not isinstance(value, dict):
        raise OptionTypeError(f"resources must be a dict of amounts by name, not {value!r}")
    for name, amount in value.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise OptionTypeError(f"resources: {name!r} must be a number, not {amount!r}")
        if not amount >= 0:
            raise OptionError(f"resources: {name!r} must be at least 0, not {amount!r}")


def _exception_classes(value: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise OptionTypeError(
                f"retry_exceptions must be True, False or a list of exception classes, not {each!r}"
            )
    return classes


def _signature(code: RemoteCode) -> Signature:
    if code.signature is None:
        code.signature = signature_of(code.target)
    return code.signature


def _nowhere(args: tuple, kwargs: dict) -> Any:
    raise AssertionError("no backend is bound")


class RemoteFunction:
    """A task: `f.remote(*args)` returns its ref (a list of refs with `num_returns` > 1, None with 0)."""

    def __init__(self, code: RemoteCode, options: Options) -> None:
        if options.max_calls != code.max_calls:
            code = RemoteCode(code.target, code.name, max_calls=options.max_calls)
        self._code, self._options = code, options
        self._backend: Any = _nowhere
        self._submit: Callable[[tuple, dict], Any] = _nowhere
        self._least, self._most = 0, -1
        """Positional arguments that surely fit: see `Signature`. Known from the first call on."""
        self.__name__ = code.name
        self.__doc__ = code.target.__doc__

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not self._least <= len(args) <= self._most:
            self._check(args, kwargs)
        if self._backend is not connection._backend:
            backend = _connected()
            self._submit = backend.submitter(self._code, self._options)
            self._backend = backend  # last: a signal may end this on the way
        return self._submit(args, kwargs)

    def _check(self, args: tuple, kwargs: dict) -> None:
        signature = _signature(self._code)
        self._least, self._most = signature.least, signature.most
        signature.check(self._code.name, args, kwargs)

    def __reduce__(self) -> Any:
        return RemoteFunction, (self._code, self._options)

    def options(self, **changes: Any) -> RemoteFunction:
        return RemoteFunction(self._code, _merge(self._options, changes, "a task or actor"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._code.name} is a remote function: call {self._code.name}.remote(...)")


_OWN = ("_code", "_options")
_OF_CLASSES = ("__mro__", "__bases__", "__annotations__", "__subclasses__")


class RemoteClass:
    """An actor class: `Class.remote(*args)` starts an actor and returns its handle."""

    def __init__(self, code: RemoteCode, options: Options) -> None:
        if options.max_calls:
            raise OptionError(f"{code.name}: max_calls is for tasks; an actor ends by rlplat.exit_actor()")
        self._code, self._options = code, options
        self.__name__ = self.__qualname__ = code.name
        self.__doc__, self.__module__ = code.target.__doc__, code.target.__module__

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        _signature(self._code).check(self._code.name, args, kwargs)
        return _connected().create_actor(self._code, args, kwargs, self._options)

    def __getattr__(self, name: str) -> Any:
        """Class attributes, static and class methods, plain functions, the MRO: those of the class itself."""
        if name in _OWN or (name.startswith("__") and name not in _OF_CLASSES):
            raise AttributeError(name)
        target = self._code.target
        if not hasattr(target, name):
            close = difflib.get_close_matches(name, dir(target), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise AttributeError(f"actor class {self._code.name} has no attribute {name!r}{hint}")
        return getattr(target, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._code.target)})

    def __reduce__(self) -> Any:
        return RemoteClass, (self._code, self._options)

    def options(self, **changes: Any) -> RemoteClass:
        return RemoteClass(self._code, _merge(self._options, changes, "a task or actor"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._code.name} is an actor class: call {self._code.name}.remote(...)")

    def __mro_entries__(self, bases: tuple) -> tuple[type, ...]:
        raise TypeError(
            f"{self._code.name} is an actor class: derive from the plain class, and decorate what is derived"
        )


@dataclass(eq=False, slots=True, weakref_slot=True)
class ActorHandle:
    """A way to call an actor; pass it to tasks and other actors. The actor ends when the last handle goes."""

    _actor_id: str
    _info: ActorInfo
    _creation: ObjectRef | None
    """The actor's entry in its creator's book: it counts the handles. None: a detached actor's are not counted."""

    def __getattr__(self, name: str) -> ActorMethod:
        options = self._info.methods.get(name)
        if options is None:
            close = difflib.get_close_matches(name, self._info.methods, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            if name in ("__ray_terminate__", "__rlplat_terminate__"):
                return ActorMethod(self, TERMINATE, CallOptions(concurrency_group=TERMINATE), ANYTHING)
            raise AttributeError(f"actor class {self._info.class_name} has no method {name!r}{hint}")
        return ActorMethod(self, name, options, self._info.signatures.get(name, ANYTHING))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"ActorHandle({self._info.class_name}, {self._actor_id})"

    def __reduce__(self) -> Any:
        return ActorHandle, (self._actor_id, self._info, self._creation)


class ActorMethod(msgspec.Struct, eq=False, gc=False):
    """What `handle.method` is: made anew at each look-up, so cheaply."""

    _handle: ActorHandle
    _name: str
    _options: CallOptions
    _signature: Signature

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        signature = self._signature
        if kwargs or not signature.least <= len(args) <= signature.most:
            signature.check(f"{self._handle._info.class_name}.{self._name}", args, kwargs)
        return (connection._backend or backend()).submit_call(
            self._handle, self._name, args, kwargs, self._options
        )

    def options(self, **changes: Any) -> ActorMethod:
        options = _merge(self._options, changes, "an actor's method")
        return ActorMethod(self._handle, self._name, options, self._signature)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._name} is an actor method: call .{self._name}.remote(...)")


_GENERATOR_CALL = CallOptions(num_returns=STREAMING)
TERMINATE = "__rlplat_terminate__"
"""`handle.__rlplat_terminate__.remote()` (or `__ray_terminate__`): the actor ends after the calls made before it."""


def methods_of(actor_class: Any) -> dict[str, CallOptions]:
    """Its methods and how they are called: every one but Python's own `__names__` (`__call__` is one when defined)."""
    members = inspect.getmembers(actor_class, callable)
    return {
        name: getattr(member, "__rlplat_options__", _GENERATOR_CALL if _is_generator(member) else PLAIN_CALL)
        for name, member in members
        if not name.startswith("__") or (name == "__call__" and "__call__" in vars(actor_class))
    }


def signatures_of(actor_class: Any, methods: dict[str, CallOptions]) -> dict[str, Signature]:
    return {name: method_signature(actor_class, name) for name in methods}


def describe_actor(code: RemoteCode, options: Options) -> ActorInfo:
    """What handles know: each method with its own or the actor's number of retries."""
    retries = options.max_task_retries
    if options.exactly_once and not retries:
        retries = -1  # a call that may be repeated, and takes effect once, is what was asked for
    methods = methods_of(code.target)
    check_groups(code.name, methods, options.concurrency_groups)
    for name, each in methods.items():
        if each.retry_exceptions:
            check_retries(f"{code.name}.{name}", options.exactly_once)
        if retries and each.max_task_retries is None:
            methods[name] = msgspec.structs.replace(each, max_task_retries=retries)
    groups, signatures = tuple(options.concurrency_groups), signatures_of(code.target, methods)
    return ActorInfo(code.name, methods, retries, options.exactly_once, groups, signatures)


def check_retries(name: str, is_exactly_once: bool) -> None:
    """A call with `retry_exceptions` is none of an exactly-once actor, which answers a repeated call from its notes."""
    if is_exactly_once:
        raise OptionError(
            f"{name}: retry_exceptions runs a call again that has taken effect, and exactly_once=True says that none "
            "does: catch the exception in the method"
        )


def check_groups(class_name: str, methods: dict[str, CallOptions], groups: dict[str, int]) -> None:
    """Every concurrency group that a method names must be one of the actor's."""
    for name, size in groups.items():
        if not name or not isinstance(name, str) or not isinstance(size, int) or size < 1:
            raise OptionError(
                f"concurrency_groups of {class_name}: a name and a whole number of at least 1 each, not "
                f"{name!r}: {size!r}"
            )
    for method, options in methods.items():
        if options.concurrency_group and options.concurrency_group not in groups:
            known = ", ".join(map(repr, groups)) or "none"
            raise OptionError(
                f"{class_name}.{method} is of the concurrency group {options.concurrency_group!r}, and the actor has "
                f"these: {known}; name it in concurrency_groups={{{options.concurrency_group!r}: 2}}"
            )


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once; calls that wait for it raise `ActorDied`.

    no_restart: False ends its process only: it starts again if `max_restarts` allows, as after a crash.
    """
    if not isinstance(actor, ActorHandle):
        raise TypeError(f"rlplat.kill takes an actor handle, not {type(actor).__name__}")
    backend().kill(actor, no_restart)


def cancel(ref: ObjectRef | ObjectRefGenerator, *, force: bool = False, recursive: bool = True) -> None:
    """End the task or actor call that is to make `ref`; `get` of it then raises `TaskCancelled`.

    One that waits is dropped; a running task gets a KeyboardInterrupt, and its process is killed 5 s later when it has
    not ended (force=True: at once); a coroutine of an async actor is cancelled; other running calls of actors go on.
    recursive: also what the task has submitted. One that has finished stays as it is.
    """
    if isinstance(ref, ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, ObjectRef):
        raise TypeError(
            f"rlplat.cancel takes an ObjectRef, not {type(ref).__name__} (for actors: rlplat.kill)"
        )
    backend().cancel(ref, force, recursive)


def exit_actor() -> None:
    """End the actor whose method calls this, for good. Its caller gets `ActorDied`; `atexit` handlers run."""
    backend().exit_actor()


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The actor that was created with `.options(name=name)`; namespace: None for this process's own."""
    return _connected().get_actor(name, namespace)


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Names of the named actors that are alive in this namespace; of all: `{"name": ..., "namespace": ...}` each."""
    found = sorted(_connected().actor_names(all_namespaces))
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in found]
    return [name for _, name in found]


def cluster_resources() -> dict[str, float]:
    return _connected().resources(available=False)


def available_resources() -> dict[str, float]:
    return _connected().resources(available=True)


def get_runtime_context() -> RuntimeContext:
    """Where this code runs, and with what."""
    from rlplat.runtime.context import RuntimeContext

    return RuntimeContext(_connected())
