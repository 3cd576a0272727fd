"""The node's judgement: who gets which worker, and what happens when one dies. Pure: events in, actions out.

Rules
1. A demand (a lease or an actor) is granted when its resources are free and a worker is ready. Demands that fit are
   granted in order of arrival; one that does not fit now lets smaller ones pass.
2. A worker serves one client's leases, or one actor, at a time; a lease's worker returns to the idle ones.
3. `num_spares` ready workers are kept beside those in use, so that a demand rarely waits for a fork.
   A demand for GPUs always gets a new worker: CUDA_VISIBLE_DEVICES cannot change in a process.
4. A blocked worker lends its CPUs; when it goes on they may be overdrawn for a while.
5. When a worker dies its resources are free, its actor is gone, what it owned or leased ends, and everybody is told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlplat.runtime.codec import ErrorInfo
from rlplat.runtime.messages import ActorInfo
from rlplat.runtime.resources import Resources

# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class LeasesRequested:
    client: str
    demand: Resources
    count: int


@dataclass(frozen=True)
class LeaseReturned:
    client: str
    worker: str


@dataclass(frozen=True)
class ActorRequested:
    client: str
    actor: str
    info: ActorInfo
    demand: Resources
    name: str


@dataclass(frozen=True)
class ActorEnded:
    """Somebody wants it to end (at once, or by closing itself)."""

    actor: str
    reason: str
    at_once: bool


@dataclass(frozen=True)
class ActorSought:
    client: str
    actor: str


@dataclass(frozen=True)
class WorkerReady:
    worker: str


@dataclass(frozen=True)
class WorkerLost:
    worker: str
    reason: str


@dataclass(frozen=True)
class WorkerBlocked:
    worker: str


@dataclass(frozen=True)
class WorkerUnblocked:
    worker: str


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class StartWorker:
    worker: str
    gpu_ids: tuple[int, ...]


@dataclass(frozen=True)
class StopWorker:
    """Kill it, or ask it to close itself; a surplus one may first wait until nobody needs what it owns."""

    worker: str
    at_once: bool
    is_surplus: bool = False


@dataclass(frozen=True)
class GrantLease:
    client: str
    demand: Resources
    worker: str


@dataclass(frozen=True)
class TellPlaced:
    client: str
    actor: str
    worker: str


@dataclass(frozen=True)
class TellGone:
    client: str
    actor: str
    error: ErrorInfo


@dataclass(frozen=True)
class TellDied:
    """To every client."""

    worker: str
    reason: str


Action = StartWorker | StopWorker | GrantLease | TellPlaced | TellGone | TellDied


# ---------------------------------------------------------------- state


@dataclass
class _Worker:
    state: str
    """starting | idle | leased | actor | dying"""
    client: str = ""
    demand: Resources = field(default_factory=dict)
    gpu_ids: tuple[int, ...] = ()
    actor: str = ""
    is_blocked: bool = False
    for_demand: Any = None
    """The demand that this worker was started for (GPUs)."""


@dataclass
class ActorEntry:
    client: str
    info: ActorInfo
    demand: Resources
    name: str
    worker: str = ""
    error: ErrorInfo | None = None
    end_reason: str = ""
    seekers: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _Demand:
    client: str
    demand: Resources
    actor: str = ""


class Scheduler:
    def __init__(self, total: Resources, num_spares: int) -> None:
        self.total = dict(total)
        self.available = dict(total)
        self._num_spares = num_spares
        self._free_gpus = list(range(int(total.get("GPU", 0))))
        self._gpu_share: dict[int, float] = {}
        self._workers: dict[str, _Worker] = {}
        self._queue: OrderedDict[_Demand, None] = OrderedDict()
        self.actors: dict[str, ActorEntry] = {}
        self.actor_by_name: dict[str, str] = {}
        self._next_worker = 1
        self._handlers: dict[type, Callable[[Any, list[Action]], None]] = {
            LeasesRequested: self._on_leases_requested,
            ActorRequested: self._on_actor_requested,
            ActorSought: self._on_actor_sought,
            WorkerReady: self._on_worker_ready,
            LeaseReturned: self._on_lease_returned,
            WorkerBlocked: self._on_worker_blocked,
            WorkerUnblocked: self._on_worker_unblocked,
            ActorEnded: self._on_actor_ended,
            WorkerLost: self._on_worker_lost,
        }

    def handle(self, event: Any, now: float) -> list[Action]:
        actions: list[Action] = []
        self._handlers[type(event)](event, actions)
        self._grant(actions)
        self._keep_spares(actions)
        return actions

    def start(self) -> list[Action]:
        """The first spares."""
        actions: list[Action] = []
        self._keep_spares(actions)
        return actions

    def who(self, worker: str) -> str:
        """The class of the worker's actor, or its id."""
        entry = self._workers.get(worker)
        actor = self.actors.get(entry.actor) if entry is not None else None
        return actor.info.class_name if actor is not None else worker

    # -- demands

    def _on_leases_requested(self, event: LeasesRequested, actions: list[Action]) -> None:
        for _ in range(event.count):
            self._queue[_Demand(event.client, event.demand)] = None

    def _on_actor_requested(self, event: ActorRequested, actions: list[Action]) -> None:
        entry = ActorEntry(event.client, event.info, event.demand, event.name)
        if event.name:
            if event.name in self.actor_by_name:
                text = f"an actor named {event.name!r} exists already: use rlplat.get_actor({event.name!r})"
                actions.append(TellGone(event.client, event.actor, ErrorInfo("ConfigError", text)))
                return
            self.actor_by_name[event.name] = event.actor
        self.actors[event.actor] = entry
        entry.seekers.add(event.client)
        self._queue[_Demand(event.client, event.demand, event.actor)] = None

    def _on_actor_sought(self, event: ActorSought, actions: list[Action]) -> None:
        entry = self.actors.get(event.actor)
        if entry is None:
            error = ErrorInfo("ActorDied", f"actor {event.actor} is not known here: it ended long ago")
            actions.append(TellGone(event.client, event.actor, error))
        elif entry.error is not None:
            actions.append(TellGone(event.client, event.actor, entry.error))
        else:
            entry.seekers.add(event.client)
            if entry.worker:
                actions.append(TellPlaced(event.client, event.actor, entry.worker))

    def _grant(self, actions: list[Action]) -> None:
        for demand in list(self._queue):
            if any(self.available.get(name, 0) < amount - 1e-9 for name, amount in demand.demand.items()):
                continue
            if demand.demand.get("GPU"):
                self._start(actions, demand)
                del self._queue[demand]
                continue
            worker = next((id for id, entry in self._workers.items() if entry.state == "idle"), None)
            if worker is None:
                starting = sum(e.state == "starting" and e.for_demand is None for e in self._workers.values())
                for _ in range(min(len(self._queue), 64) - starting):
                    self._start(actions)
                return
            del self._queue[demand]
            self._take(demand)
            self._give(worker, demand, actions)

    def _take(self, demand: _Demand) -> None:
        for name, amount in demand.demand.items():
            self.available[name] -= amount

    def _give(self, worker: str, demand: _Demand, actions: list[Action]) -> None:
        entry = self._workers[worker]
        entry.client, entry.demand = demand.client, demand.demand
        if demand.actor:
            entry.state, entry.actor = "actor", demand.actor
            actor = self.actors[demand.actor]
            actor.worker = worker
            actions.extend(TellPlaced(client, demand.actor, worker) for client in sorted(actor.seekers))
        else:
            entry.state = "leased"
            actions.append(GrantLease(demand.client, demand.demand, worker))

    def _start(self, actions: list[Action], demand: _Demand | None = None) -> None:
        worker = f"w{self._next_worker}"
        self._next_worker += 1
        gpu_ids: tuple[int, ...] = ()
        if demand is not None:
            self._take(demand)
            gpu_ids = self._take_gpus(demand.demand["GPU"])
        self._workers[worker] = _Worker("starting", gpu_ids=gpu_ids, for_demand=demand)
        actions.append(StartWorker(worker, gpu_ids))

    def _take_gpus(self, amount: float) -> tuple[int, ...]:
        """Whole GPUs for themselves; a fraction shares the fullest GPU that has room for it."""
        if amount >= 1:
            taken = self._free_gpus[: int(amount)]
            del self._free_gpus[: int(amount)]
            return tuple(taken)
        fitting = [gpu for gpu, share in self._gpu_share.items() if share + amount <= 1 + 1e-9]
        gpu = max(fitting, key=lambda g: self._gpu_share[g]) if fitting else self._free_gpus.pop(0)
        self._gpu_share[gpu] = self._gpu_share.get(gpu, 0.0) + amount
        return (gpu,)

    def _return_gpus(self, gpu_ids: tuple[int, ...], amount: float) -> None:
        for gpu in gpu_ids:
            if gpu in self._gpu_share:
                self._gpu_share[gpu] -= amount
                if self._gpu_share[gpu] > 1e-9:
                    continue
                del self._gpu_share[gpu]
            self._free_gpus.append(gpu)
        self._free_gpus.sort()

    def _keep_spares(self, actions: list[Action]) -> None:
        spare = sum(e.state in ("starting", "idle") and e.for_demand is None for e in self._workers.values())
        for _ in range(self._num_spares - spare):
            self._start(actions)

    # -- workers

    def _on_worker_ready(self, event: WorkerReady, actions: list[Action]) -> None:
        entry = self._workers.get(event.worker)
        if entry is None or entry.state != "starting":
            return
        entry.state = "idle"
        if entry.for_demand is not None:
            demand = entry.for_demand
            if not self._is_wanted(demand):
                self._release(entry)
                entry.state = "dying"
                actions.append(StopWorker(event.worker, at_once=True))
            else:
                entry.for_demand = None
                self._give(event.worker, demand, actions)

    def _is_wanted(self, demand: _Demand) -> bool:
        """Whether whoever asked lives still. Clients are the driver and workers."""
        if demand.actor:
            return self.actors[demand.actor].error is None
        return not demand.client.startswith("w") or demand.client in self._workers

    def _release(self, entry: _Worker) -> None:
        demand = entry.for_demand.demand if entry.for_demand is not None else entry.demand
        for name, amount in demand.items():
            if not (name == "CPU" and entry.is_blocked):
                self.available[name] += amount
        if entry.gpu_ids:
            self._return_gpus(entry.gpu_ids, demand.get("GPU", 0))
        entry.demand, entry.is_blocked, entry.for_demand, entry.gpu_ids = {}, False, None, ()

    def _on_lease_returned(self, event: LeaseReturned, actions: list[Action]) -> None:
        entry = self._workers.get(event.worker)
        if entry is None or entry.state != "leased" or entry.client != event.client:
            return
        has_gpu = bool(entry.gpu_ids)
        self._release(entry)
        idle = sum(e.state == "idle" for e in self._workers.values())
        if has_gpu or idle >= self._num_spares + self.total.get("CPU", 1):
            entry.state = "dying"
            actions.append(StopWorker(event.worker, at_once=False, is_surplus=True))
        else:
            entry.state, entry.client = "idle", ""

    def _on_worker_blocked(self, event: WorkerBlocked, actions: list[Action]) -> None:
        entry = self._workers.get(event.worker)
        if entry is not None and entry.state in ("leased", "actor") and not entry.is_blocked:
            entry.is_blocked = True
            self.available["CPU"] += entry.demand.get("CPU", 0)

    def _on_worker_unblocked(self, event: WorkerUnblocked, actions: list[Action]) -> None:
        entry = self._workers.get(event.worker)
        if entry is not None and entry.is_blocked:
            entry.is_blocked = False
            self.available["CPU"] -= entry.demand.get("CPU", 0)

    def _on_actor_ended(self, event: ActorEnded, actions: list[Action]) -> None:
        entry = self.actors.get(event.actor)
        if entry is None or entry.error is not None:
            return
        entry.end_reason = event.reason
        for demand in [d for d in self._queue if d.actor == event.actor]:
            del self._queue[demand]
        if entry.worker:
            if event.at_once or self._workers[entry.worker].state == "actor":
                actions.append(StopWorker(entry.worker, event.at_once))
        else:
            text = f"actor {entry.info.class_name} ended before it had a worker: {event.reason}"
            self._bury(event.actor, ErrorInfo("ActorDied", text), actions)

    def _bury(self, actor: str, error: ErrorInfo, actions: list[Action]) -> None:
        entry = self.actors[actor]
        entry.error = error
        if self.actor_by_name.get(entry.name) == actor:
            del self.actor_by_name[entry.name]
        actions.extend(TellGone(client, actor, error) for client in sorted(entry.seekers))
        self._forget_old_actors()

    def _forget_old_actors(self) -> None:
        gone = [id for id, entry in self.actors.items() if entry.error is not None]
        for id in gone[:-1000]:
            del self.actors[id]

    def _on_worker_lost(self, event: WorkerLost, actions: list[Action]) -> None:
        entry = self._workers.pop(event.worker, None)
        if entry is None:
            return
        waiting = entry.for_demand
        self._release(entry)
        if waiting is not None and self._is_wanted(waiting):
            self._queue[waiting] = None
        if entry.actor:
            actor = self.actors[entry.actor]
            why = actor.end_reason or f"its process {event.worker} died: {event.reason}"
            self._bury(
                entry.actor, ErrorInfo("ActorDied", f"actor {actor.info.class_name} is gone: {why}"), actions
            )
        for demand in [d for d in self._queue if d.client == event.worker]:
            del self._queue[demand]
        for id, actor in list(self.actors.items()):
            if actor.client == event.worker and actor.error is None:
                self._on_actor_ended(
                    ActorEnded(id, f"its creator {event.worker} died ({event.reason})", at_once=True), actions
                )
        for id, other in self._workers.items():
            if other.state == "leased" and other.client == event.worker:
                other.state = "dying"  # it holds its resources until it is gone
                actions.append(StopWorker(id, at_once=True))
        actions.append(TellDied(event.worker, event.reason))

    def check_valid(self) -> None:
        """Assert the invariants (for tests): what is in use and what is free make the whole."""
        used: Resources = {}
        for entry in self._workers.values():
            demand = entry.for_demand.demand if entry.for_demand is not None else entry.demand
            for name, amount in demand.items():
                if not (name == "CPU" and entry.is_blocked):
                    used[name] = used.get(name, 0) + amount
        for name, amount in self.total.items():
            assert abs(used.get(name, 0) + self.available[name] - amount) < 1e-6, (name, used, self.available)
        active = [entry.actor for entry in self._workers.values() if entry.actor]
        assert len(active) == len(set(active)), "an actor runs in two workers"
