"""Workers and actors that are killed again and again: no result is lost, none counts twice (promises P1, P2, P17)."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import rlplat
from rlplat.errors import ActorDied
from rlplat.runtime import refs
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import Value
from tests.leak_meter import MARK, marked_processes
from tests.patience import soon


def lines(path: Path) -> list[list[str]]:
    """Whole lines of a log, in words."""
    if not path.exists():
        return []
    return [line.split() for line in path.read_text().split("\n")[:-1]]


class Pace:
    """Keeps those who run and the one who kills in step, whoever of them is the faster one: `note` writes a line of the
    log and waits when two kills are due, `each_time_it_grew` acts whenever there are `by` more lines."""

    def __init__(self, folder: Path, by: int, times: int) -> None:
        self.log, self._kills, self.by, self.times = folder / "log", folder / "kills", by, times

    def note(self, *words: object) -> None:
        self._add(self.log, " ".join(map(str, words)) + "\n")
        while (done := self._count(self._kills)) < self.times and self._count(self.log) >= self.by * (done + 2):
            time.sleep(0.001)

    def each_time_it_grew(self, act: Callable[[list[list[str]]], None]) -> None:
        for done in range(self.times):
            assert soon(lambda due=self.by * (done + 1): self._count(self.log) >= due, 60)  # type: ignore[misc]
            act(lines(self.log))
            self._add(self._kills, "\n")

    @staticmethod
    def _count(path: Path) -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @staticmethod
    def _add(path: Path, text: str) -> None:
        file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)


def test_a_thousand_tasks_while_workers_are_killed(cluster: None, tmp_path: Path) -> None:
    """P1: every result right, each id committed once, no CPU leaked."""
    pace = Pace(tmp_path, 35, 24)

    @rlplat.remote
    def task(x: int) -> tuple[int, str]:
        attempt = f"{os.getpid()}-{time.monotonic_ns()}"
        pace.note(x, attempt, os.getpid())
        time.sleep(0.002)
        return x * x, attempt

    rng = random.Random(1)

    def kill_one(log_lines: list[list[str]]) -> None:
        recent = {int(line[2]) for line in log_lines[-20:]} & set(marked_processes(os.environ[MARK]))
        if recent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(sorted(recent)), signal.SIGKILL)

    task_refs = [task.remote(x) for x in range(1000)]
    pace.each_time_it_grew(kill_one)
    results = rlplat.get(task_refs, timeout=90)
    assert [value for value, _ in results] == [x * x for x in range(1000)]
    ran = defaultdict(set)
    for x, attempt, _ in lines(pace.log):
        ran[int(x)].add(attempt)
    assert all(attempt in ran[x] for x, (_, attempt) in enumerate(results))  # what was committed did run
    assert len(lines(pace.log)) > 1000, "nothing was killed in mid-task: this test has shown nothing"
    assert rlplat.get(task_refs, timeout=10) == results  # and is what it was
    assert soon(lambda: rlplat.available_resources()["CPU"] == 2, 60)


NUM_CALLERS, NUM_CALLS = 4, 2000


def in_order(numbers: list[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def test_at_most_once_calls_to_an_actor_that_is_killed(cluster: None, tmp_path: Path) -> None:
    """P2: no number twice, the order of each caller kept; a call that raised may have run, one with a result has."""
    pace = Pace(tmp_path, 100, 30)

    class Actor:
        def note(self, caller: int, number: int) -> int:
            pace.note(caller, number)
            return number

    @rlplat.remote(num_cpus=0)
    def call(box: list, caller: int) -> list[int]:
        answered = []
        for start in range(0, NUM_CALLS, 10):
            sent = [(number, box[0].note.remote(caller, number)) for number in range(start, start + 10)]
            for number, ref in sent:
                try:
                    assert rlplat.get(ref, timeout=60) == number
                    answered.append(number)
                except ActorDied as error:
                    assert "may or may not have run" in str(error)
        return answered

    actor = rlplat.remote(max_restarts=-1)(Actor).remote()
    callers = [call.remote([actor], caller) for caller in range(NUM_CALLERS)]
    pace.each_time_it_grew(lambda _: rlplat.kill(actor, no_restart=False))
    answered = rlplat.get(callers, timeout=90)
    for caller in range(NUM_CALLERS):
        ran = [int(number) for who, number in lines(pace.log) if int(who) == caller]
        assert in_order(ran), f"caller {caller}: out of order or twice"
        assert set(answered[caller]) <= set(ran)
        assert in_order(answered[caller])
    assert sum(map(len, answered)) < NUM_CALLERS * NUM_CALLS, "no kill hit a call: this test has shown nothing"


def test_exactly_once_calls_to_an_actor_that_is_killed(cluster: None, tmp_path: Path) -> None:
    """P2: with a state none is missing, none is there twice, and the order of each caller is kept."""
    pace = Pace(tmp_path, 100, 30)

    class Ledger:
        def __init__(self) -> None:
            self.numbers: dict[int, list[int]] = {}

        def get_state(self) -> Any:
            return self.numbers

        def set_state(self, state: Any) -> None:
            self.numbers = state

        def note(self, caller: int, number: int) -> tuple[int, int]:
            pace.note(caller, number)
            mine = self.numbers.setdefault(caller, [])
            mine.append(number)
            return number, len(mine)

        def read(self) -> Any:
            return self.numbers

    @rlplat.remote(num_cpus=0)
    def call(box: list, caller: int) -> list[tuple[int, int]]:
        return rlplat.get([box[0].note.remote(caller, number) for number in range(NUM_CALLS)], timeout=90)

    ledger = rlplat.remote(max_restarts=-1, exactly_once=True)(Ledger).remote()
    callers = [call.remote([ledger], caller) for caller in range(NUM_CALLERS)]
    pace.each_time_it_grew(lambda _: rlplat.kill(ledger, no_restart=False))
    for results in rlplat.get(callers, timeout=90):
        assert results == [(number, number + 1) for number in range(NUM_CALLS)]
    numbers = rlplat.get(ledger.read.remote(), timeout=30)
    assert numbers == {caller: list(range(NUM_CALLS)) for caller in range(NUM_CALLERS)}
    ran = Counter(map(tuple, lines(pace.log)))
    assert max(ran.values()) > 1, "no call ran again after a kill: this test has shown nothing"


def test_the_late_result_of_a_given_up_attempt_is_refused(cluster: None, tmp_path: Path) -> None:
    """P17: a worker that was stopped and given up goes on while the next attempt is still running."""
    gates = [str(tmp_path / "gate1"), str(tmp_path / "gate2")]
    for gate in gates:
        os.mkfifo(gate)
    log = tmp_path / "log"

    def note(*words: object) -> None:
        with open(log, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    @rlplat.remote
    def task() -> str:
        me = rlplat.get_runtime_context().client_id
        gate = gates[log.exists()]  # before the note: it may be stopped as soon as that is seen
        note(me, os.getpid())
        open(gate).read()
        note(me, "done")
        return me

    ref = task.remote()
    assert soon(lambda: len(lines(log)) == 1, 60)
    (first, pid) = lines(log)[0]
    os.kill(int(pid), signal.SIGSTOP)
    driver: Any = refs.backend()
    with driver.link.lock:  # what the node would say of it
        driver._on_worker_died("node", messages.WorkerDied(first, "it is stopped"))
        driver.calls.go_on()
    assert soon(lambda: len(lines(log)) == 2, 60)
    second = lines(log)[1][0]
    assert second != first
    os.kill(int(pid), signal.SIGCONT)
    open(gates[0], "w").close()
    assert soon(lambda: [first, "done"] in lines(log), 60)  # its side effect shows that it went on
    with driver.link.lock:  # and should its result get through in spite of the closed connection
        driver.calls._on_done(first, messages.Done([ref.id], [pickle.dumps("late")]))
        driver.calls.finish(first, ref.id, [Value(pickle.dumps("late"))])
    assert rlplat.wait([ref], timeout=0) == ([], [ref])
    open(gates[1], "w").close()
    assert rlplat.get(ref, timeout=30) == second
