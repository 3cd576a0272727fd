"""The loop of a node's process: one thread, which hears clients, the zygote, the workers' output and other machines.

It lives in a session of its own, so that a Ctrl-C in the terminal reaches the driver alone. However the process that
started it ends, this one kills every process that carries the cluster's mark in its environment, and removes the
session's folder.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Iterable
from typing import Protocol

from rlplat.given.say import say
from rlplat.runtime.link.system import System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.node.agent import Agent


class Trunks(Protocol):
    """What else brings input: `link.trunk`."""

    fds: list[int]

    def has_input(self) -> bool: ...


class Shell:
    agent: Agent

    def __init__(self, transport: Transport, system: System) -> None:
        self._transport, self._clock = transport, system.clock
        self._poller = system.poller()
        self._sockets = {transport.fd}
        self._trunks: Trunks | None = None
        for descriptor in (0, transport.fd):
            self._poller.register(descriptor, select.POLLIN)

    def _listen_to(self, trunks: Trunks) -> None:
        self._trunks = trunks
        self._sockets.update(trunks.fds)
        for descriptor in trunks.fds:
            self._poller.register(descriptor, select.POLLIN)

    def _run(self) -> None:
        """Until whoever started this process is gone, or its zygote, or there is no cause to go on."""
        transport, trunks, house_at = self._transport, self._trunks, 0.0
        while True:
            if self._receive() or self._clock() >= house_at:  # (a frame that was passed on changes nothing here)
                if not self._is_needed():
                    return
                self._keep_house()  # after the messages: whoever has just got a worker is watched from now on
                transport.flush()
                house_at = min((at for at in self._deadlines() if at is not None), default=math.inf)
            # The last look before the poll: sending may swallow the signal of it.
            if transport.has_input() or (trunks is not None and trunks.has_input()):
                continue
            left_ms = None if house_at == math.inf else max(0.0, (house_at - self._clock()) * 1000) + 1
            for descriptor, _ in self._poller.poll(left_ms):
                if descriptor not in self._sockets:
                    house_at = 0.0
                if descriptor == 0:
                    if not os.read(0, 4096):
                        return
                elif descriptor not in self._sockets and not self.agent.processes.hear(descriptor):
                    how = self.agent.processes.zygote_end
                    say(f"the zygote, which starts the workers of this cluster, {how}, so all end")
                    return

    def _is_needed(self) -> bool:
        return True

    def _receive(self) -> bool:
        """Whether there was anything for this process itself."""
        raise NotImplementedError

    def _keep_house(self) -> None:
        raise NotImplementedError

    def _deadlines(self) -> Iterable[float | None]:
        raise NotImplementedError
