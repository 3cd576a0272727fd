"""Handing a task to SkyPilot's own command."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rlplat.cluster.node_process import private_folder, write_private
from rlplat.cluster.settings import ClusterSettings
from rlplat.cluster.sky.task import as_yaml, sky_task
from rlplat.errors import UsageError


def folder_of(cluster: ClusterSettings) -> Path:
    """Of the cluster's files on this machine."""
    return Path(cluster.place).expanduser().absolute()


def submit(cluster: ClusterSettings, program: Sequence[str]) -> int:
    """The exit code of `sky launch`, which shows what it does; the program goes on without it."""
    folder = private_folder(folder_of(cluster))
    if not (folder / "token").exists():
        write_private(folder / "token", secrets.token_hex(32))
    write_private(folder / "task.yaml", as_yaml(sky_task(cluster, program, folder)))
    try:
        return subprocess.call(
            ["sky", "launch", "--yes", "--detach-run", "--cluster", cluster.title, str(folder / "task.yaml")]
        )
    except FileNotFoundError:
        raise UsageError(
            "SkyPilot is not installed here (there is no command sky): pip install 'skypilot[aws]', or take what "
            "--dry-run prints to a machine that has it"
        ) from None
