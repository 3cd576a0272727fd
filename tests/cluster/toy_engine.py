"""An engine of real processes that listen on loopback and know the cluster's key: what the launcher does is real,
and no Ray is needed. `python toy_engine.py head|worker TOKEN_FILE ADDRESS_FILE|HEAD` is a node."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from rlplat.cluster.engines import READY, SETTINGS, Engine
from rlplat.cluster.node_process import NodeStart
from rlplat.cluster.scaling import autoscaler
from rlplat.cluster.scaling.decision import Demand, EngineNode, EngineView, Scaling
from rlplat.cluster.settings import ClusterSettings


class ToyEngine(Engine):
    program_env = {"TOY_ADDRESS": "{address}", "TOY_TOKEN_FILE": "{token}"}
    note = "a toy"

    def __init__(self, broken_address: str | None = None, demand_file: str = "") -> None:
        self.broken_address = broken_address
        """The node at this address ends at once."""
        self.demand_file = demand_file
        """See ToyScaling."""

    def head(self, address: str) -> NodeStart | None:
        return self._start("head", "{temp}/address", address, address_file="{temp}/address")

    def worker(self, name: str, address: str, head: str, offers: Mapping[str, float] | None = None) -> NodeStart:
        return self._start("worker", head, address)

    def autoscaler(self, folder: str, cluster: ClusterSettings) -> NodeStart:
        settings = cluster.model_dump_json(exclude_defaults=True)
        argv = ("{python}", __file__, "autoscale", folder, self.demand_file)
        path = str(Path(__file__).parents[2])
        return NodeStart(argv, {"PYTHONPATH": path, SETTINGS: settings}, READY)

    def scaling(self, head: str) -> Scaling:
        return ToyScaling(Path(self.demand_file))

    def _start(self, role: str, place: str, address: str, address_file: str | None = None) -> NodeStart:
        role = "broken" if address == self.broken_address else role
        argv = ("{python}", __file__, role, "{token}", place, address)
        return NodeStart(argv, {}, "ready\n", address_file)


class ToyScaling:
    """What the file says: {demands: [[bundle, count], ...], idle: [node, ...]}; a node that is not idle is full.
    No file: the engine does not answer."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def look(self) -> EngineView | None:
        try:
            said = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        demands = [Demand((bundle,), count=count) for bundle, count in said["demands"]]
        nodes = {
            place.parent.name: EngineNode({"CPU": 1.0}, 1e6)
            if place.parent.name in said["idle"]
            else EngineNode({}, 0.0)
            for place in self._file.parent.glob("nodes/*/node.json")
        }
        return EngineView(demands, nodes)

    def drain(self, node: str) -> bool:
        return True


def head(token: str, address_file: Path, host: str) -> None:
    """Answers `yes` to those who know the key."""
    server = socket.create_server((host, 0))
    address_file.write_text(f"{host}:{server.getsockname()[1]}\n")
    print("ready", flush=True)
    while True:
        peer, _ = server.accept()
        threading.Thread(target=answer, args=(peer, token)).start()


def answer(peer: socket.socket, token: str) -> None:
    with peer, peer.makefile("rw") as talk:
        talk.write("yes\n" if talk.readline().strip() == token else "no\n")


def asked(token: str, address: str) -> str:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as peer, peer.makefile("rw") as talk:
        talk.write(token + "\n")
        talk.flush()
        return talk.readline().strip()


def join(folder: str) -> None:
    """One task of a SLURM job on this engine."""
    import os

    from rlplat.cluster.join import Task

    sys.exit(Task(Path(folder), os.environ, ToyEngine()).run())


def main(role: str, token_file: str, place: str = "", address: str = "") -> None:
    if role == "join":
        join(token_file)
    if role == "autoscale":  # the last is then the file of the demand
        autoscaler.PERIOD_S = 0.05
        autoscaler.main(token_file, os.environ[SETTINGS], ToyEngine(demand_file=place))
    token = Path(token_file).read_text()
    if role == "broken":
        sys.exit("no room for a node here")
    if role == "head":
        head(token, Path(place), address)
    else:
        assert asked(token, place) == "yes"
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
