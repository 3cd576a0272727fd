"""Whether all machines of the cluster see the experiment's folder: trials write and read their checkpoints there."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import rlplat
from rlplat.errors import ConfigError


def require_shared(folder: Path) -> None:
    """ConfigError, naming the machines, where some do not see what this process writes into `folder`."""
    machines = [machine for machine in rlplat.nodes() if machine["Alive"]]
    if len(machines) == 1:
        return
    probe = folder / f".probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        answers = {
            machine["NodeManagerHostname"]: rlplat.remote(_sees)
            .options(
                num_cpus=0,
                scheduling_strategy=rlplat.NodeAffinitySchedulingStrategy(machine["NodeID"], soft=False),
            )
            .remote(str(probe))
            for machine in machines
        }
        blind = [name for name, sees in answers.items() if not rlplat.get(sees)]
    finally:
        probe.unlink()
    if blind:
        raise ConfigError(
            f"{folder} is not the same folder on {', '.join(blind)}: trials keep their checkpoints there, so that all "
            "machines of the cluster have to share it: give --out on a file system that they share"
        )


def _sees(path: str) -> bool:
    folder = os.path.dirname(path)
    return os.path.isdir(folder) and os.path.basename(path) in os.listdir(folder)
