"""What code can ask about where it runs: names, its own handle, whether it was cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from tests.patience import soon


def name() -> Any:
    return rlplat.get_runtime_context().get_task_name()


@rlplat.remote
def task() -> Any:
    return name()


@rlplat.remote
def stream() -> Iterator[Any]:
    yield name()


@rlplat.remote
class Actor:
    def __init__(self) -> None:
        self.made_by = name()

    def first(self) -> Any:
        return self.made_by

    def method(self, *args: Any) -> Any:
        return name()

    def me(self) -> Any:
        return rlplat.get_runtime_context().current_actor

    def context(self) -> Any:
        return rlplat.get_runtime_context().get()


@rlplat.remote
class AsyncActor:
    async def method(self) -> Any:
        return name()


def test_names_of_tasks_and_calls(backend: str) -> None:
    assert name() is None
    assert rlplat.get(task.remote()) == "task"
    assert rlplat.get(task.options(name="mine").remote()) == "mine"
    assert rlplat.get(next(stream.remote())) == "stream"
    assert rlplat.get(next(stream.options(name="river").remote())) == "river"
    actor = Actor.remote()
    assert rlplat.get(actor.first.remote()) == "Actor.__init__"
    assert rlplat.get(actor.method.remote()) == "Actor.method"
    assert rlplat.get(actor.method.remote(rlplat.put(1))) == "Actor.method"
    assert rlplat.get(Actor.options(max_concurrency=2).remote().method.remote()) == "Actor.method"
    assert rlplat.get(AsyncActor.remote().method.remote()) == "AsyncActor.method"
    for kind in (Actor, Actor.options(max_concurrency=2), AsyncActor):
        assert rlplat.get(kind.remote().method.options(name="mine").remote()) == "mine"
    assert rlplat.get(rlplat.remote(lambda: name()).remote()) == "<lambda>"  # not `test_...<locals>.<lambda>`


def test_a_named_call_is_called_so_in_its_errors(backend: str) -> None:
    class Failing:
        def fail(self) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"^mine .*raised ValueError"):
        rlplat.get(rlplat.remote(Failing).remote().fail.options(name="mine").remote())


def test_a_named_task_is_called_so_in_its_errors(backend: str) -> None:
    @rlplat.remote(name="mine")
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="task mine"):
        rlplat.get(fail.remote())


def test_an_actor_has_a_handle_of_itself(backend: str) -> None:
    for options in ({}, {"name": "known"}, {"name": "kept", "lifetime": "detached"}):
        actor = Actor.options(**options).remote()
        itself = rlplat.get(actor.me.remote())
        assert itself == actor
        assert rlplat.get(itself.method.remote()) == "Actor.method"
        with pytest.raises(TypeError, match="too many positional"):
            itself.context.remote(1)
        rlplat.kill(actor)


def test_outside_an_actor_there_is_none(backend: str) -> None:
    @rlplat.remote
    def ask() -> None:
        rlplat.get_runtime_context().current_actor

    with pytest.raises(RuntimeError, match="in none"):
        rlplat.get_runtime_context().current_actor
    with pytest.raises(RuntimeError, match="in none"):
        rlplat.get(ask.remote())


def test_all_ids_in_one_dictionary(backend: str) -> None:
    context = rlplat.get_runtime_context()
    here = {"job_id": "driver", "node_id": context.get_node_id(), "namespace": ""}
    assert context.get() == here
    there = rlplat.get(Actor.remote().context.remote())
    assert there.keys() == {*here, "task_id", "actor_id"}
    assert {key: there[key] for key in here} == here


def test_the_driver_cannot_be_cancelled(backend: str) -> None:
    with pytest.raises(RuntimeError, match="driver"):
        rlplat.get_runtime_context().is_canceled()


def test_what_is_not_cancelled_is_told_so(backend: str) -> None:
    @rlplat.remote
    def ask() -> bool:
        return rlplat.get_runtime_context().is_canceled()

    @rlplat.remote
    class Asks:
        def ask(self) -> bool:
            return rlplat.get_runtime_context().is_canceled()

    assert rlplat.get([ask.remote(), Asks.remote().ask.remote()]) == [False, False]


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
def test_a_cancelled_synchronous_call_sees_it(cluster: None, tmp_path: Path, options: dict[str, int]) -> None:
    begun = tmp_path / "begun"

    @rlplat.remote
    class Patient:
        def work(self, path: str) -> str:
            context = rlplat.get_runtime_context()
            open(path, "w").close()
            while not context.is_canceled():
                time.sleep(0.005)
            return "cleaned up"

        def next(self) -> bool:
            return rlplat.get_runtime_context().is_canceled()

    actor = Patient.options(**options).remote()
    ref = actor.work.remote(str(begun))
    soon(begun.exists)
    rlplat.cancel(ref)
    assert rlplat.get(ref) == "cleaned up"
    assert rlplat.get(actor.next.remote()) is False


def test_a_cancelled_task_sees_it_while_it_cleans_up(cluster: None, tmp_path: Path) -> None:
    begun, said = tmp_path / "begun", tmp_path / "said"

    @rlplat.remote
    def work() -> None:
        begun.touch()
        try:
            while True:
                time.sleep(0.005)
        except KeyboardInterrupt:
            was = rlplat.get_runtime_context().is_canceled()
            (tmp_path / "saying").write_text(str(was))
            os.rename(tmp_path / "saying", said)
            raise

    ref = work.remote()
    soon(begun.exists)
    rlplat.cancel(ref)
    soon(said.exists)
    assert said.read_text() == "True"
    with pytest.raises(rlplat.errors.TaskCancelled):
        rlplat.get(ref)
