"""Starting, looking at and ending a cluster: everything here happens on all machines at once.

    with Launcher(read_cluster("lab.yaml"), print) as launcher:
        launcher.up()

The launcher keeps nothing: what runs is asked of the machines each time. So `up` may be repeated, and any machine
with the file and the keys can look after a cluster.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from rlplat.cluster.calls import ask, on_each
from rlplat.cluster.engines import Engine, engine_of
from rlplat.cluster.machines import Machine, SshMachine, Unreachable
from rlplat.cluster.node_process import HostError, NodeStart
from rlplat.cluster.settings import ClusterSettings, LocalSettings
from rlplat.cluster.transfer import send_up
from rlplat.errors import RlplatError, UsageError
from rlplat.node_types import VARIABLE, as_text


class NotReady(UsageError):
    """A machine cannot be used as it is; nothing was started."""


class NotStarted(RlplatError):
    """A node did not start; what this call had started is ended again."""


@dataclass(frozen=True)
class Node:
    name: str
    machine: Machine


@dataclass(frozen=True)
class Row:
    """One line of a table: a node, and `ok ...` or what is wrong with it."""

    node: str
    is_ok: bool
    text: str


class Launcher:
    def __init__(
        self,
        cluster: ClusterSettings,
        say: Callable[[str], None],
        engine: Engine | None = None,
        *,
        file: str = "CLUSTER.yaml",
    ) -> None:
        """file: that of the cluster, as the user calls it, for messages."""
        self.cluster, self.file = cluster, file
        self.folder = cluster.place
        self._say = say
        self._engine = engine or engine_of(cluster)
        self._open = ExitStack()
        self._sockets = Path(tempfile.mkdtemp(prefix="rlp-"))  # 0700
        self.nodes = self._nodes()
        self._scaled = [
            f"{name}-{number}"
            for name, kind in cluster.node_types.items()
            if name != "head"
            for number in range(1, kind.max_nodes + 1)
        ]
        """Nodes that the autoscaler may have started."""

    def _nodes(self) -> list[Node]:
        """The head is the first."""
        if self.cluster.ssh is not None:
            python = (self.cluster.python or "python3").removeprefix("~/")  # ssh begins in the home folder
            return [
                Node(host, SshMachine(host, self.cluster.ssh, python, self._sockets / str(place)))
                for place, host in enumerate(self.cluster.ssh.hosts)
            ]
        here = Machine(str(Path(self.cluster.python).expanduser()) if self.cluster.python else sys.executable)
        if self.cluster.autoscale is not None:
            return [Node("head", here), Node("autoscaler", here)]
        count = (self.cluster.local or LocalSettings()).nodes
        return [Node(f"node-{number}", here) for number in range(1, count + 1)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def head(self) -> Node:
        return self.nodes[0]

    def node(self, name: str | None) -> Node:
        """None: the head."""
        for node in self.nodes:
            if name in (None, node.name):
                return node
        raise UsageError(f"there is no node '{name}' (nodes: {', '.join(node.name for node in self.nodes)})")

    def connect(self, node: Node) -> Machine:
        """To this node alone; UsageError in ssh's words."""
        try:
            return self._open.enter_context(node.machine)
        except Unreachable as error:
            raise NotReady(f"{node.name}: {error}") from None

    # -- the verbs

    def up(self) -> list[Row]:
        """Start what is not running; the table. NotReady or NotStarted hold the table of what is wrong."""
        seen = self._connect_all()
        self._check(seen)
        token = seen[0]["token"] or secrets.token_hex(32)
        self._prepare()
        started: list[Node] = []
        try:
            rows = self._start_all(seen, token, started)
        except BaseException:
            if started:
                self._say(f"ending what was started: {', '.join(node.name for node in started)}")
                on_each(started, self._stop_one)
            raise
        opened = ask(self.head.machine, "open", self._request())
        self._say(f"note: {self._engine.note}")
        copied = "" if self.cluster.workdir is not None else " (workdir: copies files there)"
        self._say(f"programs run in {opened['workdir']} on {self.head.name}{copied}")
        return rows

    def down(self) -> list[Row]:
        """End all jobs and nodes on every machine that can be reached; the others are `unknown`, not gone."""

        def end(machine: Machine) -> dict[str, Any]:
            self._open.enter_context(machine)
            is_head = machine is self.head.machine
            return ask(machine, "stop", self._request(nodes=self._names_on(machine), jobs=is_head))

        machines = self._machines()
        answers = dict(zip([id(machine) for machine in machines], on_each(machines, end), strict=True))
        rows = []
        for node in self.nodes:
            answer = answers[id(node.machine)]
            if isinstance(answer, Exception):
                rows.append(Row(node.name, False, f"unknown, may be running: {answer}"))
            else:
                has_process = self._engine.head("") is not None
                ended = node.name in answer["stopped"] or (not has_process and answer["was_up"])
                rows.append(Row(node.name, True, "stopped" if ended else "was not running"))
                scaled = answer["stopped"] if node is self.head else []
                rows += [Row(name, True, "stopped") for name in scaled if name in self._scaled]
        return rows

    def status(self) -> list[Row]:
        rows = []
        for node, seen in zip(self.nodes, self._look_all(), strict=True):
            if isinstance(seen, Exception):
                rows.append(Row(node.name, False, f"unknown: {seen}"))
                continue
            if self._engine.head(seen["address"]) is None:
                rows.append(Row(node.name, seen["is_up"], f"ok: {self._engine.note}" if seen["is_up"] else "absent"))
                continue
            rows.append(_state(node.name, seen["nodes"][node.name]))
            if node is self.head:  # what the autoscaler starts comes and goes: absent is as it should be
                scaled = {name: seen["nodes"][name] for name in self._scaled}
                rows += [_state(name, found) for name, found in scaled.items() if found["state"] != "absent"]
        return rows

    def program_request(self) -> dict[str, Any]:
        """What `host` needs to know to run a program on the head."""
        return self._request(
            head=self.head.name,
            env=dict(self.cluster.env),
            engine_env=dict(self._engine.program_env) | self._node_types_env(),
            needs_engine=bool(self._engine.program_env),
            up=f"rlplat up {shlex.quote(self.file)}",
        )

    def ask_head(self, verb: str, **request: Any) -> dict[str, Any]:
        machine = self.connect(self.head)
        try:
            return ask(machine, verb, self.program_request() | request, self._say)
        except HostError as error:
            raise UsageError(f"{self.head.name}: {error}") from None

    def send_to_all(self, source: Path, target: str) -> list[str]:
        """Copy files to every machine; a line for each."""

        def send(machine: Machine) -> str:
            self._open.enter_context(machine)
            sent = send_up(machine, self.folder, source, target, self.cluster.exclude)
            return f"[{machine.name}] {sent['files']} files -> {sent['folder']}"

        machines = self._machines()
        done = on_each(machines, send)
        _refuse(_rows_of([machine.name for machine in machines], done), NotReady, "the others have the files")
        return [str(each) for each in done]

    # -- the parts of `up`

    def _connect_all(self) -> list[dict[str, Any]]:
        seen = self._look_all(with_token=True)
        _refuse(_rows_of([node.name for node in self.nodes], seen), NotReady, "nothing was started")
        return [each for each in seen if not isinstance(each, Exception)]

    def _look_all(self, with_token: bool = False) -> list[dict[str, Any] | Exception]:
        """For each node what its machine has; machines are asked once. with_token: the head's answer has the key."""

        def look(machine: Machine) -> dict[str, Any]:
            self._open.enter_context(machine)
            is_head = machine is self.head.machine
            request = self._request(nodes=self._names_on(machine), with_token=with_token and is_head)
            return ask(machine, "look", request)

        machines = self._machines()
        answers = dict(zip([id(machine) for machine in machines], on_each(machines, look), strict=True))
        return [answers[id(node.machine)] for node in self.nodes]

    def _check(self, seen: Sequence[Mapping[str, Any]]) -> None:
        """Each machine has what the engine needs, and the same versions as the head."""
        rows = []
        for node, each in zip(self.nodes, seen, strict=True):
            complaint = self._engine.complaint(each)
            for what in self._engine.compared:
                if complaint is None and each[what] != seen[0][what]:
                    complaint = f"{what} {each[what]}, and the head has {seen[0][what]}: install the same there"
            rows.append(Row(node.name, complaint is None, complaint or "ready"))
        _refuse(rows, NotReady, "nothing was started")

    def _prepare(self) -> None:
        """The user's files and setup commands, on each machine."""

        def prepare(machine: Machine) -> None:
            if self.cluster.workdir is not None:
                source = Path(self.cluster.workdir).expanduser()
                sent = send_up(machine, self.folder, source, ".", self.cluster.exclude)
                self._say(f"[{machine.name}] {sent['files']} files -> {sent['folder']}")
            if self.cluster.setup:
                request = self._request(commands=self.cluster.setup, env=dict(self.cluster.env))
                ask(machine, "setup", request, lambda line: self._say(f"[{machine.name}] {line}"))

        machines = self._machines()
        _refuse(
            _rows_of([machine.name for machine in machines], on_each(machines, prepare)),
            NotStarted,
            "nothing was started",
        )

    def _start_all(self, seen: Sequence[Mapping[str, Any]], token: str, started: list[Node]) -> list[Row]:
        """started: gets each node that this call has begun to start."""
        addresses = [self._address(node, each) for node, each in zip(self.nodes, seen, strict=True)]
        first = self._engine.head(addresses[0])
        if first is None:
            return [Row(self.head.name, True, "ok")]

        def start(node: Node, how: NodeStart) -> Row:
            running = seen[self.nodes.index(node)]["nodes"][node.name]["state"] == "running"
            if not running:
                started.append(node)
            request = self._request(
                node=node.name,
                start=asdict(how),
                token=token,
                env=dict(self.cluster.env),
                timeout_s=self.cluster.start_timeout_s,
            )
            answer = ask(node.machine, "start", request)
            heads.append(answer["address"])
            return Row(node.name, True, f"ok, {'was running' if answer['was_running'] else 'started'}{_at(answer)}")

        heads: list[str] = []
        rows = _rows_of([self.head.name], on_each(self.nodes[:1], lambda node: start(node, first)))
        _refuse(rows, NotStarted, "the other nodes were not started")
        joining = {
            node.name: self._engine.worker(node.name, address, heads[0])
            if self.cluster.autoscale is None
            else self._engine.autoscaler(str(Path(self.folder).expanduser().absolute()), self.cluster)
            for node, address in zip(self.nodes[1:], addresses[1:], strict=True)
        }
        others = on_each(self.nodes[1:], lambda node: start(node, joining[node.name]))
        rows += _rows_of([node.name for node in self.nodes[1:]], others)
        _refuse(rows, NotStarted, "the cluster is not up")
        return [replace(rows[0], text=f"{rows[0].text}, head"), *rows[1:]]

    def _stop_one(self, node: Node) -> dict[str, Any]:
        return ask(node.machine, "stop", self._request(nodes=[node.name], jobs=False))

    def _address(self, node: Node, seen: Mapping[str, Any]) -> str:
        given = self.cluster.ssh.addresses.get(node.name) if self.cluster.ssh else None
        return given or seen["address"]

    def _names_on(self, machine: Machine) -> list[str]:
        scaled = self._scaled if machine is self.head.machine else []
        return [node.name for node in self.nodes if node.machine is machine] + scaled

    def _node_types_env(self) -> dict[str, str]:
        types = self.cluster.node_types
        return {VARIABLE: as_text(types)} if types else {}

    def _machines(self) -> list[Machine]:
        return list({id(node.machine): node.machine for node in self.nodes}.values())

    def _request(self, **more: Any) -> dict[str, Any]:
        return {"folder": self.folder, **more}


