"""`@rlplat.remote`: functions as tasks, classes as actors, and the handles of actors."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast, overload

import msgspec

from rlplat.errors import ActorDied
from rlplat.runtime import refs as connection
from rlplat.runtime.connect import connected
from rlplat.runtime.core.resources import check_text
from rlplat.runtime.options import Options, check_groups, check_kind, check_retries, merge_options
from rlplat.runtime.refs import ObjectRef, backend
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.signatures import ANYTHING, Signature, method_signature, signature_of
from rlplat.runtime.wire.values import PLAIN_CALL, STREAMING, ActorInfo, CallOptions

Returned = TypeVar("Returned")


class _Decorator(Protocol):
    @overload
    def __call__(self, target: type, /) -> RemoteClass: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[..., Returned], /) -> RemoteFunction[Returned]: ...


class _DecoratorOfSeveral(Protocol):
    """With `num_returns`: a call returns a list of refs, or a generator of them."""

    @overload
    def __call__(self, target: type, /) -> RemoteClass: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[..., Any], /) -> RemoteFunction[Any]: ...


@overload
def remote(target: type, /) -> RemoteClass: ...  # type: ignore[overload-overlap]
@overload
def remote(target: Callable[..., Returned], /) -> RemoteFunction[Returned]: ...
@overload
def remote(*, num_returns: Any, **options: Any) -> _DecoratorOfSeveral: ...
@overload
def remote(**options: Any) -> _Decorator: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function a task or a class an actor: `@remote`, `@remote(num_cpus=2)`, or `remote(f)`."""
    if len(args) == 1 and not options and callable(args[0]):
        return _make_remote(args[0], Options())
    if args:
        raise TypeError("use @rlplat.remote, @rlplat.remote(num_cpus=...) or rlplat.remote(function_or_class)")
    checked = merge_options(Options(), options, "a task or actor")
    return lambda target: _make_remote(target, checked, options)


_Method = TypeVar("_Method", bound=Callable[..., Any])


