"""A cluster inside the process of a task or an actor: `rlplat.init(backend="inproc")` ... `rlplat.shutdown()`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ConfigError, UsageError
from tests.patience import soon


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[Path]:
    """One CPU: tasks run one after the other, in the same process. Yields the folder of its logs."""
    rlplat.init(num_cpus=1, num_gpus=0, log_dir=str(tmp_path))
    yield tmp_path
    rlplat.shutdown()


@rlplat.remote
def pid() -> int:
    return os.getpid()


@rlplat.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self._sum = start

    def add(self, n: int) -> int:
        self._sum += n
        return self._sum

    def where(self) -> int:
        return os.getpid()


@rlplat.remote
class Host:
    """Opens a nested cluster in one call and closes it in another."""

    def open(self) -> None:
        rlplat.init(backend="inproc", num_cpus=2)
        self.inner = Counter.remote(10)

    def close(self) -> None:
        del self.inner
        rlplat.shutdown()

    def here(self) -> dict[str, Any]:
        counter = Counter.remote()
        return {
            "pid": os.getpid(),
            "task": rlplat.get(pid.remote()),
            "actor": rlplat.get(counter.where.remote()),
            "client": rlplat.get_runtime_context().client_id,
            "initialized": rlplat.is_initialized(),
        }

    def add(self, n: int) -> int:
        return rlplat.get(self.inner.add.remote(n))  # type: ignore[no-any-return]

    def use(self, outside: Any, boxed: Any) -> Any:
        """An actor, a ref and a large array from outside; put together with what is made here."""
        ref = boxed["ref"]
        there = outside.add.remote(1)
        mine = Counter.remote(there)  # a ref from outside as an argument
        both = rlplat.get([ref, mine.add.remote(1), there])
        ready, _ = rlplat.wait([there], timeout=60)
        kept = rlplat.get(rlplat.put({"inside": ref}))["inside"]  # travels through the nested cluster's pickles
        return (
            [both[0].sum(), both[1], both[2]],
            len(ready),
            rlplat.get(kept).sum(),
            there.future().result(10),
            asyncio.run(_awaited(there)),
        )

    def wrong(self, outside: Any, what: str) -> Any:
        if what == "twice":
            rlplat.init(backend="inproc")
        if what == "processes":
            rlplat.init()
        if what == "shutdown":
            rlplat.shutdown()
        if what == "result":
            return [rlplat.put(1)]
        if what == "argument":
            return rlplat.get(outside.add.remote([rlplat.put(1)]))
        if what == "plain argument":
            return rlplat.get(outside.add.remote(rlplat.put(1)))
        if what == "handle":
            return self.inner
        if what == "mixed wait":
            rlplat.wait([rlplat.put(1), outside.add.remote(1)])
        return None


async def _awaited(ref: Any) -> Any:
    return await ref


def test_what_is_made_in_between_lives_in_this_process_and_then_the_connection_is_back(cluster: None) -> None:
    host = Host.remote()
    outside = rlplat.get(host.here.remote(), timeout=60)
    assert outside["pid"] not in (outside["task"], outside["actor"]) and outside["client"] != "inproc"
    rlplat.get(host.open.remote())
    inside = rlplat.get(host.here.remote())
    assert {inside["pid"], inside["task"], inside["actor"]} == {outside["pid"]}
    assert inside["client"] == "inproc" and inside["initialized"]
    assert rlplat.get([host.add.remote(1), host.add.remote(2)]) == [11, 13]
    rlplat.get(host.close.remote())
    again = rlplat.get(host.here.remote(), timeout=60)
    assert again["client"] == outside["client"] and again["actor"] != outside["pid"]


def test_refs_and_handles_from_outside_work_in_between(cluster: None) -> None:
    host, counter = Host.remote(), Counter.remote()
    array = rlplat.put(np.ones(100_000))  # in shared memory
    rlplat.get(host.open.remote(), timeout=60)
    for n in (1, 2):
        expected = ([100_000, n + 1, n], 1, 100_000, n, n)
        assert rlplat.get(host.use.remote(counter, {"ref": array}), timeout=60) == expected
    rlplat.get(host.close.remote())
    assert rlplat.get(counter.add.remote(0)) == 2
    assert rlplat.get(array).sum() == 100_000


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("twice", ConfigError, "called twice"),
        ("result", UsageError, "inside itself"),
        ("argument", UsageError, "inside itself"),
        ("plain argument", Exception, "ObjectRef"),
        ("handle", UsageError, "inside itself"),
        ("mixed wait", UsageError, "one after the other"),
    ],
)
def test_what_is_wrong_in_between(cluster: None, what: str, error: type[Exception], words: str) -> None:
    host, counter = Host.remote(), Counter.remote()
    rlplat.get(host.open.remote(), timeout=60)
    with pytest.raises(error, match=words):
        rlplat.get(host.wrong.remote(counter, what), timeout=60)
    assert rlplat.get(host.add.remote(0), timeout=60) == 10  # nothing is broken by it


@pytest.mark.parametrize(("what", "error", "words"), [("processes", ConfigError, "has a cluster"),
                                                      ("shutdown", UsageError, "for the driver")])  # fmt: skip
def test_what_is_wrong_outside_of_it(cluster: None, what: str, error: type[Exception], words: str) -> None:
    host = Host.remote()
    with pytest.raises(error, match=words):
        rlplat.get(host.wrong.remote(None, what), timeout=60)
    assert rlplat.get(host.here.remote(), timeout=60)["client"] != "inproc"


@pytest.mark.process
def test_the_next_task_does_not_see_what_a_task_forgot_to_close(one_worker: Path) -> None:
    @rlplat.remote
    def forgetful() -> int:
        rlplat.init(backend="inproc")
        return os.getpid()

    @rlplat.remote
    def careful() -> tuple[int, str]:
        return os.getpid(), rlplat.get_runtime_context().client_id

    first = rlplat.get(forgetful.remote(), timeout=60)
    process, client = rlplat.get(careful.remote(), timeout=60)
    assert process == first and client != "inproc"
    logs = lambda: "".join(path.read_text() for path in one_worker.glob("*/logs/*.log"))  # noqa: E731
    assert soon(lambda: "has not closed the cluster" in logs())

    group = rlplat.placement_group([{"CPU": 1}])
    strategy = rlplat.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    rlplat.get(forgetful.options(scheduling_strategy=strategy).remote(), timeout=60)
    assert rlplat.get(careful.options(placement_group=group).remote(), timeout=60)[1] != "inproc"
    assert soon(lambda: logs().count("has not closed the cluster") == 2)
    rlplat.remove_placement_group(group)


def test_a_nested_cluster_in_a_captured_actor_and_what_it_submits_afterwards(cluster: None) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    strategy = rlplat.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)

    @rlplat.remote(num_cpus=0)
    def current() -> Any:
        return rlplat.get_runtime_context().get_placement_group_id()

    class Both:
        def run(self) -> list[Any]:
            before = rlplat.get(current.remote())
            rlplat.init(backend="inproc")
            inside = rlplat.get(current.remote())
            rlplat.shutdown()
            return [before, inside, rlplat.get(current.remote())]

    actor = rlplat.remote(Both).options(num_cpus=0, scheduling_strategy=strategy).remote()
    assert rlplat.get(actor.run.remote(), timeout=60) == [group.id, None, group.id]


def test_another_thread_may_hold_it_while_the_actor_answers(cluster: None) -> None:
    class Threaded:
        def begin(self) -> None:
            self.steps: list[int] = []
            self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
            self.thread = threading.Thread(target=self.work)
            self.thread.start()

        def work(self) -> None:
            rlplat.init(backend="inproc")
            counter = Counter.remote()
            for n in range(3):
                self.turn.acquire()
                self.steps.append(rlplat.get(counter.add.remote(n)))
                self.done.release()
            rlplat.shutdown()

        def step(self, boxed: Any) -> tuple[int, Any]:
            self.turn.release()
            self.done.acquire()
            return self.steps[-1], rlplat.get(boxed[0])

        def end(self) -> str:
            self.thread.join()
            return rlplat.get_runtime_context().client_id

    actor = rlplat.remote(Threaded).remote()
    rlplat.get(actor.begin.remote(), timeout=60)
    assert [rlplat.get(actor.step.remote([rlplat.put(n)]), timeout=60) for n in range(3)] == [
        (0, 0),
        (1, 1),
        (3, 2),
    ]
    assert rlplat.get(actor.end.remote(), timeout=60) != "inproc"


def test_an_actor_that_ends_with_one_open_ends_in_order(cluster: None, tmp_path: Path) -> None:
    class Ends:
        def begin(self, path: str) -> None:
            import atexit

            rlplat.init(backend="inproc")
            counter = Counter.remote(5)
            # Runs ahead of the cluster's own end, as it was registered behind it.
            atexit.register(lambda: Path(path).write_text(str(rlplat.get(counter.add.remote(1)))))

        def leave(self) -> None:
            rlplat.exit_actor()

    mark = tmp_path / "ended"
    actor = rlplat.remote(Ends).remote()
    rlplat.get(actor.begin.remote(str(mark)), timeout=60)
    actor.leave.remote()
    assert soon(lambda: mark.exists() and mark.read_text() == "6")
