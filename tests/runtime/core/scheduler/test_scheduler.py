"""The node's judgement: events in, actions out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.runtime.core.scheduler.events import (
    ActorEnded,
    ActorRequested,
    ActorSought,
    LeaseReturned,
    LeasesRequested,
    NodeJoined,
    StartWorker,
    StopWorker,
    Tell,
    TellDied,
    Tick,
    WakeAt,
    WorkerBlocked,
    WorkerLost,
    WorkerReady,
    WorkerUnblocked,
)
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.wire.messages import ActorGone, Granted, Placed
from rlplat.runtime.wire.values import ActorInfo, Shape
from tests.runtime.core.scheduler.scheduler_house import kinds, of
from tests.runtime.core.validity import check_scheduler


def shape(**demand: float) -> Shape:
    return Shape(tuple(sorted(demand.items())))


CPU, GPU, NOTHING = shape(CPU=1.0), shape(GPU=1.0), Shape()
Total = dict[str, float]


def machine(total: Total, num_spares: int) -> tuple[Scheduler, list[Any]]:
    """A scheduler with one node, and its first actions."""
    scheduler = Scheduler()
    return scheduler, scheduler.handle(NodeJoined("node", total, num_spares), 0.0)


class House:
    """A scheduler whose workers become ready at once, unless told otherwise."""

    def __init__(self, num_cpus: float = 2, num_gpus: int = 0, num_spares: int = 2) -> None:
        self.scheduler, actions = machine({"CPU": num_cpus, "GPU": float(num_gpus)}, num_spares)
        self.gpus: dict[str, tuple[int, ...]] = {}
        self.perform(actions)

    def tell(self, event: Any) -> list[Any]:
        """Actions, without the starts of workers and the alarm clock."""
        out = self.perform(self.scheduler.handle(event, 0.0))
        check_scheduler(self.scheduler)
        return out

    def perform(self, actions: list[Any]) -> list[Any]:
        out = []
        for action in actions:
            if isinstance(action, StartWorker):
                self.gpus[action.worker] = action.gpu_ids
                out += self.perform(self.scheduler.handle(WorkerReady(action.worker), 0.0))
            elif not isinstance(action, WakeAt):
                out.append(action)
        return out

    def lease(self, client: str = "driver", demand: Shape = CPU, count: int = 1) -> list[str]:
        actions = self.tell(LeasesRequested(client, demand, count))
        return [granted.worker for granted in of(Granted, actions) if granted.client == client]

    def actor(self, id: str, client: str = "driver", demand: Shape = NOTHING, name: str = "") -> list[Any]:
        return self.tell(ActorRequested(client, id, ActorInfo("Class", {}), demand, name))


def test_the_first_spares_are_started_ahead_of_any_demand() -> None:
    assert machine({"CPU": 2.0}, 3)[1] == [StartWorker(f"w{n}", ()) for n in (1, 2, 3)]


def test_a_demand_waits_for_a_worker_to_be_ready() -> None:
    scheduler, _ = machine({"CPU": 1.0}, 1)
    assert not of(Granted, scheduler.handle(LeasesRequested("driver", CPU, 1), 0.0))
    assert Tell("driver", Granted(CPU, "w1")) in scheduler.handle(WorkerReady("w1"), 0.0)


def test_demands_beyond_the_total_wait_and_are_granted_in_order() -> None:
    house = House(num_cpus=2)
    first = house.lease("a", count=2)
    assert len(set(first)) == 2
    assert house.lease("b") == []
    assert house.lease("c") == []
    granted = house.tell(LeaseReturned("a", first[0]))
    assert [each.client for each in of(Granted, granted)] == ["b"]


def test_a_demand_that_does_not_fit_lets_smaller_ones_pass() -> None:
    house = House(num_cpus=2)
    assert house.lease("a")
    assert house.lease("b", shape(CPU=2.0)) == []
    assert house.lease("c")


def test_a_lease_can_be_returned_by_its_client_only() -> None:
    house = House(num_cpus=1)
    (worker,) = house.lease("a")
    assert house.tell(LeaseReturned("b", worker)) == []
    assert house.scheduler.available["CPU"] == 0
    house.tell(LeaseReturned("a", worker))
    assert house.scheduler.available["CPU"] == 1


def test_a_blocked_worker_lends_its_cpu_and_may_overdraw_on_return() -> None:
    house = House(num_cpus=1)
    (parent,) = house.lease("driver")
    house.tell(LeasesRequested(parent, CPU, 1))
    assert house.scheduler.available["CPU"] == 0
    granted = house.tell(WorkerBlocked(parent))
    assert [each.client for each in of(Granted, granted)] == [parent]
    house.tell(WorkerBlocked(parent))  # told twice: lent once
    house.tell(WorkerUnblocked(parent))
    assert house.scheduler.available["CPU"] == -1
    house.tell(WorkerUnblocked(parent))
    assert house.scheduler.available["CPU"] == -1


def test_a_blocked_worker_that_dies_gives_its_cpu_back_once() -> None:
    house = House(num_cpus=1)
    (worker,) = house.lease()
    house.tell(WorkerBlocked(worker))
    house.tell(WorkerLost(worker, "SIGKILL"))
    assert house.scheduler.available["CPU"] == 1


def test_every_gpu_goes_to_one_worker_and_comes_back() -> None:
    house = House(num_gpus=2)
    one, two = house.lease("a", GPU), house.lease("b", GPU)
    assert {house.gpus[one[0]], house.gpus[two[0]]} == {(0,), (1,)}
    assert house.lease("c", GPU) == []
    out = house.tell(LeaseReturned("a", one[0]))
    assert not of(StopWorker, out)
    (granted,) = of(Granted, out)
    assert [granted.worker] == one


GPU_OF_ENV = Shape(GPU.demand, env="e")
BOTH_GPUS = shape(GPU=2.0)


@pytest.mark.parametrize("other", [GPU_OF_ENV, BOTH_GPUS], ids=["of another environment", "of more GPUs"])
def test_an_idle_gpu_worker_ends_when_another_demand_has_its_gpu(other: Shape) -> None:
    house = House(num_gpus=2)
    (one,) = house.lease("a", GPU)
    assert not house.tell(LeaseReturned("a", one))
    out = house.tell(LeasesRequested("b", other, 1))
    # CUDA_VISIBLE_DEVICES and the environment cannot change in a process.
    assert [stop.worker for stop in of(StopWorker, out)] == [one]
    assert [granted.worker for granted in of(Granted, out)] != [one]


def test_an_actor_never_gets_an_idle_gpu_worker() -> None:
    house = House(num_gpus=1)
    (one,) = house.lease("a", GPU)
    house.tell(LeaseReturned("a", one))
    out = house.actor("driver:1", demand=GPU)
    assert [stop.worker for stop in of(StopWorker, out)] == [one]
    assert of(Placed, out)[0].worker != one


def test_one_idle_worker_per_gpu_is_kept_for_a_while() -> None:
    house = House(num_gpus=1)
    first, second = house.lease("a", shape(GPU=0.5), 2)
    assert not house.tell(LeaseReturned("a", first))
    stops = of(StopWorker, house.tell(LeaseReturned("a", second)))
    assert [stop.worker for stop in stops] == [first]
    assert house.lease("a", GPU) == [second]
    house.tell(LeaseReturned("a", second))
    scheduler = house.scheduler
    assert not scheduler.handle(Tick(), 9.0)[:-1]
    stops = of(StopWorker, scheduler.handle(Tick(), 10.0))
    assert [stop.worker for stop in stops] == [second]
    check_scheduler(scheduler)
    house.tell(WorkerLost(second, "ended"))


def test_a_worn_or_dead_gpu_worker_is_not_kept() -> None:
    house = House(num_gpus=1)
    (one,) = house.lease("a", GPU)
    out = house.tell(LeaseReturned("a", one, is_worn=True))
    assert [stop.worker for stop in of(StopWorker, out)] == [one]
    (two,) = house.lease("a", GPU)
    house.tell(LeaseReturned("a", two))
    house.tell(WorkerLost(two, "SIGKILL"))
    assert house.lease("a", GPU) not in ([one], [two])


def test_fractions_fill_one_gpu_before_the_next() -> None:
    house = House(num_gpus=2, num_cpus=8)
    seen = [house.gpus[house.lease("a", shape(GPU=0.4))[0]] for _ in range(4)]
    assert seen == [(0,), (0,), (1,), (1,)]
    assert house.lease("a", GPU) == []


def test_an_actor_is_placed_and_whoever_seeks_it_is_told() -> None:
    house = House()
    (placed,) = of(Placed, house.actor("driver:1"))
    assert house.tell(ActorSought("w9", "driver:1")) == [Tell("w9", Placed("driver:1", placed.worker))]


def test_an_actor_of_another_time_is_gone_for_whoever_seeks_it() -> None:
    (gone,) = of(ActorGone, House().tell(ActorSought("driver", "w77:1")))
    assert gone.error.kind == "ActorDied"


def test_a_name_is_taken_until_its_actor_is_gone() -> None:
    house = House()
    (placed,) = of(Placed, house.actor("driver:1", name="n"))
    (refused,) = of(ActorGone, house.actor("driver:2", name="n"))
    assert refused.error.kind == "OptionError"
    assert house.scheduler.actor_by_name == {("", "n"): "driver:1"}
    out = house.tell(WorkerLost(placed.worker, "SIGKILL"))
    assert kinds(out) == [ActorGone, TellDied]
    assert "SIGKILL" in out[0].message.error.message
    assert house.scheduler.actor_by_name == {}


def test_an_actor_ends_at_once_or_closes_itself() -> None:
    house = House()
    for at_once in (True, False):
        (placed,) = of(Placed, house.actor(f"driver:{at_once}"))
        assert house.tell(ActorEnded(f"driver:{at_once}", "why", at_once)) == [StopWorker(placed.worker, at_once)]


def test_an_actor_that_never_had_a_worker_can_end() -> None:
    house = House(num_cpus=1)
    house.lease()
    assert house.actor("driver:1", demand=CPU) == []
    (gone,) = of(ActorGone, house.tell(ActorEnded("driver:1", "it was killed", True)))
    assert "before it had a worker" in gone.error.message
    assert house.tell(ActorEnded("driver:1", "again", True)) == []


def test_the_death_of_a_client_ends_what_it_leased_created_and_asked_for() -> None:
    house = House(num_cpus=4)
    (client,) = house.lease("driver")
    (leased,) = house.lease(client)
    (placed,) = of(Placed, house.actor(f"{client}:1", client))
    house.tell(LeasesRequested(client, shape(CPU=4.0), 3))
    out = house.tell(WorkerLost(client, "SIGSEGV"))
    assert StopWorker(leased, False, is_surplus=True) in out  # it may own what others need
    assert StopWorker(placed.worker, True) in out
    assert TellDied(client, "SIGSEGV") in out
    house.tell(WorkerLost(leased, "killed"))
    house.tell(WorkerLost(placed.worker, "killed"))
    assert house.scheduler.available["CPU"] == 4
    assert not of(Granted, house.tell(WorkerReady("w999")))


def test_a_worker_that_dies_while_starting_for_a_demand_is_replaced() -> None:
    scheduler, _ = machine({"CPU": 1.0, "GPU": 1.0}, 1)
    (start,) = [a for a in scheduler.handle(LeasesRequested("d", GPU, 1), 0.0) if isinstance(a, StartWorker)]
    again = [a for a in scheduler.handle(WorkerLost(start.worker, "x"), 0.0) if isinstance(a, StartWorker)]
    assert [a.gpu_ids for a in again] == [(0,)]
    check_scheduler(scheduler)


def test_an_actor_that_ends_while_its_gpu_worker_starts_gives_all_back() -> None:
    scheduler, _ = machine({"CPU": 1.0, "GPU": 1.0}, 1)
    both = {"CPU": 1.0, "GPU": 1.0}
    requested = ActorRequested("driver", "driver:1", ActorInfo("Class", {}), shape(**both))
    (start,) = [a for a in scheduler.handle(requested, 0.0) if isinstance(a, StartWorker)]
    scheduler.handle(ActorEnded("driver:1", "it was killed", True), 0.0)
    scheduler.handle(WorkerReady(start.worker), 0.0)
    check_scheduler(scheduler)
    scheduler.handle(WorkerLost(start.worker, "stopped"), 0.0)
    assert scheduler.available == both


def test_a_gpu_worker_that_starts_for_a_dead_client_gives_all_back() -> None:
    scheduler, _ = machine({"CPU": 1.0, "GPU": 1.0}, 1)
    scheduler.handle(WorkerReady("w1"), 0.0)
    scheduler.handle(LeasesRequested("driver", CPU, 1), 0.0)
    (start,) = [a for a in scheduler.handle(LeasesRequested("w1", GPU, 1), 0.0) if isinstance(a, StartWorker)]
    scheduler.handle(WorkerLost("w1", "SIGKILL"), 0.0)
    out = scheduler.handle(WorkerReady(start.worker), 0.0)
    assert not of(Granted, out)
    scheduler.handle(WorkerLost(start.worker, "stopped"), 0.0)
    check_scheduler(scheduler)
    assert scheduler.available == {"CPU": 1.0, "GPU": 1.0}


def test_unknown_workers_and_late_news_change_nothing() -> None:
    house = House()
    before = dict(house.scheduler.available)
    for event in (WorkerReady("w99"), WorkerBlocked("w99"), WorkerUnblocked("w1"), LeaseReturned("d", "w99")):
        assert house.tell(event) == []
    assert house.tell(WorkerLost("w99", "x")) == []
    assert house.scheduler.available == before


@settings(max_examples=60, deadline=None, database=None, derandomize=True, report_multiple_bugs=False)
@given(st.data())
def test_random_histories_keep_the_books(data: st.DataObject) -> None:
    """Any order of events: the invariants hold after each, no worker serves two, and in the end all is free."""
    scheduler, first = machine({"CPU": 3.0, "GPU": 2.0}, 2)
    alive: dict[str, str] = {}  # state as the outside sees it: starting | ready | stopping
    leases: dict[str, str] = {}
    placed: dict[str, str] = {}
    demands = [
        Shape(),
        CPU,
        shape(CPU=0.5),
        shape(CPU=2.0),
        GPU,
        shape(GPU=0.5),
        shape(CPU=1.0, GPU=1.0),
        BOTH_GPUS,
    ]

    def perform(actions: list[Any]) -> None:
        for action in actions:
            match action:
                case StartWorker(worker):
                    assert worker not in alive
                    alive[worker] = "starting"
                case Tell(client, Granted(_, worker)):
                    assert alive[worker] == "ready"
                    assert worker not in leases and worker not in placed.values()
                    leases[worker] = client
                case Tell(_, Placed(actor, worker, _)):
                    # A seeker hears of one that is to stop, too.
                    assert alive[worker] == "ready" or actor in placed
                    assert placed.get(actor, worker) == worker
                    assert worker not in leases
                    placed[actor] = worker
                case StopWorker(worker):
                    assert worker in alive
                    alive[worker] = "stopping"
        check_scheduler(scheduler)

    def lose(worker: str) -> None:
        del alive[worker]
        leases.pop(worker, None)
        for actor in [a for a, w in placed.items() if w == worker]:
            del placed[actor]
        perform(scheduler.handle(WorkerLost(worker, "x"), 0.0))

    perform(first)
    for step in range(data.draw(st.integers(1, 40))):
        clients = ["driver", *(w for w, state in alive.items() if state == "ready")]
        client = data.draw(st.sampled_from(clients))
        worker = data.draw(st.sampled_from(sorted(alive) or ["w0"]))
        kind = data.draw(st.sampled_from("lease actor ready ready return block unblock end seek lost".split()))
        if kind == "lease":
            event: Any = LeasesRequested(client, data.draw(st.sampled_from(demands)), data.draw(st.integers(1, 4)))
        elif kind == "actor":
            name = data.draw(st.sampled_from(["", "", "n"]))
            event = ActorRequested(
                client, f"{client}:{step}", ActorInfo("C", {}), data.draw(st.sampled_from(demands)), name
            )
        elif kind == "ready":
            if alive.get(worker) == "starting":
                alive[worker] = "ready"
            event = WorkerReady(worker)
        elif kind == "return":
            event = LeaseReturned(leases.pop(worker, "driver"), worker)
        elif kind == "block":
            event = WorkerBlocked(worker)
        elif kind == "unblock":
            event = WorkerUnblocked(worker)
        elif kind == "end":
            actors = sorted(scheduler.actors) or ["x:1"]
            event = ActorEnded(data.draw(st.sampled_from(actors)), "why", data.draw(st.booleans()))
        elif kind == "seek":
            event = ActorSought(client, data.draw(st.sampled_from(sorted(scheduler.actors) or ["x:1"])))
        else:
            if worker in alive:
                lose(worker)
            continue
        perform(scheduler.handle(event, float(step)))
    for worker in list(leases):
        perform(scheduler.handle(LeaseReturned(leases.pop(worker), worker), 0.0))
    for actor in list(scheduler.actors):
        perform(scheduler.handle(ActorEnded(actor, "the end", True), 0.0))
    # What is asked to stop stops; the rest becomes ready; leases still queued are granted and returned.
    for _ in range(200):
        for worker in [w for w, state in alive.items() if state == "stopping"]:
            lose(worker)
        for worker in [w for w, state in alive.items() if state == "starting"]:
            alive[worker] = "ready"
            perform(scheduler.handle(WorkerReady(worker), 0.0))
        for worker in list(leases):
            perform(scheduler.handle(LeaseReturned(leases.pop(worker), worker), 0.0))
        if not leases and not set(alive.values()) & {"starting", "stopping"}:
            break
    assert scheduler.available == {"CPU": 3.0, "GPU": 2.0}
