"""A simulated cluster: the product's `Node`, `Worker` and `Client` on a `World`, and the faults that strike them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec

from rlplat.runtime import refs
from rlplat.runtime.client.client import Client
from rlplat.runtime.core.node.leases import SILENT_S
from rlplat.runtime.core.scheduler import events
from rlplat.runtime.core.scheduler.scheduler import WARN_AFTER_S, Scheduler
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.system import System
from rlplat.runtime.link.transport import SEVERAL
from rlplat.runtime.link.trunk import new_keys
from rlplat.runtime.node.far import FarNode
from rlplat.runtime.node.node import Node
from rlplat.runtime.wire import agent_messages
from rlplat.runtime.worker.interrupts import Interrupts
from rlplat.runtime.worker.worker import Worker
from tests.simulation.trunks import Net, SimAgentTrunk
from tests.simulation.world import Process, SimPoller, SimSocket, Violation, World, current, set_current

_CRASH_DELAY_S = 0.002
_CLOSE_S = 5.0
_KILL_S = 0.5
"""Of a node, or a zygote, that kills all workers of its machine: at most."""
_SETTINGS = {
    "log_to_driver": False, "hang_timeout_s": 10.0, "memory_usage_threshold": 1.0, "preload": [], "sys_path": [],
    "store_full_timeout_s": 1.0,
}  # fmt: skip
_KEYS = msgspec.to_builtins(new_keys("10.0.0.1:7000"))


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
        self.zygote_ends_at = float("inf")
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

    def lease_zygote(self, until: float) -> None:
        self.zygote_ends_at = until

    def on_ready(self, worker: str) -> None:
        pass

    def keep_house(self, now: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def pid(self, worker: str) -> int:
        return int(worker in self._alive)


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


def _parts(cluster: Cluster) -> dict[str, Any]:
    """What a node has of the world instead of its own."""
    return {
        "system": cluster.system,
        "processes": lambda *_, **hooks: SimProcesses(cluster, **hooks),
        "watch": _NoWatch,
    }


class _Runs:
    """Of a node, which is no thread: it runs when a frame arrives, a timer goes off or a process ends."""

    world: World
    process: Process

    def __init__(self) -> None:
        self._is_hung, self._missed = False, list[Callable[[], None]]()
        self.world.on_frame_to[self.process.name] = self.on_frame

    def run(self, act: Callable[[], None] = lambda: None) -> None:
        """A round of its loop, with `act` in it."""
        if not self.process.is_alive:
            return
        if self._is_hung:
            self._missed.append(act)
            return
        self.world.touched[self.process.name] = None
        before, self.world.running = self.world.running, self.process
        try:
            act()
            self._round()
        finally:
            self.world.running = before

    def on_frame(self) -> None:
        self.run()

    def hang(self, seconds: float) -> None:
        """SIGSTOP and SIGCONT."""
        if self.process.is_alive and not self._is_hung:
            self.world.note(f"{self.process.name} HANGS for {seconds:g} s")
            self._is_hung = True
            self.world.after(seconds, self._goes_on, what=f"{self.process.name} goes on")

    def _goes_on(self) -> None:
        self._is_hung = False
        missed, self._missed = self._missed, []
        self.run(lambda: [act() for act in missed] and None)

    def _round(self) -> None:
        raise NotImplementedError


class SimNode(_Runs, Node):
    """The real node of the head's machine."""

    def __init__(self, world: World, cluster: Cluster, total: dict[str, float], net: Net | None) -> None:
        self.world, self.cluster = world, cluster
        self.process = world.add_process("node")
        config = _SETTINGS | {
            "session": cluster.session("node"), "folder": "", "total": total,
            "keys": _KEYS if net else None, "versions": "the same",
        }  # fmt: skip
        Node.__init__(
            self,
            config,
            None,  # type: ignore[arg-type]
            0,
            [],
            trunks=lambda _: net,  # type: ignore[arg-type]
            **_parts(cluster),
        )
        self.head.clients = _InOrder()  # type: ignore[assignment]
        perform = self.head._perform
        self.head._perform = lambda actions: self._perform(actions, perform)  # type: ignore[method-assign]
        lost = self.head.node_lost
        self.head.node_lost = lambda node, reason: self._node_lost(node, reason, lost)  # type: ignore[method-assign]
        self._look_at = 0.0
        _Runs.__init__(self)
        if net is not None:
            net.on_news = self.on_frame

    @property
    def scheduler(self) -> Scheduler:
        return self.head.scheduler

    def begin(self, total: dict[str, float], num_spares: int) -> None:
        self.run(lambda: self.head.node_joined(events.NodeJoined("node", total, num_spares), self.agent))

    def machines(self) -> list[str]:
        """That have joined, and are not lost."""
        return list(self._machines._far) if self._machines is not None else []

    def ended(self, worker: str, how: str) -> None:
        self.run(lambda: self.agent.processes.ended(worker, how))  # type: ignore[attr-defined]

    def _round(self) -> None:
        self._receive()
        if self._machines is not None:
            self._machines.keep_house(self.world.now)
        self._transport.flush()
        if self.head.wake_at is not None:
            delay_s, self.head.wake_at = self.head.wake_at - self.world.now, None
            is_mere_watch = delay_s > 0.99 * WARN_AFTER_S  # to explain what waits: no cause for anything to go on
            self.world.after(delay_s, lambda: self.run(self._tick), is_tick=is_mere_watch, what="the scheduler's timer")
        at = self._machines.next_deadline() if self._machines is not None else None
        if at is not None and at != self._look_at:
            self._look_at = at
            self.world.after(at - self.world.now, self.run, is_tick=True)

    def _tick(self) -> None:
        self.head.event(events.Tick())

    def _perform(self, actions: list[Any], perform: Callable[[list[Any]], None]) -> None:
        for action in actions:
            if type(action) is events.StartWorker:
                self.cluster.node_of[action.worker] = action.node
        perform(actions)

    def _node_lost(self, node: str, reason: str, lost: Callable[[str, str], None]) -> None:
        """The kill comes first, and nobody is given up without a cause or kept beyond the time for that."""
        self.world.note(f"machine {node} is LOST: {reason}")
        self.world.still_alive()
        alive = self.cluster.workers(node)
        if alive:
            raise Violation(f"{node} was declared dead, and {alive} live there")
        self.cluster.num_lost_nodes += 1
        lost(node, reason)


