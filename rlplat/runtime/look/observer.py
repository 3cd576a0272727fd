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
from rlplat.processes import state_of
from rlplat.runtime import refs
from rlplat.runtime.link.transport import Transport, node_of
from rlplat.runtime.machine.proc_files import usage
from rlplat.runtime.machine.session import driver_pid, running_sessions
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import ASKER, DRIVER, NODE, Report

ANSWER_S = 2.0
_ROUNDS = 5
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


def sessions_of_programs() -> list[str]:
    """Of running clusters, oldest first: without the machines that work for one of them, or for one elsewhere."""
    return [session for session in running_sessions() if node_of(session) in ("", NODE)]


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
    sessions = sessions_of_programs() or sessions
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
        self.machines: dict[str, dict[str, Any]] = {}
        """What the agents of the other machines say: {workers: {worker: usage}, store, clock, pid}, by node."""
        self.silent: list[dict[str, Any]] = []
        """Machines that do not answer."""
        self._homes: dict[str, str] = {}

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def ask_node(self) -> dict[str, Any]:
        """The node's view of the cluster: processes, resources, what waits for them, actors. (Asked once.)"""
        if self._node is not None:
            return self._node
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
        self._homes = {row["worker"]: row["node"] for row in report.totals["workers"]}
        names = [row["node"] for row in report.totals["nodes"] if row["state"] == "alive" and row["node"] != NODE]
        self._homes |= {name: name for name in names}
        reports = self.ask(names, "node", 0)
        self.machines = {name: reports[name].totals for name in names if name in reports}
        for machine in self.machines.values():
            report.totals["pids"] |= {worker: found["pid"] for worker, found in machine["workers"].items()}
        why = "the connection to its machine is slow or broken, or its agent is stopped"
        self.silent = [{"client": name, "pid": 0, "why": why} for name in names if name not in self.machines]
        return report.totals

    def ask_clients(self, what: str, limit: int) -> tuple[dict[str, Report], list[dict[str, Any]]]:
        """Reports by client, and a row for each client that did not answer."""
        clients = sorted(self.ask_node()["clients"], key=client_order)
        reports = self.ask(clients, what, limit)
        silent = [*self.silent]
        for client in clients:
            pid = self.pid_of(client)
            if client not in reports:
                if self.home(client) not in (NODE, *self.machines):
                    continue  # all of its machine is silent
                state = self.usage(client)["kernel_state"] if client != DRIVER else state_of(pid)
                if state in ("", "Z"):
                    continue  # it has ended meanwhile, which is no failure
                silent.append({"client": client, "pid": pid, "why": _STATES.get(state, f"state {state}")})
            elif reports[client].error:
                silent.append({"client": client, "pid": pid, "why": reports.pop(client).error})
        return reports, silent

    def home(self, client: str) -> str:
        """The node of a client, or of an agent, which goes by its node's name; "" of none."""
        return self._homes.get(client, NODE if client else "")

    def pid_of(self, client: str) -> int:
        """On its machine."""
        node = self.ask_node()
        if client in (DRIVER, NODE):
            return self.driver_pid if client == DRIVER else int(node["pid"])
        return int(self.machines[client]["pid"] if client in self.machines else node["pids"].get(client, 0))

    def usage(self, worker: str) -> dict[str, Any]:
        """{pid, kernel_state, rss_bytes, cpu_s} of a worker's process."""
        home = self.home(worker)
        there: dict[str, dict[str, Any]] = self.machines.get(home, {}).get("workers", {})
        return there.get(worker) or usage(self.pid_of(worker) if home == NODE else 0)

    def stack_elsewhere(self, client: str, native: bool) -> str:
        """Of a process on another machine that does not answer: its agent asks it by a signal."""
        home, pid = self.home(client), self.pid_of(client)
        if native:
            return f"py-spy looks into processes of its own machine: `py-spy dump --native --pid {pid}` on {home}"
        report = self.ask([home], f"signal {client}", 0).get(home) if home in self.machines and client != home else None
        if report is None:
            return f"the agent of machine {home} does not answer"
        return report.totals.get("text") or "it does not answer, and a signal does not help (is it stopped?)"

    def clocks(self) -> dict[str, float]:
        """By how much the clocks of other machines are ahead of this one's: their answer was in the middle of the
        quickest of a few questions."""
        ahead_s = {}
        for name in self.machines:
            rounds = []
            for _ in range(_ROUNDS):
                asked = time.monotonic()
                report = self.ask([name], "node", 0).get(name)
                if report is None:
                    break
                answered = time.monotonic()
                rounds.append((answered - asked, report.totals["clock"] - (asked + answered) / 2))
            if rounds:
                ahead_s[name] = min(rounds)[1]
        return ahead_s

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
