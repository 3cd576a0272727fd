"""The public verbs. Same names and meaning as Ray's, so that a Ray user changes one import.

    rlplat.init()
    ref = f.remote(1, other_ref)          # @rlplat.remote def f: a task; refs as arguments are dependencies
    counter = Counter.remote()            # @rlplat.remote class Counter: an actor
    rlplat.get([ref, counter.add.remote(2)], timeout=5)

`init()` starts a cluster that is private to this process and ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rlplat.errors import OptionTypeError
from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.connect import connected
from rlplat.runtime.core.resources import check_text
from rlplat.runtime.generators import ObjectRefGenerator
from rlplat.runtime.refs import ObjectRef, backend
from rlplat.runtime.remote import ActorHandle

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rlplat.runtime.context import RuntimeContext

__all__ = [
    "ActorHandle",
    "ObjectRef",
    "ObjectRefGenerator",
    "as_completed",
    "available_resources",
    "cancel",
    "cluster_resources",
    "empty",
    "exit_actor",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "kill",
    "list_named_actors",
    "put",
    "wait",
]


# ---------------------------------------------------------------- values


_Value = TypeVar("_Value")
_key_of = attrgetter("_key")


def put(value: _Value) -> ObjectRef[_Value]:
    """Store `value` (a copy) and return its ref."""
    if isinstance(value, ObjectRef):
        raise TypeError("rlplat.put takes a value, not an ObjectRef: pass the ref on as it is")
    return connected().put(value)


def empty(shape: int | Sequence[int], dtype: DTypeLike = float) -> NDArray[Any]:
    """As `numpy.empty`, in memory of the object store: `put`, `return` and passing it to a call copy nothing.

    With that the array belongs to the object, and is read-only. What is written through views that were made before
    stays in this process. It is copied as any other where it is a part of the value beside other large ones (a dict of
    two such arrays), where a part of it is passed, and the second time.
    """
    return connected().empty(shape, dtype)


@overload
def get(refs: ObjectRef[_Value], *, timeout: float | None = None) -> _Value: ...  # type: ignore[overload-overlap]
@overload
def get(refs: Iterable[ObjectRef[_Value]], *, timeout: float | None = None) -> list[_Value]: ...
def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Wait for the values of one ref or of a list of refs.

    Numpy arrays of 64 KiB and more are read-only views of shared memory (copy them to write); smaller ones are copies.
    Large torch tensors are views too, of memory that is copied when written: changes stay in this value alone.
    timeout: seconds; then `GetTimeout`, which says what is being waited for.
    Raises what the task raised: an exception that is both `TaskError` and the user's own class. Of a list that is the
    first error in time, whatever the other values wait for; of those that have failed already the first in the list.
    """
    if isinstance(refs, ObjectRef):
        return connected().get([refs], timeout)[0]
    if not isinstance(refs, Iterable) or isinstance(refs, str | bytes):
        raise OptionTypeError(f"rlplat.get takes an ObjectRef or a list of them, not {_shown(refs)}")
    refs = list(refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"rlplat.get takes an ObjectRef or a list of them, and in it is {_shown(ref)}")
    return connected().get(refs, timeout)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


_Waitable = TypeVar("_Waitable", bound="ObjectRef[Any] | ObjectRefGenerator")


def wait(
    refs: Sequence[_Waitable],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[_Waitable], list[_Waitable]]:
    """(ready, not ready), both in the order of `refs`, once `num_returns` are ready or `timeout` seconds passed.

    refs: of an empty list both are empty. A generator among them is ready when `next` of it would return at once.
    fetch_local: as Ray's, and it changes nothing: values stay where they were made, and `get` brings them.
    """
    if isinstance(refs, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(f"rlplat.wait takes a list: put the {type(refs).__name__} into [...]")
    listed: list[Any] = list(refs)
    try:
        are_odd = len(set(map(_key_of, listed))) != len(listed)
    except AttributeError:
        are_odd = True
    if are_odd:
        _check_waitables(listed)
    _check_timeout("wait", timeout)
    if not listed:
        return [], []
    if not 0 < num_returns <= len(listed):
        raise ValueError(f"rlplat.wait: num_returns is {num_returns}, and there are {len(listed)} refs")
    return connected().wait(listed, num_returns, timeout)


def _check_waitables(refs: list[Any]) -> None:
    """What one quick look at a long list found odd: generators are fine."""
    for kind in set(map(type, refs)):
        if not issubclass(kind, (ObjectRef, ObjectRefGenerator)):
            raise TypeError(f"rlplat.wait takes a list of ObjectRefs, and in it is a {kind.__name__}")
    if len(set(refs)) != len(refs):
        raise ValueError("rlplat.wait: the list has the same ref twice")


def as_completed(refs: Iterable[ObjectRef[_Value]], *, timeout: float | None = None) -> AsCompleted[_Value]:
    """An iterator of the refs in the order in which they become ready: `for ref in ...`, or `async for` in a coroutine.

    Each costs the same however many there are. Those that are ready already come first, in the order of `refs`; one
    that is there twice comes once; one that has failed comes too (`get` of it raises).
    timeout: seconds from this call on; then `GetTimeout` where the next one is not ready.
    """
    if not isinstance(refs, Iterable) or isinstance(refs, (str, bytes, ObjectRef, ObjectRefGenerator)):
        raise OptionTypeError(f"rlplat.as_completed takes a list of ObjectRefs, not {_shown(refs)}")
    listed = list(refs)
    for ref in listed:
        if not isinstance(ref, ObjectRef):
            raise OptionTypeError(f"rlplat.as_completed takes a list of ObjectRefs, and in it is {_shown(ref)}")
    _check_timeout("as_completed", timeout)
    if len(set(map(_key_of, listed))) != len(listed):
        listed = list(dict.fromkeys(listed))
    return connected().as_completed(listed, timeout) if listed else AsCompleted()


def _check_timeout(verb: str, timeout: float | None) -> None:
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"rlplat.{verb}: timeout must be seconds, at least 0, not {timeout!r}")


# ---------------------------------------------------------------- tasks and actors


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once; calls that wait for it raise `ActorDied`.

    no_restart: False ends its process only: it starts again if `max_restarts` allows, as after a crash.
    """
    if not isinstance(actor, ActorHandle):
        raise OptionTypeError(f"rlplat.kill takes an actor handle, not {type(actor).__name__}")
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
        raise TypeError(f"rlplat.cancel takes an ObjectRef, not {type(ref).__name__} (for actors: rlplat.kill)")
    backend().cancel(ref, force, recursive)


def exit_actor() -> None:
    """End the actor whose method calls this, for good. Its caller gets `ActorDied`; `atexit` handlers run."""
    backend().exit_actor()


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The actor that was created with `.options(name=name)`; namespace: None for this process's own."""
    check_text("rlplat.get_actor: name", name)
    if namespace is not None:
        check_text("rlplat.get_actor: namespace", namespace)
    return connected().get_actor(name, namespace)


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Names of the named actors that are alive in this namespace; of all: `{"name": ..., "namespace": ...}` each."""
    found = sorted(connected().actor_names(all_namespaces))
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in found]
    return [name for _, name in found]


def get_gpu_ids() -> list[int]:
    """Those that this worker's lease holds."""
    return list(get_runtime_context().gpu_ids)


def cluster_resources() -> dict[str, float]:
    return connected().resources(available=False)


def available_resources() -> dict[str, float]:
    return connected().resources(available=True)


def get_runtime_context() -> RuntimeContext:
    """Where this code runs, and with what."""
    from rlplat.runtime.context import RuntimeContext

    return RuntimeContext(connected())