class SimFarNode(_Runs, FarNode):
    """The real node of another machine."""

    def __init__(self, machine: SimMachine, node: str, settings: dict[str, Any]) -> None:
        cluster, self.world, self.machine = machine.cluster, machine.cluster.world, machine
        self.process = self.world.add_process(node)
        config = settings | {
            "session": cluster.session(node), "folder": "", "total": machine.total, "keys": _KEYS,
            "node": node, "address": "10.0.0.2",
        }  # fmt: skip
        FarNode.__init__(
            self,
            config,
            None,  # type: ignore[arg-type]
            0,
            [],
            trunk=lambda _, node: SimAgentTrunk(cluster.net, node, self.on_frame),  # type: ignore[arg-type]
            **_parts(cluster),
        )
        self.name, self._cluster = node, cluster
        self._wake_at = self._fence_at = 0.0
        _Runs.__init__(self)
        self._join()

    def _round(self) -> None:
        if self.end:
            return
        if not self._is_needed():
            self._give_up()
            return
        self._transport.flush()
        self._receive()
        self._keep_house()
        self._transport.flush()
        at = min(each for each in self._deadlines() if each is not None)
        if at != self._wake_at:
            self._wake_at = at
            self.world.after(at - self.world.now, self.run, is_tick=True)
        fence_at = self.agent.processes.zygote_ends_at  # type: ignore[attr-defined]
        if fence_at not in (float("inf"), self._fence_at):
            self._fence_at = fence_at
            self.world.after(fence_at - self.world.now, self._look_at_zygote, is_tick=True)

    def ended(self, worker: str, how: str) -> None:
        self.run(lambda: self.agent.processes.ended(worker, how))  # type: ignore[attr-defined]

    def _give_up(self) -> None:
        """As `serve` does: the kill takes a while, then it says so."""
        self.world.note(f"{self.name} ENDS: {self.end}")
        self.world.still_alive()
        self.world.after(self.world.random.uniform(0, _KILL_S), self._is_over, what=f"{self.name} has killed all")

    def _is_over(self) -> None:
        if self.process.is_alive:
            self._cluster.end_workers(self.name)
            self.trunk.tell(agent_messages.AllDead(self.end))
            self.trunk.close(linger_s=0.5)
            self._ends("exit")

    def _look_at_zygote(self) -> None:
        if self.process.is_alive and self.world.now + 1e-6 >= self.agent.processes.zygote_ends_at:  # type: ignore[attr-defined]
            self.world.note(f"{self.name}: its zygote ENDS it")
            self.world.after(self.world.random.uniform(0, _KILL_S), self.crash, what=f"{self.name} is killed")

    def crash(self) -> None:
        """SIGKILL: its zygote kills the rest."""
        if self.process.is_alive:
            self._cluster.num_crashes += 1
            delay_s = self.world.random.uniform(0, 0.1)
            self.world.after(delay_s, lambda: self._cluster.end_workers(self.name), what=f"the zygote of {self.name}")
            self.trunk.break_off(agent_hears=False)
            self._ends("was ended by SIGKILL")

    def power_off(self, head_hears: bool) -> None:
        if self.process.is_alive:
            self.world.note(f"{self.name}: its machine is OFF")
            self._cluster.end_workers(self.name)
            self.trunk.break_off(head_hears=head_hears, agent_hears=False)
            self._ends("its machine is off")
            self.machine.ended = ""  # what has begun it is gone as well

    def _ends(self, how: str) -> None:
        self.world.end(self.name, how)
        self.machine.node, self.machine.ended = None, self.name
        self.machine.ask_soon()


