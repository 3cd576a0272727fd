"""The node process of the head's machine: the shell around `head`, and `agent` beside it. `launch` starts it.

It lives in a session of its own, so that a Ctrl-C in the terminal reaches the driver alone. However the driver ends,
this process kills every process that carries the cluster's mark in its environment, and removes the session's folder.
"""

from __future__ import annotations

import os
import select
import socket
import traceback
from typing import Any

from rlplat.given.say import say
from rlplat.runtime.link.answers import answer_as_node
from rlplat.runtime.link.dropped import Handler
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.machine.hardware import visible_gpus
from rlplat.runtime.node.agent import Agent
from rlplat.runtime.node.head import Head
from rlplat.runtime.node.processes import Processes
from rlplat.runtime.node.watch import Watch
from rlplat.runtime.process import stacks
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import DRIVER, NODE


class Node:
    def __init__(
        self,
        config: dict[str, Any],
        orders: socket.socket,
        zygote: int,
        gpus: list[str],
        *,
        system: System = SYSTEM,
        processes: type[Processes] = Processes,
        watch: type[Watch] = Watch,
    ) -> None:
        self._session = config["session"]
        self._clock = system.clock
        self._started_at = self._clock()
        self._transport = Transport(self._session, NODE, sockets=system.sockets)
        self._poller = system.poller()
        for descriptor in (0, self._transport.fd):
            self._poller.register(descriptor, select.POLLIN)
        self.head = Head(
            self._transport,
            self._clock,
            config["total"],
            config.get("namespace", ""),
            lambda text: self.agent.processes.console.write(f"rlplat: {text}\n"),
        )
        self.agent = Agent(
            config,
            orders,
            zygote,
            gpus,
            self._poller,
            who=self.head.scheduler.who,
            is_ready=self.head.clients.__contains__,
            in_use=self.head.scheduler.in_use,
            ask_to_exit=self.head.ask_to_exit,
            ask_for_life=self.head.ask_for_life,
            on_lost=self.head.worker_lost,
            on_env_settled=self.head.env_settled,
            processes=processes,
            watch=watch,
        )

    def run(self) -> None:
        """Serve until the driver is gone."""
        total = self.head.total
        self.head.node_joined("node", self.agent, total, max(1, min(4, int(total["CPU"]))))
        try:
            os.write(1, b"ready\n")
        except BrokenPipeError:  # the driver was killed meanwhile
            return
        while True:
            self._transport.flush()
            self._receive()
            self._keep_house()  # after the messages: whoever has just got a worker is watched from now on
            self._transport.flush()
            if (
                self._transport.has_input()
            ):  # the last look before the poll: sending may swallow the signal of it
                continue
            for descriptor, _ in self._poller.poll(self._next_deadline_ms()):
                if descriptor == 0:
                    if not os.read(0, 4096):
                        return
                elif descriptor != self._transport.fd and not self.agent.processes.hear(descriptor):
                    how = self.agent.processes.zygote_end
                    say(f"the zygote, which starts the workers of this cluster, {how}, so all end")
                    return

    # -- messages

    def _receive(self) -> None:
        for sender, batch in self._transport.receive():
            is_client = sender == DRIVER or sender in self.head.scheduler.placing.workers
            handler_of = self._handler_for_client if is_client else self._handler_for_stranger
            self._transport.dropped.deliver(sender, batch, handler_of)

    def _handler_for_client(self, kind: type) -> Handler | None:
        return self.head.on_message if kind is not messages.Inspect else None

    def _handler_for_stranger(self, kind: type) -> Handler | None:
        return self._on_inspect if kind is messages.Inspect else None

    def _on_inspect(self, sender: str, message: messages.Inspect) -> None:
        answer_as_node(self._transport, sender, message, self._view)

    def _view(self) -> dict[str, Any]:
        """All that it knows, as plain data."""
        return {
            "clients": sorted(self.head.clients),
            "pids": self.agent.processes.pids(),
            "uptime_s": self._clock() - self._started_at,
            "session": self._session,
            "log_folder": self.agent.processes.log_folder,
        } | self.head.scheduler.view()

    # -- time

    def _next_deadline_ms(self) -> float | None:
        deadlines = (self.head.next_deadline(), self.agent.next_deadline())
        times = [at for at in deadlines if at is not None]
        return max(0.0, (min(times) - self._clock()) * 1000) + 1 if times else None

    def _keep_house(self) -> None:
        now = self._clock()
        self.head.keep_house(now)
        self.agent.keep_house(now)


def serve(config: dict[str, Any], orders: socket.socket, zygote: int) -> None:
    """The life of a node process (`launch` has forked its zygote). Never returns."""
    stacks.arm()
    node = Node(config, orders, zygote, visible_gpus())
    try:
        node.run()
    except BaseException:  # the driver says that its node is gone; here is why
        traceback.print_exc()
    finally:
        node.agent.close()
        os._exit(0)
