"""What a backend must do so that the verbs of `api` work on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.options import Options
from rlplat.runtime.refs import Connection
from rlplat.runtime.wire.codec import RemoteCode

if TYPE_CHECKING:
    from rlplat.runtime.placement import PlacementGroup
    from rlplat.runtime.refs import ObjectRef
    from rlplat.runtime.remote import ActorHandle
    from rlplat.runtime.wire.messages import Cluster
    from rlplat.runtime.wire.values import ActorInfo, CallOptions


class Backend(Connection, Protocol):
    client_id: str

    def nested_opened(self) -> None:
        """Where `can_nest`: a nested cluster takes over."""
        ...

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """What submits a task of this function: called with its arguments, returns its ref or refs."""
        ...

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle: ...

    def submit_call(self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions) -> Any: ...

    def put(self, value: Any) -> ObjectRef: ...

    def empty(self, shape: Any, dtype: Any) -> Any:
        """A numpy array that `put` need not copy, where that can be."""
        ...

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]: ...

    def wait(self, refs: Sequence[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        """`refs`: of objects, and generators. No value moves to the machine of who waits: `get` brings values."""
        ...

    def as_completed(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> AsCompleted[Any]:
        """`refs`: no two are equal. No value moves."""
        ...

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None: ...

    def exit_actor(self) -> None:
        """End the actor whose call this is; does not return."""
        ...

    def kill(self, handle: ActorHandle, no_restart: bool) -> None: ...

    def on_death(self, handle: ActorHandle, callback: Callable[[Any], Any]) -> None:
        """Call it, in a thread of its own, with the `ActorDied` of this actor once it is gone for good."""
        ...

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
