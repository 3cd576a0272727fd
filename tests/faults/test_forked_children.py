"""Processes that user code forks: while it has views of shared memory, and in a worker, to which they come back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import WorkerCrashed
from rlplat.runtime.client.client import Client
from rlplat.runtime.refs import backend
from tests.patience import soon

pytestmark = pytest.mark.process

SIZE = 1 << 17


class Child:
    """A fork that says the sum of an array when it is told to."""

    def __init__(self, array: Any) -> None:
        order, self._order = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.read(order, 1)
            os.write(answer, str(float(array.sum())).encode())
            os._exit(0)
        os.close(order)
        os.close(answer)

    def sum(self) -> str:
        os.write(self._order, b"x")
        text = os.read(self._answer, 100).decode()
        os.waitpid(self.pid, 0)
        os.close(self._order)
        os.close(self._answer)
        return text


@pytest.fixture
def client() -> Iterator[Client]:
    rlplat.init(num_cpus=1, num_gpus=0)
    made = backend()
    assert isinstance(made, Client)
    yield made
    rlplat.shutdown()


def num_objects(client: Client) -> int:
    with client.link.lock:
        client.objects.collect()
        return len(client.objects.book.entries) + len(client.objects.borrows)


@pytest.mark.parametrize("then", ["written anew", "truncated"])
def test_a_child_s_views_outlive_those_of_its_parent(client: Client, then: str) -> None:
    """Before, it read the next value, or got SIGBUS."""
    array = rlplat.get(rlplat.put(np.full(SIZE, 1.0)))
    child = Child(array)
    del array
    again = [rlplat.put(np.full(SIZE, 2.0)) for _ in range(2)] if then == "written anew" else []
    num_objects(client)
    client.objects.drop_spares()
    assert child.sum() == str(float(SIZE))
    del again
    assert soon(lambda: not num_objects(client)), "held no longer than the child lives"


def test_what_a_worker_forks_keeps_views_of_arguments_and_of_tensors(client: Client) -> None:
    torch = pytest.importorskip("torch")

    @rlplat.remote
    class Actor:
        def fork(self, array: Any, tensor: Any) -> None:
            self.children = [Child(array), Child(tensor)]

        def collect(self) -> None:
            """Whoever calls it has heard of what this process has dropped."""

        def sums(self) -> list[str]:
            return [child.sum() for child in self.children]

    actor = Actor.remote()
    values = [rlplat.put(np.full(SIZE, 1.0)), rlplat.put(torch.full((SIZE,), 1.0))]
    rlplat.get(actor.fork.remote(*values))
    del values
    rlplat.get([actor.collect.remote() for _ in range(2)])
    num_objects(client)
    again = [rlplat.put(np.full(SIZE, 2.0)), rlplat.put(torch.full((SIZE,), 2.0))]
    client.objects.drop_spares()
    assert rlplat.get(actor.sums.remote()) == [str(float(SIZE))] * 2
    del again, actor
    assert soon(lambda: not num_objects(client))


@pytest.mark.parametrize("is_put", [False, True])
def test_a_child_has_arrays_that_were_born_in_the_store_for_itself(client: Client, is_put: bool) -> None:
    array = rlplat.empty(SIZE)
    array[:] = 1
    ref = rlplat.put(array) if is_put else None
    child = Child(array)
    writer = os.fork()
    if not writer:
        array.flags.writeable = True
        array[:] = 3
        del array
        os._exit(0)
    os.waitpid(writer, 0)
    assert (array == 1).all()
    assert ref is None or (rlplat.get(ref) == 1).all()
    del array, ref
    again = [rlplat.put(np.full(SIZE, 2.0)) for _ in range(2)]
    num_objects(client)
    client.objects.drop_spares()
    assert child.sum() == str(float(SIZE))
    del again
    assert soon(lambda: not num_objects(client) and not client.objects.store.born)


def status_of_child(ends: Any) -> int:
    """The exit status of a child that does this where it comes back from its fork."""
    pid = os.fork()
    if not pid:
        ends()
        return 0
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return -1


ENDS = {"returns": (lambda: None, 0), "exits": (lambda: sys.exit(5), 5), "raises": (lambda: 1 / 0, 1)}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_comes_back_from_a_call_ends(how: str) -> None:
    """It went on as a second copy of its worker, which took all of a CPU until the cluster ended."""
    ends, status = ENDS[how]

    @rlplat.remote
    class Actor:
        def call(self) -> int:
            return status_of_child(ends)

        def values(self) -> Any:
            yield status_of_child(ends)

    @rlplat.remote
    class AsyncActor:
        async def call(self) -> int:
            return status_of_child(ends)

    in_threads = Actor.options(max_concurrency=2).remote()
    refs = [rlplat.remote(status_of_child).remote(ends), in_threads.call.remote(), AsyncActor.remote().call.remote()]
    assert rlplat.get(refs, timeout=30) == [status] * len(refs)
    assert [rlplat.get(ref, timeout=30) for ref in Actor.remote().values.remote()] == [status]


@pytest.mark.usefixtures("cluster")
def test_a_signal_to_the_own_process_group_reaches_no_other_process() -> None:
    """`os.killpg(os.getpgid(child), ...)`, of a child that has no group of its own, ended the whole cluster."""

    @rlplat.remote(max_retries=0)
    def ends_its_group() -> None:
        os.killpg(0, signal.SIGTERM)
        time.sleep(10)

    with pytest.raises(WorkerCrashed, match="SIGTERM"):
        rlplat.get(ends_its_group.remote(), timeout=30)
    assert rlplat.get(rlplat.remote(lambda: 1).remote(), timeout=30) == 1
