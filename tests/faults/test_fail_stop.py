"""An error where messages are handled that is not the message's fault ends every wait, instead of a silent hang."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

import rlplat
import rlplat.runtime.refs
from rlplat.errors import RuntimeFault
from rlplat.runtime.wire import messages
from tests.faults.programs import program


@rlplat.remote
def after(ref: Any) -> Any:
    return ref


@rlplat.remote
class Gate:
    def __init__(self) -> None:
        self._open = threading.Event()

    def wait(self) -> bool:
        return self._open.wait(60)

    def open(self) -> None:
        self._open.set()


def _broken(sender: str, message: object) -> None:
    raise OSError("planted")


@pytest.fixture
def client() -> Any:
    rlplat.init(num_cpus=2, num_gpus=0)
    yield rlplat.runtime.refs.backend()
    rlplat.shutdown()


FAULTY_NODE = """
import subprocess
import rlplat
import rlplat.errors
popen = subprocess.Popen
FAULT = '''
from rlplat.runtime.core.scheduler.placing import Placing

def planted(self, worker):
    raise KeyError("planted")

Placing.ready = planted
'''
subprocess.Popen = lambda command, **options: popen([*command[:2], FAULT + command[2]], **options)
rlplat.init(num_cpus=1, num_gpus=0)
print("running", flush=True)

@rlplat.remote
def task():
    pass

try:
    rlplat.get(task.remote(), timeout=60)
except rlplat.errors.NodeLost as error:
    print(error)
rlplat.shutdown()
"""


@pytest.mark.process
def test_a_fault_of_the_node_ends_every_wait() -> None:
    """With half of an event done its books would not be true of the processes any more."""
    with program(FAULTY_NODE) as driver:
        code, out, errors = driver.finish()
    assert (code, out.startswith("the node process of this cluster has ended")) == (0, True), errors
    assert "KeyError: 'planted'" in errors
    assert "RuntimeFault: the node could not handle WorkerReady(worker='w1')" in errors


@pytest.mark.process
@pytest.mark.parametrize("who_waits", ["nobody", "the main thread"])
def test_every_wait_hears_of_a_failure(client: Any, who_waits: str) -> None:
    gate = Gate.options(max_concurrency=4).remote()
    refs = [gate.wait.remote() for _ in range(3)]
    in_thread: Future[Any] = Future()

    def get() -> None:
        try:
            in_thread.set_result(rlplat.get(refs[0]))
        except BaseException as error:
            in_thread.set_exception(error)

    async def awaited() -> None:
        with pytest.raises(RuntimeFault, match="planted"):
            await refs[2]

    thread = threading.Thread(target=get)
    thread.start()
    future = refs[1].future()
    with client.link.lock:
        client.link.handlers[messages.Done] = _broken
    opened = gate.open.remote()
    if who_waits == "the main thread":
        with pytest.raises(RuntimeFault, match="planted"):
            rlplat.get(opened)
    with pytest.raises(RuntimeFault, match="planted"):
        in_thread.result(30)
    with pytest.raises(RuntimeFault, match="planted"):
        future.result(30)
    thread.join()
    with pytest.raises(RuntimeFault, match="start a new cluster"):
        rlplat.put(1)
