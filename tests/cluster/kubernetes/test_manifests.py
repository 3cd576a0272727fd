"""Manifests for KubeRay: as they were (golden), by the documented fields, and what shells make of a program."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplat.cluster.kubernetes.manifests import as_yaml, entrypoint, ray_cluster, ray_job
from rlplat.cluster.settings import ClusterSettings, read_cluster
from rlplat.errors import UsageError

HERE = Path(__file__).parent
PROGRAM = ["rlplat", "train", "--algo", "ppo", "--set", "learning_rate={loguniform: [1e-4, 1e-2]}"]


def read(tmp_path: Path, more: str = "", kubernetes: str = "") -> ClusterSettings:
    path = tmp_path / "lab.yaml"
    path.write_text(
        f"provider: kubernetes\nnum_cpus: 4\n{more}\n"
        f"kubernetes: {{image: me/train:1, ray_version: 2.60.0, memory: 8Gi, {kubernetes}}}\n"
    )
    return read_cluster(path)


def full() -> ClusterSettings:
    return read_cluster(HERE / "golden" / "lab.yaml")


@pytest.mark.parametrize("kind", ["raycluster", "rayjob"])
def test_manifests_are_as_they_were(kind: str) -> None:
    """After a wanted change: `rlplat up|submit tests/cluster/kubernetes/golden/lab.yaml --dry-run`, and look at it."""
    made = ray_cluster(full()) if kind == "raycluster" else ray_job(full(), PROGRAM)
    assert as_yaml(made) == (HERE / "golden" / f"{kind}.yaml").read_text()


POD = {
    "metadata": {"labels": "map"},
    "spec": {
        "containers": [
            {
                "name": str,
                "image": str,
                "args": [str],
                "env": [{"name": str, "value": str}],
                "resources": {"requests": "map", "limits": "map"},
                "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
            }
        ],
        "volumes": [
            {
                "name": str,
                "secret": {"secretName": str, "defaultMode": int},
                "persistentVolumeClaim": {"claimName": str},
            }
        ],
        "securityContext": {"fsGroup": int},
        "nodeSelector": "map",
        "imagePullSecrets": [{"name": str}],
        "serviceAccountName": str,
    },
}
CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": str},
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {"idleTimeoutSeconds": int},
    "headGroupSpec": {"rayStartParams": "map", "template": POD},
    "workerGroupSpecs": [
        {
            "groupName": str,
            "replicas": int,
            "minReplicas": int,
            "maxReplicas": int,
            "rayStartParams": "map",
            "template": POD,
        }
    ],
}
OBJECT = {"name": str, "generateName": str, "namespace": str, "labels": "map"}
DOCUMENTED: dict[str, Any] = {
    "RayCluster": {"apiVersion": str, "kind": str, "metadata": OBJECT, "spec": CLUSTER},
    "RayJob": {
        "apiVersion": str,
        "kind": str,
        "metadata": OBJECT,
        "spec": {
            "entrypoint": str,
            "entrypointNumCpus": int,
            "entrypointNumGpus": int,
            "shutdownAfterJobFinishes": bool,
            "rayClusterSpec": CLUSTER,
        },
    },
}
"""The fields of KubeRay's API reference (and of Kubernetes' Pod) that are used, with their types."""


def unknown(value: Any, known: Any, path: str = "") -> list[str]:
    if known == "map":
        return [path for key, each in value.items() if not (isinstance(key, str) and isinstance(each, str | int))]
    if isinstance(known, type):
        return [] if type(value) is known else [path]
    if isinstance(known, list):
        return [complaint for each in value for complaint in unknown(each, known[0], f"{path}[]")]
    return [
        complaint
        for key, each in value.items()
        for complaint in (
            unknown(each, known[key], f"{path}.{key}") if key in known else [f"{path}.{key}"]
        )
    ]  # fmt: skip


def test_manifests_have_documented_fields_alone(tmp_path: Path) -> None:
    some = read(tmp_path, kubernetes="nodes: 3, program_cpus: 2, image_pull_secrets: [a], service_account: b")
    for cluster in (full(), some):
        for made in (ray_cluster(cluster), ray_job(cluster, PROGRAM)):
            assert unknown(made, DOCUMENTED[made["kind"]]) == []
            assert yaml.safe_load(as_yaml(made)) == made
    assert unknown(ray_cluster(some) | {"spec": {"rayVersion": 2.6}}, DOCUMENTED["RayCluster"]) == [".spec.rayVersion"]


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_nodes_that_are_all_alike_are_one_group_beside_the_head(tmp_path: Path) -> None:
    made = ray_cluster(read(tmp_path, "num_gpus: 2", "nodes: 3"))
    (group,) = made["spec"]["workerGroupSpecs"]
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]
    asked = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert [pod["containers"][0]["resources"] for pod in pods(made)] == [{"requests": asked, "limits": asked}] * 2
    assert ray_cluster(read(tmp_path))["spec"]["workerGroupSpecs"] == []


def test_the_autoscaler_alone_says_how_many_nodes_there_are_now() -> None:
    """`replicas` in the manifest would take busy nodes away at a second `up`."""
    assert all("replicas" not in group for group in ray_cluster(full())["spec"]["workerGroupSpecs"])


def test_programs_know_the_node_types_before_the_nodes_are_there() -> None:
    for pod in pods(ray_job(full(), PROGRAM)):
        env = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        assert (env["RLPLAT_BACKEND"], env["RLPLAT_ADDRESS"]) == ("ray", "auto")
        assert json.loads(env["RLPLAT_NODE_TYPES"])["gpu"]["resources"] == {"CPU": 8.0, "GPU": 1.0}


def test_secrets_are_files_that_the_group_of_the_pod_may_read() -> None:
    for pod in pods(ray_cluster(full())):
        assert pod["volumes"][0]["secret"] == {"secretName": "wandb", "defaultMode": 0o440}
        assert pod["securityContext"] == {"fsGroup": 1000}
        mount = pod["containers"][0]["volumeMounts"][0]
        assert (mount["mountPath"], mount["readOnly"]) == ("/etc/rlplat/secrets/wandb", True)
        assert all("valueFrom" not in each for each in pod["containers"][0]["env"])


WORDS = [
    "--set",
    "a={b: [1, 'x y'], c: \"d\"}",
    "a;b",
    "*",
    "~",
    "a|b>c<d&",
    "#",
    "'",
    '"',
    "(a)",
    "",
    "!x",
]


@pytest.mark.process
@pytest.mark.parametrize("joined", [shlex.join, subprocess.list2cmdline])
def test_a_program_arrives_word_for_word(joined: Any) -> None:
    """KubeRay's script is one shell, `ray job submit` joins the words (old versions: with double quotes), and runs
    the text in another."""
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"

    def shell(text: str) -> list[str]:
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=HERE)
        return list(json.loads(done.stdout))

    split: Sequence[str] = shell(f"{shlex.join([sys.executable, '-c', show])} {entrypoint(['X', *WORDS])}")
    again = entrypoint([sys.executable, "-c", show.replace('"', "'"), *WORDS])
    assert split[:2] == ["sh", "-c"]
    assert shell(again) == WORDS
    assert shell(joined(shlex.split(again))) == WORDS


@pytest.mark.parametrize("word", ["$HOME", "`id`", "a\\b", "a\nb", "$(id)"])
def test_a_word_that_would_change_on_the_way_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="Kubernetes and its shells would change"):
        entrypoint(["echo", word])


@pytest.mark.process
@pytest.mark.parametrize(
    ("setup", "printed"),
    [
        (["echo a", "echo b"], "a\nb\nstarted\n"),
        (["false", "echo b"], ""),
        (["echo a # why"], "a\nstarted\n"),
        (["exit 0", "echo b; false"], "b\n"),
    ],
)
def test_a_node_starts_after_its_setup_and_only_then(tmp_path: Path, setup: list[str], printed: str) -> None:
    (text,) = pods(ray_cluster(read(tmp_path, f"setup: {setup}")))[0]["containers"][0]["args"]
    then = f" {text}  && ulimit -n; echo started"
    done = subprocess.run(["bash", "-c", "--", then.replace("ulimit -n", "true")], capture_output=True, text=True)
    assert done.stdout == printed


def test_kubernetes_replaces_nothing_in_what_the_user_wrote(tmp_path: Path) -> None:
    """Its rule: $$ is $, $(NAME) is the value."""
    cluster = read(tmp_path, 'setup: ["echo $(id) $$"]\nenv: {A: "x$(B)"}')
    container = pods(ray_cluster(cluster))[0]["containers"][0]
    assert "echo $$(id) $$$$" in container["args"][0]
    assert container["env"][0] == {"name": "A", "value": "x$$(B)"}
