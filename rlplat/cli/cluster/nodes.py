"""`rlplat up`, `down`, `status CLUSTER.yaml`; `rsync-up`, `rsync-down`, `port-forward`."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from rlplat.cli.cluster.options import launcher_of, of_cluster, refuse_dry_run
from rlplat.errors import ConfigError, UsageError


@of_cluster("up")
def up(options: argparse.Namespace) -> int:
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(options.cluster)
    if cluster.provider == "kubernetes":
        from rlplat.cluster.kubernetes import kubectl, manifests

        print(manifests.as_yaml(manifests.ray_cluster(cluster)) if options.dry_run else kubectl.up(cluster))
        if not options.dry_run:
            print(f"its pods come by and by: {kubectl.look_command(cluster)}")
        return 0
    if options.dry_run and cluster.provider != "sky":
        refuse_dry_run(cluster)
    with launcher_of(options.cluster) as launcher:
        from rlplat.cluster.launcher import table

        print(table(launcher.up()))
        print(f"the cluster '{launcher.cluster.title}' is up: rlplat submit {options.cluster} -- rlplat train ...")
    return 0


@of_cluster("down")
def down(options: argparse.Namespace) -> int:
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(options.cluster)
    if cluster.provider == "kubernetes":
        from rlplat.cluster.kubernetes import kubectl

        print(kubectl.down(cluster) or "nothing of this cluster was there")
        return 0
    return _show(options.cluster, "down")


def status(path: str) -> int:
    """Exit code 0: every node is as it should be."""
    return _show(path, "status")


def _show(path: str, verb: str) -> int:
    with launcher_of(path) as launcher:
        from rlplat.cluster.launcher import table

        rows = launcher.down() if verb == "down" else launcher.status()
    print(table(rows))
    return 0 if all(row.is_ok for row in rows) else 1


@of_cluster("rsync-up")
def rsync_up(options: argparse.Namespace) -> int:
    with launcher_of(options.cluster) as launcher:
        source = options.source or launcher.cluster.workdir
        if source is None:
            raise UsageError(f"what? rlplat rsync-up {options.cluster} SOURCE, or set workdir: in the file")
        sent = launcher.send_to_all(Path(source).expanduser(), options.target)
        print("\n".join(sent))
    return 0


@of_cluster("rsync-down")
def rsync_down(options: argparse.Namespace) -> int:
    from rlplat.cluster.node_process import HostError
    from rlplat.cluster.transfer import bring_down

    with launcher_of(options.cluster) as launcher:
        node = launcher.node(options.node)
        machine = launcher.connect(node)
        try:
            count = bring_down(machine, launcher.folder, options.source, Path(options.target))
        except HostError as error:
            raise UsageError(f"{node.name}: {error}") from None
        print(f"{count} files -> {options.target}")
    return 0


@of_cluster("port-forward")
def port_forward(options: argparse.Namespace) -> int:
    local_port, port = options.ports
    with launcher_of(options.cluster) as launcher:
        node = launcher.node(options.node)
        command = node.machine.forward_argv(local_port, port)
        if command is None:
            raise ConfigError(f"the nodes are on this machine: http://127.0.0.1:{port} is there already")
        print(f"http://127.0.0.1:{local_port} -> {node.name}:{port}", flush=True)
        code = subprocess.call(command)
    return 1 if code else 0
