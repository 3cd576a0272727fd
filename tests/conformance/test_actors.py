"""Actors: state, order, handles, names, ends."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, WorkerCrashed
from tests.patience import soon


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value


def counter(**options: Any) -> Any:
    """An actor class that is made here, so that workers need not import this module."""

    class Local(Counter):
        pass

    Local.__qualname__ = "Counter"
    return rlplat.remote(Local).options(**options)


def test_an_actor_keeps_its_state_and_the_order_of_calls(backend: str) -> None:
    actor = counter().remote(10)
    refs = [actor.add.remote(i) for i in range(500)]
    assert rlplat.get(refs) == [10 + sum(range(i + 1)) for i in range(500)]


def test_two_actors_do_not_share_state(backend: str) -> None:
    one, two = counter().remote(), counter().remote(start=100)
    assert rlplat.get([one.add.remote(), two.add.remote(), one.add.remote()]) == [1, 101, 2]


def test_a_failed_argument_fails_the_call_and_not_the_next(backend: str) -> None:
    @rlplat.remote
    def fail() -> int:
        raise KeyError("argument")

    actor = counter().remote()
    bad = actor.add.remote(fail.remote())
    good = actor.add.remote(1)
    with pytest.raises(KeyError, match="argument"):
        rlplat.get(bad)
    assert rlplat.get(good) == 1


def test_handles_travel_to_tasks_and_other_actors(backend: str) -> None:
    class Friend:
        def __init__(self, other: Any) -> None:
            self.other = other

        def nudge(self) -> int:
            return rlplat.get(self.other.add.remote(5))

    @rlplat.remote
    def nudge(box: list) -> int:
        return rlplat.get(box[0].add.remote(1))

    actor = counter().remote()
    friend = rlplat.remote(Friend).remote(actor)
    assert rlplat.get(nudge.remote([actor])) == 1
    assert rlplat.get(friend.nudge.remote()) == 6
    assert rlplat.get(actor.add.remote()) == 7


def test_handles_of_one_actor_are_equal(backend: str) -> None:
    actor, other = counter().remote(), counter().remote()

    @rlplat.remote
    def echo(box: list) -> list:
        return box

    (again,) = rlplat.get(echo.remote([actor]))
    assert again == actor
    assert hash(again) == hash(actor)
    assert actor != other


def test_named_actors_are_found_from_everywhere(backend: str) -> None:
    actor = counter(name="the counter").remote()
    assert rlplat.get(rlplat.get_actor("the counter").add.remote()) == 1

    @rlplat.remote
    def find() -> int:
        return rlplat.get(rlplat.get_actor("the counter").add.remote())

    assert rlplat.get(find.remote()) == 2
    assert rlplat.get(actor.add.remote()) == 3


def test_a_name_that_is_taken_is_refused_at_once(backend: str) -> None:
    first = counter(name="unique").remote(5)
    with pytest.raises(ConfigError, match=r"named 'unique' exists already.*get_actor\('unique'\)"):
        counter(name="unique").remote()
    assert rlplat.get(first.add.remote()) == 6
    assert rlplat.get(rlplat.get_actor("unique").add.remote()) == 7


def test_an_unknown_name_lists_the_known_ones(backend: str) -> None:
    actor = counter(name="known").remote()
    with pytest.raises((ActorDied, ValueError), match=r"no actor named 'unknown'.*'known'"):
        rlplat.get_actor("unknown")
    del actor


def test_a_name_is_free_again_after_kill(backend: str) -> None:
    actor = counter(name="again").remote()
    rlplat.get(actor.add.remote())
    rlplat.kill(actor)

    def make() -> bool:
        try:
            rlplat.get(counter(name="again").remote().add.remote())
        except ConfigError:
            return False
        return True

    assert soon(make)


def test_a_named_actor_ends_with_its_last_handle(backend: str) -> None:
    actor = counter(name="mortal").remote()
    rlplat.get(actor.add.remote())
    del actor
    gc.collect()

    def is_gone() -> bool:
        try:
            rlplat.get_actor("mortal")
        except ActorDied:
            return True
        rlplat.put(0)  # lets the in-process backend notice dropped refs
        return False

    assert soon(is_gone)


def test_an_unknown_method_gets_a_suggestion(backend: str) -> None:
    actor = counter().remote()
    with pytest.raises(AttributeError, match=r"Counter has no method 'ad'; did you mean 'add'\?"):
        actor.ad.remote()
    with pytest.raises(TypeError, match=r"\.add\.remote\("):
        actor.add()
    with pytest.raises(AttributeError, match="_value"):
        actor._value


def test_calling_an_actor_class_directly_says_how(backend: str) -> None:
    with pytest.raises(TypeError, match=r"Counter\.remote\("):
        counter()()


def is_dead(actor: Any) -> bool:
    try:
        rlplat.get(actor.add.remote())
    except ActorDied:
        return True
    return False


def test_kill_ends_an_actor_and_fails_its_calls(backend: str) -> None:
    actor, other = counter().remote(), counter().remote()
    rlplat.get(actor.add.remote())
    rlplat.kill(actor)
    if backend == "ray":  # whose kill returns first and ends later: a call right behind it may still be answered
        assert soon(lambda: is_dead(actor))
    for _ in range(2):
        with pytest.raises(ActorDied, match=r"Counter .*killed by rlplat\.kill"):
            rlplat.get(actor.add.remote())
    rlplat.kill(actor)  # again: no error
    assert rlplat.get(other.add.remote()) == 1
    with pytest.raises(TypeError, match="actor handle"):
        rlplat.kill("actor")  # type: ignore[arg-type]


def test_a_constructor_that_raises_fails_every_call_with_the_cause(backend: str) -> None:
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("the disk is full")

        def f(self) -> None: ...

    actor = rlplat.remote(Broken).remote()
    for _ in range(2):
        with pytest.raises(ActorDied, match=r"Broken could not be created(.|\n)*the disk is full") as died:
            rlplat.get(actor.f.remote())
        assert isinstance(died.value.__cause__, RuntimeError)


def test_a_constructor_whose_argument_failed_says_so(backend: str) -> None:
    @rlplat.remote
    def fail() -> int:
        raise KeyError("argument")

    actor = counter().remote(fail.remote())
    for _ in range(2):
        said = "argument" if backend == "ray" else r"could not be created(.|\n)*argument"
        with pytest.raises(ActorDied, match=said) as died:
            rlplat.get(actor.add.remote())
        assert backend == "ray" or isinstance(died.value.__cause__, KeyError)


# What follows needs processes of its own, or calls that overlap.


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
@pytest.mark.parametrize("code", [None, 0, 3, "no data"])
def test_sys_exit_is_the_end_of_the_actor_and_with_a_code_its_crash(
    cluster: None, options: dict[str, int], code: Any
) -> None:
    # In-process it would be the driver's own sys.exit: the debugger's user wants to see that.
    class Quitter:
        def quit(self) -> None:
            sys.exit(code)

        def f(self) -> int:
            return 1

    actor = rlplat.remote(Quitter).options(max_restarts=1, **options).remote()
    first = actor.f.remote()
    with pytest.raises(ActorDied, match=r"sys.exit|process died"):
        rlplat.get(actor.quit.remote(), timeout=60)
    assert rlplat.get(first) == 1
    if code:
        assert rlplat.get(actor.f.remote(), timeout=60) == 1
    else:
        with pytest.raises(ActorDied, match=r"it called sys\.exit"):
            rlplat.get(actor.f.remote(), timeout=60)


def test_sys_exit_in_a_task_is_a_crash(cluster: None, tmp_path: Path) -> None:
    @rlplat.remote(max_retries=1)
    def leave(code: Any) -> None:
        with open(tmp_path / "runs", "a") as file:
            file.write("x")
        sys.exit(code)

    for code in (0, 5):
        with pytest.raises(WorkerCrashed, match=f"exited with code {code}"):
            rlplat.get(leave.remote(code), timeout=60)
    assert (tmp_path / "runs").read_text() == "xxxx"


def test_an_actor_ends_when_its_last_handle_goes(cluster: None) -> None:
    class Here:
        def pid(self) -> int:
            return os.getpid()

    actor = rlplat.remote(Here).remote()
    pid = rlplat.get(actor.pid.remote())
    del actor
    gc.collect()
    assert soon(lambda: not os.path.exists(f"/proc/{pid}"))


def test_calls_that_were_submitted_still_run_when_the_handle_goes(cluster: None) -> None:
    ref = counter().remote(41).add.remote()
    gc.collect()
    assert rlplat.get(ref) == 42


def test_a_handle_inside_another_actor_keeps_the_actor_alive(cluster: None) -> None:
    class Keeper:
        def __init__(self, box: list) -> None:
            self.box = box

        def use(self) -> int:
            return rlplat.get(self.box[0].add.remote())

    actor = counter().remote()
    keeper = rlplat.remote(Keeper).remote([actor])
    assert rlplat.get(keeper.use.remote()) == 1
    del actor
    gc.collect()
    for i in range(2, 30):
        assert rlplat.get(keeper.use.remote()) == i


def test_max_concurrency_runs_calls_at_once(cluster: None) -> None:
    class Meeting:
        def __init__(self, size: int) -> None:
            self.barrier = threading.Barrier(size)

        def join(self) -> int:
            return self.barrier.wait(60)

    meeting = rlplat.remote(Meeting).options(max_concurrency=4).remote(4)
    assert sorted(rlplat.get([meeting.join.remote() for _ in range(4)])) == [0, 1, 2, 3]


def test_without_max_concurrency_calls_never_overlap(cluster: None) -> None:
    class Alone:
        inside = 0

        def enter(self) -> int:
            Alone.inside += 1
            seen = Alone.inside
            time.sleep(0.001)
            Alone.inside -= 1
            return seen

    @rlplat.remote(num_cpus=0)
    def call(box: list) -> int:
        return max(rlplat.get([box[0].enter.remote() for _ in range(20)]))

    actor = rlplat.remote(Alone).remote()
    assert set(rlplat.get([call.remote([actor]) for _ in range(3)])) == {1}


def test_two_callers_each_keep_their_order(cluster: None) -> None:
    class Log:
        def __init__(self) -> None:
            self.seen: dict[int, list[int]] = {}

        def add(self, caller: int, number: int) -> None:
            self.seen.setdefault(caller, []).append(number)

        def read(self) -> dict[int, list[int]]:
            return self.seen

    @rlplat.remote
    def caller(box: list, me: int) -> None:
        rlplat.get([box[0].add.remote(me, i) for i in range(300)])

    log = rlplat.remote(Log).remote()
    rlplat.get([caller.remote([log], me) for me in range(2)])
    assert rlplat.get(log.read.remote()) == {0: list(range(300)), 1: list(range(300))}


def test_actors_call_each_other_in_turn(cluster: None) -> None:
    class Player:
        def __init__(self) -> None:
            self.other: Any = None

        def meet(self, box: list) -> None:
            self.other = box[0]

        def hit(self, left: int) -> int:
            return 0 if left == 0 else 1 + rlplat.get(self.other.serve.remote(left - 1))

        def serve(self, left: int) -> int:
            return left

    a, b = rlplat.remote(Player).remote(), rlplat.remote(Player).remote()
    rlplat.get([a.meet.remote([b]), b.meet.remote([a])])
    assert rlplat.get(a.hit.remote(10)) == 10
    for actor in (a, b):
        rlplat.kill(actor)


def test_large_arrays_between_actors(cluster: None) -> None:
    class Holder:
        def make(self, value: int) -> np.ndarray:
            return np.full(250_000, value, np.float32)

        def total(self, array: np.ndarray) -> float:
            return float(array.sum())

    a, b = rlplat.remote(Holder).remote(), rlplat.remote(Holder).remote()
    totals = [b.total.remote(a.make.remote(i)) for i in range(20)]
    assert rlplat.get(totals) == [250_000.0 * i for i in range(20)]


def test_a_method_may_have_any_name(backend: str) -> None:
    """Also one that a backend's own host of actors has."""

    @rlplat.remote
    class Phone:
        def call(self, name: str, *, times: int = 1) -> str:
            return f"called {name} {times}"

        def stream(self) -> str:
            return "streamed"

        def task(self) -> str:
            return "done"

    @rlplat.remote
    class AsyncPhone:
        async def call(self, name: str) -> str:
            return f"called {name}"

    phone = Phone.remote()
    refs = [phone.call.remote("home", times=2), phone.stream.remote(), phone.task.remote()]
    assert rlplat.get(refs, timeout=60) == ["called home 2", "streamed", "done"]
    assert rlplat.get(AsyncPhone.remote().call.remote("home"), timeout=60) == "called home"
