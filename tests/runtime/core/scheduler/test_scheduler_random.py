"""Random histories on several nodes: the books balance after every event, and in the end everything is free again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.runtime.core.scheduler.actors import Intensity
from rlplat.runtime.core.scheduler.events import (
    ActorEnded,
    ActorRequested,
    ActorSought,
    Event,
    GroupRemoved,
    GroupRequested,
    LeaseReturned,
    LeasesRequested,
    NodeJoined,
    NodeLost,
    StartWorker,
    StopWorker,
    Tell,
    TellDied,
    Tick,
    WorkerBlocked,
    WorkerLost,
    WorkerReady,
    WorkerUnblocked,
)
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.wire.messages import ActorGone, ActorRestarting, Granted, Placed
from tests.runtime.core.scheduler.scheduler_house import INFO, bundle, shape
from tests.runtime.core.validity import check_scheduler

TOTAL = {"CPU": 3.0, "GPU": 2.0}
DEMANDS = [
    shape(),
    shape(CPU=1.0),
    shape(CPU=2.0),
    shape(GPU=1.0),
    shape(GPU=0.5),
    shape(GPU=1.0, env="e"),
    shape(GPU=2.0),
    shape(CPU=1.0, env="e"),
    shape(CPU=1.0, strategy="SPREAD"),
    shape(CPU=1.0, strategy="node:n1"),
    shape("g1", CPU=1.0),
    shape("g1", 1, CPU=1.0),
    shape("g2", GPU=0.5),
    shape("g2", 0, GPU=0.25),
]
BUNDLES = [
    (bundle(CPU=1.0), bundle(CPU=1.0)),
    (bundle(GPU=0.5), bundle(GPU=1.0)),
    (bundle(CPU=2.0), bundle(CPU=2.0), bundle(CPU=1.0)),
]
STRATEGIES = ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


class World:
    """What is outside of the scheduler: processes in their states, who has which lease, where actors are."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(intensity=Intensity(most=2, period_s=5.0))
        self.now = 0.0
        self.state: dict[str, str] = {}
        """starting | ready | stopping, of workers that live."""
        self.node_of: dict[str, str] = {}
        self.leases: dict[str, str] = {}
        self.active: dict[str, tuple[str, int]] = {}
        """Actors' workers and incarnations."""
        self.last: dict[str, int] = {}
        self.gone: set[str] = set()
        self.nodes: set[str] = set()

    def tell(self, event: Event) -> None:
        for action in self.scheduler.handle(event, self.now):
            self.perform(action)
        check_scheduler(self.scheduler)

    def perform(self, action: Any) -> None:
        match action:
            case StartWorker(worker, _, node):
                assert worker not in self.node_of and node in self.nodes
                self.state[worker], self.node_of[worker] = "starting", node
            case Tell(client, Granted(_, worker)):
                assert self.state[worker] == "ready" and worker not in self.leases
                self.leases[worker] = client
            case Tell(_, Placed(actor, worker, incarnation)):
                assert actor not in self.gone, "an actor that is gone is placed"
                assert worker in self.state and worker not in self.leases
                assert incarnation >= self.last.get(actor, 1), "incarnations go back"
                self.active[actor], self.last[actor] = (worker, incarnation), incarnation
            case Tell(_, ActorRestarting(actor, _)) | Tell(_, ActorGone(actor, _)):
                assert actor not in self.active or self.active[actor][0] not in self.state
                self.active.pop(actor, None)
                if isinstance(action.message, ActorGone):
                    self.gone.add(actor)
            case StopWorker(worker):
                assert worker in self.state, "a dead worker is stopped"
                self.state[worker] = "stopping"
                self.leases.pop(worker, None)
            case TellDied(worker):
                assert worker not in self.state

    def forget(self, worker: str) -> None:
        del self.state[worker]
        self.leases.pop(worker, None)

    def lose(self, worker: str) -> None:
        self.forget(worker)
        self.tell(WorkerLost(worker, "x"))

    def lose_node(self, node: str) -> None:
        self.nodes.discard(node)
        for worker in [worker for worker in self.state if self.node_of[worker] == node]:
            self.forget(worker)
        self.tell(NodeLost(node, "x"))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, database=None, derandomize=True, report_multiple_bugs=False)
