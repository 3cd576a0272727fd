"""Cycles of waits: the rules at the head of `wait_graph`."""

from __future__ import annotations

from rlplat.runtime.core.node.wait_graph import ROUND_S, Ask, WaitGraph, Warn
from rlplat.runtime.wire.values import Key


class World:
    """Answers what the graph asks, and keeps the clock."""

    def __init__(self) -> None:
        self.graph = WaitGraph(lambda worker: f"Actor{worker}")
        self.makers: dict[Key, tuple[str, str, list[Key]]] = {}
        self.now = 0.0
        self.warnings: list[str] = []

    def blocked(self, worker: str, *on: Key) -> None:
        self.graph.blocked(worker, list(on), self.now)

    def makes(self, key: Key, worker: str, name: str = "f", waits: tuple[Key, ...] = ()) -> None:
        self.makers[key] = (worker, name, list(waits))

    def rounds(self, count: int) -> list[str]:
        for _ in range(count):
            self.now += ROUND_S
            actions = self.graph.ticked(self.now)
            while actions:
                action = actions.pop()
                if isinstance(action, Warn):
                    self.warnings.append(action.text)
                else:
                    assert isinstance(action, Ask)
                    for id in action.ids:
                        key = (action.owner, id)
                        if key in self.makers:
                            actions += self.graph.found(key, *self.makers[key])
            self.graph.check_valid()
        return self.warnings


def test_two_actors_that_wait_for_each_other_are_reported_once_within_the_time() -> None:
    world = World()
    world.blocked("w1", ("w1", 5))
    world.blocked("w2", ("w2", 6))
    world.makes(("w1", 5), "w2", "B.g")
    world.makes(("w2", 6), "w1", "A.h")
    (text,) = world.rounds(10)
    assert "Actorw1 (w1) waits for B.g, which Actorw2 (w2) is to run" in text
    assert "Actorw2 (w2) waits for A.h, which Actorw1 (w1) is to run" in text
    again = World()
    again.blocked("w1", ("w1", 5))
    again.makes(("w1", 5), "w1", "A.f")
    assert again.rounds(3)  # that is 12 s of the 30
    assert "waits for A.f" in again.warnings[0]


def test_a_long_wait_is_not_a_cycle() -> None:
    world = World()
    world.blocked("w1", ("w1", 5))
    world.makes(("w1", 5), "w2")
    world.blocked("w3", ("w1", 5))
    assert world.rounds(5) == []


def test_a_cycle_through_arguments_that_are_not_there() -> None:
    """w1 waits for a task whose argument is a call that w1 is to run."""
    world = World()
    world.blocked("w1", ("w1", 5))
    world.makes(("w1", 5), "", "task", (("w1", 4),))
    world.makes(("w1", 4), "w1", "A.g")
    (text,) = world.rounds(3)
    assert "Actorw1 (w1) waits for A.g" in text


def test_what_was_true_of_one_moment_only_is_not_reported() -> None:
    world = World()
    world.blocked("w1", ("w1", 5))
    world.blocked("w2", ("w2", 6))
    world.makes(("w1", 5), "w2")
    world.makes(("w2", 6), "w1")
    world.rounds(2)
    world.graph.unblocked("w2")
    world.blocked("w2", ("w2", 6))
    world.makers[("w2", 6)] = ("w3", "f", [])
    assert world.rounds(5) == []


def test_a_dead_worker_breaks_the_cycle_and_a_new_one_is_news() -> None:
    world = World()
    for worker, other in (("w1", "w2"), ("w2", "w1")):
        world.blocked(worker, (worker, 1))
        world.makes((worker, 1), other)
    assert len(world.rounds(3)) == 1
    world.graph.unblocked("w2")
    world.makes(("w1", 1), "w4")
    world.blocked("w4", ("w4", 1))
    world.makes(("w4", 1), "w1")
    assert len(world.rounds(3)) == 2


def test_nothing_is_asked_when_nobody_waits_for_long() -> None:
    world = World()
    world.blocked("w1", ("w1", 5))
    assert world.graph.deadline() == ROUND_S
    world.graph.unblocked("w1")
    assert world.graph.ticked(ROUND_S) == []
    assert world.graph.deadline() is None
    world.blocked("w2")  # waits for one of many: no cycle can be told
    assert world.graph.deadline() is None


def test_unknown_answers_are_ignored() -> None:
    world = World()
    assert world.graph.found(("w9", 1), "w1", "f", [("w1", 2)]) == []
    world.graph.check_valid()


def test_long_chains_and_many_cycles() -> None:
    world = World()
    for i in range(200):
        world.blocked(f"w{i}", (f"w{i}", 1))
        world.makes((f"w{i}", 1), f"w{i + 1}" if i < 199 else "w150")
    (text,) = world.rounds(3)
    assert text.count("waits for") == 50
