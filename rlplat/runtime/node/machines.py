"""The other machines of a cluster, as the head's process sees them (decision 0023): who joins, who is heard of, who is
lost; orders to their agents, and frames between clients on different machines.

The scheduler's list of workers is the directory: what a machine sends in the name of a worker that is not there any
more, or of another machine's, is dropped. That is the fence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rlplat.errors import RuntimeFault
from rlplat.node_types import MOST_OWN_NODES
from rlplat.runtime.core.node.leases import Patience
from rlplat.runtime.core.scheduler.events import NodeJoined
from rlplat.runtime.core.scheduler.views import InUse
from rlplat.runtime.link.dropped import Handler
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.link.trunk import Data, HeadTrunks
from rlplat.runtime.node.copies import Copies
from rlplat.runtime.node.head import AgentOrders, Head
from rlplat.runtime.node.output import Console, FarOutput
from rlplat.runtime.wire import agent_messages, messages
from rlplat.runtime.wire.agent_messages import TrunkMessage
from rlplat.runtime.wire.messages import ASKER, DRIVER, NODE

_LOOK_S, _END_S = 0.5, 1.0
_START_S = 20.0
"""A machine that has not joined so long after it heard of the program is waited for no more."""
_SETTINGS = (
    "preload",
    "sys_path",
    "hang_timeout_s",
    "memory_usage_threshold",
    "store_full_timeout_s",
)
"""Of the driver's, which its workers have everywhere."""


class FarAgent:
    """What the head asks of an agent on another machine: by message."""

    def __init__(self, trunks: HeadTrunks, node: str, session: str, now: float) -> None:
        self._trunks, self.node, self.session, self._machine = trunks, node, session, node.encode()
        self.patience = Patience(now)
        self._using: dict[str, InUse] = {}

    def tell(self, message: TrunkMessage, data: Data = b"") -> bool:
        return self._trunks.tell(self._machine, message, data)

    def start(self, worker: str, gpu_ids: tuple[int, ...], env: str) -> None:
        self.tell(agent_messages.StartWorker(worker, gpu_ids, env))

    def stop(self, worker: str, at_once: bool, is_surplus: bool, reason: str) -> None:
        self.tell(agent_messages.StopWorker(worker, at_once, is_surplus, reason))

    def kill(self, worker: str, reason: str) -> None:
        self.tell(agent_messages.KillWorker(worker, reason))

    def ready(self, worker: str) -> None:
        """(It has seen that itself, as the two below.)"""

    def answered(self, worker: str, now: float) -> None:
        pass

    def define_env(self, key: str, spec: str) -> None:
        self.tell(agent_messages.DefineEnv(key, spec))

    def remove_files(self, workers: list[str]) -> None:
        self.tell(agent_messages.RemoveFiles(workers))

    def is_using(self, workers: dict[str, InUse]) -> None:
        if workers != self._using:
            self._using = workers
            rows = [(worker, use.name, use.is_actor, use.can_run_again, use.memory) for worker, use in workers.items()]
            self.tell(agent_messages.Using(rows))


@dataclass(slots=True)
class _Grave:
    """Where a worker has died, for as long as there may be bytes of it."""

    node: str
    num_kept: int = 0
    is_settled: bool = False


