"""A cluster as a RayCluster of KubeRay, a program as a RayJob. Pure.

    as_yaml(ray_cluster(cluster))                       what `rlplat up --dry-run` prints
    as_yaml(ray_job(cluster, ["rlplat", "train"]))      and `rlplat submit --dry-run`

Fields: https://docs.ray.io/en/latest/cluster/kubernetes/references/api.html (ray.io/v1, KubeRay 1.5.1 or later). The
key that Ray's requests carry is made by the operator, as a Secret; it is neither here nor on the launching machine.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rlplat.cluster.engines import HEALTH_ENV
from rlplat.cluster.settings import ClusterSettings, KubernetesSettings, NodeTypeSettings
from rlplat.errors import UsageError
from rlplat.node_types import VARIABLE, as_text

SECRETS = "/etc/rlplat/secrets"
_SECRETS_GROUP = 1000
_CHANGED_ON_THE_WAY = "$`\\"

Manifest = dict[str, Any]


def ray_cluster(cluster: ClusterSettings) -> Manifest:
    """That stays until it is deleted."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": cluster.title} | _metadata(cluster),
        "spec": _cluster_spec(cluster),
    }


def ray_job(cluster: ClusterSettings, program: Sequence[str]) -> Manifest:
    """A program with a cluster of its own, which ends with it. Its name is made by the server."""
    kubernetes = _section(cluster)
    asked = {"entrypointNumCpus": kubernetes.program_cpus, "entrypointNumGpus": kubernetes.program_gpus}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"generateName": f"{cluster.title}-"} | _metadata(cluster),
        "spec": {
            "entrypoint": entrypoint(program),
            **{key: amount for key, amount in asked.items() if amount},
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": _cluster_spec(cluster),
        },
    }


def entrypoint(program: Sequence[str]) -> str:
    """The program as text that means the same after one shell and after two: KubeRay puts it into a shell script, and
    Ray's command line joins the words again, in some versions with double quotes. UsageError for a word that would
    change."""
    for word in program:
        bad = sorted({mark for mark in word if mark in _CHANGED_ON_THE_WAY or not mark.isprintable()})
        if bad:
            raise UsageError(
                f"{word!r} in the program: Kubernetes and its shells would change {', '.join(map(repr, bad))}: put it "
                "into a file of the image, or into env: of the cluster's file"
            )
    return shlex.join(["sh", "-c", f"exec {shlex.join(program)}"])


def labels(cluster: ClusterSettings) -> dict[str, str]:
    """By which `rlplat down` finds everything of this cluster."""
    return {"app.kubernetes.io/managed-by": "rlplat", "app.kubernetes.io/instance": cluster.title}


def as_yaml(manifest: Manifest) -> str:
    import yaml

    return yaml.safe_dump(manifest, sort_keys=False, width=1000)


def _section(cluster: ClusterSettings) -> KubernetesSettings:
    assert cluster.kubernetes is not None, "checked by ClusterSettings"
    return cluster.kubernetes


def _metadata(cluster: ClusterSettings) -> Manifest:
    return {"namespace": _section(cluster).namespace, "labels": labels(cluster)}


def _cluster_spec(cluster: ClusterSettings) -> Manifest:
    kubernetes = _section(cluster)
    scaling: Manifest = {}
    kinds: dict[str, NodeTypeSettings] = {}
    if cluster.autoscale is not None:
        kinds = cluster.autoscale.node_types
        timeout = math.ceil(cluster.autoscale.idle_timeout_s)
        scaling = {"enableInTreeAutoscaling": True, "autoscalerOptions": {"idleTimeoutSeconds": timeout}}
    groups = []
    for name, kind in cluster.node_types.items():
        if name == "head":
            continue
        settings = kinds.get(name, NodeTypeSettings())
        pod = _pod(cluster, name, kind.resources, settings.memory or kubernetes.memory, settings.node_selector)
        counts = {"minReplicas": kind.min_nodes, "maxReplicas": kind.max_nodes}
        # with an autoscaler `replicas` is its own: a second `up` would take its nodes away
        if cluster.autoscale is None:
            counts = {"replicas": kind.max_nodes} | counts
        groups.append({"groupName": name, **counts, "rayStartParams": {}, "template": pod})
    head = _pod(cluster, "head", cluster.node_types["head"].resources, kubernetes.memory, {})
    return {
        "rayVersion": kubernetes.ray_version,
        "authOptions": {"mode": "token"},
        **scaling,
        "headGroupSpec": {"rayStartParams": {}, "template": head},
        "workerGroupSpecs": groups,
    }


def _pod(
    cluster: ClusterSettings,
    name: str,
    resources: Mapping[str, float],
    memory: str | None,
    node_selector: Mapping[str, str],
) -> Manifest:
    """resources: CPU, GPU. What a pod asks for is also what it may use, so that Ray and Kubernetes count the same."""
    kubernetes = _section(cluster)
    amounts = {"cpu": f"{resources['CPU']:g}", "memory": memory}
    if resources.get("GPU"):
        amounts["nvidia.com/gpu"] = f"{resources['GPU']:g}"
    env = {
        **cluster.env,
        "RLPLAT_BACKEND": "ray",
        "RLPLAT_ADDRESS": "auto",
        VARIABLE: as_text(cluster.node_types),
        **HEALTH_ENV,
    }
    container: Manifest = {
        "name": f"ray-{'head' if name == 'head' else 'worker'}",
        "image": kubernetes.image,
        "env": [{"name": key, "value": _kept(value)} for key, value in env.items()],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
    }
    if cluster.setup:
        container["args"] = [_kept(_setup(cluster.setup))]
    spec: Manifest = {"containers": [container]}
    volumes, mounts = _volumes(kubernetes)
    if volumes:
        spec["volumes"] = volumes
        container["volumeMounts"] = mounts
    if kubernetes.secrets:
        spec["securityContext"] = {"fsGroup": _SECRETS_GROUP}  # else only root could read them
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    if kubernetes.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in kubernetes.image_pull_secrets]
    if kubernetes.service_account:
        spec["serviceAccountName"] = kubernetes.service_account
    return {"metadata": {"labels": labels(cluster)}, "spec": spec}


def _setup(commands: Sequence[str]) -> str:
    """KubeRay puts ` && ulimit ...; ray start ...` behind it: a command that fails ends the container instead."""
    return " ".join([*(f"(\n{command}\n) || exit 1;" for command in commands), "true"])


def _kept(text: str) -> str:
    """Kubernetes replaces $(NAME) and $$ in arguments and in values of variables."""
    return text.replace("$", "$$")


def _volumes(kubernetes: KubernetesSettings) -> tuple[list[Manifest], list[Manifest]]:
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []
    for number, secret in enumerate(kubernetes.secrets, 1):
        name = f"secret-{number}"
        volumes.append({"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}})
        mounts.append({"name": name, "mountPath": f"{SECRETS}/{secret}", "readOnly": True})
    for number, (claim, path) in enumerate(kubernetes.volumes.items(), 1):
        name = f"volume-{number}"
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": name, "mountPath": path})
    return volumes, mounts
