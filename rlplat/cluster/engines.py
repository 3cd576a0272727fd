"""What runs on the nodes: how a head and the nodes that join it start, and how programs find them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from rlplat.cluster.node_process import NodeStart
from rlplat.cluster.settings import ClusterSettings

OLDEST_RAY = (2, 52)
"""The first with tokens; without them everybody who reaches a port of Ray runs code."""


class Engine(Protocol):
    @property
    def program_env(self) -> Mapping[str, str]:
        """Variables of programs; `{address}` is the head's, `{token}` the file with the key."""

    @property
    def note(self) -> str:
        """What the user should know, in one line."""

    def head(self, address: str) -> NodeStart | None:
        """How the first node starts, which the others reach at `address` (an IP); None: nothing has to run there."""

    def worker(self, address: str, head: str) -> NodeStart:
        """How a further node starts; head: what the head's address_file said."""

    def complaint(self, seen: Mapping[str, Any]) -> str | None:
        """Why a machine, as `host.look` saw it, cannot be a node."""


class RayEngine:
    program_env = {
        "RLPLAT_BACKEND": "ray",
        "RLPLAT_ADDRESS": "{address}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "{token}",
    }
    note = (
        "Ray listens on every interface of the nodes; a request without the cluster's token is refused, but nothing "
        "is encrypted: keep the nodes in a network that you trust"
    )

    def __init__(self, cluster: ClusterSettings) -> None:
        self._options = ["--block", "--disable-usage-stats", "--temp-dir={temp}"]
        self._options += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        if cluster.num_cpus is not None:
            self._options.append(f"--num-cpus={cluster.num_cpus}")
        if cluster.num_gpus is not None:
            self._options.append(f"--num-gpus={cluster.num_gpus}")

    def head(self, address: str) -> NodeStart | None:
        return self._start("--head", "--port=0", "--include-dashboard=false", f"--node-ip-address={address}")

    def worker(self, address: str, head: str) -> NodeStart:
        return self._start(f"--address={head}", f"--node-ip-address={address}")

    def _start(self, *how: str) -> NodeStart:
        return NodeStart(
            ("{python}", "-m", "ray.scripts.scripts", "start", *how, *self._options),
            {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": "{token}",
                "RAY_health_check_period_ms": "1000",  # Ray's 3 s and 10 s would notice a hung node after a minute
                "RAY_health_check_timeout_ms": "2000",
                "RAY_health_check_failure_threshold": "3",
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


class OwnEngine:
    """rlplat's own runtime: each program starts its cluster on the machine where it runs, so nothing runs before."""

    program_env: Mapping[str, str] = {}
    note = "each program starts a cluster of its own on the node; several nodes need engine: ray"

    def head(self, address: str) -> NodeStart | None:
        return None

    def worker(self, address: str, head: str) -> NodeStart:
        raise AssertionError("refused by ClusterSettings")

    def complaint(self, seen: Mapping[str, Any]) -> str | None:
        return None


def engine_of(cluster: ClusterSettings) -> Engine:
    return RayEngine(cluster) if cluster.engine == "ray" else OwnEngine()
