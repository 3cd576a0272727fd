"""Look into a running cluster: what `rlplat status`, `list`, `logs`, `timeline`, `stack` and `memory` print, as data.

    from rlplat.state import list_tasks, summarize_tasks

    list_tasks(filters={"state": "running"})     # rows as dicts, in the shape of Ray's `ray.util.state`
    summarize_tasks()                            # {name: {state: count}}

Without `cluster=` (a driver's pid or a session folder) it is the cluster that this process is connected to, else the
only one of this user on this machine. Every function asks the processes that know: the node for workers, actors and
what waits for resources, each client for the tasks and objects that it owns. A process that does not answer within 2 s
is named in `Rows.silent`, and the rest is shown.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplat.errors import ConfigError, NotInitialized
from rlplat.paths import expanded
from rlplat.processes import state_of

if TYPE_CHECKING:
    from rlplat.runtime.look.log_reading import WorkerLog

__all__ = [
    "Rows",
    "cluster_status",
    "list_actors",
    "list_clusters",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "list_workers",
    "memory_report",
    "open_logs",
    "stacks",
    "summarize_objects",
    "summarize_tasks",
    "timeline",
]

_KILLED_S = 5.0
Filters = Mapping[str, object] | None


class Rows(list[dict[str, Any]]):
    """A list of dicts."""

    total: int = 0
    """What the limit left out is counted as well."""
    silent: list[dict[str, Any]]
    """{client, pid, why} of each process that did not answer."""


def list_clusters() -> Rows:
    """Every running cluster of this user: {pid, session, command}."""
    from rlplat.runtime.look.observer import command_of, sessions_of_programs
    from rlplat.runtime.machine.session import driver_pid

    found = [(driver_pid(session), session) for session in sessions_of_programs()]
    return _rows([{"pid": pid, "session": s, "command": command_of(pid)} for pid, s in found], None, None)


def list_nodes(*, filters: Filters = None, limit: int = 100, cluster: str | int | None = None) -> Rows:
    """{node, state, machine, address, pid, total, available, workers, store}; the last two of those that answer."""
    return _of_view("nodes", filters, limit, cluster)


def list_workers(*, filters: Filters = None, limit: int = 100, cluster: str | int | None = None) -> Rows:
    """{worker, pid, node, state, client, actor, resources, gpu_ids, is_blocked, rss_bytes, cpu_s}.

    States: starting, idle, leased (runs the tasks of `client`), actor, dying.
    """
    return _of_view("workers", filters, limit, cluster)


def list_actors(*, filters: Filters = None, limit: int = 100, cluster: str | int | None = None) -> Rows:
    """{actor, class, name, namespace, state, worker, node, client, resources, restarts, is_detached, reason}.

    States: pending (waits for resources or a process), alive, restarting, dead (`reason` says why).
    """
    return _of_view("actors", filters, limit, cluster)


def list_placement_groups(*, filters: Filters = None, limit: int = 100, cluster: str | int | None = None) -> Rows:
    """{group, name, state, strategy, bundles, nodes, client}."""
    return _of_view("placement_groups", filters, limit, cluster)


def list_tasks(*, filters: Filters = None, limit: int = 100, cluster: str | int | None = None) -> Rows:
    """Calls that are not finished: {task, name, kind, state, worker, node, actor, owner, waits, retries_left,
    resources}.

    States: waiting-args, waiting-worker (tasks), waiting-actor (calls: no address yet, or behind another call), queued
    (at `worker`, behind others), running. Running ones come first; `filters` choose among the first `limit` of each
    state and owner.
    """
    with _observer(cluster) as observer:
        reports, silent = observer.ask_clients("tasks", limit)
        home = observer.home
    found, total = [], 0
    for state, rows in _task_rows(reports).items():
        for row in rows:
            row["node"] = home(row["worker"])
        found += rows if state in ("running", "queued") else sorted(rows, key=lambda row: row["owner"])
    for counts in _count_tasks(reports).values():
        total += sum(count for state, count in counts.items() if state not in ("failed", "ended", "mean_s"))
    out = _rows(found, filters, limit, silent)
    if not filters:
        out.total = total
    return out


def summarize_tasks(*, cluster: str | int | None = None) -> dict[str, dict[str, Any]]:
    """{name: {state: count, ..., "mean_s": of those that ended}}: every call, however many there are.

    Besides the states of `list_tasks`: ended (of the last 10,000 calls of each living worker) and failed (since the
    process that submitted them began).
    """
    with _observer(cluster) as observer:
        reports, _ = observer.ask_clients("tasks", 0)
    return _count_tasks(reports)


def list_objects(*, filters: Filters = None, limit: int = 100, cluster: str | int | None = None) -> Rows:
    """Objects by size: {id, owner, node, size, where, refs, borrowers, made_by, creator, call_site}.

    where: pending (its task is not done), inline (in the owner's memory), shm (shared memory), spilled, lost, error;
    elsewhere: on another machine than its owner, in the memory of `creator`'s.
    refs: in the owner's process; borrowers: refs that were lent to others, by client.
    """
    with _observer(cluster) as observer:
        reports, silent = observer.ask_clients("objects", limit)
    found = []
    for client, report in reports.items():
        node = observer.home(client)
        found += [{"owner": client, "node": node, **row} for row in report.rows if row["role"] == "owner"]
    found.sort(key=lambda row: -row["size"])
    out = _rows(found, filters, limit, silent)
    if not filters:
        out.total = sum(report.totals["owned"] for report in reports.values())
    return out


def cluster_status(*, cluster: str | int | None = None) -> dict[str, Any]:
    """What `rlplat status --json` prints."""
    with _observer(cluster) as observer:
        node = observer.ask_node()
        reports, silent = observer.ask_clients("tasks", 0)
        session, pid = observer.session, observer.driver_pid
        nodes = _machines(observer)
    counts: Counter[str] = Counter()
    for by_state in _count_tasks(reports).values():
        counts.update({state: count for state, count in by_state.items() if state != "mean_s"})
    workers = Counter(row["state"] for row in node["workers"])
    actors = Counter(row["state"] for row in node["actors"])
    from rlplat.runtime.look.observer import command_of
    from rlplat.runtime.store.account import usage

    return {
        "pid": pid,
        "command": command_of(pid),
        "session": session,
        "node_pid": node["pid"],
        "uptime_s": node["uptime_s"],
        "resources": {
            name: {"total": amount, "used": amount - node["available"].get(name, 0.0)}
            for name, amount in node["total"].items()
        },
        "nodes": nodes,
        "workers": dict(workers),
        "actors": dict(actors),
        "tasks": dict(counts),
        "waiting": node["demands"],
        "store": usage(session),
        "silent": silent,
    }


def memory_report(*, limit: int = 100, cluster: str | int | None = None) -> dict[str, Any]:
    """What `rlplat memory --json` prints: for each owner its objects, biggest first, and who holds refs to them."""
    from rlplat.runtime.look.observer import client_order
    from rlplat.runtime.store.account import usage

    with _observer(cluster) as observer:
        reports, silent = observer.ask_clients("objects", limit)
        session = observer.session
        pids = {client: observer.pid_of(client) for client in reports}
        stores = {node: machine["store"] for node, machine in observer.machines.items()}
    owners = []
    for client in sorted(reports, key=client_order):
        report = reports[client]
        rows = [row for row in report.rows if row["role"] == "owner"]
        if report.totals["owned"] or report.totals["borrowed"] or client == "driver":
            row = {"owner": client, "node": observer.home(client), "pid": pids[client]}
            owners.append({**row, **report.totals, "objects": rows})
    return {"owners": owners, "store": usage(session), "stores_elsewhere": stores, "silent": silent}


def summarize_objects(*, cluster: str | int | None = None) -> Rows:
    """{made_by, call_site, where, count, bytes}, most bytes first: every object, however many there are.

    made_by: "put", the name of a task or call, an actor; of small results only with RLPLAT_RECORD_CALLSITES=1.
    """
    with _observer(cluster) as observer:
        reports, silent = observer.ask_clients("objects", 0)
    counts: dict[tuple[str, str, str], list[int]] = {}
    for report in reports.values():
        for made_by, site, where, count, num_bytes in report.totals["groups"]:
            group = counts.setdefault((made_by, site, where), [0, 0])
            group[0] += count
            group[1] += num_bytes
    rows: list[dict[str, Any]] = [
        {"made_by": made_by, "call_site": site, "where": where, "count": count, "bytes": num_bytes}
        for (made_by, site, where), (count, num_bytes) in counts.items()
    ]
    rows.sort(key=lambda row: (-row["bytes"], -row["count"]))
    return _rows(rows, None, None, silent)


def stacks(worker: str = "all", *, cluster: str | int | None = None, native: bool = False) -> Rows:
    """{client, node, pid, doing, threads: [{thread, frames, note}], text} of the driver, each node and every worker.

    A process that native code keeps from answering gets `text` instead: by py-spy if that is installed, else what
    faulthandler writes on a signal (which may cut a system call of that native code short: EINTR).
    native: all of them by `py-spy dump --native`.
    """
    from rlplat.runtime.look.observer import client_order
    from rlplat.runtime.process.stacks import read_stacks

    with _observer(cluster) as observer:
        node = observer.ask_node()
        machines = [*observer.machines, *(row["client"] for row in observer.silent)]
        clients = ["node", *machines, *sorted(node["clients"], key=client_order)]
        if worker != "all":
            chosen = [client for client in clients if client == _worker_named(worker, node)]
            if not chosen:
                raise ConfigError(f"no process {worker!r} in this cluster; there are: {', '.join(clients)}")
            clients = chosen
        reports = {} if native else observer.ask(clients, "stacks", 0)
        rows = []
        for client in clients:
            pid, home = observer.pid_of(client), observer.home(client)
            row: dict[str, Any] = {"client": client, "node": home, "pid": pid, "doing": "", "threads": [], "text": ""}
            if client in reports and not reports[client].error:
                row |= {"doing": reports[client].totals.get("doing", ""), "threads": reports[client].rows}
            elif home != "node":
                row["text"] = observer.stack_elsewhere(client, native)
            elif native:
                row["text"] = _py_spy(pid, "--native")
            elif state_of(pid) in ("T", "t"):
                row["text"] = f"stopped: kill -CONT {pid} lets it go on"
            elif _py_spy_program() is not None:
                row |= {"doing": "seen by py-spy, it does not answer", "text": _py_spy(pid)}
            else:
                text = read_stacks(pid) or "it does not answer, and a signal does not help"
                row |= {"doing": "asked by a signal, it does not answer", "text": text}
            rows.append(row)
    return _rows(rows, None, None)


def timeline(filename: str | os.PathLike[str] | None = None, *, cluster: str | int | None = None) -> Any:
    """The last calls (10,000 a worker) and long waits as a Chrome trace, for ui.perfetto.dev or chrome://tracing.

    Returns the list of events, or writes it to `filename` (JSON).
    """
    from rlplat.runtime.look.observer import client_order
    from rlplat.runtime.look.trace import to_trace

    with _observer(cluster) as observer:
        reports, _ = observer.ask_clients("spans", 20_000)
        pid = observer.driver_pid
        ahead_s = observer.clocks()
    rows = {}
    for client in sorted(reports, key=client_order):
        found, home = reports[client].totals, observer.home(client)
        for what in ("spans", "waits") if home in ahead_s else ():
            found[what] = [(name, began - ahead_s[home], ended - ahead_s[home]) for name, began, ended in found[what]]
        if found["spans"] or found["waits"]:
            where = "" if home == "node" else f"on {home}"
            rows[" ".join(filter(None, [client, found["actor"], where]))] = found
    trace = to_trace(rows, f"rlplat {pid}")
    if filename is None:
        return trace["traceEvents"]
    expanded(filename).write_text(json.dumps(trace))
    return None


# ---------------------------------------------------------------- logs


class Logs:
    """The log files of one cluster's workers."""

    def __init__(self, folder: Path, session: str, worker_of_actor: Callable[[str], str]) -> None:
        self.folder, self._session, self._worker_of_actor = folder, session, worker_of_actor
        self._seen_at = time.monotonic()

    def workers(self) -> list[WorkerLog]:
        from rlplat.runtime.look.log_reading import worker_logs

        return worker_logs(self.folder)

    def choose(self, name: str) -> list[WorkerLog]:
        """Those of a worker's id or pid, an actor's class, or its name while it lives."""
        from rlplat.runtime.look.log_reading import choose

        logs = self.workers()
        worker = self._worker_of_actor(name)
        return choose(logs, worker if any(log.worker == worker for log in logs) else name)

    def lines(
        self, name: str, picked: list[WorkerLog], tail: int, is_followed: bool
    ) -> Iterator[tuple[WorkerLog, str]]:
        from rlplat.runtime.look.log_reading import follow

        for log in picked:
            for line in log.tail(tail):
                yield log, line
        if is_followed:
            yield from follow(picked, lambda: self.workers() if name == "all" else [], self._is_over)

    def _is_over(self) -> bool:
        """The node removes the session's folder last; when that was killed too, the driver is gone for a while."""
        from rlplat.runtime.machine.session import running_sessions

        if not os.path.exists(self._session):
            return True
        now = time.monotonic()
        if self._session in running_sessions():
            self._seen_at = now
        return now - self._seen_at > _KILLED_S


def open_logs(*, cluster: str | int | None = None) -> Logs:
    """Logs of a running cluster, or, when there is none (of that name), of one that has ended."""
    from rlplat.runtime.look.log_reading import find_logs
    from rlplat.runtime.look.observer import programs_run_on_ray
    from rlplat.runtime.machine.session import running_sessions

    if cluster is None and not running_sessions() and not programs_run_on_ray():
        folder = find_logs(None)
        return Logs(folder, "", lambda name: name)
    try:
        observer = _observer(cluster)
    except NotInitialized:
        if cluster is None:
            raise
        folder = find_logs(str(cluster))
        return Logs(folder, "", lambda name: name)
    with observer:
        node = observer.ask_node()
        session = observer.session
    return Logs(Path(node["log_folder"]), session, lambda name: _worker_named(name, node))


# ---------------------------------------------------------------- asking


def _observer(cluster: str | int | None) -> Any:
    from rlplat.runtime.look.observer import Observer, find_session

    return Observer(find_session(cluster))


def _of_view(what: str, filters: Filters, limit: int, cluster: str | int | None) -> Rows:
    with _observer(cluster) as observer:
        node = observer.ask_node()
    found = _machines(observer) if what == "nodes" else node.get(what, [])
    for row in found:
        if what == "workers":
            row |= observer.usage(row["worker"])
        elif what == "actors":
            row["node"] = observer.home(row["worker"])
    return _rows(found, filters, limit, observer.silent)


def _machines(observer: Any) -> list[dict[str, Any]]:
    node = observer.ask_node()
    from rlplat.runtime.store.account import usage

    workers = Counter(row["node"] for row in node["workers"])
    rows = []
    for row in node["nodes"]:
        name = row["node"]
        there = observer.machines.get(name, {})
        if name == "node":
            there = {"store": usage(observer.session)}
        row["machine"] = row["machine"] or socket.gethostname()
        rows.append({**row, "pid": observer.pid_of(name), "workers": workers[name], "store": there.get("store")})
    return rows


def _rows(
    found: list[dict[str, Any]],
    filters: Filters,
    limit: int | None,
    silent: list[dict[str, Any]] | None = None,
) -> Rows:
    kept = [row for row in found if _matches(row, filters)] if filters else found
    rows = Rows(kept if limit is None else kept[:limit])
    rows.total, rows.silent = len(kept), silent or []
    return rows


def _matches(row: dict[str, Any], filters: Filters) -> bool:
    for key, wanted in (filters or {}).items():
        if key not in row:
            raise ConfigError(f"unknown column {key!r} to filter by; there are: {', '.join(row)}")
        if str(row[key]) != str(wanted):
            return False
    return True


# ---------------------------------------------------------------- tasks


def _num_running(reports: Mapping[str, Any], owner: str, worker: str, num_sent: int) -> int:
    """Of the calls that `owner` has sent to `worker`, those not in its queue: the first ones, as it is FIFO."""
    report = reports.get(worker)
    if report is None:
        return min(1, num_sent)
    return max(0, num_sent - int(report.totals["queued_here"].get(owner, 0)))


def _task_rows(reports: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    by_state: dict[str, list[dict[str, Any]]] = {"running": [], "queued": []}
    for owner, report in reports.items():
        num_sent = {worker: sum(run[2] for run in runs) for worker, runs in report.totals["sent"].items()}
        for row in report.rows:
            if row["state"] == "sent":
                running = _num_running(reports, owner, row["worker"], num_sent[row["worker"]])
                row["state"] = "running" if row.pop("position") < running else "queued"
            by_state.setdefault(row["state"], []).append(row)
    return by_state


def _count_tasks(reports: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    counts: dict[str, Counter[str]] = {}
    ended: dict[str, list[float]] = {}
    for owner, report in reports.items():
        for state, name, _, count in report.totals["waiting"]:
            counts.setdefault(name, Counter())[state] += count
        for worker, runs in report.totals["sent"].items():
            running = _num_running(reports, owner, worker, sum(run[2] for run in runs))
            for name, _, count in runs:
                first = min(count, running)
                running -= first
                of_name = counts.setdefault(name, Counter())
                of_name["running"] += first
                of_name["queued"] += count - first
        for name, count in report.totals["failed"].items():
            counts.setdefault(name, Counter())["failed"] += count
        for name, (count, seconds) in report.totals["finished"].items():
            counts.setdefault(name, Counter())["ended"] += count
            entry = ended.setdefault(name, [0, 0.0])
            entry[0] += count
            entry[1] += seconds
    out: dict[str, dict[str, Any]] = {name: dict(+found) for name, found in sorted(counts.items())}
    for name, (count, seconds) in ended.items():
        out[name]["mean_s"] = seconds / count
    return out


# ---------------------------------------------------------------- what the kernel knows


def _worker_named(name: str, node: dict[str, Any]) -> str:
    """A worker's id, from itself, its pid, or the name, class or id of the actor that it runs."""
    for row in node["actors"]:
        if row["worker"] and row["state"] != "dead" and name in (row["name"], row["class"], row["actor"]):
            return str(row["worker"])
    for worker, pid in node["pids"].items():
        if name == str(pid):  # (another machine may have that pid as well)
            return str(worker)
    return name


def _py_spy_program() -> str | None:
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def _py_spy(pid: int, *options: str) -> str:
    program = _py_spy_program()
    if program is None:
        raise ConfigError("--native needs py-spy: pip install py-spy")
    command = [program, "dump", *options, "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout.strip() or f"py-spy: {done.stderr.strip()}"
