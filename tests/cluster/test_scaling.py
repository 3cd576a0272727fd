"""Nodes of this machine that come and go: the autoscaler as a process, with an engine of real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.cluster import marks
from rlplat.cluster.launcher import Launcher
from rlplat.cluster.settings import read_cluster
from tests.cluster.toy_engine import ToyEngine
from tests.patience import soon

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


class Cluster:
    def __init__(self, path: Path, home: Path) -> None:
        self.path, self.home = path, home
        self.log = home / "nodes" / "autoscaler" / "log"

    def waits(self, *demands: tuple[dict[str, float], int], idle: tuple[str, ...] = ()) -> None:
        """What the engine says from now on."""
        whole = self.home / "demand.new"
        whole.write_text(json.dumps({"demands": demands, "idle": idle}))
        whole.rename(self.home / "demand")

    def launcher(self) -> Launcher:
        return Launcher(read_cluster(self.path), print, ToyEngine(demand_file=str(self.home / "demand")))

    def nodes(self) -> set[str]:
        """Those that can be used."""
        found = {}
        for place in self.home.glob("nodes/*/node.json"):
            try:
                found[place.parent.name] = json.loads(place.read_text())
            except FileNotFoundError:
                pass
        return {name for name, node in found.items() if node["ready"]} - {"head", "autoscaler"}

    def become(self, *nodes: str) -> None:
        assert soon(lambda: self.nodes() == set(nodes))

    def node(self, name: str) -> dict[str, Any]:
        return json.loads((self.home / "nodes" / name / "node.json").read_text())


@pytest.fixture
def cluster(write: Callable[[str], Path], home: Path) -> Iterator[Cluster]:
    path = write(
        f"provider: local\nnum_cpus: 1\nfolder: {home}\nautoscale:\n  idle_timeout_s: 60\n  node_types:\n"
        "    cpu: {num_cpus: 1, max_nodes: 2}\n    gpu: {num_gpus: 1}\n"
    )
    home.mkdir(mode=0o700)
    found = Cluster(path, home)
    found.waits()
    with found.launcher() as launcher:
        try:
            launcher.up()
            yield found
        finally:
            launcher.down()


def test_a_demand_starts_nodes_and_idleness_drains_them(cluster: Cluster) -> None:
    cluster.waits(({"CPU": 1}, 5), ({"CPU": 8}, 1))
    cluster.become("cpu-1", "cpu-2", "gpu-1")
    with cluster.launcher() as launcher:
        assert [row.node for row in launcher.status()] == ["head", "cpu-1", "cpu-2", "gpu-1", "autoscaler"]
        assert [row.text.split(",")[0] for row in launcher.status()] == ["ok"] * 5
    cluster.waits(idle=("cpu-1", "gpu-1"))
    cluster.become("cpu-2")
    cluster.waits(({"CPU": 1}, 1))
    cluster.become("cpu-1", "cpu-2")
    said = cluster.log.read_text()
    assert "waits for ever: no node type has CPU 8: there are head (CPU 1; at most 1), cpu (CPU 1; at most 2)" in said
    assert said.count("waits for ever") == 1 and said.count("cpu-1: idle for 60 s, drained") == 1


def test_an_engine_that_does_not_answer_changes_nothing_and_a_killed_node_is_replaced(
    cluster: Cluster,
) -> None:
    cluster.waits(({"CPU": 1}, 1))
    cluster.become("cpu-1")
    (cluster.home / "demand").unlink()
    assert soon(lambda: "the engine does not answer" in cluster.log.read_text())
    first = cluster.node("cpu-1")["pid"]
    os.kill(first, signal.SIGKILL)
    cluster.waits(({"CPU": 1}, 1))
    assert soon(lambda: "cpu-1" in cluster.nodes() and cluster.node("cpu-1")["pid"] != first)
    assert "cpu-1: ended" in cluster.log.read_text()


def test_down_ends_the_autoscaler_before_the_nodes_that_it_starts(cluster: Cluster, home: Path) -> None:
    cluster.waits(({"CPU": 1}, 9))
    assert soon(lambda: bool(cluster.nodes()))
    with cluster.launcher() as launcher:
        stopped = {row.node for row in launcher.down() if row.text == "stopped"}
        assert {"head", "autoscaler", "cpu-1"} <= stopped
    assert [name for name in home.glob("nodes/*") if marks.marked(marks.NODE, str(name))] == []


def test_programs_are_told_which_nodes_there_may_be(cluster: Cluster) -> None:
    with cluster.launcher() as launcher:
        told = json.loads(launcher.program_request()["engine_env"]["RLPLAT_NODE_TYPES"])
    assert list(told) == ["head", "cpu", "gpu"] and told["gpu"]["resources"] == {"CPU": 1, "GPU": 1}