@given(st.data())
def test_random_histories_on_several_nodes(data: st.DataObject) -> None:
    world = World()

    def one_of(choices: Any, default: str) -> Any:
        return data.draw(st.sampled_from(sorted(choices) or [default]))

    for name in ("n0", "n1"):
        world.nodes.add(name)
        world.tell(NodeJoined(name, TOTAL, 1))
    kinds = (
        "lease lease actor actor group ready ready ready return return block unblock end kill seek lost "
        "remove lose join time"
    ).split()
    for step in range(1, data.draw(st.integers(1, 60))):
        world.now += 0.01
        clients = ["driver", *(w for w, state in world.state.items() if state == "ready")]
        client = data.draw(st.sampled_from(clients))
        worker = one_of(world.state, "w0")
        actor = one_of((a for a, e in world.scheduler.actors.items() if e.error is None), "x:1")
        match data.draw(st.sampled_from(kinds)):
            case "lease":
                demand = data.draw(st.sampled_from(DEMANDS))
                world.tell(LeasesRequested(client, demand, data.draw(st.integers(1, 4))))
            case "actor":
                demand = data.draw(st.sampled_from(DEMANDS))
                restarts, is_detached = data.draw(st.integers(-1, 2)), data.draw(st.booleans())
                id = f"{client}:{step}"
                world.tell(ActorRequested(client, id, INFO, demand, max_restarts=restarts, is_detached=is_detached))
            case "group":
                group = data.draw(st.sampled_from(["g1", "g2", f"h{step}"]))
                bundles, strategy = (
                    data.draw(st.sampled_from(BUNDLES)),
                    data.draw(st.sampled_from(STRATEGIES)),
                )
                world.tell(GroupRequested(client, group, bundles, strategy))
            case "ready":
                starting = [w for w, state in world.state.items() if state == "starting"]
                worker = one_of(starting, worker)
                if world.state.get(worker) == "starting":
                    world.state[worker] = "ready"
                world.tell(WorkerReady(worker))
            case "return":
                worker = one_of(world.leases, "w0")
                world.tell(LeaseReturned(world.leases.pop(worker, "driver"), worker))
            case "block":
                world.tell(WorkerBlocked(worker))
            case "unblock":
                world.tell(WorkerUnblocked(worker))
            case "end":
                world.tell(ActorEnded(actor, "why", data.draw(st.booleans())))
            case "kill":
                world.tell(ActorEnded(actor, "why", True, no_restart=False))
            case "seek":
                world.tell(ActorSought(client, actor))
            case "lost":
                if worker in world.state:
                    world.lose(worker)
            case "remove":
                groups = [g.group for g in world.scheduler.group_states()]
                world.tell(GroupRemoved(one_of(groups, "g")))
            case "lose":
                world.lose_node(one_of(world.nodes, "n9"))
            case "join":
                name = data.draw(st.sampled_from(["n0", "n1", "n2"]))
                world.nodes.add(name)
                world.tell(NodeJoined(name, TOTAL, 1))
            case "time":
                world.now += 11.0
                world.tell(Tick())
    settle(world)
    whole = {name: len(world.nodes) * amount for name, amount in TOTAL.items()}
    assert world.scheduler.available == (whole if world.nodes else {})


def settle(world: World) -> None:
    """Everybody ends what they have; what is asked to stop stops, what starts gets ready."""
    for group in world.scheduler.group_states():
        world.tell(GroupRemoved(group.group))
    for actor in list(world.scheduler.actors):
        world.tell(ActorEnded(actor, "the end", True))
    for _ in range(300):
        world.now += 1.0
        world.tell(Tick())
        for worker, state in list(world.state.items()):
            if state == "stopping":
                world.lose(worker)
            elif state == "starting":
                world.state[worker] = "ready"
                world.tell(WorkerReady(worker))
        for worker in list(world.leases):
            if worker in world.leases:
                world.tell(LeaseReturned(world.leases.pop(worker), worker))
        if not world.leases and not set(world.state.values()) & {"starting", "stopping"}:
            break
    for worker in list(world.state):  # clients that wait for what never comes again
        world.lose(worker)
