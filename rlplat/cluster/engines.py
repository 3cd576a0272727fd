"""What runs on the nodes: how a head and the nodes that join it start, and how programs find them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlplat.cluster.node_process import NodeStart
from rlplat.cluster.own_nodes import HEAD_READY, WORKER_READY
from rlplat.cluster.scaling.decision import Scaling
from rlplat.cluster.settings import ClusterSettings

OLDEST_RAY = (2, 52)
"""The first with tokens; without them everybody who reaches a port of Ray runs code."""


READY = "the autoscaler is ready"
SETTINGS = "RLPLAT_AUTOSCALER_SETTINGS"
"""The variable with its cluster's settings: unlike a command line, it is this user's alone to read."""
FREE_PORTS = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
HEALTH_ENV = {  # Ray's 3 s and 10 s would notice a hung node after a minute
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "{token}"}


class Engine:
    """rlplat's own runtime on one node: each program starts its cluster where it runs, so nothing runs before."""

    program_env: Mapping[str, str] = {}
    """Variables of programs; `{address}` is the head's, `{token}` the file with the key."""
    note = "each program starts a cluster of its own on the node"
    """What the user should know, in one line."""

    compared: tuple[str, ...] = ("rlplat", "python")
    """Versions that all machines need alike."""

    def head(self, address: str) -> NodeStart | None:
        """How the first node starts, which the others reach at `address` (an IP); None: nothing has to run there."""
        return None

    def worker(self, name: str, address: str, head: str, offers: Mapping[str, float] | None = None) -> NodeStart:
        """How a further node starts; head: what the head's address_file said; offers: resources, if not the file's."""
        raise AssertionError("refused by ClusterSettings")

    def autoscaler(self, folder: str, cluster: ClusterSettings) -> NodeStart:
        """How the process starts that lets nodes come and go, beside the head."""
        raise AssertionError("refused by ClusterSettings")

    def scaling(self, head: str) -> Scaling:
        """For that process: what waits on the cluster of this head."""
        raise AssertionError("refused by ClusterSettings")

    def complaint(self, seen: Mapping[str, Any]) -> str | None:
        """Why a machine, as `host.look` saw it, cannot be a node."""
        return None


class OwnNodes(Engine):
    """rlplat's own runtime on several machines: programs find the others by a join file."""

    program_env = {"RLPLAT_ADDRESS": "{token}-join"}
    note = "one program at a time has all nodes; connections are encrypted, and only the head listens, while one runs"

    def __init__(self, cluster: ClusterSettings) -> None:
        given = {"CPU": cluster.num_cpus, "GPU": cluster.num_gpus}
        self._offers = json.dumps({name: amount for name, amount in given.items() if amount is not None})

    def head(self, address: str) -> NodeStart | None:
        return self._start("head", address, "{token}-join", HEAD_READY, "{token}-join.address")

    def worker(self, name: str, address: str, head: str, offers: Mapping[str, float] | None = None) -> NodeStart:
        return self._start("worker", head, "{temp}/join", WORKER_READY)

    def _start(self, role: str, place: str, join: str, ready: str, address_file: str | None = None) -> NodeStart:
        argv = ("{python}", "-m", "rlplat.cluster.own_nodes", role, place, "{token}", join, self._offers)
        return NodeStart(argv, {}, ready, address_file)


class RayEngine(Engine):
    compared = ("rlplat", "python", "ray")
    program_env = {"RLPLAT_BACKEND": "ray", "RLPLAT_ADDRESS": "{address}", **_TOKEN}
    note = (
        "Ray listens on every interface of the nodes; a request without the cluster's token is refused, but nothing "
        "is encrypted: keep the nodes in a network that you trust"
    )

    def __init__(self, cluster: ClusterSettings) -> None:
        self._options = ["--block", "--disable-usage-stats", "--temp-dir={temp}", *FREE_PORTS]
        given = {"CPU": cluster.num_cpus, "GPU": cluster.num_gpus}
        self._offers = {name: amount for name, amount in given.items() if amount is not None}

    def head(self, address: str) -> NodeStart | None:
        how = ("--head", "--port=0", "--include-dashboard=false", f"--node-ip-address={address}")
        return self._start("head", self._offers, *how)

    def worker(self, name: str, address: str, head: str, offers: Mapping[str, float] | None = None) -> NodeStart:
        given = self._offers if offers is None else {"CPU": 0.0, "GPU": 0.0, **offers}
        return self._start(name, given, f"--address={head}", f"--node-ip-address={address}")

    def autoscaler(self, folder: str, cluster: ClusterSettings) -> NodeStart:
        settings = cluster.model_dump_json(exclude_defaults=True)
        argv = ("{python}", "-m", "rlplat.cluster.scaling.autoscaler", folder)
        return NodeStart(argv, {**_TOKEN, SETTINGS: settings}, ready_text=READY)

    def scaling(self, head: str) -> Scaling:
        from rlplat.cluster.scaling.ray_demand import RayScaling

        return RayScaling(head)

    def _start(self, name: str, offers: Mapping[str, float], *how: str) -> NodeStart:
        resources = [f"--num-{kind.lower()}s={amount:g}" for kind, amount in offers.items()]
        return NodeStart(
            ("{python}", "-m", "ray.scripts.scripts", "start", *how, *self._options, *resources),
            {
                **_TOKEN,
                "RAY_CLOUD_INSTANCE_ID": name,  # what Ray's state calls the node
                **HEALTH_ENV,
            },
            ready_text="Ray runtime started",
            address_file="{temp}/ray_current_cluster" if how[0] == "--head" else None,
        )

    def complaint(self, seen: Mapping[str, Any]) -> str | None:
        if seen["ray"] is None:
            return "Ray is not installed for this python: pip install 'rlplat[ray]'"
        version = tuple(int(part) for part in re.findall(r"\d+", seen["ray"])[:2])
        if version < OLDEST_RAY:
            return f"Ray {seen['ray']} has no tokens: install Ray {'.'.join(map(str, OLDEST_RAY))} or later"
        return None


def engine_of(cluster: ClusterSettings) -> Engine:
    if cluster.engine == "ray":
        return RayEngine(cluster)
    return OwnNodes(cluster) if cluster.num_nodes > 1 else Engine()
