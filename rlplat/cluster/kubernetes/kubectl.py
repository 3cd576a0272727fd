"""Sending manifests with kubectl. They go by standard input; what kubectl refuses is said in its words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from rlplat.cluster.kubernetes.manifests import as_yaml, labels, ray_cluster, ray_job
from rlplat.cluster.settings import ClusterSettings
from rlplat.errors import UsageError

KINDS = "rayjobs.ray.io,rayclusters.ray.io"
"""What `up` and `submit` make; their pods, services and keys go with them."""


def up(cluster: ClusterSettings) -> str:
    """Make the cluster, or change it to what the file says; what kubectl answers."""
    return _run(cluster, ["apply", "-f", "-"], as_yaml(ray_cluster(cluster)))


def submit(cluster: ClusterSettings, program: Sequence[str]) -> str:
    """The name that the server gave the job."""
    made = _run(cluster, ["create", "-f", "-", "-o", "name"], as_yaml(ray_job(cluster, program)))
    return made.rpartition("/")[2]


def down(cluster: ClusterSettings) -> str:
    """Delete its jobs and the cluster, where they are; what kubectl answers."""
    return _run(cluster, ["delete", KINDS, "--ignore-not-found", "-l", selector(cluster)])


def look_command(cluster: ClusterSettings) -> str:
    """For the user: what there is of this cluster."""
    return " ".join([*_kubectl(cluster), "get", f"{KINDS},pods", "-l", selector(cluster)])


def logs_command(cluster: ClusterSettings, job: str) -> str:
    """For the user: what the program prints. KubeRay's submitter is a Job of the same name."""
    return " ".join([*_kubectl(cluster), "logs", "-f", f"job/{job}"])


def selector(cluster: ClusterSettings) -> str:
    return ",".join(f"{key}={value}" for key, value in labels(cluster).items())


def _kubectl(cluster: ClusterSettings) -> list[str]:
    assert cluster.kubernetes is not None, "checked by ClusterSettings"
    context = [f"--context={cluster.kubernetes.context}"] if cluster.kubernetes.context else []
    return ["kubectl", *context, f"--namespace={cluster.kubernetes.namespace}"]


def _run(cluster: ClusterSettings, arguments: list[str], manifest: str | None = None) -> str:
    try:
        done = subprocess.run([*_kubectl(cluster), *arguments], input=manifest or "", capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError(
            "there is no kubectl on this machine: install it, or take what --dry-run prints to a machine that has it"
        ) from None
    if done.returncode:
        said = done.stderr.strip()
        if "no matches for kind" in said or "doesn't have a resource type" in said:
            said += "\nKubeRay is not in this cluster: install its operator, 1.5.1 or later"
        raise UsageError(f"kubectl {arguments[0]}: {said}")
    return done.stdout.strip()
