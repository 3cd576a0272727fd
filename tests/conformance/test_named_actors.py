"""Names, namespaces, `get_if_exists`, detached actors."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError
from rlplat.runtime import refs
from tests.patience import soon


def counter(**options: Any) -> Any:
    class Counter:
        def __init__(self, start: int = 0) -> None:
            self.value = start

        def add(self, amount: int = 1) -> int:
            self.value += amount
            return self.value

        def pid(self) -> int:
            return os.getpid()

    return rlplat.remote(Counter).options(**options)


@pytest.fixture(params=["inproc", "zmq"])
def in_namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    rlplat.init(num_cpus=2, num_gpus=0, backend=request.param, namespace="home")
    yield request.param
    rlplat.shutdown()


def test_get_if_exists_makes_one_and_then_finds_it(backend: str) -> None:
    first = counter(name="only", get_if_exists=True).remote(10)
    second = counter(name="only", get_if_exists=True).remote(99)
    assert first == second
    assert rlplat.get([first.add.remote(), second.add.remote()]) == [11, 12]


def test_get_if_exists_from_many_tasks_at_once_makes_one(cluster: None) -> None:
    make = counter(name="only", get_if_exists=True)

    @rlplat.remote
    def use() -> tuple[int, int]:
        actor = make.remote()
        return tuple(rlplat.get([actor.pid.remote(), actor.add.remote()]))  # type: ignore[return-value]

    keep = make.remote()
    results = rlplat.get([use.remote() for _ in range(20)], timeout=60)
    assert len({pid for pid, _ in results}) == 1
    assert sorted(value for _, value in results) == list(range(1, 21))
    del keep


def test_that_a_name_is_taken_may_be_heard_while_the_question_is_sent(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = counter(name="only", get_if_exists=True)
    keep = make.remote()
    first = rlplat.get(keep.pid.remote())
    link = refs.backend().link  # type: ignore[attr-defined]
    flush, asked = link.transport.flush, []

    def flush_until_answered() -> None:
        is_question = bool(link.transport.num_unsent) and not asked
        flush()
        if is_question:
            asked.append(soon(link.transport.has_input))

    assert soon(lambda: link.loop._has_leader)  # beside whom one reads what comes while one sends
    with link.lock:
        monkeypatch.setattr(link.transport, "flush", flush_until_answered)
    again = threading.Thread(target=make.remote, daemon=True)
    again.start()
    again.join(10)
    assert asked == [True] and not again.is_alive()
    assert rlplat.get(make.remote().pid.remote()) == first


def test_a_named_actor_that_waits_for_its_resources_is_there_already(cluster: None) -> None:
    first = counter(name="first", num_cpus=2).remote()
    rlplat.get(first.add.remote())
    make, made = counter(name="second", num_cpus=2), []
    creator = threading.Thread(target=lambda: made.append(make.remote(5)), daemon=True)
    creator.start()
    creator.join(30)
    assert made, "its creation waits for its resources"
    (second,) = made
    assert second == rlplat.get_actor("second") == make.options(get_if_exists=True).remote(99)
    with pytest.raises(ConfigError, match="exists already"):
        make.remote()
    later = second.add.remote()
    assert rlplat.wait([later], timeout=0)[1] == [later]
    rlplat.kill(first)
    assert rlplat.get(later, timeout=60) == 6


def test_get_if_exists_without_a_name_is_refused(backend: str) -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        counter(get_if_exists=True).remote()


@pytest.mark.process
def test_a_name_counts_in_its_namespace(in_namespace: str) -> None:
    mine = counter(name="x").remote(1)
    other = counter(name="x", namespace="away").remote(100)
    assert rlplat.get(rlplat.get_actor("x").add.remote()) == 2
    assert rlplat.get(rlplat.get_actor("x", namespace="home").add.remote()) == 3
    assert rlplat.get(rlplat.get_actor("x", namespace="away").add.remote()) == 101
    with pytest.raises((ActorDied, ValueError), match="no actor named 'x' in namespace 'nowhere'"):
        rlplat.get_actor("x", namespace="nowhere")
    del mine, other


def test_a_name_of_another_namespace_is_found_there_only(backend: str) -> None:
    actor = counter(name="spaced", namespace="away").remote(1)
    rlplat.get(actor.add.remote())
    with pytest.raises((ActorDied, ValueError)):
        rlplat.get_actor("spaced")
    assert rlplat.get(rlplat.get_actor("spaced", namespace="away").add.remote()) == 3


@pytest.mark.process
def test_tasks_and_actors_are_in_the_namespace_of_their_driver(in_namespace: str) -> None:
    @rlplat.remote
    def find() -> int:
        return rlplat.get(rlplat.get_actor("x").add.remote())

    actor = counter(name="x").remote(1)
    assert rlplat.get(find.remote()) == 2
    del actor


@pytest.mark.process
def test_named_actors_are_listed(in_namespace: str) -> None:
    assert rlplat.list_named_actors() == []
    actors = [
        counter(name="b").remote(),
        counter(name="a").remote(),
        counter(name="c", namespace="away").remote(),
    ]
    nameless = counter().remote()
    rlplat.get([actor.add.remote() for actor in [*actors, nameless]])
    assert rlplat.list_named_actors() == ["a", "b"]
    assert rlplat.list_named_actors(all_namespaces=True) == [
        {"name": "c", "namespace": "away"},
        {"name": "a", "namespace": "home"},
        {"name": "b", "namespace": "home"},
    ]
    rlplat.kill(actors[0])
    assert soon(lambda: rlplat.list_named_actors() == ["a"])


def test_a_detached_actor_outlives_its_handles(backend: str) -> None:
    actor = counter(name="stays", lifetime="detached").remote(7)
    rlplat.get(actor.add.remote())
    del actor
    gc.collect()
    rlplat.get([rlplat.put(0)])
    assert rlplat.get(rlplat.get_actor("stays").add.remote()) == 9
    rlplat.kill(rlplat.get_actor("stays"))
    assert soon(lambda: rlplat.list_named_actors() == [])


def test_a_detached_actor_outlives_the_process_that_made_it(cluster: None) -> None:
    make = counter(name="stays", lifetime="detached")

    class Maker:
        def make(self) -> int:
            actor = make.remote(5)
            return rlplat.get(actor.add.remote())

    maker = rlplat.remote(Maker).remote()
    assert rlplat.get(maker.make.remote(), timeout=60) == 6
    rlplat.kill(maker)
    with pytest.raises(ActorDied):
        rlplat.get(maker.make.remote())
    actor = rlplat.get_actor("stays")
    assert rlplat.get(actor.add.remote(), timeout=60) == 7

    @rlplat.remote
    def use(box: list) -> int:
        return rlplat.get(box[0].add.remote())

    assert rlplat.get(use.remote([actor]), timeout=60) == 8


def test_a_detached_actor_restarts_without_its_creator(cluster: None) -> None:
    make = counter(name="stays", lifetime="detached", max_restarts=1, max_task_retries=1)

    @rlplat.remote
    def create(start: int) -> int:
        actor = make.remote(rlplat.put(start))
        rlplat.get(actor.add.remote())
        return os.getpid()

    os.kill(rlplat.get(create.remote(5), timeout=60), signal.SIGKILL)
    actor = rlplat.get_actor("stays")
    pid = rlplat.get(actor.pid.remote(), timeout=60)
    os.kill(pid, signal.SIGKILL)
    assert rlplat.get(actor.add.remote(), timeout=60) == 6  # its constructor ran again, with its arguments
    assert rlplat.get(actor.pid.remote()) != pid


def test_a_name_stays_with_its_actor_over_a_restart(cluster: None) -> None:
    actor = counter(name="x", max_restarts=1, max_task_retries=1).remote(5)
    pid = rlplat.get(actor.pid.remote(), timeout=60)
    os.kill(pid, signal.SIGKILL)
    assert rlplat.get(rlplat.get_actor("x").add.remote(), timeout=60) == 6
    assert rlplat.list_named_actors() == ["x"]
    with pytest.raises(ConfigError, match="exists already"):
        counter(name="x").remote()


def test_get_if_exists_finds_a_detached_actor_of_a_dead_process(cluster: None) -> None:
    make = counter(name="stays", lifetime="detached", get_if_exists=True)

    @rlplat.remote
    def create() -> int:
        rlplat.get(make.remote(5).add.remote())
        return os.getpid()

    os.kill(rlplat.get(create.remote(), timeout=60), signal.SIGKILL)
    assert rlplat.get(make.remote(99).add.remote(), timeout=60) == 7


def test_a_detached_actor_whose_constructor_raises_says_so(cluster: None) -> None:
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("the disk is full")

        def f(self) -> None: ...

    actor = rlplat.remote(lifetime="detached", name="broken")(Broken).remote()
    with pytest.raises(ActorDied, match=r"could not be created(.|\n)*the disk is full"):
        rlplat.get(actor.f.remote(), timeout=60)


def test_a_detached_actor_refuses_refs_inside_its_arguments(cluster: None) -> None:
    class Holder:
        def __init__(self, box: list) -> None: ...

    with pytest.raises(ConfigError, match=r"detached actor .*ObjectRef"):
        rlplat.remote(lifetime="detached")(Holder).remote([rlplat.put(1)])


def test_a_detached_actor_refuses_a_class_that_closes_over_a_ref(cluster: None) -> None:
    ref = rlplat.put(1)

    class Reader:
        def read(self) -> int:
            return rlplat.get(ref)

    with pytest.raises(ConfigError, match=r"detached actor .*Reader: its class closes over ObjectRef"):
        rlplat.remote(lifetime="detached")(Reader).remote()


def test_a_nameless_detached_actor_ends_by_kill(cluster: None) -> None:
    actor = counter(lifetime="detached").remote()
    pid = rlplat.get(actor.pid.remote())
    rlplat.kill(actor)
    assert soon(lambda: not os.path.exists(f"/proc/{pid}"))
