"""`exit_actor`: outside an actor, in a constructor, with calls queued behind it."""

from __future__ import annotations

from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied


def test_outside_an_actor_it_is_an_error(backend: str) -> None:
    @rlplat.remote
    def task() -> None:
        rlplat.exit_actor()

    with pytest.raises(TypeError, match="for the methods of an actor"):
        rlplat.exit_actor()
    with pytest.raises(TypeError, match="for the methods of an actor"):
        rlplat.get(task.remote())
    assert rlplat.get(rlplat.put(1)) == 1


@rlplat.remote
class EndsAtOnce:
    def __init__(self) -> None:
        rlplat.exit_actor()

    def method(self) -> int:
        return 1


def test_in_a_constructor_it_ends_the_actor(backend: str) -> None:
    for options in ({}, {"max_restarts": 2}, {"max_concurrency": 3}):
        actor = EndsAtOnce.options(**options).remote()
        refs = [actor.method.remote() for _ in range(3)]
        for ref in refs:
            with pytest.raises(ActorDied, match=r"it called rlplat\.exit_actor\(\) in its constructor"):
                rlplat.get(ref)


class Plain:
    def work(self, refs: list[Any] = ()) -> int:  # type: ignore[assignment]
        if refs:
            rlplat.get(refs[0])
        return 1

    def end(self, gate: list[Any]) -> None:
        rlplat.get(gate[0])
        rlplat.exit_actor()


class Async:
    async def work(self) -> int:
        return 1

    async def end(self, gate: list[Any]) -> None:
        await gate[0]
        rlplat.exit_actor()


def test_it_ends_the_actor_and_its_own_call(backend: str) -> None:
    for kind in (Plain, Async):
        actor = rlplat.remote(kind).remote()
        for call in (lambda actor: actor.end.remote([rlplat.put(0)]), lambda actor: actor.work.remote()):
            with pytest.raises(ActorDied, match="exit_actor"):
                rlplat.get(call(actor))


@pytest.mark.parametrize("kind", ["plain", "threads", "async"])
def test_calls_behind_it_did_not_run(cluster: None, kind: str) -> None:
    """They are told so, and not that they may have run."""
    options = {"plain": {}, "threads": {"concurrency_groups": {"one": 1}}, "async": {"max_concurrency": 1}}[kind]

    @rlplat.remote
    class Gate:
        def __init__(self) -> None:
            import threading

            self.event = threading.Event()

        def wait(self) -> None:
            self.event.wait()

        def open(self) -> None:
            self.event.set()

    gate = Gate.options(max_concurrency=2, num_cpus=0).remote()
    opened = gate.wait.remote()
    actor = rlplat.remote(Async if kind == "async" else Plain).options(**options).remote()
    assert rlplat.get(actor.work.remote()) == 1
    end = actor.end.remote([opened])
    queued = [actor.work.remote() for _ in range(3)]
    assert rlplat.wait([end, *queued], timeout=0.2)[0] == []
    gate.open.remote()
    with pytest.raises(ActorDied, match=r"it called rlplat\.exit_actor\(\)"):
        rlplat.get(end)
    for ref in queued:
        with pytest.raises(ActorDied, match=r"work did not run: actor \w+ is gone: it called rlplat\.exit_actor\(\)"):
            rlplat.get(ref)
    with pytest.raises(ActorDied, match=r"exit_actor"):
        rlplat.get(actor.work.remote())
