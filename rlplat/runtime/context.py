"""`rlplat.get_runtime_context()`: where this code runs, and with what. The node is asked when an answer needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlplat.runtime.wire.values import Place

if TYPE_CHECKING:
    from rlplat.runtime.remote import ActorHandle


class RuntimeContext:
    """Ray's names. `client_id`, `gpu_ids` and the namespace cost nothing; the rest asks the node, once."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._known_place: Place | None = None

    @property
    def client_id(self) -> str:
        """Of this process: "driver", or the worker's id."""
        return str(self._backend.client_id)

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """GPUs that this worker's lease holds (also in CUDA_VISIBLE_DEVICES)."""
        return tuple(getattr(self._backend, "gpu_ids", ()))

    @property
    def namespace(self) -> str:
        return str(getattr(self._backend, "namespace", ""))

    @property
    def is_worker(self) -> bool:
        """Whether this process is one that runs tasks or an actor, and nothing else. Not so in the driver; nor where
        `init(backend="inproc")` runs both in one process."""
        return bool(self._backend.can_nest)

    @property
    def is_one_process(self) -> bool:
        """Whether tasks and actors run in this process (`init(backend="inproc")`), one at a time."""
        return self.client_id == "inproc"

    def get_node_id(self) -> str:
        return self._place().node

    @property
    def node_address(self) -> str:
        """Under which the other machines of the cluster reach this one; 127.0.0.1 where it is the only one."""
        here = self.get_node_id()
        return next((node.address for node in self._backend.cluster().nodes if node.node == here), "127.0.0.1")

    def get_worker_id(self) -> str:
        return self.client_id

    def get_job_id(self) -> str:
        """A cluster has one driver, and so one job."""
        return "driver"

    def get_task_id(self) -> str | None:
        """Of the task or call that runs now; None in the driver."""
        task = getattr(self._backend, "running_task", None)
        return None if task is None else str(task)

    def get_task_name(self) -> str | None:
        """Of the task or call that runs now: its `name` option, its function, `Class.method`; None in the driver.
        (Without the function in which that is defined, which messages name too.)"""
        name = getattr(self._backend, "running_name", None)
        return None if name is None else str(name).rpartition("<locals>.")[2]

    def is_canceled(self) -> bool:
        """Whether the task or call that runs now was cancelled, or its deadline has passed: a method that runs long
        may look here now and then, because nothing interrupts it. What it returns is still its result."""
        if self.get_task_id() is None:
            raise RuntimeError("is_canceled() is for tasks and actor calls; this code runs in the driver")
        return bool(self._backend.is_cancelled)

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the actor whose process this is. One that the actor keeps for itself keeps it alive."""
        place = self._place()
        if place.info is None:
            raise RuntimeError("current_actor is for the methods of an actor; this code runs in none")
        handle: ActorHandle = self._backend.handle_of(place.actor, place.info, place.is_detached)
        return handle

    def get(self) -> dict[str, Any]:
        """The ids and the namespace in one dictionary; `task_id` and `actor_id` only where there are such."""
        ids = {"task_id": self.get_task_id(), "actor_id": self.get_actor_id()}
        known = {"job_id": self.get_job_id(), "node_id": self.get_node_id(), "namespace": self.namespace}
        return known | {name: id for name, id in ids.items() if id is not None}

    def get_actor_id(self) -> str | None:
        """Of the actor whose process this is; None elsewhere."""
        return self._place().actor or None

    def get_actor_name(self) -> str | None:
        """ "" for an actor without one; None elsewhere."""
        place = self._place()
        return place.actor_name if place.actor else None

    def get_placement_group_id(self) -> str | None:
        return self._place().shape.group or None

    def get_assigned_resources(self) -> dict[str, float]:
        """What the task or the actor holds."""
        return dict(self._place().shape.demand)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        return {"GPU": [str(gpu) for gpu in self.gpu_ids]}

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this is a later incarnation of the actor."""
        return self._place().incarnation > 1

    def __repr__(self) -> str:
        return f"RuntimeContext(client_id={self.client_id!r}, gpu_ids={self.gpu_ids!r})"

    def _place(self) -> Place:
        if self._known_place is None:
            self._known_place = self._backend.cluster().here
        return self._known_place
