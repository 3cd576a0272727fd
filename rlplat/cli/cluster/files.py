"""`rlplat rsync-up`, `rlplat rsync-down`, `rlplat port-forward`."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from rlplat.cli.cluster.options import cluster_parser, launcher_of
from rlplat.errors import ConfigError, UsageError


def rsync_up_parser() -> argparse.ArgumentParser:
    parser = cluster_parser(
        "rsync-up",
        "Copy a file, or what is in a folder, to every node. Nothing is deleted there.",
        "examples:\n  rlplat rsync-up lab.yaml                    the workdir of the file, again\n"
        "  rlplat rsync-up lab.yaml data /scratch/data",
    )
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE", help="a file or folder here (default: workdir)"
    )
    parser.add_argument(
        "target",
        nargs="?",
        default=".",
        metavar="TARGET",
        help="a folder there (default: where commands run)",
    )
    return parser


def rsync_up(arguments: list[str]) -> int:
    options = rsync_up_parser().parse_args(arguments)
    with launcher_of(options.cluster) as launcher:
        source = options.source or launcher.cluster.workdir
        if source is None:
            raise UsageError(f"what? rlplat rsync-up {options.cluster} SOURCE, or set workdir: in the file")
        sent = launcher.send_to_all(Path(source).expanduser(), options.target)
        print("\n".join(sent))
    return 0


def rsync_down_parser() -> argparse.ArgumentParser:
    parser = cluster_parser(
        "rsync-down",
        "Copy a file or folder from the head into a folder of this machine.",
        "example:\n  rlplat rsync-down lab.yaml runs/demo runs",
    )
    parser.add_argument("source", metavar="SOURCE", help="there; relative to where commands run")
    parser.add_argument("target", nargs="?", default=".", metavar="TARGET", help="a folder here (default: .)")
    parser.add_argument("--node", metavar="NAME", help="from this node instead")
    return parser


def rsync_down(arguments: list[str]) -> int:
    options = rsync_down_parser().parse_args(arguments)
    from rlplat.cluster.node_process import HostError
    from rlplat.cluster.transfer import bring_down

    with launcher_of(options.cluster) as launcher:
        node = launcher.node(options.node) if options.node else launcher.head
        machine = launcher.connect(node)
        try:
            count = bring_down(machine, launcher.folder, options.source, Path(options.target))
        except HostError as error:
            raise UsageError(f"{node.name}: {error}") from None
        print(f"{count} files -> {options.target}")
    return 0


def port_forward_parser() -> argparse.ArgumentParser:
    parser = cluster_parser(
        "port-forward",
        "Let a port of this machine's loopback lead to a port of the head's loopback, until Ctrl-C.",
        "example:\n  rlplat port-forward lab.yaml 6006          then http://127.0.0.1:6006",
    )
    parser.add_argument("ports", metavar="[LOCAL:]PORT", type=_ports)
    parser.add_argument("--node", metavar="NAME", help="a port of this node instead")
    return parser


def port_forward(arguments: list[str]) -> int:
    options = port_forward_parser().parse_args(arguments)
    local_port, port = options.ports
    with launcher_of(options.cluster) as launcher:
        node = launcher.node(options.node) if options.node else launcher.head
        command = node.machine.forward_argv(local_port, port)
        if command is None:
            raise ConfigError(f"the nodes are on this machine: http://127.0.0.1:{port} is there already")
        print(f"http://127.0.0.1:{local_port} -> {node.name}:{port}", flush=True)
        code = subprocess.call(command)
    return 1 if code else 0


def _ports(text: str) -> tuple[int, int]:
    local, _, port = text.rpartition(":")
    try:
        numbers = int(local or port), int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not PORT or LOCAL:PORT") from None
    if not all(0 < number < 65536 for number in numbers):
        raise argparse.ArgumentTypeError("a port is from 1 to 65535")
    return numbers