def table(rows: Sequence[Row]) -> str:
    width = max((len(row.node) for row in rows), default=0)
    indent = " " * (width + 2)
    return "\n".join(f"{row.node:<{width}}  {row.text}".replace("\n", "\n" + indent) for row in rows)


def _rows_of(names: Sequence[str], answers: Sequence[Any]) -> list[Row]:
    """Rows as they are; of others `ready`, or what the exception in the place of the answer says."""
    return [
        answer if isinstance(answer, Row)
        else Row(name, False, str(answer)) if isinstance(answer, Exception) else Row(name, True, "ready")
        for name, answer in zip(names, answers, strict=True)
    ]  # fmt: skip


def _refuse(rows: Sequence[Row], error: type[RlplatError], ending: str) -> None:
    bad = [row for row in rows if not row.is_ok]
    if bad:
        raise error(f"{len(bad)} of {len(rows)} nodes cannot be used; {ending}\n{table(rows)}")


def _state(name: str, found: Mapping[str, Any]) -> Row:
    if found["state"] == "running":
        return Row(name, True, f"ok, pid {found['pid']}{_at(found)}")
    said = found.get("log", "").splitlines()[-1:]
    return Row(name, found["state"] == "starting", ": ".join([found["state"], *said]))


def _at(answer: Mapping[str, Any]) -> str:
    return f", {answer['address']}" if answer.get("address") else ""
