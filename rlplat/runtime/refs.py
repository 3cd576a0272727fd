"""Object refs, and the one place that knows which runtime this process is connected to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from rlplat.errors import NotInitialized, SerializationError
from rlplat.runtime.process.signals import uninterrupted, wrap_handlers

if TYPE_CHECKING:
    from concurrent.futures import Future

Value = TypeVar("Value", covariant=True)
Item = TypeVar("Item")

INPROC = "inproc"
"""The client id of the in-process backend, which owns all of its objects."""


class Connection(Protocol):
    """What refs, and the opening and closing of a backend, ask of it; the verbs ask for more (backend.py)."""

    can_nest: bool
    """Whether code of this process may open a cluster of its own inside it: that of tasks and actors."""

    @property
    def outer(self) -> Connection | None:
        """What this one is nested in: the process's connection again after `shutdown`."""
        ...

    def future(self, ref: ObjectRef) -> Future[Any]: ...

    def value_of(self, ref: ObjectRef) -> Coroutine[Any, Any, Any]:
        """`await ref`: the value, without blocking the running event loop."""
        ...

    def adopt(self, owner: str, id: int) -> ObjectRef:
        """A ref arrived inside a value: an `ObjectRef` that this process now accounts for."""
        ...

    def shutdown(self) -> None: ...


_backend: Any = None
"""The `Connection`, which the verbs know as a `Backend`."""
_forked_from = 0
"""Set in a child that user code forked: the pid of the process whose connections it must not touch."""
_collecting = threading.local()


class ObjectRef(msgspec.Struct, Generic[Value], eq=False, gc=False):
    """A handle to a value that exists now or later: `ObjectRef[int]`, of which `rlplat.get` brings an int. Hashable,
    awaitable, and can be passed in any argument or result.

    `owner` is the client id of the process that keeps the object's book; `id` counts up in that process.
    When a ref is gone, `_drop` hears of it (from whatever thread the garbage collector runs in: it only appends to a
    deque). (A Struct outside the garbage collector's lists: a million of them must be cheap.)
    """

    owner: str
    id: int
    _drop: Callable[[Any], None]
    _key: Any = None
    """What `_drop` is told: the id of an object of this process, else (owner, id)."""

    @uninterrupted
    def __del__(self) -> None:
        self._drop(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other.id == self.id and other.owner == self.owner

    def __hash__(self) -> int:
        return hash((self.owner, self.id))

    def __repr__(self) -> str:
        return f"ObjectRef({self.owner}:{self.id})"

    def __reduce__(self) -> tuple[Any, ...]:
        refs = getattr(_collecting, "refs", None)
        if refs is None:
            raise SerializationError(
                f"{self!r} cannot be pickled by itself: pass it to a task, an actor call or rlplat.put"
            )
        refs.append(self)
        return _rebuild_ref, (self.owner, self.id)

    def binary(self) -> bytes:
        """Its id, unique in a cluster: `b"driver:7"`, as `rlplat list objects` shows it."""
        return f"{self.owner}:{self.id}".encode()

    def hex(self) -> str:
        """`binary()` in hexadecimal digits."""
        return self.binary().hex()

    def future(self) -> Future[Value]:
        """A `concurrent.futures.Future` of the value."""
        return backend().future(self)

    def __await__(self) -> Generator[Any, None, Value]:
        return backend().value_of(self).__await__()

    if TYPE_CHECKING:  # What a call returns depends on the function: a generator's is an ObjectRefGenerator, which
        # has these, and so has a list of refs (num_returns) the first. No checker could tell where it knows no type.

        def __iter__(self: ObjectRef[Iterator[Item]]) -> Iterator[ObjectRef[Item]]: ...
        def __next__(self: ObjectRef[Iterator[Item]]) -> ObjectRef[Item]: ...
        def completed(self: ObjectRef[Iterator[Any]]) -> ObjectRef[None]: ...
        def next_ready(self: ObjectRef[Iterator[Any]]) -> bool: ...
        def is_finished(self: ObjectRef[Iterator[Any]]) -> bool: ...


class collecting_refs:  # noqa: N801  (a context manager; not a generator's, which a signal may interrupt on its way out)
    """`with collecting_refs() as refs: pickle.dumps(...)` lists the refs that the value contains."""

    @uninterrupted
    def __enter__(self) -> list[ObjectRef]:
        wrap_handlers()  # what one of them raises is then told from an error of the value
        self._outer = getattr(_collecting, "refs", None)
        refs: list[ObjectRef] = []
        _collecting.refs = refs
        return refs

    @uninterrupted
    def __exit__(self, *exc_info: object) -> None:
        _collecting.refs = self._outer


def _rebuild_ref(owner: str, id: int) -> ObjectRef:
    return backend().adopt(owner, id)


def backend() -> Any:
    """The runtime of this process; `NotInitialized` names what to do when there is none."""
    if _backend is None:
        if _forked_from:
            raise NotInitialized(
                f"this process (pid {os.getpid()}) was forked from one that uses the runtime (pid {_forked_from}); "
                "a forked child cannot use its connections: start work with rlplat tasks or actors instead of os.fork"
            )
        raise NotInitialized("the runtime is not running: call rlplat.init() first")
    return _backend


def set_backend(new: Connection | None) -> None:
    global _backend, _forked_from
    _backend, _forked_from = new, 0


def connection() -> Connection | None:
    """As `backend`, and None when there is none."""
    return _backend


def is_forked() -> bool:
    """Whether user code forked this process from one that was connected."""
    return _forked_from != 0


def _after_fork_in_child() -> None:
    global _backend, _forked_from
    if _backend is not None:
        _kept.append(_backend)  # its destructors must not run here: they would close the parent's connections
        _backend, _forked_from = None, os.getppid()


_kept: list[Any] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
