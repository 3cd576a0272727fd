"""How actors that keep a CPU busy ask for it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlplat
from rlplat.node_types import VARIABLE, NodeType, as_text
from rlplat.rl import spread as module
from rlplat.rl.spread import cpus_each, num_busy_actors, placement, spread


@given(
    cpus=st.lists(st.integers(0, 64), min_size=1, max_size=5),
    num_actors=st.integers(1, 300),
)
def test_all_find_room_and_none_gets_less_than_it_must(cpus: list[int], num_actors: int) -> None:
    each = cpus_each(cpus, num_actors)
    if not sum(cpus):
        assert each == 0
        return
    assert 0 < each <= 1
    assert sum(int(amount / each) for amount in cpus) >= num_actors
    parts = next(parts for parts in range(1, 400) if math.floor(10_000 / parts) == round(each * 10_000))
    assert parts == 1 or sum(amount * (parts - 1) for amount in cpus) < num_actors


@pytest.mark.parametrize(
    ("cpus", "num_actors", "each"),
    [
        ([2, 2], 4, 1.0),
        ([2, 2], 5, 0.5),
        ([0, 8], 8, 1.0),
        ([1, 1], 5, 0.3333),
        ([0.5, 0.5], 2, 0.5),
        ([], 3, 0.0),
    ],
)
def test_examples(cpus: list[float], num_actors: int, each: float) -> None:
    assert cpus_each(cpus, num_actors) == each


def test_on_one_machine_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rlplat.init(backend="inproc", num_cpus=2)
    try:
        assert placement(100) == {}
        machines = rlplat.nodes() * 3
        machines[2] = machines[2] | {"Alive": False}
        monkeypatch.setattr(rlplat, "nodes", lambda: machines)
        assert placement(4) == {"num_cpus": 1.0, "scheduling_strategy": "SPREAD"}
        assert placement(5) == {"num_cpus": 0.5, "scheduling_strategy": "SPREAD"}
        monkeypatch.setattr(rlplat, "get_current_placement_group", lambda: "a trial's")
        assert placement(5) == {}
    finally:
        rlplat.shutdown()


def test_every_actor_is_placed_by_what_there_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter:
        def __init__(self, start: int, step: int = 1) -> None:
            self.value = start + step

        def get(self) -> int:
            return self.value

    asked: list[Any] = []
    monkeypatch.setattr(module, "placement", lambda num: asked.append(num) or {})
    settings = {"num_rollout_workers": 0, "learner": {"num_learners": 2}, "num_replay_shards": 3}
    rlplat.init(backend="inproc", num_cpus=2)
    try:
        counters = spread(Counter, settings, max_concurrency=1)
        first, second = counters.remote(1), counters.remote(1, step=5)
        assert rlplat.get([first.get.remote(), second.get.remote()]) == [2, 6]
    finally:
        rlplat.shutdown()
    assert asked == [7, 7]
    assert num_busy_actors({"num_rollout_workers": 4}) == 6


def test_where_machines_come_and_go_actors_ask_for_those_that_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    types = {"head": NodeType({"CPU": 1}, 1, 1), "cpu": NodeType({"CPU": 4}, 0, 3)}
    monkeypatch.setenv(VARIABLE, as_text(types))
    assert module.cpus_of_machines() == [1, 4, 4, 4]
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(rlplat, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    assert module.cpus_of_machines() == [2]