class SimMachine:
    """What `start.machine` is: it asks for a program, works for it, and asks again."""

    def __init__(self, cluster: Cluster, name: str, total: dict[str, float]) -> None:
        self.cluster, self.name, self.total = cluster, name, total
        self.node: SimFarNode | None = None
        self.ended = ""
        """Its last session."""
        self.held_until = {"up": 0.0, "down": 0.0}
        """Nothing passes to the head, and from it, until then."""

    def ask_soon(self) -> None:
        world = self.cluster.world
        world.after(world.random.uniform(0.1, 2.0), self._ask, what=f"{self.name} asks for a program")

    def _ask(self) -> None:
        asker = SimAgentTrunk(self.cluster.net, "", lambda: self._answered(asker))
        self._hold(asker)
        asker.tell(agent_messages.AskProgram("the same", self.ended))

    def _answered(self, asker: SimAgentTrunk) -> None:
        for _, _, frame, _ in asker.receive():
            program = agent_messages.decode(frame)
            asker.close()
            self.node = SimFarNode(self, program.node, program.settings)
            self._hold(self.node.trunk)  # type: ignore[arg-type]
            self.node.run()

    def _hold(self, trunk: SimAgentTrunk) -> None:
        trunk.up.hold(self.held_until["up"])
        trunk.down.hold(self.held_until["down"])

    # -- faults

    def cut(self, seconds: float, directions: tuple[str, ...]) -> None:
        """Nothing passes; or in one direction only."""
        world = self.cluster.world
        world.note(f"{self.name} is CUT OFF for {seconds:g} s: {directions}")
        for direction in directions:
            self.held_until[direction] = max(self.held_until[direction], world.now + seconds)
        if self.node is not None:
            self._hold(self.node.trunk)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the cluster


class Cluster:
    """Machines, their workers, a driver; and what may befall them."""

    def __init__(self, world: World, totals: list[dict[str, float]], num_spares: int) -> None:
        """`totals`: of the head's machine, and of others."""
        self.world, self.system = world, system_of(world)
        self.total, self.num_spares = totals[0], num_spares
        self.node_of: dict[str, str] = {"node": "node", "driver": "node"}
        self.net = Net(world)
        self.machines = [SimMachine(self, f"machine{n}", total) for n, total in enumerate(totals[1:], 2)]
        if self.machines:
            world.quiet_s = SILENT_S + 3.0
            world.elsewhere = self.net.under_way
        self.node = SimNode(world, self, self.total, self.net if self.machines else None)
        self.watch_client: Callable[[Any], None] = lambda client: None
        self.num_crashes = 0
        self.num_lost_nodes = 0
        world.on_death = self._on_death

    def session(self, node: str) -> str:
        """The folder of this node's machine."""
        folder = os.path.join(self.world.folder, "session" if node == "node" else node)
        if not os.path.exists(folder):
            os.mkdir(folder)
            if self.machines:
                with open(os.path.join(folder, SEVERAL), "x") as file:
                    file.write(node)
        return folder

    def begin(self) -> None:
        self.node.begin(self.total, self.num_spares)
        for machine in self.machines:
            machine.ask_soon()

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
        client = Worker(
            self.session(self.node_of[process.name]),
            process.name,
            gpu_ids,
            system=self.system,
            interrupts=SimInterrupts,
        )
        self._connect(process, client)
        client.start()
        client.run()
        client.executor.actor = None
        self.world.exit_here("exit")

    def start_driver(self, program: Callable[[], None]) -> Process:
        process = self.world.add_process("driver")

        def body(process: Process) -> None:
            client = Client(Link(self.session("node"), "driver", spin=False, system=self.system))
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

    def end_workers(self, node: str) -> None:
        """All that are there, at once."""
        for name in self.workers(node):
            self.num_crashes += 1
            self.world.end(name, "was killed with its machine")

    def _on_death(self, name: str, how: str) -> None:
        if name[0] != "w":
            return
        node = self.node_of[name]
        nodes = [self.node, *(machine.node for machine in self.machines)]
        teller = next((each for each in nodes if each is not None and each.process.name == node), None)
        if teller is not None:
            delay = self.world.random.uniform(0, _CRASH_DELAY_S)
            self.world.after(delay, lambda: teller.ended(name, how), what=f"{node} hears that {name} ended")
