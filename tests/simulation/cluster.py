"""A simulated cluster: the product's `Node`, `Worker` and `Client` on a `World`, and the faults that strike them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

from rlplat.runtime import refs
from rlplat.runtime.client.client import Client
from rlplat.runtime.core.scheduler import events
from rlplat.runtime.core.scheduler.scheduler import WARN_AFTER_S, Scheduler
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.system import System
from rlplat.runtime.node.node import Node
from rlplat.runtime.worker.interrupts import Interrupts
from rlplat.runtime.worker.worker import Worker
from tests.simulation.world import Process, SimPoller, SimSocket, World, current, set_current

_CRASH_DELAY_S = 0.002
_CLOSE_S = 5.0


class _NoThread:
    """The background thread of `IoLoop`: the world does its rounds."""

    def __init__(self, world: World) -> None:
        self._world = world

    def start(self) -> None:
        process = self._world.running
        assert process is not None
        self._world.background_soon(process, 0.005)

    def is_alive(self) -> bool:
        return False


class _NoBell:
    """Nothing polls beside the one thread that runs."""

    fd = -1

    def ring(self) -> None:
        pass


def system_of(world: World) -> System:
    """What the product takes for its machine."""

    def sleep(seconds: float) -> None:
        assert world.running is not None
        world.running.sleep(seconds)

    def exit(status: int) -> NoReturn:
        world.exit_here("exit" if status == 0 else f"exited with {status}")

    def pid() -> int:
        process = world.running
        return 1 if process is None else 1000 + int(process.name.strip("adeinorvw") or 0)

    return System(
        clock=lambda: world.now,
        sleep=sleep,
        sockets=lambda: SimpleNamespace(socket=lambda _: SimSocket(world)),
        poller=lambda: SimPoller(world),
        bell=_NoBell,
        thread=lambda **_: _NoThread(world),
        pid=pid,
        exit=exit,
    )


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Code of users, and the verbs that it calls, are in this world."""
    connected = refs.connection()
    set_current(world)
    try:
        yield
    finally:
        refs.set_backend(connected)
        set_current(None)


# ---------------------------------------------------------------- the node


class _InOrder(dict[str, None]):
    """A set that goes through its members in the order in which they came, whatever their hashes."""

    def add(self, name: str) -> None:
        self[name] = None

    def discard(self, name: str) -> None:
        self.pop(name, None)


class SimInterrupts(Interrupts):
    """The signals of the real one strike user code while it computes; where the runtime waits, the real checks do."""

    def interrupt(self, task: tuple[str, int]) -> None:
        self._wanted.add(task)
        world = current()
        process = world.running
        assert process is not None
        delay_s = world.random.uniform(0, 0.01)
        world.after(delay_s, lambda: self._signal(process, task), what=f"a signal in {process.name}")
        world.after(0.2, lambda: self._wanted.discard(task), what=f"{process.name} gives up interrupting")

    def _signal(self, process: Process, task: tuple[str, int]) -> None:
        if not process.is_alive or process.state != "sleeping" or process.thread is None:
            return
        if task in self._wanted and self._running.key == task:
            process.interruption = lambda: self._strike(task)
            process.resume()


