"""Which task goes to which leased worker: the rules at the head of `lanes`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlplat.runtime.core.owner.lanes import AHEAD_S, MAX_AHEAD, Lane, Lease, TaskRecord
from rlplat.runtime.wire.values import Shape

FAST = {"code": 10e-6}
SLOW = {"code": 1.0}


def lane(*workers: str, num_ready: int = 0, max_leases: int = 4) -> Lane:
    made = Lane(Shape((("CPU", 1.0),)), max_leases)
    for worker in workers:
        made.leases[worker] = Lease(worker)
    made.ready.extend(task(i) for i in range(num_ready))
    return made


def task(id: int, code: str = "code") -> TaskRecord:
    return TaskRecord(id, None, SimpleNamespace(key=code), f"task {id}", (id,), None, None)


def counts(made: Lane) -> dict[str, int]:
    return {worker: len(lease.in_flight) for worker, lease in made.leases.items()}


def test_a_worker_of_unknown_pace_gets_one_task() -> None:
    made = lane("w1", "w2", num_ready=10)
    assigned = made.assign({})
    assert [(lease.worker, [record.id for record in records]) for lease, records in assigned] == [
        ("w1", [0]),
        ("w2", [1]),
    ]
    assert len(made.ready) == 8
    assert made.assign({}) == []


def test_a_long_task_never_has_another_behind_it() -> None:
    made = lane("w1", num_ready=10)
    made.assign(SLOW)
    assert counts(made) == {"w1": 1}


@pytest.mark.parametrize("pace", [FAST, FAST | {"other": 1.0}], ids=["of unknown pace", "known to be slow"])
def test_a_short_task_waits_for_another_worker_where_a_long_one_runs(pace: dict[str, float]) -> None:
    made = lane("w1")
    made.ready.append(task(0, "other"))
    made.assign(pace)
    made.ready.append(task(1))
    assert made.assign(pace) == [] and made.leases_to_request() == 1
    made.leases["w2"] = Lease("w2")
    assert [lease.worker for lease, _ in made.assign(pace)] == ["w2"]


def test_short_tasks_travel_in_company_within_the_time_ahead() -> None:
    made = lane("w1", num_ready=1000)
    assert sum(len(records) for _, records in made.assign(FAST)) == int(AHEAD_S / 10e-6)
    assert [record.id for record in made.leases["w1"].in_flight.values()] == list(range(300))
    endless = lane("w1", num_ready=2 * MAX_AHEAD)
    assert sum(len(records) for _, records in endless.assign({"code": 0.0})) == MAX_AHEAD


def test_what_is_there_is_shared_evenly() -> None:
    made = lane("w1", "w2", num_ready=10)
    made.assign(FAST)
    shares = counts(made)
    assert max(shares.values()) <= 5
    assert min(shares.values()) > 1


def test_leases_are_requested_for_what_waits_and_no_more() -> None:
    assert lane(num_ready=0).leases_to_request() == 0
    made = lane(num_ready=3, max_leases=4)
    assert made.leases_to_request() == 3
    assert made.leases_to_request() == 0  # asked already
    assert lane(num_ready=100, max_leases=4).leases_to_request() == 4
    assert lane("w1", "w2", "w3", "w4", num_ready=100).leases_to_request() == 0


def test_a_stalled_worker_is_replaced_by_another_lease() -> None:
    made = lane("w1", num_ready=2, max_leases=1)
    made.assign(FAST)
    made.gave_back("w1", [1])
    assert made.leases["w1"].is_stalled
    assert [record.id for record in made.ready] == [1]
    assert made.assign(FAST) == []  # it waits for something: nothing may queue behind that
    assert made.leases_to_request() == 1


def test_what_was_given_back_comes_first_and_in_order() -> None:
    made = lane("w1", num_ready=4)
    made.assign(FAST)
    made.ready.append(task(9))
    made.gave_back("w1", [2, 3])
    assert [record.id for record in made.ready] == [2, 3, 9]
    assert list(made.leases["w1"].in_flight) == [0, 1]


def test_code_that_a_worker_has_forgotten_is_not_known_there() -> None:
    made = lane("w1", num_ready=1)
    made.assign(FAST)
    made.leases["w1"].known_code |= {"code", "other"}
    made.gave_back("w1", [0], "code")
    assert made.leases["w1"].known_code == {"other"} and len(made.ready) == 1


def test_giving_back_everything_or_from_a_stranger_stalls_nobody() -> None:
    made = lane("w1", num_ready=2)
    made.assign(FAST)
    made.gave_back("w1", [0, 1])
    assert not made.leases["w1"].is_stalled
    made.gave_back("w9", [5])
    assert len(made.ready) == 2


def test_the_fullest_worker_is_relieved_once_when_another_is_idle() -> None:
    made = lane("w1", num_ready=6)
    made.assign(FAST)
    made.leases["w2"] = Lease("w2")
    assert made.to_ask_back() is made.leases["w1"]
    assert made.to_ask_back() is None
    made.leases["w1"].was_asked_back = False
    made.ready.append(task(7))
    assert made.to_ask_back() is None  # something is queued: the idle one will get that


def test_one_task_is_nothing_to_share() -> None:
    made = lane("w1", "w2", num_ready=1)
    made.assign(FAST)
    assert made.to_ask_back() is None


def test_only_leases_that_stay_idle_are_returned() -> None:
    made = lane("w1", "w2", num_ready=1)
    made.assign(FAST)
    assert made.idle_leases(10.0, 0.1) == []
    assert [lease.worker for lease in made.idle_leases(10.2, 0.1)] == ["w2"]
    made.ready.append(task(5))
    assert made.idle_leases(20.0, 0.1) == []  # there is work again
    made.ready.clear()
    assert made.idle_leases(30.0, 0.1) == []  # and the time starts anew
    assert [lease.worker for lease in made.idle_leases(30.2, 0.1)] == ["w2"]


def test_what_died_with_a_worker_runs_again_ahead_of_the_others() -> None:
    made = lane("w1", num_ready=3)
    made.assign(FAST)
    made.ready.append(task(3))
    asked: list[tuple[int, bool]] = []

    def runs_again(record: TaskRecord, was_alone: bool) -> bool:
        asked.append((record.id, was_alone))
        return record.id != 1

    assert [record.id for record in made.lose("w1", runs_again)] == [1]
    assert asked == [(0, False), (1, False), (2, False)]
    assert [record.id for record in made.ready] == [0, 2, 3]
    assert made.lose("w9", runs_again) == []


def test_a_worker_that_is_to_be_killed_gets_nothing_more() -> None:
    made = lane("w1", num_ready=1, max_leases=1)
    made.assign(FAST)
    made.doom("w1")
    made.doom("w9")
    del made.doomed["w1"].in_flight[0]  # its result was on its way
    assert made.idle_leases(10.0, 0.0) == []
    made.ready.append(task(1))
    assert made.assign(FAST) == []
    assert made.leases_to_request() == 1
    made.leases["w2"], made.num_requested = Lease("w2"), 0
    assert [lease.worker for lease, _ in made.assign(FAST)] == ["w2"]
    assert not made.lose("w2", lambda record, was_alone: True)
    made.ready.clear()
    assert not made.is_done()
    made.lose("w1", lambda record, was_alone: False)
    assert made.is_done()


def test_what_dies_with_a_worker_that_was_killed_runs_again_uncharged() -> None:
    made = lane("w1", num_ready=4)
    made.assign(FAST)
    made.ready.append(task(4))
    made.doom("w1")
    tried_again = made.doomed["w1"].in_flight[3]
    made.again(tried_again)
    made.gave_back("w1", [2])
    assert made.lose("w1", lambda record, was_alone: False) == []
    assert [record.id for record in made.ready] == [0, 1, 2, 4, 3]
    assert {record.lease for record in made.ready} == {None}


def test_a_task_that_is_tried_again_leaves_its_worker() -> None:
    made = lane("w1", num_ready=1)
    made.assign(FAST)
    (record,) = made.leases["w1"].in_flight.values()
    made.again(record)
    assert not made.leases["w1"].in_flight
    assert list(made.ready) == [record]
    assert record.lease is None


def test_a_suspect_stays_alone() -> None:
    made = lane("w1", num_ready=1)
    made.ready[0].is_suspect = True
    made.assign(FAST)
    made.ready.extend(task(i) for i in range(1, 5))
    assert made.assign(FAST) == []
    assert list(made.leases["w1"].in_flight) == [0]


def test_a_task_that_was_cancelled_while_it_waited_is_passed_over() -> None:
    made = lane("w1", num_ready=3)
    made.ready[0].is_open = made.ready[1].is_open = False
    assert [record.id for _, records in made.assign(FAST) for record in records] == [2]
    assert not made.ready
