"""What every part of a process needs to take part in a cluster: who this is, what is heard, how to wait.

link.on(messages.Placed, self._on_placed)            each kind of message has one handler in a process
link.chore(self._tick, self._due_s)                  housekeeping, when it is due
link.wait_until(is_done, timeout_s, "its name")      with `link.lock` held, which is given up meanwhile
link.transport.post(peer, message)                   leaves when `link.loop` sends
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sized

from rlplat.errors import NotInitialized, RuntimeFault
from rlplat.runtime.link.chores import Chores
from rlplat.runtime.link.dropped import Handler
from rlplat.runtime.link.loop import IoLoop, Patience
from rlplat.runtime.link.system import SYSTEM, System
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.values import ErrorInfo

Waiting = Callable[[ObjectRef | None], Patience | None]
"""How the process waits for an object, or for something else (None)."""


class Link:
    def __init__(
        self,
        session: str,
        client_id: str,
        *,
        spin: bool,
        patience: Waiting = lambda ref: None,
        check: Callable[[], None] = lambda: None,
        system: System = SYSTEM,
    ) -> None:
        """`check` may raise wherever this process waits, in the thread that waits."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise RuntimeFault(
                "this Python runs without its GIL, and the runtime reads its books without a lock where the GIL makes "
                "that safe: set PYTHON_GIL=1, or use the usual build of Python"
            )
        self.session, self.client_id = session, client_id
        self.system, self.clock = system, system.clock
        self.namespace = ""
        """Of the job. Both are known from the node's welcome on."""
        self.total: dict[str, float] = {}
        """Resources of the cluster."""
        self.patience = patience
        self._check = check
        self._lost_node: ErrorInfo | None = None
        self.handlers: dict[type, Handler] = {}
        """By kind of message; parts add theirs with `on`."""
        self.chores = Chores(system.clock)
        self._after_frame: list[Callable[[], None]] = []
        self._at_end: list[Callable[[ErrorInfo], None]] = []
        self.transport = Transport(session, client_id, sockets=system.sockets)
        self.loop = IoLoop(
            self.transport,
            spin=spin,
            handlers=self.handlers,
            chores=self.chores,
            system=system,
            after_frame=self._after_frame,
            on_lifeline=self._on_node_lost,
            on_failure=lambda: self._end(ErrorInfo("RuntimeFault", self._failure_text())),
        )
        self.lock = self.loop.lock

    # ---------------------------------------------------------------- what parts ask for, when they are made

    def on(self, kind: type, handler: Handler) -> None:
        """`handler(sender, message)` is called, with the lock held, for each message of this kind."""
        if kind in self.handlers:
            raise RuntimeFault(f"two parts of this process want {kind.__name__}")
        self.handlers[kind] = handler

    def chore(self, run: Callable[[], None], due_s: Callable[[], float], *litter: Sized) -> None:
        """See `Chores.add`."""
        self.chores.add(run, due_s, *litter)

    def after_frame(self, act: Callable[[], None]) -> None:
        """Called when all messages of a frame are handled."""
        self._after_frame.append(act)

    def at_end(self, act: Callable[[ErrorInfo], None]) -> None:
        """Called when nothing will be heard any more: the node is lost, or this process's loop has failed."""
        self._at_end.append(act)

    # ---------------------------------------------------------------- waiting

    def wait_until(
        self, is_done: Callable[[], bool], timeout_s: float | None, what: str, ref: ObjectRef | None = None
    ) -> None:
        """Wait (lock held, given up while this sleeps); GetTimeout after `timeout_s`."""
        self.loop.wait_until(is_done, timeout_s, what, self.check_open, self.patience(ref))

    def check_open(self) -> None:
        """Raise when nothing can be sent or heard any more."""
        if self.loop.is_closed:
            raise NotInitialized("the runtime was shut down")
        if self._lost_node is not None:
            raise to_exception(self._lost_node)
        if self.loop.failure is not None:
            raise RuntimeFault(self._failure_text()) from self.loop.failure
        self._check()

    # ---------------------------------------------------------------- the end

    def _on_node_lost(self) -> None:
        self._lost_node = ErrorInfo(
            "NodeLost", "the node process of this cluster has ended; what it said last is above, on stderr"
        )
        self.loop.is_open = False
        self._end(self._lost_node)
        self.loop.notify()

    def _end(self, error: ErrorInfo) -> None:
        """(Threads that wait hear of it by `check_open`.)"""
        for act in self._at_end:
            act(error)

    def _failure_text(self) -> str:
        failure = self.loop.failure
        assert failure is not None
        at = traceback.extract_tb(failure.__traceback__)[-1:]
        where = f" ({os.path.basename(at[0].filename)}:{at[0].lineno})" if at else ""
        return (
            f"the runtime in {self.client_id} failed: {failure!r}{where}. Its traceback is above, or on stderr; "
            "rlplat.shutdown() and rlplat.init() start a new cluster"
        )
