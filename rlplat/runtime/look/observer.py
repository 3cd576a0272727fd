"""Ask a running cluster about itself, from any process of the same user: the processes answer by their `report`.

    with Observer(find_session()) as observer:
        node = observer.ask_node()
        reports, silent = observer.ask_clients("tasks", limit=100)

The observer is no client of the cluster: it says no `Hello`, binds no socket and owns nothing, so there is nothing to
clean up when it ends, however it ends. Who does not answer in time is named, with what the kernel says of him.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Sequence
from typing import Any

from rlplat.errors import NotInitialized, RuntimeFault
from rlplat.runtime import refs
from rlplat.runtime.link.answers import ASKER
from rlplat.runtime.link.transport import Transport
from rlplat.runtime.machine.session import driver_pid, running_sessions
from rlplat.runtime.process.stacks import process_state
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import Report

NODE = "node"
ANSWER_S = 2.0
LOOK_ON_RAY = (
    "on Ray ($RLPLAT_BACKEND, or this program's backend) tasks, actors and objects are Ray's own: `ray status`, "
    "`ray memory` and `ray timeline` show them, and where Ray's dashboard runs `ray list` and `ray logs`; --pid PID "
    "looks into a cluster of rlplat's own runtime"
)
_numbers = itertools.count(1)
_STATES = {
    "R": "busy, with the GIL held by native code or too much to do",
    "S": "in native code that holds the GIL",
    "D": "waits for a disk or device",
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "ended",
    "": "ended",
}


def programs_run_on_ray() -> bool:
    """Whether `rlplat.init()` would start them there."""
    return os.environ.get("RLPLAT_BACKEND") == "ray"


def find_session(choice: str | int | None = None) -> str:
    """The folder of a cluster: by its path, its name or its driver's pid; else this process's own, or the only one."""
    sessions = running_sessions()
    if choice is not None:
        text = str(choice).rstrip("/")
        for session in sessions:
            if text in (session, os.path.basename(session), str(driver_pid(session))):
                return session
        raise NotInitialized(f"no cluster {text!r} is running{_listed(sessions)}")
    if refs.connection() is not None:
        own = getattr(refs.backend(), "session", None)
        if own is None and refs.backend().client_id != "inproc":
            raise NotInitialized(LOOK_ON_RAY)
        if own is None:
            raise NotInitialized(
                "the inproc backend runs every call at once in this process: it has no workers, queues or spans "
                "to look at; use rlplat.init() with the default backend"
            )
        return str(own)
    if programs_run_on_ray():
        raise NotInitialized(LOOK_ON_RAY)
    if not sessions:
        raise NotInitialized(
            "no cluster of this user is running on this machine: a program that calls rlplat.init() starts one"
        )
    if len(sessions) > 1:
        raise NotInitialized(f"{len(sessions)} clusters are running: choose one by its pid{_listed(sessions)}")
    return sessions[0]


def _listed(sessions: Sequence[str]) -> str:
    if not sessions:
        return "; there is none of this user on this machine"
    return "; running:" + "".join(
        f"\n  --pid {driver_pid(session)}  {command_of(driver_pid(session))}" for session in sessions
    )


def command_of(pid: int, width: int = 100) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return "(ended)"
    if len(words) > 1 and os.path.basename(words[0]).startswith("python") and words[1][0] != "-":
        words = [os.path.basename(words[1]), *words[2:]]  # what tells clusters apart stands at the end
    text = " ".join(words)
    return text if len(text) <= width else text[: width - 3] + "..."


class Observer:
    def __init__(self, session: str) -> None:
        self.session = session
        self.driver_pid = driver_pid(session)
        self._transport = Transport(session, f"{ASKER}{os.getpid()}-{next(_numbers)}", listens=False)
        self._poller = select.poll()
        self._poller.register(self._transport.fd, select.POLLIN)
        self._requests = itertools.count(1)
        self._node: dict[str, Any] | None = None

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def ask_node(self) -> dict[str, Any]:
        """The node's view of the cluster: processes, resources, what waits for them, actors."""
        reports = self.ask([NODE], "node", 0)
        if NODE not in reports:
            raise RuntimeFault(
                f"the node of cluster {self.driver_pid} did not answer in {ANSWER_S:g} s: "
                "it has just ended, or is stopped"
            )
        report = reports[NODE]
        if report.error:
            raise RuntimeFault(f"the node of cluster {self.driver_pid} could not answer: {report.error}")
        self._node = report.totals
        return report.totals

    def ask_clients(self, what: str, limit: int) -> tuple[dict[str, Report], list[dict[str, Any]]]:
        """Reports by client, and a row for each client that did not answer."""
        node = self._node or self.ask_node()
        clients = sorted(node["clients"], key=client_order)
        reports = self.ask(clients, what, limit)
        silent = []
        for client in clients:
            pid = self.pid_of(client)
            if client not in reports:
                state = process_state(pid)
                if state in ("", "Z"):
                    continue  # it has ended meanwhile, which is no failure
                silent.append({"client": client, "pid": pid, "why": _STATES.get(state, f"state {state}")})
            elif reports[client].error:
                silent.append({"client": client, "pid": pid, "why": reports.pop(client).error})
        return reports, silent

    def pid_of(self, client: str) -> int:
        assert self._node is not None
        return self.driver_pid if client == "driver" else int(self._node["pids"].get(client, 0))

    def ask(self, peers: Sequence[str], what: str, limit: int) -> dict[str, Report]:
        """The reports that come in time."""
        request = next(self._requests)
        for peer in peers:
            self._transport.post(peer, messages.Inspect(request, what, limit))
        self._transport.flush()
        reports: dict[str, Report] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(reports) < len(peers):
            for sender, batch in self._transport.receive():
                for message in batch:
                    if type(message) is Report and message.request == request:
                        reports[sender] = message
            left_s = deadline - time.monotonic()
            if len(reports) == len(peers) or left_s <= 0:
                break
            if not self._transport.has_input():
                self._poller.poll(left_s * 1000)
        return reports


def client_order(client: str) -> tuple[int, int, str]:
    """The driver first, workers by number."""
    number = client[1:]
    return (0 if client == "driver" else 1, int(number) if number.isdecimal() else 0, client)
