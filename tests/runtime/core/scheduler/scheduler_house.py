"""A scheduler in a house of its own: workers become ready at once, killed ones die, and the clock is set by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from rlplat.runtime.core.scheduler.events import (
    ActorRequested,
    Demand,
    Event,
    GroupRequested,
    LeasesRequested,
    NodeJoined,
    NodeLost,
    StartWorker,
    StopWorker,
    Tell,
    Tick,
    WakeAt,
    Warn,
    WorkerLost,
    WorkerReady,
)
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.wire.messages import Granted, Message, Placed
from rlplat.runtime.wire.values import ActorInfo, Shape
from tests.runtime.core.validity import check_scheduler

INFO = ActorInfo("Class", {})


def shape(group: str = "", bundle: int = -1, strategy: str = "", env: str = "", **demand: float) -> Shape:
    return Shape(tuple(sorted(demand.items())), 0, env, group, bundle, strategy)


def bundle(**demand: float) -> Demand:
    return tuple(sorted(demand.items()))


CPU, GPU, NOTHING = shape(CPU=1.0), shape(GPU=1.0), shape()


class Cluster:
    """Nodes with their workers, as the outside sees them."""

    def __init__(self, *cpus: float, gpus: float = 0, num_spares: int = 0, **options: Any) -> None:
        """Nodes n0, n1, ... with so many CPUs."""
        self.scheduler = Scheduler(**options)
        self.now = 0.0
        self.node_of: dict[str, str] = {}
        """Workers that live."""
        self.gpus: dict[str, tuple[int, ...]] = {}
        self.wake_at: float | None = None
        self.warnings: list[str] = []
        for number, amount in enumerate(cpus):
            self.tell(NodeJoined(f"n{number}", {"CPU": float(amount), "GPU": float(gpus)}, num_spares))

    def tell(self, event: Event) -> list[Any]:
        """What follows, without what the house does itself."""
        out = self._perform(self.scheduler.handle(event, self.now))
        check_scheduler(self.scheduler)
        return out

    def _perform(self, actions: list[Any]) -> list[Any]:
        out = []
        for action in actions:
            match action:
                case StartWorker(worker, gpu_ids, node):
                    self.node_of[worker], self.gpus[worker] = node, gpu_ids
                    out += self.tell(WorkerReady(worker))
                case StopWorker(worker):
                    out.append(action)
                    if worker in self.node_of:
                        out += self.lose(worker, "it was stopped")
                case WakeAt(time):
                    self.wake_at = time
                case Warn(text):
                    self.warnings.append(text)
                case _:
                    out.append(action)
        return out

    def lose(self, worker: str, reason: str = "SIGKILL") -> list[Any]:
        del self.node_of[worker]
        return self.tell(WorkerLost(worker, reason))

    def lose_node(self, node: str) -> list[Any]:
        for worker in [worker for worker, at in self.node_of.items() if at == node]:
            del self.node_of[worker]
        return self.tell(NodeLost(node, "power"))

    def pass_time(self, seconds: float) -> list[Any]:
        """The alarm clock rings as often as it was set to."""
        end, out = self.now + seconds, []
        while self.wake_at is not None and self.wake_at <= end:
            self.now, self.wake_at = max(self.now, self.wake_at), None
            out += self.tell(Tick())
        self.now = end
        return out

    # ---------------------------------------------------------------- requests

    def lease(self, client: str = "driver", what: Shape = CPU, count: int = 1) -> list[str]:
        """The workers that were granted to that client."""
        actions = self.tell(LeasesRequested(client, what, count))
        return [granted.worker for granted in of(Granted, actions) if granted.client == client]

    def actor(self, id: str, client: str = "driver", what: Shape = NOTHING, **options: Any) -> list[Any]:
        return self.tell(ActorRequested(client, id, INFO, what, **options))

    def placed(self, id: str, **options: Any) -> str:
        """The worker of a new actor."""
        return of(Placed, self.actor(id, **options))[-1].worker

    def group(
        self, id: str, *bundles: Demand, strategy: str = "PACK", client: str = "driver", **more: Any
    ) -> list[Any]:
        return self.tell(GroupRequested(client, id, bundles, strategy, **more))

    def nodes_of(self, group: str) -> list[str]:
        (state,) = [state for state in self.scheduler.group_states() if state.group == group]
        return state.nodes

    def free(self, node: str) -> dict[str, float]:
        (state,) = [state for state in self.scheduler.node_states() if state.node == node]
        return {name: amount for name, amount in state.available.items() if state.total[name]}


def kinds(actions: list[Any]) -> list[type]:
    """Those of the messages where something is told."""
    return [type(action.message) if isinstance(action, Tell) else type(action) for action in actions]


def of(kind: type, actions: list[Any]) -> list[Any]:
    """The actions of this kind; or the messages, each with the `client` that is to be told."""
    found = [action for action, found in zip(actions, kinds(actions), strict=True) if found is kind]
    if not issubclass(kind, Message):
        return found
    return [SimpleNamespace(client=each.client, **msgspec.structs.asdict(each.message)) for each in found]
