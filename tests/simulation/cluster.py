"""A simulated cluster: the product's `Node`, `Worker` and `Client` on a `World`, and the faults that strike them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import zmq

from rlplat.runtime import client as client_module
from rlplat.runtime import io_loop, refs, scheduler, transport, worker
from rlplat.runtime import node as node_module
from tests.simulation import world as world_module
from tests.simulation.world import Process, SimPoller, SimSocket, SimTime, World

_CRASH_DELAY_S = 0.002


class _Delegate:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _NoThread:
    """The background thread of `IoLoop`: the world does its rounds."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def start(self) -> None:
        process = world_module.current().running
        assert process is not None
        process.world.background_soon(process, 0.005)

    def is_alive(self) -> bool:
        return False

    def join(self, *_: Any) -> None:
        pass


def _exit(status: int) -> None:
    world = world_module.current()
    world.exit_here("exit" if status == 0 else f"exited with {status}")


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """The product's modules see `world` where they would see the system."""
    sim_select = _Delegate(sys.modules["select"], poll=SimPoller)
    sim_zmq = _Delegate(zmq, Context=lambda *_: SimpleNamespace(socket=lambda _: SimSocket(), term=lambda: None))
    sim_os = _Delegate(
        os, _exit=_exit, eventfd=lambda *_: -1, eventfd_write=lambda *_: None, eventfd_read=lambda *_: 0,
        kill=lambda *_: None, close=lambda *_: None,
    )  # fmt: skip
    sim_threading = _Delegate(threading, Thread=_NoThread)
    patches: list[tuple[Any, str, Any]] = [
        (io_loop, "select", sim_select),
        (io_loop, "os", sim_os),
        (io_loop, "threading", sim_threading),
        (transport, "zmq", sim_zmq),
        (worker, "os", sim_os),
        (node_module, "select", sim_select),
        (node_module, "visible_gpus", lambda: []),
    ]
    for name, module in list(sys.modules.items()):
        if name.startswith("rlplat.runtime.") and getattr(module, "time", None) is sys.modules["time"]:
            patches.append((module, "time", SimTime))
    before = [(module, name, getattr(module, name)) for module, name, _ in patches]
    connected = refs._backend
    for module, name, value in patches:
        setattr(module, name, value)
    world_module.set_current(world)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        refs._backend = connected
        world_module.set_current(None)


# ---------------------------------------------------------------- the node


class _Orders:
    def fileno(self) -> int:
        return -1


class SimNode(node_module.Node):
    """The real node; processes are born and die in the world instead of under a zygote."""

    def __init__(self, world: World, cluster: Cluster, total: dict[str, float]) -> None:
        self.world, self.cluster = world, cluster
        self.process = world.add_process("node")
        super().__init__("sim/session", total, _Orders())  # type: ignore[arg-type]
        world.on_frame_to["node"] = self.on_frame

    @property
    def scheduler(self) -> scheduler.Scheduler:
        return self._scheduler

    def begin(self) -> None:
        with self._running():
            self._perform(self._scheduler.start())

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        before, self.world.running = self.world.running, self.process
        try:
            yield
            self._transport.flush()
            self._wake_up_at_deadlines()
        finally:
            self.world.running = before

    def on_frame(self) -> None:
        with self._running():
            self._receive()

    def _start(self, worker: str, gpu_ids: tuple[int, ...], *_: Any, **__: Any) -> None:
        process = node_module._Process(-1)
        process.pid = len(self._processes) + 1
        process.sim_name = worker  # type: ignore[attr-defined]
        self._processes[worker] = process
        self.cluster.fork(worker, gpu_ids)

    def _kill(self, process: Any) -> None:
        process.kill_at = 0.0
        name = process.sim_name
        self.world.after(
            self.world.random.uniform(0, 0.001), lambda: self.world.end(name, "SIGKILL"), what=f"kill {name}"
        )

    def ended(self, worker: str, how: str) -> None:
        """The zygote's news."""
        with self._running():
            process = self._processes.pop(worker)
            process.is_ended = True
            reason = f"pid {process.pid} {process.kill_reason or how}"
            self._transport.forget(worker)
            self._event(scheduler.WorkerLost(worker, reason))

    def _wake_up_at_deadlines(self) -> None:
        for process in self._processes.values():
            if process.kill_at and not hasattr(process, "sim_timer"):
                process.sim_timer = True  # type: ignore[attr-defined]
                self.world.after(process.kill_at - self.world.now, self._on_deadline, what="the node's patience ends")

    def _on_deadline(self) -> None:
        with self._running():
            for process in list(self._processes.values()):
                if process.kill_at and process.kill_at <= self.world.now:
                    self._kill(process)


# ---------------------------------------------------------------- the cluster


class Cluster:
    def __init__(self, world: World, total: dict[str, float]) -> None:
        self.world = world
        self.total = total
        self.node = SimNode(world, self, total)
        self.watch_client: Callable[[Any], None] = lambda client: None
        self.num_crashes = 0
        world.on_death = self._on_death

    def begin(self) -> None:
        self.node.begin()

    def fork(self, name: str, gpu_ids: tuple[int, ...]) -> None:
        process = self.world.add_process(name)
        delay = self.world.random.uniform(0.001, 0.01)
        self.world.after(delay, lambda: self._born(process, gpu_ids), what=f"{name} is born")

    def _born(self, process: Process, gpu_ids: tuple[int, ...]) -> None:
        if process.is_alive:
            process.start(lambda process: self._worker_main(process, gpu_ids))

    def _worker_main(self, process: Process, gpu_ids: tuple[int, ...]) -> None:
        client = worker.Worker("sim/session", process.name, gpu_ids)
        client._main_thread = threading.current_thread()  # type: ignore[assignment]
        self._connect(process, client)
        client.start()
        client.run()
        client._instance = None
        self.world.exit_here("exit")

    def start_driver(self, program: Callable[[], None]) -> Process:
        process = self.world.add_process("driver")

        def body(process: Process) -> None:
            client = client_module.Client("sim/session", "driver", spin=False)
            self._connect(process, client)
            client.start()
            program()
            self.world.background_soon(process, 0.001)

        process.start(body)
        return process

    def _connect(self, process: Process, client: Any) -> None:
        client._objects.ids = itertools.count(1)  # each process counts for itself
        process.client = client
        refs._backend = client
        self.watch_client(client)

    def clients(self) -> list[Any]:
        """Of the living processes."""
        return [p.client for p in self.world.processes.values() if p.is_alive and p.client is not None]

    def workers(self) -> list[str]:
        return [p.name for p in self.world.processes.values() if p.is_alive and p.name[0] == "w"]

    def crash(self, name: str, how: str = "was ended by SIGKILL") -> None:
        process = self.world.processes[name]
        if process.is_alive:
            self.num_crashes += 1
            self.world.end(name, how)

    def _on_death(self, name: str, how: str) -> None:
        delay = self.world.random.uniform(0, _CRASH_DELAY_S)
        self.world.after(delay, lambda: self.node.ended(name, how), what=f"the node hears that {name} ended")


