"""The rows of the runtime benchmark: each a function of the verbs, which are the same for rlplat and Ray.

A row returns {part: value}. It runs on a cluster that is up and warm, after the rows before it. `few` is true in a
quick run, where the numbers mean nothing.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import percentile
from benchmarks.process_memory import descendants, pss_mib
from benchmarks.remote_code import (
    AsyncEcho,
    Echo,
    Weights,
    identity,
    last_byte,
    make_array,
    noop,
    note_pid_and_hang,
)

KIB, MB = 1024, 1_000_000


@dataclass(frozen=True)
class RowSpec:
    name: str
    unit: str
    needs: str
    """What the peer must be able to do (`Peer.can`)."""
    measure: Callable[[Any, bool], dict[str, float]]
    is_rate: bool
    """Higher is better."""


ROWS: list[RowSpec] = []


def row(name: str, needs: str = "tasks", *, is_rate: bool = False) -> Callable[[Any], Any]:
    """The unit is what follows the last comma of the name."""

    def add(measure: Callable[[Any, bool], dict[str, float]]) -> Any:
        ROWS.append(RowSpec(name, name.rpartition(", ")[2], needs, measure, is_rate))
        return measure

    return add


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def round_trips_us(verbs: Any, call: Callable[[], Any], few: bool) -> dict[str, float]:
    """One call at a time, after a warm-up."""
    for _ in range(5 if few else 200):
        verbs.get(call())
    times = [seconds(lambda: verbs.get(call())) * 1e6 for _ in range(20 if few else 2000)]
    return {"p50": percentile(times, 50), "p99": percentile(times, 99)}


# ---------------------------------------------------------------- tasks


@row("task round trip p50 / p99, µs", "round trips")
def _(verbs: Any, few: bool) -> dict[str, float]:
    return round_trips_us(verbs, verbs.remote(noop).remote, few)


@row("10,000 no-op tasks, tasks/s", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    task, count = verbs.remote(noop), 100 if few else 10_000
    return {"": count / seconds(lambda: verbs.get([task.remote() for _ in range(count)]))}


@row("bulk submission of 1,000,000 small tasks, tasks/s", "bulk", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    """`rlplat.map` over a million numbers, results checked."""
    count = 1000 if few else 1_000_000
    results: list[int] = []
    elapsed = seconds(lambda: results.extend(verbs.map(identity, range(count))))
    assert len(results) == count and results[-1] == count - 1
    return {"": count / elapsed}


@row("task on a task's result, round trip p50, µs", "refs")
def _(verbs: Any, few: bool) -> dict[str, float]:
    task = verbs.remote(identity)
    return {"": round_trips_us(verbs, lambda: task.remote(task.remote(1)), few)["p50"]}


@row("pairs of dependent tasks, pipelined, pairs/s", "refs", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    task, count = verbs.remote(identity), 20 if few else 1000
    return {"": count / seconds(lambda: verbs.get([task.remote(task.remote(1)) for _ in range(count)]))}


@row("chain 100 deep, ms", "refs")
def _(verbs: Any, few: bool) -> dict[str, float]:
    task = verbs.remote(identity)

    def chain() -> None:
        ref = task.remote(0)
        for _ in range(99):
            ref = task.remote(ref)
        verbs.get(ref)

    return {"": median(seconds(chain) for _ in range(1 if few else 5)) * 1e3}


@row("task that submits and gathers 100 tasks, ms", "refs")
def _(verbs: Any, few: bool) -> dict[str, float]:
    inner = verbs.remote(noop)

    def gather() -> int:
        return len(verbs.get([inner.remote() for _ in range(100)]))

    outer = verbs.remote(gather)
    return {"": median(seconds(lambda: verbs.get(outer.remote())) for _ in range(1 if few else 5)) * 1e3}


@row("`wait` on 1,000 refs, all / one by one, ms")
def _(verbs: Any, few: bool) -> dict[str, float]:
    task, count = verbs.remote(noop), 50 if few else 1000

    def all_at_once() -> None:
        verbs.wait([task.remote() for _ in range(count)], num_returns=count)

    def one_by_one() -> None:
        rest = [task.remote() for _ in range(count)]
        while rest:
            _, rest = verbs.wait(rest, num_returns=1)

    return {"all": seconds(all_at_once) * 1e3, "one by one": seconds(one_by_one) * 1e3}


@row("1,000 refs as they complete, ms")
def _(verbs: Any, few: bool) -> dict[str, float]:
    """`rlplat.as_completed`; where there is no such verb, `wait` for one of the rest, as its documentation says."""
    task, count = verbs.remote(noop), 50 if few else 1000

    def waited(rest: list[Any]) -> Iterator[Any]:
        while rest:
            ready, rest = verbs.wait(rest, num_returns=1)
            yield from ready

    as_completed = getattr(verbs, "as_completed", waited)
    return {"": seconds(lambda: deque(as_completed([task.remote() for _ in range(count)]), maxlen=0)) * 1e3}


# ---------------------------------------------------------------- actors


@row("actor call round trip p50 / p99, µs", "calls")
def _(verbs: Any, few: bool) -> dict[str, float]:
    actor = verbs.remote(Echo).remote()
    return round_trips_us(verbs, actor.ping.remote, few)


@row("call to 8 actors, all answered, p50 / p99, µs", "calls")
def _(verbs: Any, few: bool) -> dict[str, float]:
    """Monarch sends it as one message to a mesh of 8."""
    if hasattr(verbs, "several"):
        return round_trips_us(verbs, verbs.several(Echo, 8).ping.remote, few)
    actors = [verbs.remote(Echo).remote() for _ in range(8)]
    return round_trips_us(verbs, lambda: [actor.ping.remote() for actor in actors], few)


@row("async actor's call round trip p50 / p99, µs", "actors")
def _(verbs: Any, few: bool) -> dict[str, float]:
    return round_trips_us(verbs, verbs.remote(AsyncEcho).remote().ping.remote, few)


@row("actor calls 1:1 / 2x2, calls/s", "actors", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    count = 100 if few else 5000

    class Caller:
        def call(self, actors: list[Any], count: int) -> None:
            verbs.get([actors[index % len(actors)].ping.remote() for index in range(count)])

    actors = [verbs.remote(Echo).remote() for _ in range(2)]
    callers = [verbs.remote(Caller).remote() for _ in range(2)]
    for caller in callers:
        verbs.get(caller.call.remote(actors, 10))
    one = seconds(lambda: verbs.get([actors[0].ping.remote() for _ in range(count)]))
    four = seconds(lambda: verbs.get([caller.call.remote(actors, count) for caller in callers]))
    return {"1:1": count / one, "2x2": 2 * count / four}


@row("actor: created and first call answered, ms", "actors")
def _(verbs: Any, few: bool) -> dict[str, float]:
    def create() -> None:
        verbs.get(verbs.remote(Echo).remote().ping.remote())

    times = []
    for _ in range(2 if few else 10):
        times.append(seconds(create))
        time.sleep(0.0 if few else 0.2)  # not a burst: the actor before is gone, spare processes are back
    return {"": median(times) * 1e3}


@row("memory of one idle actor, MiB", "actors")
def _(verbs: Any, few: bool) -> dict[str, float]:
    count, settle_s = (2, 0.2) if few else (8, 2.0)
    time.sleep(settle_s)
    before = pss_mib(descendants(os.getpid()))
    actors = [verbs.remote(Echo).remote() for _ in range(count)]
    verbs.get([actor.ping.remote() for actor in actors])
    time.sleep(settle_s)
    return {"": (pss_mib(descendants(os.getpid())) - before) / count}


# ---------------------------------------------------------------- objects


@row("put / get / get batched, 1 KiB, ops/s", "refs", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    value, count = np.ones(KIB, np.uint8), 50 if few else 5000
    refs: list[Any] = []
    put = seconds(lambda: refs.extend(verbs.put(value) for _ in range(count)))
    get = seconds(lambda: [verbs.get(ref) for ref in refs])
    batched = seconds(lambda: verbs.get(refs))
    return {"put": count / put, "get": count / get, "get batched": count / batched}


@row("put 100 MB first / steady, GB/s", "refs", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    size = MB if few else 100 * MB
    value = np.ones(size, np.uint8)
    first = seconds(lambda: verbs.put(value))
    steady = median(seconds(lambda: verbs.put(value)) for _ in range(2 if few else 10))
    return {"first": size / first / 1e9, "steady": size / steady / 1e9}


@row("get 100 MB, µs", "refs")
def _(verbs: Any, few: bool) -> dict[str, float]:
    ref = verbs.put(np.ones(MB if few else 100 * MB, np.uint8))
    return {"": median(seconds(lambda: verbs.get(ref)) for _ in range(3 if few else 100)) * 1e6}


@row("100 MB ref as argument / by value, ms")
def _(verbs: Any, few: bool) -> dict[str, float]:
    value, task, times = np.ones(MB if few else 100 * MB, np.uint8), verbs.remote(last_byte), {}
    repeats = 2 if few else 5
    if hasattr(verbs, "put"):
        ref = verbs.put(value)
        verbs.get(task.remote(ref))
        times["ref"] = median(seconds(lambda: verbs.get(task.remote(ref))) for _ in range(repeats)) * 1e3
    times["by value"] = median(seconds(lambda: verbs.get(task.remote(value))) for _ in range(repeats)) * 1e3
    return times


@row("10 MB to 8 tasks, ms")
def _(verbs: Any, few: bool) -> dict[str, float]:
    value, task = np.ones(MB if few else 10 * MB, np.uint8), verbs.remote(last_byte)

    def fan_out() -> None:
        shared = verbs.put(value) if hasattr(verbs, "put") else value
        verbs.get([task.remote(shared) for _ in range(8)])

    return {"": median(seconds(fan_out) for _ in range(1 if few else 5)) * 1e3}


@row("actor returns 100 MB, ms")
def _(verbs: Any, few: bool) -> dict[str, float]:
    """A process pool has no actors: a task of it returns the array."""
    size = MB if few else 100 * MB
    send = verbs.remote(make_array) if not hasattr(verbs, "put") else verbs.remote(Echo).remote().make_array
    verbs.get(send.remote(size))
    return {"": median(seconds(lambda: verbs.get(send.remote(size))) for _ in range(1 if few else 5)) * 1e3}


@row("2 workers returning 1 MB, one / four in flight, GB/s", is_rate=True)
def _(verbs: Any, few: bool) -> dict[str, float]:
    senders = [
        verbs.remote(make_array) if not hasattr(verbs, "put") else verbs.remote(Echo).remote().make_array
        for _ in range(2)
    ]
    count = 20 if few else 600

    def stream(in_flight: int) -> float:
        waiting = deque((sender, sender.remote(MB)) for _ in range(in_flight) for sender in senders)
        started = time.perf_counter()
        for _ in range(count):
            sender, ref = waiting.popleft()
            assert verbs.get(ref)[-1] == 1
            waiting.append((sender, sender.remote(MB)))
        elapsed = time.perf_counter() - started
        verbs.get([ref for _, ref in waiting])
        return count * MB / elapsed / 1e9

    stream(4)
    return {"one": stream(1), "four": stream(4)}


@row(
    "parameter server: 10 MB, 2 workers, get + update, as written / born in the store, loops/s", "actors", is_rate=True
)
def _(verbs: Any, few: bool) -> dict[str, float]:
    """`born in the store` is by `rlplat.empty`, and a version of the weights is put once."""
    num_floats, count = (MB if few else 10 * MB) // 4, 5 if few else 50

    class GradientWorker:
        def __init__(self, server: Any) -> None:
            self._server = server

        def loop(self, count: int) -> None:
            gradient = np.full(num_floats, 0.5, np.float32)
            for _ in range(count):
                assert verbs.get(self._server.latest.remote()).shape == gradient.shape
                verbs.get(self._server.apply_gradients.remote(gradient))

        def loop_born(self, count: int) -> None:
            for _ in range(count):
                [version] = verbs.get(self._server.latest.remote())
                gradient = verbs.empty(num_floats, np.float32)
                gradient.fill(0.5)
                assert verbs.get(version).shape == gradient.shape
                verbs.get(self._server.apply_gradients.remote(gradient))

    class BornWeights:
        def __init__(self) -> None:
            self._put(verbs.empty(num_floats, np.float32))

        def _put(self, weights: np.ndarray) -> None:
            self._weights, self._version = weights, verbs.put(weights)

        def latest(self) -> list[Any]:
            return [self._version]

        def apply_gradients(self, gradient: np.ndarray) -> None:
            weights = verbs.empty(num_floats, np.float32)
            np.multiply(gradient, -0.01, out=weights)
            weights += self._weights
            self._put(weights)

    def rate(server: Any, loop: str) -> float:
        workers = [verbs.remote(GradientWorker).remote(server) for _ in range(2)]
        verbs.get([getattr(worker, loop).remote(2) for worker in workers])
        elapsed = seconds(lambda: verbs.get([getattr(worker, loop).remote(count) for worker in workers]))
        return 2 * count / elapsed

    rates = {"as written": rate(verbs.remote(Weights).remote(num_floats), "loop")}
    if hasattr(verbs, "empty"):
        rates["born in the store"] = rate(verbs.remote(BornWeights).remote(), "loop_born")
    return rates


# ---------------------------------------------------------------- faults


@row("worker killed: task runs again / actor call runs again, ms", "retries")
def _(verbs: Any, few: bool) -> dict[str, float]:
    with _pid_file() as file:
        times = {"task": _kill_and_get(verbs, verbs.remote(note_pid_and_hang).remote(str(file)), file)}
    with _pid_file() as file:
        actor = verbs.remote(Echo).options(max_restarts=1, max_task_retries=1).remote()
        times["actor call"] = _kill_and_get(verbs, actor.hang.remote(str(file)), file)
    return times


@row("worker killed: the actor's caller has the error, ms", "actors")
def _(verbs: Any, few: bool) -> dict[str, float]:
    actor = verbs.remote(Echo).remote()
    with _pid_file() as file:
        return {"": _kill_and_get(verbs, actor.hang.remote(str(file)), file, is_error=True)}


@contextmanager
def _pid_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "pid"


def _kill_and_get(verbs: Any, ref: Any, file: Path, *, is_error: bool = False) -> float:
    """Milliseconds from the SIGKILL of the process that noted its pid to the answer, or to the error."""
    deadline = time.monotonic() + 60
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the call that should note its pid in {file} did not start within 60 s")
        time.sleep(0.005)
    pid = int(file.read_text())
    started = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        answer = verbs.get(ref)
    except Exception:
        answer = "error"
    elapsed_s = time.perf_counter() - started
    assert answer == ("error" if is_error else "again"), answer
    return elapsed_s * 1e3
