"""What a backend must do so that the verbs of `api` work on it, and the options that travel with a call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from rlplat.runtime.api import ActorHandle
    from rlplat.runtime.placement import PlacementGroup
    from rlplat.runtime.refs import ObjectRef
    from rlplat.runtime.wire.messages import ActorInfo, CallOptions, Cluster
    from rlplat.runtime.wire.signatures import Signature


@dataclass(frozen=True)
class Options:
    """How a task or an actor is to be run; what `.options(...)` changes."""

    num_cpus: float | None = None
    """CPUs held while it runs; None: 1 for a task, 0 for an actor."""
    num_gpus: float = 0
    resources: dict[str, float] = field(default_factory=dict)
    """Custom resources by name."""
    memory: int = 0
    """Bytes that the process may hold (RSS) before it is killed as out of memory; 0: no limit of its own."""
    num_returns: int = 1
    """Refs that a call returns (0: it returns None, and its result is dropped); `STREAMING` and `DYNAMIC` (users write
    the words): as many as the generator yields."""
    generator_backpressure: int = 64
    """Streaming: how many values a generator may be ahead of its consumer; 0: any number."""
    timeout_s: float | None = None
    """Tasks: seconds from submission until `DeadlineExceeded`."""
    name: str | None = None
    """Actors: the name for `get_actor`. Tasks: what messages call it."""
    namespace: str | None = None
    """Actors: where the name counts; None: the namespace of this process."""
    get_if_exists: bool = False
    """Actors: a taken name gives the handle of the actor that has it."""
    lifetime: Literal["detached"] | None = None
    """Actors: "detached" ones outlive their handles and their creator; they end by `kill` or with the cluster."""
    max_concurrency: int | None = None
    """Actors: how many calls may run at once, in threads or coroutines; None: 1, and 1,000 with `async def` methods."""
    concurrency_groups: dict[str, int] = field(default_factory=dict)
    """Actors: further pools of calls, name to size; `@rlplat.method(concurrency_group=...)` picks one."""
    max_retries: int = 3
    """Tasks: how often to run again when the worker process dies; -1: for ever."""
    max_calls: int = 0
    """Tasks: after so many calls of the function its worker process ends, and a new one runs the next; 0: never."""
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    """Tasks: also run again when the function raises (any exception, or one of these classes)."""
    max_restarts: int = 0
    """Actors: how often to start again when the process dies; -1: for ever."""
    max_task_retries: int = 0
    """Actors: how often a call that was lost with the process runs again after the restart; -1: for ever."""
    exactly_once: bool = False
    """Actors: a call that is repeated after a restart takes effect once (see docs/runtime.md for what that needs)."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """`env_vars`, `working_dir`, `py_modules`, `pip` or `uv`: what the process is to find around it."""
    placement_group: Any = "default"
    """A `PlacementGroup` whose reserved resources are used; None: none; "default": that of a parent which captures its
    children, or none."""
    placement_group_bundle_index: int = -1
    """Which bundle of it; -1: any that has room."""
    placement_group_capture_child_tasks: bool | None = None
    """Whether tasks and actors that this one submits run in its group as well; None: as in the parent."""
    scheduling_strategy: Any = None
    """"DEFAULT", "SPREAD", or an object of `placement`: `PlacementGroup...` or `NodeAffinitySchedulingStrategy`."""

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
    max_calls: int = 0
    signature: Signature | None = None
    """Worked out at the first call."""
    refs: list[ObjectRef] = field(default_factory=list)
    """Refs (and those of actor handles) that the function closes over: held as long as the function."""


class Backend(Protocol):
    client_id: str
    can_nest: bool
    """Whether code of this process may open a cluster of its own inside it: that of tasks and actors."""

    @property
    def outer(self) -> Backend | None:
        """What this one is nested in: the process's connection again after `shutdown`."""
        ...

    def nested_opened(self) -> None:
        """Where `can_nest`: a nested cluster takes over."""
        ...

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """What submits a task of this function: called with its arguments, returns its ref or refs."""
        ...

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle: ...

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions
    ) -> Any: ...

    def put(self, value: Any) -> ObjectRef: ...

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]: ...

    def wait(
        self, refs: Sequence[Any], num_returns: int, timeout: float | None
    ) -> tuple[list[Any], list[Any]]:
        """`refs`: of objects, and generators."""
        ...

    def future(self, ref: ObjectRef) -> Future[Any]: ...

    def value_of(self, ref: ObjectRef) -> Coroutine[Any, Any, Any]:
        """`await ref`: the value, without blocking the running event loop."""
        ...

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None: ...

    def exit_actor(self) -> None:
        """End the actor whose call this is; does not return."""
        ...

    def adopt(self, owner: str, id: int) -> ObjectRef:
        """A ref arrived inside a value: an `ObjectRef` that this process now accounts for."""
        ...

    def kill(self, handle: ActorHandle, no_restart: bool) -> None: ...

    def get_actor(self, name: str, namespace: str | None) -> ActorHandle: ...

    def handle_of(self, actor_id: str, info: ActorInfo, is_detached: bool) -> ActorHandle:
        """Of a living actor, of which no handle is at hand."""
        ...

    def actor_names(self, all_namespaces: bool) -> list[tuple[str, str]]:
        """(namespace, name) of the living named actors: of this process's namespace, or of all."""
        ...

    def resources(self, available: bool) -> dict[str, float]: ...

    def cluster(self) -> Cluster:
        """Nodes, placement groups, and where this process runs."""
        ...

    def create_group(
        self, bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str, is_detached: bool
    ) -> PlacementGroup: ...

    def group_ready(self, group: PlacementGroup) -> ObjectRef: ...

    def remove_group(self, group: PlacementGroup) -> None: ...

    def shutdown(self) -> None: ...
