"""The node process of a machine that has joined: its agent, and the trunk to the head (decision 0023).

What its workers say to the head or to clients elsewhere goes over the trunk unread, but for greetings and signs of
life. When its lease is over, or the connection, it kills all of them and ends: `start.machine` begins another one.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from rlplat.errors import RuntimeFault
from rlplat.given.say import say
from rlplat.runtime.core.node.leases import ZYGOTE_S, Lease
from rlplat.runtime.core.scheduler.views import InUse
from rlplat.runtime.link.answers import answer_as_node, reply
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.link.trunk import AgentTrunk, Data, Keys
from rlplat.runtime.machine import proc_files
from rlplat.runtime.machine.hardware import visible_gpus
from rlplat.runtime.node.agent import Agent
from rlplat.runtime.node.code import Code
from rlplat.runtime.node.copies import Copies
from rlplat.runtime.node.node import num_spares
from rlplat.runtime.node.output import Console
from rlplat.runtime.node.processes import Processes
from rlplat.runtime.node.shell import Shell
from rlplat.runtime.node.watch import Watch
from rlplat.runtime.process import stacks
from rlplat.runtime.store.account import usage
from rlplat.runtime.wire import agent_messages, messages
from rlplat.runtime.wire.agent_messages import AskChunk, Chunk, DropCopies
from rlplat.runtime.wire.messages import ASKER, NODE
from rlplat.runtime.wire.values import ErrorInfo

_ENDED = "the program has ended"
_FOR_AGENT = (messages.Pong, messages.Inspect, messages.Pull, messages.MakeRoom)


class _HeadsConsole(Console):
    """What is written there is the head's to show and to keep."""

    def __init__(self, trunk: AgentTrunk) -> None:
        super().__init__()
        self._trunk = trunk

    def write(self, text: str) -> None:
        self._trunk.tell(agent_messages.Said(text))

    def show(self, worker: str, name: str, lines: list[str]) -> None:
        self._trunk.tell(agent_messages.Printed(worker, name, lines))


