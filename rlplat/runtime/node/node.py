"""The node process of the head's machine: `head`, `agent`, and `machines` where others may join. `launch` starts it."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterable
from typing import Any

import msgspec

from rlplat.runtime.core.scheduler.events import NodeJoined
from rlplat.runtime.link.answers import answer_as_node
from rlplat.runtime.link.dropped import Handler
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.link.trunk import HeadTrunks, Keys
from rlplat.runtime.machine.hardware import visible_gpus
from rlplat.runtime.node.agent import Agent
from rlplat.runtime.node.head import Head
from rlplat.runtime.node.machines import Machines
from rlplat.runtime.node.processes import Processes
from rlplat.runtime.node.shell import Shell
from rlplat.runtime.node.watch import Watch
from rlplat.runtime.process import stacks
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import DRIVER, NODE


class Node(Shell):
    def __init__(
        self,
        config: dict[str, Any],
        orders: socket.socket,
        zygote: int,
        gpus: list[str],
        *,
        system: System = SYSTEM,
        trunks: type[HeadTrunks] = HeadTrunks,
        processes: type[Processes] = Processes,
        watch: type[Watch] = Watch,
    ) -> None:
        self._session, self._config = config["session"], config
        super().__init__(Transport(self._session, NODE, sockets=system.sockets), system)
        self._started_at = self._clock()
        keys = config.get("keys")
        self.head = Head(
            self._transport,
            self._clock,
            config["total"],
            config.get("namespace", ""),
            lambda text: self.agent.processes.console.write(f"rlplat: {text}\n"),
            is_fixed=keys is None,
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

        self._machines: Machines | None = None
        if keys is not None:
            joined, console = trunks(msgspec.convert(keys, Keys)), self.agent.processes.console
            self._machines = Machines(joined, self.head, self._transport, self._clock, config, console)
            self.agent.kept = self._machines.copies
            self._listen_to(self._machines.trunks)

    def run(self) -> None:
        """Serve until the driver is gone."""
        total = self._config["total"]
        keys = self._config.get("keys")
        address = "127.0.0.1" if keys is None else keys["address"].rpartition(":")[0]
        self.head.node_joined(NodeJoined(NODE, total, num_spares(total), address), self.agent)
        try:
            os.write(1, b"ready\n")
        except BrokenPipeError:  # the driver was killed meanwhile
            return
        self._run()
        if self._machines is not None:
            self._machines.end()

    # -- messages

    def _receive(self) -> bool:
        is_news = False
        for sender, batch in self._transport.receive():
            is_client = sender == DRIVER or sender in self.head.scheduler.placing.workers
            handler_of = self._handler_for_client if is_client else self._handler_for_stranger
            self._transport.dropped.deliver(sender, batch, handler_of)
            is_news = True
        return (self._machines is not None and self._machines.receive()) or is_news

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

    def _deadlines(self) -> Iterable[float | None]:
        yield self.head.next_deadline()
        yield self.agent.next_deadline()
        if self._machines is not None:
            yield self._machines.next_deadline()

    def _keep_house(self) -> None:
        now = self._clock()
        self.head.keep_house(now)
        self.agent.keep_house(now)
        if self._machines is not None:
            self._machines.keep_house(now)


def num_spares(total: dict[str, float]) -> int:
    """How many workers a machine with these resources keeps ready."""
    return max(1, min(4, int(total["CPU"])))


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
