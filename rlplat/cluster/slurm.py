"""A program as a SLURM job: the script, and sending it. One task of the job runs on each node (`join`)."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlplat.cluster.node_process import numbered_folder, private_folder, write_private
from rlplat.cluster.settings import ClusterSettings, SlurmSettings
from rlplat.errors import UsageError

SEED = "{seed}"
"""In the program's arguments: the seed of an array's task."""


def job_script(name: str, slurm: SlurmSettings, python: str, folder: Path, setup: Sequence[str] = ()) -> str:
    """The text for sbatch. Every value in it is one plain word (see `settings`), or quoted; setup: commands of the
    user's, run by the script's own shell, whose environment the tasks on all nodes get (`module load cuda`)."""
    wanted = {
        "job-name": name,
        "nodes": slurm.nodes,
        "ntasks": slurm.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": slurm.cpus_per_node,
        "gpus-per-node": slurm.gpus_per_node or None,
        "mem": slurm.memory,
        "time": slurm.time_limit,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "array": f"0-{len(slurm.seeds) - 1}" if slurm.seeds else None,
        "signal": f"USR2@{slurm.grace_s}",
        "output": folder / ("slurm-%A_%a.log" if slurm.seeds else "slurm-%j.log"),
        "open-mode": "append",
    }
    lines = [f"#SBATCH --{key}={value}" for key, value in wanted.items() if value is not None]
    lines.append("#SBATCH --requeue" if slurm.requeue else "#SBATCH --no-requeue")
    task = shlex.join([python, "-m", "rlplat.cli", "join", str(folder)])
    commands = [
        f"{command} || {{ echo {shlex.quote(f'rlplat: this setup command failed: {command}')} >&2; exit 1; }}"
        for command in setup
    ]
    return "\n".join(["#!/bin/bash", *lines, "umask 077", *commands, f"exec srun --unbuffered {task}", ""])


def submit(cluster: ClusterSettings, program: Sequence[str]) -> tuple[str, Path]:
    """Send the job; (its id, the folder of its files). UsageError in sbatch's words."""
    slurm = cluster.slurm or SlurmSettings()
    has_seed = any(SEED in argument for argument in program)
    if bool(slurm.seeds) != has_seed:
        fix = "give slurm.seeds" if has_seed else f"put {SEED} into the program's arguments, or all tasks do the same"
        raise UsageError(f"slurm.seeds and {SEED} go together: {fix}")
    root = private_folder(Path(cluster.place).expanduser().absolute())
    folder = numbered_folder(private_folder(root / "slurm"))
    workdir = Path(cluster.workdir or ".").expanduser().absolute()
    if not workdir.is_dir():
        raise UsageError(f"workdir: {workdir} is not a folder")
    python = str(Path(cluster.python).expanduser()) if cluster.python else sys.executable
    job = {"command": list(program), "workdir": str(workdir), "cluster": cluster.model_dump(mode="json")}
    write_private(folder / "job.json", json.dumps(job))
    write_private(folder / "job.sh", job_script(cluster.title, slurm, python, folder, cluster.setup))
    try:
        done = subprocess.run(["sbatch", "--parsable", str(folder / "job.sh")], capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError("there is no sbatch on this machine: submit from a login node of the SLURM cluster") from None
    if done.returncode:
        raise UsageError(f"sbatch refused the job: {done.stderr.strip()} (the script: {folder / 'job.sh'})")
    return done.stdout.strip().partition(";")[0], folder
