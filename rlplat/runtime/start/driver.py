"""The client of the process that called `init()`. Its pipe to the node is what keeps the cluster alive."""

from __future__ import annotations

import os
import subprocess
import weakref

from rlplat.runtime.client.client import Client
from rlplat.runtime.link.link import Link
from rlplat.runtime.machine.session import remove_session
from rlplat.runtime.process import stacks


class Driver(Client):
    def __init__(self, session: str, node: subprocess.Popen[bytes]) -> None:
        super().__init__(Link(session, "driver", spin=True))
        self._node = node
        _open.add(self)
        assert node.stdout is not None
        self.link.loop.watch(node.stdout.fileno())

    def shutdown(self) -> None:
        """End every process of the cluster and remove its folder."""
        self.close()
        stacks.disarm()
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.close()
        try:
            self._node.wait(5)
        except subprocess.TimeoutExpired:
            self._node.kill()
            self._node.wait()
        self._node.stdout.close()
        remove_session(self.link.session)

    def let_go(self) -> None:
        """In a forked child, which must not keep the cluster alive when this driver shuts it down, or is killed."""
        for end in (self._node.stdin, self._node.stdout):
            if end is not None:
                end.close()


def _after_fork_in_child() -> None:
    for driver in list(_open):
        driver.let_go()


_open: weakref.WeakSet[Driver] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)
