"""What a backend must do so that the verbs of `api` work on it, and the options that travel with a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rlplat.runtime.api import ActorHandle
    from rlplat.runtime.refs import ObjectRef


@dataclass(frozen=True)
class Options:
    """How a task or an actor is to be run; what `.options(...)` changes."""

    num_cpus: float | None = None
    """CPUs held while it runs; None: 1 for a task, 0 for an actor."""
    num_gpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)
    """Custom resources by name."""
    num_returns: int = 1
    name: str | None = None
    """Actors: the name for `get_actor`. Tasks: what messages call it."""
    max_concurrency: int = 1
    """Actors: how many calls may run at once, in threads."""
    max_retries: int = 3
    """Tasks: how often to run again when the worker process dies (never for exceptions)."""

    def demand(self, default_cpus: float) -> dict[str, float]:
        """Resources by name, zeros left out."""
        cpus = default_cpus if self.num_cpus is None else self.num_cpus
        return {k: v for k, v in {"CPU": cpus, "GPU": self.num_gpus, **self.resources}.items() if v}


@dataclass(eq=False)
class RemoteCode:
    """A function or class to run elsewhere; pickled once, on first use."""

    target: Callable[..., Any]
    name: str
    blob: bytes | None = None
    key: str | None = None
    """Hash of `blob`: what workers remember it by."""


class Backend(Protocol):
    client_id: str

    def submit_task(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> Any: ...

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle: ...

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, num_returns: int
    ) -> Any: ...

    def put(self, value: Any) -> ObjectRef: ...

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]: ...

    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]: ...

    def future(self, ref: ObjectRef) -> Future[Any]: ...

    def adopt(self, owner: str, id: int) -> ObjectRef:
        """A ref arrived inside a value: an `ObjectRef` that this process now accounts for."""
        ...

    def kill(self, handle: ActorHandle) -> None: ...

    def get_actor(self, name: str) -> ActorHandle: ...

    def resources(self, available: bool) -> dict[str, float]: ...

    def shutdown(self) -> None: ...
