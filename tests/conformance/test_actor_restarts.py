"""Actors that start again: `max_restarts`, `max_task_retries`, exactly-once, `kill(no_restart=False)`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError
from tests.patience import soon

WITHIN_S = 60


def make_class() -> Any:
    """Made here, so that workers need not import this module."""

    class Counter:
        def __init__(self, log: str = "", start: int = 0) -> None:
            self.log, self.value = log, start
            self.note("start")

        def note(self, text: Any) -> None:
            if self.log:
                with open(self.log, "a") as file:
                    file.write(f"{text}\n")

        def add(self, amount: int = 1) -> int:
            self.value += amount
            return self.value

        def pid(self) -> int:
            return os.getpid()

        def die_once(self, marker: str) -> str:
            """Kill the process, the first time."""
            if not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return "second"

        def wait_at(self, gate: str) -> int:
            self.note("waiting")
            open(gate).read()
            return self.value

    return Counter


def die(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def get(ref: Any) -> Any:
    return rlplat.get(ref, timeout=WITHIN_S)


def after_restart(actor: Any, old_pid: int) -> int:
    """The pid of the next incarnation. (A call may be lost with the old one: then again.)"""
    new: list[int] = []

    def is_there() -> bool:
        try:
            new.append(get(actor.pid.remote()))
        except ActorDied as error:
            assert "starts again" in str(error)
            return False
        return new[-1] != old_pid

    assert soon(is_there)
    return new[-1]


def test_an_actor_starts_again_with_the_arguments_of_its_constructor(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = rlplat.remote(max_restarts=1)(make_class()).remote(str(log), rlplat.put(10))
    assert get(actor.add.remote()) == 11
    pid = get(actor.pid.remote())
    die(pid)
    assert after_restart(actor, pid) != pid
    assert get(actor.add.remote()) == 11  # its state is the constructor's again
    assert log.read_text() == "start\nstart\n"


def test_after_its_last_restart_an_actor_is_gone(cluster: None) -> None:
    actor = rlplat.remote(max_restarts=1)(make_class()).remote()
    first = get(actor.pid.remote())
    die(first)
    die(after_restart(actor, first))
    with pytest.raises(ActorDied, match="SIGKILL"):
        for _ in range(100):  # the very first ones may still reach the dying process
            get(actor.add.remote())


def test_large_arguments_of_the_constructor_are_kept_for_restarts(cluster: None) -> None:
    class Holder:
        def __init__(self, box: dict, array: np.ndarray) -> None:
            self.total = float(box["x"].sum() + array.sum())

        def read(self) -> tuple[int, float]:
            return os.getpid(), self.total

    array = np.ones(100_000)
    actor = rlplat.remote(max_restarts=-1, max_task_retries=-1)(Holder).remote({"x": array}, rlplat.put(2 * array))
    del array
    for _ in range(3):
        pid, total = get(actor.read.remote())
        assert total == 300_000
        die(pid)
    assert get(actor.read.remote())[1] == 300_000


def test_a_call_that_was_under_way_fails_and_says_that_it_may_have_run(cluster: None, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)
    actor = rlplat.remote(max_restarts=1)(make_class()).remote(str(log))
    pid = get(actor.pid.remote())
    lost = actor.wait_at.remote(str(gate))
    assert soon(lambda: "waiting" in log.read_text())
    die(pid)
    with pytest.raises(ActorDied, match=r"Counter\.wait_at may or may not have run(.|\n)*SIGKILL"):
        get(lost)
    assert after_restart(actor, pid)


def test_calls_made_while_it_restarts_wait_for_it(cluster: None, tmp_path: Path) -> None:
    actor = rlplat.remote(max_restarts=1)(make_class()).remote()
    pid = get(actor.pid.remote())
    lost = actor.die_once.remote(str(tmp_path / "marker"))
    with pytest.raises(ActorDied):
        get(lost)
    assert get([actor.add.remote() for _ in range(20)]) == list(range(1, 21))
    assert get(actor.pid.remote()) != pid


@pytest.mark.parametrize("where", ["actor", "method", "call"])
def test_a_lost_call_runs_again_with_max_task_retries(cluster: None, tmp_path: Path, where: str) -> None:
    kind = make_class()
    marker = str(tmp_path / "marker")
    options: dict[str, Any] = {"max_restarts": 1}
    if where == "method":
        kind.die_once = rlplat.method(max_task_retries=1)(kind.die_once)
    elif where == "actor":
        options["max_task_retries"] = 1
    actor = rlplat.remote(**options)(kind).remote()
    call = actor.die_once.options(max_task_retries=1) if where == "call" else actor.die_once
    assert get(call.remote(marker)) == "second"


def test_retried_calls_keep_their_order(cluster: None, tmp_path: Path) -> None:
    class Log:
        def __init__(self, path: str) -> None:
            self.path = path

        def add(self, number: int, marker: str) -> int:
            with open(self.path, "a") as file:
                file.write(f"{number}\n")
            if number == 50 and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return number

    log = tmp_path / "log"
    actor = rlplat.remote(max_restarts=1, max_task_retries=1)(Log).remote(str(log))
    assert get([actor.add.remote(i, str(tmp_path / "marker")) for i in range(100)]) == list(range(100))
    numbers = list(map(int, log.read_text().split()))
    cut = numbers.index(50) + 1
    assert numbers[:cut] == list(range(51))
    again = numbers[cut:]
    assert again == list(range(again[0], 100))  # in order, and from nothing later than what was under way
    assert again[0] <= 50


def test_a_call_that_kills_its_actor_each_time_runs_out_of_retries(cluster: None, tmp_path: Path) -> None:
    class Fragile:
        def die(self, log: str) -> None:
            with open(log, "a") as file:
                file.write("x")
            os.abort()

        def f(self) -> int:
            return 1

    log = tmp_path / "log"
    actor = rlplat.remote(max_restarts=3, max_task_retries=1)(Fragile).remote()
    with pytest.raises(ActorDied, match=r"Fragile\.die may or may not have run(.|\n)*SIGABRT"):
        get(actor.die.remote(str(log)))
    assert log.read_text() == "xx"
    assert get(actor.f.remote()) == 1


def test_a_constructor_that_raises_on_a_restart_is_the_end_with_its_traceback(cluster: None, tmp_path: Path) -> None:
    class Brittle:
        def __init__(self, marker: str, log: str) -> None:
            with open(log, "a") as file:
                file.write("x")
            if os.path.exists(marker):
                raise RuntimeError("the disk is full")
            open(marker, "w").close()

        def pid(self) -> int:
            return os.getpid()

    log = tmp_path / "log"
    actor = rlplat.remote(max_restarts=-1, max_task_retries=-1)(Brittle).remote(str(tmp_path / "marker"), str(log))
    die(get(actor.pid.remote()))
    for _ in range(2):
        with pytest.raises(ActorDied, match=r"(?s)Brittle could not be created.*__init__.*disk is full") as died:
            get(actor.pid.remote())
    assert isinstance(died.value.__cause__, RuntimeError)
    assert log.read_text() == "xx"  # once more, and no endless restart


def test_an_actor_that_always_dies_in_its_constructor_ends_with_an_error(cluster: None, tmp_path: Path) -> None:
    class Hopeless:
        def __init__(self, log: str) -> None:
            with open(log, "a") as file:
                file.write("x")
            os.abort()

        def f(self) -> None: ...

    log = tmp_path / "log"
    actor = rlplat.remote(max_restarts=-1, max_task_retries=-1)(Hopeless).remote(str(log))
    with pytest.raises(ActorDied, match="SIGABRT"):
        get(actor.f.remote())
    assert len(log.read_text()) <= 4  # the restart intensity: 3 in 60 s


def test_an_actor_that_crashes_too_often_ends_with_an_error_that_says_so(cluster: None) -> None:
    actor = rlplat.remote(max_restarts=-1)(make_class()).remote()
    pid = get(actor.pid.remote())
    for _ in range(3):
        die(pid)
        pid = after_restart(actor, pid)
    die(pid)

    def is_final() -> bool:
        with pytest.raises(ActorDied) as died:
            get(actor.pid.remote())
        return "crashed 4 times within 60 s" in str(died.value)

    assert soon(is_final)


def test_kill_ends_an_actor_for_good_and_kill_without_no_restart_does_not(cluster: None) -> None:
    actor = rlplat.remote(max_restarts=5)(make_class()).remote()
    pid = get(actor.pid.remote())
    rlplat.kill(actor, no_restart=False)
    assert after_restart(actor, pid) != pid
    rlplat.kill(actor)
    with pytest.raises(ActorDied, match=r"killed by rlplat\.kill"):
        get(actor.add.remote())


def test_an_actor_that_ends_with_its_last_handle_is_not_restarted(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = rlplat.remote(max_restarts=5)(make_class()).remote(str(log))
    pid = get(actor.pid.remote())
    del actor
    assert soon(lambda: not os.path.exists(f"/proc/{pid}"))
    assert rlplat.list_named_actors() == []
    assert log.read_text() == "start\n"


def test_handles_in_tasks_and_other_actors_survive_the_restart(cluster: None) -> None:
    class Friend:
        def __init__(self, box: list) -> None:
            self.other = box[0]

        def nudge(self) -> int:
            return rlplat.get(self.other.add.remote(), timeout=WITHIN_S)

    @rlplat.remote(num_cpus=0)
    def nudge(box: list) -> int:
        return rlplat.get(box[0].add.remote(), timeout=WITHIN_S)

    actor = rlplat.remote(max_restarts=-1, max_task_retries=-1)(make_class()).remote()
    friend = rlplat.remote(Friend).remote([actor])
    pid = get(actor.pid.remote())
    assert get(friend.nudge.remote()) == 1
    assert get(nudge.remote([actor])) == 2
    die(pid)
    results = sorted(get([friend.nudge.remote(), nudge.remote([actor]), actor.add.remote()]))
    assert results[-1] == 3
    assert get(actor.pid.remote()) != pid


def test_an_actor_created_by_another_actor_restarts_as_well(cluster: None) -> None:
    counter = make_class()

    class Parent:
        def __init__(self) -> None:
            self.child = rlplat.remote(max_restarts=2, max_task_retries=2)(counter).remote("", 5)

        def lend(self) -> list:
            return [self.child]

    parent = rlplat.remote(Parent).remote()
    (child,) = get(parent.lend.remote())
    pid = get(child.pid.remote())
    die(pid)
    assert get(child.add.remote()) == 6
    assert get(child.pid.remote()) != pid


# ---------------------------------------------------------------- exactly once


def make_ledger() -> Any:
    class Ledger:
        def __init__(self) -> None:
            self.entries: list[int] = []

        def get_state(self) -> list[int]:
            return self.entries

        def set_state(self, state: list[int]) -> None:
            self.entries = state

        def add(self, number: int, marker: str = "") -> int:
            self.entries.append(number)
            if marker and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return sum(self.entries)

        def refuse(self) -> None:
            self.entries.append(-1)
            raise ValueError("refused")

        def array(self, size: int) -> np.ndarray:
            return np.full(size, len(self.entries))

        def read(self) -> tuple[int, list[int]]:
            return os.getpid(), self.entries

    return rlplat.remote(exactly_once=True, max_restarts=-1)(Ledger)


def test_exactly_once_calls_neither_vanish_nor_count_twice(cluster: None, tmp_path: Path) -> None:
    ledger = make_ledger().remote()
    refs = [ledger.add.remote(i, str(tmp_path / "marker") if i == 30 else "") for i in range(60)]
    assert get(refs) == [sum(range(i + 1)) for i in range(60)]
    assert get(ledger.read.remote())[1] == list(range(60))


def test_a_call_with_options_of_its_own_is_exactly_once_too(cluster: None, tmp_path: Path) -> None:
    ledger = make_ledger().remote()
    add = ledger.add.options(max_task_retries=None)
    assert get(add.remote(1, str(tmp_path / "marker"))) == 1
    assert get(ledger.read.remote())[1] == [1]


def test_exactly_once_keeps_errors_and_large_results(cluster: None) -> None:
    ledger = make_ledger().remote()
    with pytest.raises(ValueError, match="refused"):
        get(ledger.refuse.remote())
    pid, entries = get(ledger.read.remote())
    assert entries == [-1]
    die(pid)
    assert get(ledger.array.remote(100_000)).sum() == 100_000
    again, entries = get(ledger.read.remote())
    assert entries == [-1]
    assert again != pid


def test_exactly_once_needs_calls_one_after_the_other_and_both_halves_of_the_state(backend: str) -> None:
    kind = make_class()
    with pytest.raises(ConfigError, match=r"one after the other.*max_concurrency"):
        rlplat.remote(exactly_once=True, max_concurrency=2)(kind).remote()

    class Awaiting:
        async def f(self) -> None: ...

    with pytest.raises(ConfigError, match="f is an async method"):
        rlplat.remote(exactly_once=True)(Awaiting).remote()

    class Half:
        def get_state(self) -> None: ...

    with pytest.raises(ConfigError, match=r"Half has no set_state\(\)"):
        rlplat.remote(exactly_once=True)(Half).remote()


def test_exactly_once_works_where_nothing_restarts(backend: str) -> None:
    actor = rlplat.remote(exactly_once=True)(make_class()).remote("", 3)
    assert rlplat.get([actor.add.remote() for _ in range(10)]) == list(range(4, 14))
