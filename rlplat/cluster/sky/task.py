"""A program as a task of SkyPilot. Pure.

    as_yaml(sky_task(cluster, ["rlplat", "train"], folder))      what `rlplat submit --dry-run` prints

Fields: https://docs.skypilot.co/en/latest/reference/yaml-spec.html. SkyPilot runs `setup`, then `run`, on every machine
and says in variables which one it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlplat.cluster.engines import FREE_PORTS, HEALTH_ENV
from rlplat.cluster.settings import ClusterSettings, SkySettings

PORT = 6379
"""Of our Ray; SkyPilot's own has 6380."""

_NODE = """\
unset RAY_ADDRESS
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/{token}"
chmod 600 "$RAY_AUTH_TOKEN_PATH"
export {health}
head=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)
here=$(echo "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")
start_ray() {{ exec {python} -m ray.scripts.scripts start {options} --node-ip-address="$here" "$@"; }}
head_answers() {{ (exec 3<> "/dev/tcp/$head/{port}") 2> /dev/null; }}

if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
    until head_answers; do sleep 1; done
    start_ray --address="$head:{port}" &
    trap 'kill %1; wait' EXIT
    while head_answers; do sleep 1; done
    exit 0    # the program has ended: its exit code is that of the task
fi
start_ray --head --port={port} --include-dashboard=false &
trap 'kill %1; wait' EXIT
until head_answers; do kill -0 %1 || exit 1; sleep 1; done
export RLPLAT_BACKEND=ray RLPLAT_ADDRESS="$head:{port}"
{python} -c {wait} {nodes} {timeout} || exit 1
{program}
"""
_WAIT = """\
import sys, time, rlplat
nodes, deadline = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
rlplat.init()
while (found := sum(node["Alive"] for node in rlplat.nodes())) < nodes:
    if time.monotonic() > deadline:
        sys.exit(f"{found} of {nodes} nodes are there after {sys.argv[2]} s: raise start_timeout_s")
    time.sleep(0.5)
"""


def sky_task(cluster: ClusterSettings, program: Sequence[str], folder: Path) -> dict[str, Any]:
    """folder: of the cluster's files on this machine, with the token of its Ray."""
    sky = cluster.sky or SkySettings()
    resources = {
        "infra": sky.infra,
        "accelerators": sky.accelerators,
        "cpus": f"{cluster.num_cpus}+" if cluster.num_cpus else None,
        "memory": f"{sky.memory_gb}+" if sky.memory_gb else None,
        "disk_size": sky.disk_gb,
        "use_spot": sky.use_spot or None,
        "image_id": sky.image,
        "autostop": {"idle_minutes": sky.idle_minutes, "down": True},
    }
    mounts: dict[str, Any] = {
        there: {"source": source, "mode": "MOUNT_CACHED"} if "://" in source else source
        for there, source in sky.mounts.items()
    }  # a bucket as a bare text would be copied, and what is written there lost
    if cluster.engine == "ray":
        mounts[f"~/{_token(cluster)}"] = str(folder / "token")
    task = {
        "name": cluster.title,
        "workdir": str(Path(cluster.workdir).expanduser()) if cluster.workdir else None,
        "num_nodes": sky.nodes,
        "resources": {key: value for key, value in resources.items() if value is not None},
        "envs": dict(cluster.env),
        "file_mounts": mounts,
        "setup": "".join(f"{line}\n" for line in ["set -e", *cluster.setup]) if cluster.setup else None,
        "run": _run(cluster, program, sky.nodes),
    }
    return {key: value for key, value in task.items() if value not in (None, {})}


def as_yaml(task: dict[str, Any]) -> str:
    """Scripts as blocks, as a person would write them."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(task, Dumper=Dumper, sort_keys=False, width=1000)


def _token(cluster: ClusterSettings) -> str:
    """In the home folder there."""
    return f".rlplat/clusters/{cluster.title}/token"


def _run(cluster: ClusterSettings, program: Sequence[str], nodes: int) -> str:
    if cluster.engine == "rlplat":
        return f"exec {shlex.join(program)}\n"
    python = cluster.python or "python3"
    if python.startswith("~/"):
        python = f'"$HOME"/{shlex.quote(python[2:])}'
    else:
        python = shlex.quote(python)
    offers = [f"--num-cpus={cluster.num_cpus}"] if cluster.num_cpus else []
    return _NODE.format(
        token=_token(cluster),
        health=" ".join(f"{key}={value}" for key, value in HEALTH_ENV.items()),
        python=python,
        options=" ".join(["--block", "--disable-usage-stats", *FREE_PORTS, *offers]),
        port=PORT,
        wait=shlex.quote(_WAIT),
        nodes=nodes,
        timeout=f"{cluster.start_timeout_s:g}",
        program=shlex.join(program),
    )
