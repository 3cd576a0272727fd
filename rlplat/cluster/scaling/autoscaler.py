"""Nodes of this machine that come and go; a process beside the head.

    python -m rlplat.cluster.scaling.autoscaler FOLDER SETTINGS

It keeps nothing that must outlive it: which nodes there are stands in their folders (`node_process`), what waits is
asked of the engine each time. One thread looks and decides; nodes start and stop in threads of their own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rlplat.cluster.engines import READY, SETTINGS, Engine, engine_of
from rlplat.cluster.node_process import HostError, NodeProcess
from rlplat.cluster.scaling.decision import EngineView, NodeSeen, decide, why_never
from rlplat.cluster.settings import ClusterSettings
from rlplat.node_types import NodeType

PERIOD_S = 1.0
_JOINING_S = 30.0
"""Seconds in which a node that has started may be unknown to the engine."""
_PAUSES_S = (0.0, 5.0, 15.0, 60.0, 300.0)
"""After the first, second, ... failure of a node type no node of it is started for so long."""
_IS_WELL_S = 60.0
"""A node that has run for so long ends the count of failures."""


class Autoscaler:
    def __init__(
        self, folder: Path, cluster: ClusterSettings, engine: Engine, say: Callable[[str], None] = print
    ) -> None:
        assert cluster.autoscale is not None
        self._folder, self._cluster, self._engine, self._say = folder, cluster, engine, say
        self._types: dict[str, NodeType] = cluster.node_types
        self._idle_timeout_s = cluster.autoscale.idle_timeout_s
        head = json.loads((folder / "nodes" / "head" / "node.json").read_text())["address"]
        self._head: str = head
        self._token = (folder / "token").read_text()
        self._scaling = engine.scaling(head)
        self._lock = threading.Lock()
        self._starting: set[str] = set()
        self._stopping: set[str] = set()
        self._failures: dict[str, int] = {}
        self._paused_until: dict[str, float] = {}
        self._said: set[str] = set()

    def turn(self) -> None:
        """Look, decide, perform."""
        view = self._scaling.look()
        if view is None:
            self._say_once("the engine does not answer: nothing is started or drained")
            return
        self._said.discard("the engine does not answer: nothing is started or drained")
        nodes = self._nodes(view)
        blocked = {name for name, until in self._paused_until.items() if time.monotonic() < until}
        decision = decide(nodes, view.demands, self._types, self._idle_timeout_s, blocked)
        for demand in decision.infeasible:
            self._say_once(f"waits for ever: {why_never(demand, self._types)}")
        taken = {node.name for node in nodes}
        for kind, count in decision.start.items():
            free = (f"{kind}-{number}" for number in range(1, self._types[kind].max_nodes + 1))
            for name in [name for name in free if name not in taken][:count]:
                self._in_thread(self._start, self._starting, name)
        for name in decision.drain:
            if self._scaling.drain(name):
                self._say(f"{name}: idle for {self._idle_timeout_s:g} s, drained")
                self._in_thread(self._stop, self._stopping, name)

    def _nodes(self, view: EngineView) -> list[NodeSeen]:
        """The head and every node that this cluster has on this machine. Folders of those that ended are cleaned."""
        head = view.nodes.get("head")
        seen = [NodeSeen("head", "head", "running", head.free if head else {})]
        with self._lock:
            starting, stopping = set(self._starting), set(self._stopping)
        for kind, settings in self._types.items():
            for number in range(1, settings.max_nodes + 1):
                name = f"{kind}-{number}"
                if name in starting:
                    seen.append(NodeSeen(name, kind, "starting", settings.resources))
                elif name in stopping:
                    seen.append(NodeSeen(name, kind, "draining"))
                elif (found := self._seen(name, kind, view)) is not None:
                    seen.append(found)
        return seen

    def _seen(self, name: str, kind: str, view: EngineView) -> NodeSeen | None:
        node = NodeProcess(self._folder, name)
        found = node.look()
        if found["state"] == "absent":
            return None
        if found["state"] != "running":  # `starting`: whoever started it is gone
            self._say(f"{name}: {found['state']}: {node.tail().splitlines()[-1:]}")
            node.stop()
            self._failed(kind)
            return None
        age_s = time.time() - found["since"]
        if age_s > _IS_WELL_S:
            self._failures.pop(kind, None)
        if name in view.nodes:
            on_engine = view.nodes[name]
            if on_engine.is_draining:
                return NodeSeen(name, kind, "draining")
            return NodeSeen(name, kind, "running", on_engine.free, on_engine.idle_s)
        is_new = age_s < self._cluster.start_timeout_s + _JOINING_S
        return NodeSeen(name, kind, "starting" if is_new else "unknown", self._types[kind].resources)

    def _start(self, name: str) -> None:
        kind = name.rpartition("-")[0]
        self._say(f"{name}: starting")
        how = self._engine.worker(name, self._head.rpartition(":")[0], self._head, self._types[kind].resources)
        began = time.monotonic()
        try:
            NodeProcess(self._folder, name).start(
                how, self._token, self._cluster.env, sys.executable, self._cluster.start_timeout_s
            )
        except HostError as error:
            self._say(f"{name}: {error}")
            self._failed(kind)
        else:
            self._say(f"{name}: started after {time.monotonic() - began:.1f} s")

    def _stop(self, name: str) -> None:
        NodeProcess(self._folder, name).stop()
        self._say(f"{name}: stopped")

    def _in_thread(self, action: Callable[[str], None], under_way: set[str], name: str) -> None:
        def run() -> None:
            try:
                action(name)
            finally:
                with self._lock:
                    under_way.discard(name)

        with self._lock:
            under_way.add(name)
        threading.Thread(target=run, daemon=True).start()

    def _failed(self, kind: str) -> None:
        count = self._failures[kind] = self._failures.get(kind, 0) + 1
        self._paused_until[kind] = time.monotonic() + _PAUSES_S[min(count, len(_PAUSES_S)) - 1]

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def main(folder: str, settings: str, engine: Engine | None = None) -> None:
    cluster = ClusterSettings.model_validate_json(settings)
    autoscaler = Autoscaler(Path(folder), cluster, engine or engine_of(cluster), lambda line: print(line, flush=True))
    print(READY, flush=True)
    while True:
        autoscaler.turn()
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(sys.argv[1], os.environ.pop(SETTINGS))
