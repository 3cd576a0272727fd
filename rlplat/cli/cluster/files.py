"""`rlplat rsync-up`, `rlplat rsync-down`, `rlplat port-forward`."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from rlplat.cli.cluster.options import launcher_of, of_cluster
from rlplat.errors import ConfigError, UsageError


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