class FarNode(Shell):
    def __init__(
        self,
        config: dict[str, Any],
        orders: socket.socket,
        zygote: int,
        gpus: list[str],
        *,
        system: System = SYSTEM,
        trunk: type[AgentTrunk] = AgentTrunk,
        processes: type[Processes] = Processes,
        watch: type[Watch] = Watch,
    ) -> None:
        super().__init__(Transport(config["session"], NODE, sockets=system.sockets), system)
        self._config, self._node = config, config["node"]
        self._workers: set[str] = set()
        """Those that have said hello."""
        self._using: dict[str, InUse] = {}
        self._lease = Lease(self._clock())
        self.end = ""
        """Why it is over."""
        self.trunk = trunk(msgspec.convert(config["keys"], Keys), self._node)
        self._transport.forward = self._outward
        self._copies = Copies(config["session"], self._node, self._tell, self._post, self._clock)
        self._listen_to(self.trunk)
        self.agent = Agent(
            config | {"log_to_driver": True},  # the head shows it, or not
            orders,
            zygote,
            gpus,
            self._poller,
            who=lambda worker: self._using[worker].name if worker in self._using else worker,
            is_ready=self._workers.__contains__,
            in_use=lambda: self._using,
            ask_to_exit=lambda worker: self._post(worker, messages.Exit()),
            ask_for_life=lambda worker: self._post(worker, messages.Ping()),
            on_lost=self._worker_lost,
            on_env_settled=self._env_settled,
            processes=processes,
            watch=watch,
        )
        self.agent.processes.console = _HeadsConsole(self.trunk)
        pull = partial(self._copies.pull, NODE)
        self._code = Code(config["session"], config["folder"], pull, self.agent.define_env, self._env_settled)
        self.agent.kept = self._copies

    def run(self) -> None:
        self._join()
        os.write(1, b"ready\n")
        self._run()

    def _join(self) -> None:
        config = self._config
        total, session = config["total"], os.path.basename(config["session"])
        self.agent.processes.lease_zygote(self._lease.until + ZYGOTE_S)  # before there are workers
        self.trunk.tell(
            agent_messages.Join(self._node, total, num_spares(total), socket.gethostname(), config["address"], session)
        )

    def _is_needed(self) -> bool:
        if not self.end and self.trunk.has_ended:
            self.end = "the connection to the head has ended"
        elif not self.end and self._clock() >= self._lease.until:
            self.end = "the head has not answered for 5 s"
        return not self.end

    # -- between the workers and the head

    def _outward(self, sender: str, to: str, frame: bytes) -> None:
        if sender in self._workers:
            self.trunk.send(to, sender, frame)
        elif to.startswith(ASKER):
            self.trunk.send(to, self._node, frame)

    def _tell(self, message: AskChunk | Chunk | DropCopies, data: bytes) -> None:
        to = "" if isinstance(message, AskChunk) or message.node == NODE else message.node
        self.trunk.tell(message, data, to)

    def _receive(self) -> bool:
        is_news = False
        for sender, batch in self._transport.receive():
            is_news = True
            rest = [message for message in batch if not self._is_for_agent(sender, message)]
            if rest and sender in self._workers:
                self.trunk.send(NODE, sender, messages.encode(rest))
        for to, sender, frame, data in self.trunk.receive():
            if sender and to == self._node:
                self._answer(sender, frame)
            elif sender:
                self._transport.deliver_from(sender, to, frame)
            else:
                is_news = True
                self._obey(frame, data)
        return is_news or self.trunk.has_ended

    def _is_for_agent(self, sender: str, message: Any) -> bool:
        kind = type(message)
        if kind is messages.Hello and self.agent.processes.pid(sender):
            self._workers.add(sender)
            self.agent.ready(sender)
        elif kind is messages.Pong:
            self.agent.answered(sender, self._clock())
        elif kind is messages.Inspect:
            answer_as_node(self._transport, sender, message, self._refuse)
        elif kind is messages.Pull:
            self._copies.pull(sender, message)
        elif kind is messages.MakeRoom:
            self._copies.make_room(sender, message)
        return kind in _FOR_AGENT

    def _refuse(self) -> dict[str, Any]:
        raise RuntimeFault("this machine works for a cluster: ask on the machine of its head")

    def _answer(self, asker: str, frame: bytes) -> None:
        """To who looks on from the head's machine."""
        try:
            asked = [message for message in messages.decode(frame) if type(message) is messages.Inspect]
        except msgspec.MsgspecError as error:
            self.trunk.dropped.add("a frame from", asker, str(error))
            return
        for message in asked:
            worker = message.what.removeprefix("signal ")
            if self.agent.processes.pid(worker):
                reply(self._transport, asker, message, partial(self._signalled, worker))
            else:
                answer_as_node(self._transport, asker, message, self._view)

    def _signalled(self, worker: str) -> messages.Report:
        """The stacks of one that does not answer by itself."""
        return messages.Report(0, totals={"text": stacks.read_stacks(self.agent.processes.pid(worker))})

    def _view(self) -> dict[str, Any]:
        pids = self.agent.processes.pids()
        return {
            "workers": {worker: proc_files.usage(pid) for worker, pid in pids.items()},
            "store": usage(self._config["session"]),
            "clock": self._clock(),
        }

    def _obey(self, frame: bytes, data: Data) -> None:
        try:
            message = agent_messages.decode(frame)
        except msgspec.MsgspecError as error:
            self.trunk.dropped.add("a frame from", "head", str(error))
            return
        match message:
            case agent_messages.Lease(number):
                if self._lease.answered(number):
                    self.agent.processes.lease_zygote(self._lease.until + ZYGOTE_S)
            case agent_messages.StartWorker(worker, gpu_ids, env):
                self.agent.start(worker, gpu_ids, env)
            case agent_messages.StopWorker(worker, at_once, is_surplus, reason):
                self.agent.stop(worker, at_once, is_surplus, reason)
            case agent_messages.KillWorker(worker, reason):
                self.agent.kill(worker, reason)
            case agent_messages.DefineEnv(key, spec):
                self._code.define(key, spec)
            case agent_messages.RemoveFiles(workers):
                self._copies.settled(workers)
                self.agent.remove_files(workers)
            case agent_messages.End():
                self.end = _ENDED
            case agent_messages.Using(rows):
                self._using = {row[0]: InUse(*row[1:]) for row in rows}
            case _:
                self._copies.hear(message, data)

    def _post(self, worker: str, message: Any) -> None:
        if worker == NODE:
            self._code.pulled(message)
        elif worker in self._workers:
            self._transport.post(worker, message)

    def _worker_lost(self, worker: str, reason: str, kind: str) -> None:
        self._workers.discard(worker)
        self._transport.forget(worker)
        self.trunk.tell(agent_messages.WorkerEnded(worker, f"{reason} (on {self._node})", kind))

    def _env_settled(self, key: str, error: ErrorInfo | None) -> None:
        self.trunk.tell(agent_messages.EnvSettled(key, error))

    # -- time

    def _deadlines(self) -> Iterable[float | None]:
        yield self.agent.next_deadline()
        yield self._copies.next_deadline()
        yield self._lease.ask_at
        yield self._lease.until

    def _keep_house(self) -> None:
        now = self._clock()
        if now >= self._lease.ask_at:
            self.trunk.tell(agent_messages.AskLease(self._lease.ask(now)))
        self.agent.keep_house(now)
        self._copies.keep_house(now)


def serve(config: dict[str, Any], orders: socket.socket, zygote: int) -> None:
    """The life of a machine's node process for one program (`launch` has forked its zygote). Never returns."""
    stacks.arm()
    node = FarNode(config, orders, zygote, visible_gpus())
    try:
        node.run()
        if node.end:
            say(_ENDED if node.end == _ENDED else f"{node.end}: the workers of this machine are killed")
    except BaseException:
        traceback.print_exc()
    finally:
        node.agent.close()
        node.trunk.tell(agent_messages.AllDead(node.end or "it was stopped"))
        node.trunk.close(linger_s=0.5)
        os._exit(0)