class Machines:
    def __init__(
        self,
        trunks: HeadTrunks,
        head: Head,
        transport: Transport,
        clock: Callable[[], float],
        config: dict[str, Any],
        console: Console,
    ) -> None:
        self._head, self._transport, self._clock = head, transport, clock
        self.trunks = trunks
        self._versions: str = config["versions"]
        self._settings = {name: config[name] for name in _SETTINGS}
        self._far: dict[str, FarAgent] = {}
        self._expected: dict[str, float] = {}
        """Ids that were given out, and until when whoever has one is waited for."""
        self._num_given = 0
        self._is_over = False
        self._look_at = 0.0
        self._console = console
        self._output = FarOutput(console, os.path.join(config["folder"], "logs"), config["log_to_driver"])
        transport.forward = self._outward
        head.num_joining = self._num_joining
        self.copies = Copies(config["session"], NODE, self._send_on, transport.post, clock)
        self._graves: dict[str, _Grave] = {}
        head.on_died, head.on_settled = self._died, self._settled
        head.on_elsewhere = {
            messages.Pull: self.copies.pull,
            messages.MakeRoom: self.copies.make_room,
            messages.Keep: self._keep,
        }

    # -- frames between clients

    def _node_of(self, client: str) -> str:
        """ "" for one that is not there. (An agent goes by the name of its machine.)"""
        worker = self._head.scheduler.placing.workers.get(client)
        if worker is not None:
            return worker.node.name
        if client in self._far:
            return client
        return NODE if client in (NODE, DRIVER) or client.startswith(ASKER) else ""

    def _outward(self, sender: str, to: str, frame: bytes) -> None:
        """From a client on this machine, or from the head itself."""
        if self._node_of(sender) == NODE:
            self._pass_on(sender, to, frame)

    def _pass_on(self, sender: str, to: str, frame: bytes) -> None:
        node = self._node_of(to)
        if node == NODE:
            self._transport.deliver_from(sender, to, frame)
        elif node in self._far and not self.trunks.send(node.encode(), to, sender, frame):
            self._suspect(node)

    # -- what comes from machines

    def receive(self) -> bool:
        """Whether there was more than what is passed on."""
        is_news = False
        for machine, (to, sender, frame, data) in self.trunks.receive():
            node = machine.decode(errors="replace")
            if node in self._far:
                self._far[node].patience.heard(self._clock())
            if not to:
                is_news = True
                self._do(machine, node, frame, data)
            elif node not in self._far:
                continue
            elif not sender and to in self._far:
                self.trunks.send(to.encode(), to, "", frame, data)
            elif self._node_of(sender) == node:
                if to == NODE:
                    is_news = True
                    self._hear_client(sender, frame)
                else:
                    self._pass_on(sender, to, frame)
        return is_news

    def _hear_client(self, sender: str, frame: bytes) -> None:
        dropped = self._transport.dropped
        try:
            batch: list[Any] = messages.decode(frame)
        except msgspec.MsgspecError as error:
            dropped.add("a frame from", sender, str(error))
            return
        dropped.deliver(sender, batch, self._handler_for_client)

    def _handler_for_client(self, kind: type) -> Handler | None:
        return self._head.on_message if kind is not messages.Inspect else None

    def _do(self, machine: bytes, node: str, frame: bytes, data: Data) -> None:
        """(As with messages of clients: what is senseless must not end the head for all others.)"""
        try:
            self._hear(machine, node, agent_messages.decode(frame), data)
        except (OSError, MemoryError, RuntimeFault):
            raise
        except Exception as error:
            self.trunks.dropped.add("a message from", node, f"{type(error).__name__}: {error}", error)

    def _hear(self, machine: bytes, node: str, message: Any, data: Data) -> None:
        kind = type(message)
        if kind is agent_messages.AskProgram:
            for ended in [name for name, far in self._far.items() if far.session == message.ended]:
                self._lose(ended, "its node process has ended")
            self.trunks.tell(machine, self._answer(message))
        elif kind is agent_messages.Join and node == message.node and node in self._expected:
            del self._expected[node]
            m, self._far[node] = message, FarAgent(self.trunks, node, message.session, self._clock())
            self._head.node_joined(NodeJoined(node, m.total, m.num_spares, m.address, m.hostname), self._far[node])
        elif node not in self._far:  # it was declared dead, and does not know it yet
            return
        elif kind is agent_messages.AskLease:
            self._far[node].tell(agent_messages.Lease(message.number))
        elif kind is agent_messages.WorkerEnded and self._node_of(message.worker) == node:
            self._output.forget(message.worker)
            self._head.worker_lost(message.worker, message.reason, message.kind)
        elif kind is agent_messages.EnvSettled:
            self._head.env_settled(message.key, message.error)
        elif kind is agent_messages.Printed:
            self._output.take(node, message)
        elif kind is agent_messages.Said:
            self._console.write(message.text)
        elif kind in (agent_messages.AskChunk, agent_messages.Chunk, agent_messages.DropCopies):
            self._send_on(message, data)
        elif kind is agent_messages.AllDead:
            self._lose(node, message.reason)

    def _send_on(self, message: Any, data: Data = b"") -> None:
        """About bytes, to the machine that it is for: that may be this one."""
        is_question = isinstance(message, agent_messages.AskChunk)
        node = self._place_of(message.creator) if is_question else message.node
        if node in self._far:
            self._far[node].tell(message, data)
        elif node == NODE:
            self.copies.hear(message, data)
        elif is_question:
            self._send_on(agent_messages.Chunk(message.node, message.name, message.offset, -1))

    # -- what the dead have left

    def _died(self, worker: str, agent: AgentOrders | None) -> None:
        self._graves[worker] = _Grave(agent.node if isinstance(agent, FarAgent) else NODE)

    def _place_of(self, creator: str) -> str:
        """The machine that has what it has made; "" when there is none."""
        node = self._graves[creator].node if creator in self._graves else self._node_of(creator)
        return node if node == NODE or node in self._far else ""

    def _keep(self, owner: str, message: messages.Keep) -> None:
        m, node = message, self._place_of(message.creator)
        if m.creator in self._graves:
            self._graves[m.creator].num_kept += -len(m.names) if m.are_freed else len(m.names)
            self._forget(m.creator)
        order = agent_messages.Keep(owner, m.creator, m.names, m.are_freed)
        if node in self._far:
            self._far[node].tell(order)
        elif node == NODE:
            self.copies.hear(order)

    def _settled(self, workers: list[str]) -> None:
        self.copies.settled(workers)
        self._tell_lost([worker for worker in workers if not self._place_of(worker)])
        for worker in workers:
            if worker in self._graves:
                self._graves[worker].is_settled = True
                self._forget(worker)

    def _forget(self, worker: str) -> None:
        if self._graves[worker].is_settled and self._graves[worker].num_kept <= 0:
            del self._graves[worker]

    def _tell_lost(self, creators: list[str]) -> None:
        if creators:
            self.copies.lost(creators)
            for far in self._far.values():
                far.tell(agent_messages.CreatorsLost(creators))

    def _answer(self, asked: agent_messages.AskProgram) -> TrunkMessage:
        if asked.versions != self._versions:
            return agent_messages.Refused(
                f"this machine has {asked.versions}, and the head has {self._versions}: all machines of a cluster need "
                "the same"
            )
        if len(self._far) + 1 >= MOST_OWN_NODES:
            return agent_messages.Refused(f"the cluster has {MOST_OWN_NODES} machines, which is as many as it may")
        self._num_given += 1
        node = f"n{self._num_given + 1}"
        self._expected[node] = self._clock() + _START_S
        return agent_messages.Program(node, self._settings)

    def _num_joining(self) -> int:
        now = self._clock()
        return sum(at > now for at in self._expected.values())

    # -- time

    def _suspect(self, node: str) -> None:
        far = self._far[node]
        if not far.patience.is_broken:
            far.patience.is_broken = True
            self._head.node_suspected(node)

    def _lose(self, node: str, reason: str) -> None:
        del self._far[node]
        if self._is_over:
            return
        self._console.write(f"rlplat: machine {node} is lost: {reason}\n")
        self._tell_lost([worker for worker, grave in self._graves.items() if grave.node == node])
        self._head.node_lost(node, reason)

    def end(self) -> None:
        """The program has. Machines hear of it before their connection ends, with which ZeroMQ drops what they have not
        read: when their workers are dead they end it themselves."""
        self._is_over = True
        for far in self._far.values():
            far.tell(agent_messages.End())
        until = self._clock() + _END_S
        while self._far and self._clock() < until:
            self.receive()
            time.sleep(0.005)

    def next_deadline(self) -> float | None:
        times = (self._look_at if self._far else None, self.copies.next_deadline())
        return min((at for at in times if at is not None), default=None)

    def keep_house(self, now: float) -> None:
        self.copies.keep_house(now)
        if not self._far or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        workers: dict[str, dict[str, InUse]] = {node: {} for node in self._far}
        for worker, use in self._head.scheduler.in_use().items():
            node = self._node_of(worker)
            if node in workers:
                workers[node][worker] = use
        for node, far in list(self._far.items()):
            far.is_using(workers[node])
            if not far.tell(agent_messages.Lease(0)):  # an answer to nothing: is there a connection?
                self._suspect(node)
            if far.patience.is_over(now):
                how = "its connection broke" if far.patience.is_broken else "nothing was heard of it for 10 s"
                self._lose(node, how)
