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
from rlplat.runtime import io_loop, refs, transport, worker
from rlplat.runtime import node as node_module
from rlplat.runtime.scheduler import WARN_AFTER_S, Scheduler
from rlplat.runtime.scheduling import events
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


def _getpid() -> int:
    process = world_module.current().running
    return 1 if process is None else 1000 + int(process.name.strip("adeinorvw") or 0)


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """The product's modules see `world` where they would see the system."""
    sim_select = _Delegate(sys.modules["select"], poll=SimPoller)
    sim_zmq = _Delegate(
        zmq, Context=lambda *_: SimpleNamespace(socket=lambda _: SimSocket(), term=lambda: None)
    )
    sim_os = _Delegate(
        os, _exit=_exit, eventfd=lambda *_: -1, eventfd_write=lambda *_: None, eventfd_read=lambda *_: 0,
        kill=lambda *_: None, close=lambda *_: None, getpid=_getpid,
    )  # fmt: skip
    sim_threading = _Delegate(threading, Thread=_NoThread)
    patches: list[tuple[Any, str, Any]] = [
        (io_loop, "select", sim_select),
        (io_loop, "os", sim_os),
        (io_loop, "threading", sim_threading),
        (transport, "zmq", sim_zmq),
        (worker, "os", sim_os),
        (node_module, "select", sim_select),
        (node_module, "visible_gpus", list),
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


class _InOrder(dict[str, None]):
    """A set that goes through its members in the order in which they came, whatever their hashes."""

    def add(self, name: str) -> None:
        self[name] = None

    def discard(self, name: str) -> None:
        self.pop(name, None)


class _Orders:
    def fileno(self) -> int:
        return -1


class SimNode(node_module.Node):
    """The real node; processes are born and die in the world instead of under a zygote."""

    def __init__(self, world: World, cluster: Cluster, total: dict[str, float]) -> None:
        self.world, self.cluster = world, cluster
        self.process = world.add_process("node")
        super().__init__("sim/session", total, _Orders())  # type: ignore[arg-type]
        self._starting: dict[str, str] = {}
        """The node on which each worker is to start."""
        self._clients = _InOrder()  # type: ignore[assignment]
        world.on_frame_to["node"] = self.on_frame

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def join(self, node: str, total: dict[str, float], num_spares: int) -> None:
        with self._running():
            self._event(events.NodeJoined(node, total, num_spares))

    def lose(self, node: str, reason: str) -> None:
        """A node is gone with all its workers."""
        with self._running():
            for worker, process in list(self._processes.items()):
                if process.sim_node == node:  # type: ignore[attr-defined]
                    process.is_ended = True
                    del self._processes[worker]
                    self._transport.forget(worker)
            self._event(events.NodeLost(node, reason))

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self.world.touched["node"] = None
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

    def _perform(self, actions: list[Any]) -> None:
        for action in actions:
            if type(action) is events.StartWorker:
                self._starting[action.worker] = action.node
        super()._perform(actions)

    def _start(self, worker: str, gpu_ids: tuple[int, ...], *_: Any, **__: Any) -> None:
        process = node_module._Process(-1)
        process.pid = len(self._processes) + 1
        process.sim_name = worker  # type: ignore[attr-defined]
        process.sim_node = self._starting[worker]  # type: ignore[attr-defined]
        self._processes[worker] = process
        self.cluster.fork(worker, gpu_ids, process.sim_node)  # type: ignore[attr-defined]

    def _kill(self, process: Any) -> None:
        process.kill_at = 0.0
        name = process.sim_name
        self.world.after(
            self.world.random.uniform(0, 0.001), lambda: self.world.end(name, "SIGKILL"), what=f"kill {name}"
        )

    def ended(self, worker: str, how: str) -> None:
        """The zygote's news."""
        if worker not in self._processes:
            return  # its node was lost meanwhile
        with self._running():
            process = self._processes.pop(worker)
            process.is_ended = True
            reason = f"pid {process.pid} {process.kill_reason or how}"
            self._transport.forget(worker)
            self._event(events.WorkerLost(worker, reason))

    def _wake_up_at_deadlines(self) -> None:
        if self._wake_at is not None:
            at, self._wake_at = self._wake_at, None
            delay_s = at - self.world.now
            is_mere_watch = (
                delay_s > 0.99 * WARN_AFTER_S
            )  # to explain what waits: no cause for anything to go on
            self.world.after(delay_s, self._tick, is_tick=is_mere_watch, what="the scheduler's timer")
        for process in self._processes.values():
            if process.kill_at and not hasattr(process, "sim_timer"):
                process.sim_timer = True  # type: ignore[attr-defined]
                self.world.after(
                    process.kill_at - self.world.now, self._on_deadline, what="the node's patience ends"
                )

    def _tick(self) -> None:
        with self._running():
            self._event(events.Tick())

    def _on_deadline(self) -> None:
        with self._running():
            for process in list(self._processes.values()):
                if process.kill_at and process.kill_at <= self.world.now:
                    self._kill(process)


# ---------------------------------------------------------------- the cluster


class Cluster:
    """Nodes, their workers, a driver; and what may befall them."""

    def __init__(self, world: World, totals: dict[str, dict[str, float]], num_spares: int) -> None:
        self.world = world
        self.totals, self.num_spares = totals, num_spares
        self.node_of: dict[str, str] = {"node": "node", "driver": "node"}
        whole: dict[str, float] = {}
        for total in totals.values():
            for name, amount in total.items():
                whole[name] = whole.get(name, 0.0) + amount
        self.node = SimNode(world, self, whole)
        self.watch_client: Callable[[Any], None] = lambda client: None
        self.num_crashes = 0
        self.num_lost_nodes = 0
        world.on_death = self._on_death

    def begin(self) -> None:
        for name in self.totals:
            self._join(name)

    def _join(self, node: str) -> None:
        self.node.join(node, self.totals[node], self.num_spares)

    def fork(self, name: str, gpu_ids: tuple[int, ...], node: str) -> None:
        process = self.world.add_process(name)
        self.node_of[name] = node
        delay = self.world.random.uniform(0.001, 0.01)
        self.world.after(delay, lambda: self._born(process, gpu_ids), what=f"{name} is born on {node}")

    def _born(self, process: Process, gpu_ids: tuple[int, ...]) -> None:
        if process.is_alive:
            process.start(lambda process: self._worker_main(process, gpu_ids))

    def _worker_main(self, process: Process, gpu_ids: tuple[int, ...]) -> None:
        """As `rlplat.runtime.worker.main`."""
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

    def workers(self, node: str | None = None) -> list[str]:
        return [
            p.name
            for p in self.world.processes.values()
            if p.is_alive and p.name[0] == "w" and node in (None, self.node_of[p.name])
        ]

    # -- faults

    def crash(self, name: str, how: str = "was ended by SIGKILL") -> None:
        process = self.world.processes[name]
        if process.is_alive:
            self.num_crashes += 1
            self.world.end(name, how)

    def crash_node(self, node: str) -> None:
        """Its power fails; the head knows at once or after a while; it comes back later."""
        self.world.note(f"node {node} CRASHES")
        self._end_workers(node, "its machine is off")
        self.world.after(
            self.world.random.uniform(0.001, 1.0), lambda: self._give_up(node), what=f"{node} is given up"
        )

    def cut_off(self, node: str, seconds: float) -> None:
        """Nothing passes between a node and the rest. A short cut is ridden out; a long one fences the node: it stops
        its own workers at 5 s, before the head gives their work away at 6 s."""
        group = frozenset(name for name, where in self.node_of.items() if where == node)
        self.world.note(f"node {node} is CUT OFF for {seconds:g} s")
        self.world.cut(group, seconds)
        if seconds >= 5.0:
            self.world.after(5.0, lambda: self._end_workers(node, "fenced"), what=f"{node} fences itself")
            self.world.after(6.0, lambda: self._give_up(node), what=f"{node} is given up")

    def _end_workers(self, node: str, how: str) -> None:
        for name in self.workers(node):
            self.num_crashes += 1
            self.world.end(name, how)

    def _give_up(self, node: str) -> None:
        if node in self.node.scheduler.placing.nodes:
            self._end_workers(node, "fenced")
            self.num_lost_nodes += 1
            self.node.lose(node, "it was not heard of")
            delay = self.world.random.uniform(0.1, 2.0)
            self.world.after(delay, lambda: self._join(node), what=f"{node} rejoins")

    def _on_death(self, name: str, how: str) -> None:
        if self.node_of[name] == "node":
            delay = self.world.random.uniform(0, _CRASH_DELAY_S)
        elif how in ("fenced", "its machine is off"):
            return  # nobody there tells the head
        else:
            delay = self.world.random.uniform(0, 0.01)
        self.world.after(delay, lambda: self.node.ended(name, how), what=f"the head hears that {name} ended")