class SimProcesses:
    """Stands for `processes.Processes`: workers are born and die in the world instead of under a zygote."""

    def __init__(self, cluster: Cluster, *, on_lost: Callable[[str, str, str], None], **hooks: Any) -> None:
        self.cluster, self._world = cluster, cluster.world
        self._on_lost, self._ask_to_exit = on_lost, hooks["ask_to_exit"]
        self._why: dict[str, tuple[str, str]] = {}
        """Workers that the node killed, with the reason and the kind of error."""
        self._alive: dict[str, None] = {}
        self._kill_at: dict[str, float] = {}
        self.log_folder = ""
        self.console = SimpleNamespace(write=self._world.note)

    def start(self, worker: str, gpu_ids: tuple[int, ...], *_: Any) -> None:
        self._alive[worker] = None
        self.cluster.fork(worker, gpu_ids)

    def stop(self, worker: str, at_once: bool, is_surplus: bool, reason: str = "") -> None:
        if worker not in self._alive:
            return
        if at_once:
            self.kill(worker, reason and f"was killed: {reason}")
            return
        self._ask_to_exit(worker)
        if not is_surplus and worker not in self._kill_at:
            self._kill_at[worker] = self._world.now + _CLOSE_S
            self._world.after(_CLOSE_S, lambda: self.kill(worker, ""), what=f"no more patience with {worker}")

    def kill(self, worker: str, reason: str, kind: str = "WorkerCrashed") -> None:
        if worker in self._alive:
            self._why.setdefault(worker, (reason, kind))
            delay_s = self._world.random.uniform(0, 0.001)
            self._world.after(delay_s, lambda: self._world.end(worker, "SIGKILL"), what=f"kill {worker}")

    def ended(self, worker: str, how: str) -> None:
        """The zygote's news."""
        if worker in self._alive:
            del self._alive[worker]
            reason, kind = self._why.pop(worker, ("", "WorkerCrashed"))
            self._on_lost(worker, reason or how, kind)

    def forget(self, workers: list[str]) -> None:
        """Their node is gone."""
        for name in workers:
            self._alive.pop(name, None)

    def on_ready(self, worker: str) -> None:
        pass

    def keep_house(self, now: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def pid(self, worker: str) -> int:
        return 0


class _NoWatch:
    """Stands for `watch.Watch`, which looks at processes by /proc."""

    def __init__(self, *_: Any) -> None:
        pass

    def answered(self, worker: str, now: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def keep_house(self, now: float) -> None:
        pass


class SimNode(Node):
    """The real node, which runs when a frame arrives or a timer goes off."""

    def __init__(self, world: World, cluster: Cluster, total: dict[str, float]) -> None:
        self.world, self.cluster = world, cluster
        self.process = world.add_process("node")
        config = {
            "session": "sim/session", "folder": "", "total": total, "log_to_driver": False,
            "hang_timeout_s": 10.0, "memory_usage_threshold": 1.0,
        }  # fmt: skip
        super().__init__(
            config,
            None,  # type: ignore[arg-type]
            0,
            [],
            system=cluster.system,
            processes=lambda *_, **hooks: SimProcesses(cluster, **hooks),  # type: ignore[arg-type]
            watch=_NoWatch,  # type: ignore[arg-type]
        )
        self.head.clients = _InOrder()  # type: ignore[assignment]
        perform = self.head._perform
        self.head._perform = lambda actions: self._perform(actions, perform)  # type: ignore[method-assign]
        world.on_frame_to["node"] = self.on_frame

    @property
    def scheduler(self) -> Scheduler:
        return self.head.scheduler

    @property
    def processes(self) -> SimProcesses:
        return self.agent.processes  # type: ignore[return-value]

    def join(self, node: str, total: dict[str, float], num_spares: int) -> None:
        with self._running():
            self.head.node_joined(events.NodeJoined(node, total, num_spares), self.agent)

    def lose(self, node: str, reason: str) -> None:
        """A node is gone with all its workers."""
        with self._running():
            workers = [worker for worker, where in self.cluster.node_of.items() if where == node]
            self.processes.forget(workers)
            for worker in workers:
                self._transport.forget(worker)
            self.head.event(events.NodeLost(node, reason))

    def ended(self, worker: str, how: str) -> None:
        with self._running():
            self.processes.ended(worker, how)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self.world.touched["node"] = None
        before, self.world.running = self.world.running, self.process
        try:
            yield
            self._transport.flush()
            self._set_timer()
        finally:
            self.world.running = before

    def on_frame(self) -> None:
        with self._running():
            self._receive()

    def _perform(self, actions: list[Any], perform: Callable[[list[Any]], None]) -> None:
        for action in actions:
            if type(action) is events.StartWorker:
                self.cluster.node_of[action.worker] = action.node
        perform(actions)

    def _set_timer(self) -> None:
        if self.head.wake_at is not None:
            delay_s, self.head.wake_at = self.head.wake_at - self.world.now, None
            is_mere_watch = delay_s > 0.99 * WARN_AFTER_S  # to explain what waits: no cause for anything to go on
            self.world.after(delay_s, self._tick, is_tick=is_mere_watch, what="the scheduler's timer")

    def _tick(self) -> None:
        with self._running():
            self.head.event(events.Tick())


# ---------------------------------------------------------------- the cluster


class Cluster:
    """Nodes, their workers, a driver; and what may befall them."""

    def __init__(self, world: World, totals: dict[str, dict[str, float]], num_spares: int) -> None:
        self.world, self.system = world, system_of(world)
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

    def fork(self, name: str, gpu_ids: tuple[int, ...]) -> None:
        process = self.world.add_process(name)
        node = self.node_of[name]
        delay = self.world.random.uniform(0.001, 0.01)
        self.world.after(delay, lambda: self._born(process, gpu_ids), what=f"{name} is born on {node}")

    def _born(self, process: Process, gpu_ids: tuple[int, ...]) -> None:
        if process.is_alive:
            process.start(lambda process: self._worker_main(process, gpu_ids))

    def _worker_main(self, process: Process, gpu_ids: tuple[int, ...]) -> None:
        """As `rlplat.runtime.worker.worker.main`."""
        client = Worker("sim/session", process.name, gpu_ids, system=self.system, interrupts=SimInterrupts)
        self._connect(process, client)
        client.start()
        client.run()
        client.executor.actor = None
        self.world.exit_here("exit")

    def start_driver(self, program: Callable[[], None]) -> Process:
        process = self.world.add_process("driver")

        def body(process: Process) -> None:
            client = Client(Link("sim/session", "driver", spin=False, system=self.system))
            self._connect(process, client)
            client.start()
            program()
            self.world.background_soon(process, 0.001)

        process.start(body)
        return process

    def _connect(self, process: Process, client: Any) -> None:
        client.objects.ids = itertools.count(1)  # each process counts for itself
        process.client = client
        refs.set_backend(client)
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
        self.world.after(self.world.random.uniform(0.001, 1.0), lambda: self._give_up(node), what=f"{node} is given up")

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
