"""`rlplat.get_runtime_context()`: where this code runs, and with what. The node is asked when an answer needs it."""

from __future__ import annotations

from typing import Any

from rlplat.runtime.messages import Place


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

    def get_node_id(self) -> str:
        return self._place().node

    def get_worker_id(self) -> str:
        return self.client_id

    def get_job_id(self) -> str:
        """A cluster has one driver, and so one job."""
        return "driver"

    def get_task_id(self) -> str | None:
        """Of the task or call that runs now; None in the driver."""
        task = getattr(self._backend, "running_task", None)
        return None if task is None else str(task)

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