@overload
def method(function: _Method, /) -> _Method: ...
@overload
def method(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def method(function: Any = None, /, **options: Any) -> Any:
    """`@rlplat.method(num_returns=2)` on a method of an actor class: its calls return that many refs.

    Options: name, num_returns, concurrency_group, max_task_retries, retry_exceptions, timeout_s,
    generator_backpressure; `.options(...)` of a handle's method takes the same, for one call.
    """
    checked = merge_options(CallOptions(), options, "a method")

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        own = checked
        if options.get("num_returns") is None and _is_generator(function):
            own = msgspec.structs.replace(checked, num_returns=STREAMING)
        function.__rlplat_options__ = own  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _make_remote(target: Any, options: Options, given: dict[str, Any] | None = None) -> Any:
    if not callable(target):
        raise TypeError(f"rlplat.remote takes a function or a class, not {type(target).__name__}")
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise ValueError(
            f"{target.__qualname__} is an 'async def' function and cannot be a task: make it a method of an actor, or "
            "call asyncio.run(...) in a plain function"
        )
    given = given or {}
    if given.get("num_returns") is None and _is_generator(target):
        options = replace(options, num_returns=STREAMING)
    name = getattr(target, "__qualname__", repr(target))
    check_kind(name, given, inspect.isclass(target))
    code = RemoteCode(target, name)
    return RemoteClass(code, options) if inspect.isclass(target) else RemoteFunction(code, options)


def _signature(code: RemoteCode) -> Signature:
    if code.signature is None:
        code.signature = signature_of(code.target)
    return code.signature


def _check_arguments(signature: Signature, what: str, args: tuple, kwargs: dict) -> None:
    """TypeError unless they fit; OptionError for a ref whose keyword no message can carry beside it."""
    signature.check(what, args, kwargs)
    for keyword, arg in kwargs.items():
        if type(arg) is ObjectRef and not keyword.isascii():
            check_text(f"{what}: the keyword of an object ref", keyword)


def _no_such(what: str, name: str, known: Collection[str] = (), kind: str = "attribute") -> AttributeError:
    if name == "bind":
        hint = "; a graph is refs as arguments of .remote: f.remote(g.remote(x)) (docs/from-ray.md)"
    else:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
    return AttributeError(f"{what} has no {kind} {name!r}{hint}")


def _nowhere(args: tuple, kwargs: dict) -> Any:
    raise AssertionError("no backend is bound")


class RemoteFunction(Generic[Returned]):
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

    def remote(self, *args: Any, **kwargs: Any) -> ObjectRef[Returned]:
        if kwargs or not self._least <= len(args) <= self._most:
            self._check(args, kwargs)
        if self._backend is not connection._backend:
            backend = connected()
            self._submit = backend.submitter(self._code, self._options)
            self._backend = backend  # last: a signal may end this on the way
        return self._submit(args, kwargs)

    def _check(self, args: tuple, kwargs: dict) -> None:
        signature = _signature(self._code)
        self._least, self._most = signature.least, signature.most
        _check_arguments(signature, self._code.name, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # of one that is not made yet
            raise AttributeError(name)
        raise _no_such(f"remote function {self._code.name}", name)

    def __reduce__(self) -> Any:
        return RemoteFunction, (self._code, self._options)

    @overload
    def options(self, *, num_returns: Any, **changes: Any) -> RemoteFunction[Any]: ...
    @overload
    def options(self, **changes: Any) -> RemoteFunction[Returned]: ...
    def options(self, **changes: Any) -> RemoteFunction[Any]:
        options = merge_options(self._options, changes, "a task")
        check_kind(self._code.name, changes, is_actor=False)
        return RemoteFunction(self._code, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._code.name} is a remote function: call {self._code.name}.remote(...)")


_OWN = ("_code", "_options")
_OF_CLASSES = ("__mro__", "__bases__", "__annotations__", "__subclasses__")


class RemoteClass:
    """An actor class: `Class.remote(*args)` starts an actor and returns its handle."""

    def __init__(self, code: RemoteCode, options: Options) -> None:
        self._code, self._options = code, options
        self.__name__ = self.__qualname__ = code.name
        self.__doc__, self.__module__ = code.target.__doc__, code.target.__module__

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        _check_arguments(_signature(self._code), self._code.name, args, kwargs)
        return connected().create_actor(self._code, args, kwargs, self._options)

    def __getattr__(self, name: str) -> Any:
        """Class attributes, static and class methods, plain functions, the MRO: those of the class itself."""
        if name in _OWN or (name.startswith("__") and name not in _OF_CLASSES):
            raise AttributeError(name)
        target = self._code.target
        if not hasattr(target, name):
            raise _no_such(f"actor class {self._code.name}", name, dir(target))
        return getattr(target, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._code.target)})

    def __reduce__(self) -> Any:
        return RemoteClass, (self._code, self._options)

    def options(self, **changes: Any) -> RemoteClass:
        options = merge_options(self._options, changes, "an actor")
        check_kind(self._code.name, changes, is_actor=True)
        return RemoteClass(self._code, options)

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
            if name == "on_death":
                return cast(Any, self._on_death)
            if name in ("__ray_terminate__", "__rlplat_terminate__"):
                return ActorMethod(self, TERMINATE, CallOptions(concurrency_group=TERMINATE), ANYTHING)
            raise _no_such(f"actor class {self._info.class_name}", name, self._info.methods, "method")
        return ActorMethod(self, name, options, self._info.signatures.get(name, ANYTHING))

    def _on_death(self, callback: Callable[[ActorDied], Any]) -> None:
        """`handle.on_death(callback)`, unless the class has a method of that name: call it once, in a thread of its
        own, with the error that a call would raise, when the actor is gone for good: killed, crashed without restarts
        left, ended by itself, or not created. At once where it is gone already.

        A process is told as long as it has a handle; that the last handle goes is no news."""
        backend().on_death(self, callback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"ActorHandle({self._info.class_name}, {self._actor_id})"

    def __reduce__(self) -> Any:
        return ActorHandle, (self._actor_id, self._info, self._creation)


_OF_HANDLES = frozenset(dir(ActorHandle))


class ActorMethod(msgspec.Struct, eq=False, gc=False):
    """What `handle.method` is: made anew at each look-up, so cheaply."""

    _handle: ActorHandle
    _name: str
    _options: CallOptions
    _signature: Signature

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        signature = self._signature
        if kwargs or not signature.least <= len(args) <= signature.most:
            _check_arguments(signature, f"{self._handle._info.class_name}.{self._name}", args, kwargs)
        return (connection._backend or backend()).submit_call(self._handle, self._name, args, kwargs, self._options)

    def options(self, **changes: Any) -> ActorMethod:
        options = merge_options(self._options, changes, "an actor's method")
        retries = self._handle._info.max_task_retries
        if retries and options.max_task_retries is None:
            options = msgspec.structs.replace(options, max_task_retries=retries)
        return ActorMethod(self._handle, self._name, options, self._signature)

    def __getattr__(self, name: str) -> Any:
        raise _no_such(f"actor method {self._name}", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._name} is an actor method: call .{self._name}.remote(...)")


_GENERATOR_CALL = CallOptions(num_returns=STREAMING)
TERMINATE = "__rlplat_terminate__"
"""`handle.__rlplat_terminate__.remote()` (or `__ray_terminate__`): the actor ends after the calls made before it."""


class ActorExit(BaseException):
    """Raised in the user's code by `rlplat.exit_actor()`: no `except Exception` there catches it."""


def methods_of(actor_class: Any) -> dict[str, CallOptions]:
    """Its methods and how they are called; of Python's `__names__` those that are written in Python."""
    members = inspect.getmembers(actor_class, callable)
    return {
        name: getattr(member, "__rlplat_options__", _GENERATOR_CALL if _is_generator(member) else PLAIN_CALL)
        for name, member in members
        if not name.startswith("__")
        or (name not in _OF_HANDLES and inspect.isfunction(inspect.getattr_static(actor_class, name)))
    }


def is_async_class(actor_class: Any) -> bool:
    """Whether a class has an `async def` method: its methods run on one event loop."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(actor_class, callable)
    )


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
    return ActorInfo(code.name, methods, retries, options.exactly_once, groups, signatures, options.max_pending_calls)
