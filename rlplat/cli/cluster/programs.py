"""`rlplat exec`, `rlplat attach`, `rlplat submit`, `rlplat jobs`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplat.cli.cluster.options import launcher_of, of_cluster, refuse_dry_run, with_program
from rlplat.cli.output import print_json
from rlplat.durations import duration_text
from rlplat.errors import UsageError

if TYPE_CHECKING:
    from rlplat.cluster.settings import ClusterSettings


@of_cluster("exec", takes_words=True)
def exec_(arguments: list[str]) -> int:
    own, program = with_program(arguments)
    options = exec_.parser().parse_args(own)
    if not program:
        raise UsageError(f"no command: rlplat exec {options.cluster} -- COMMAND ...")
    return _run(options.cluster, options.node, "run", program, False)


@of_cluster("attach")
def attach(options: argparse.Namespace) -> int:
    return _run(options.cluster, options.node, "shell", [], sys.stdin.isatty())


def _run(path: str, node_name: str | None, verb: str, program: list[str], terminal: bool) -> int:
    from rlplat.cluster.calls import ask

    with launcher_of(path) as launcher:
        node = launcher.node(node_name)
        machine = launcher.connect(node)
        kept = ask(machine, "keep", launcher.program_request())["place"]
        command = [machine.python, "-m", "rlplat.cluster.host", verb, kept, *program]
        code = subprocess.call(machine.argv(command, terminal))
    return 128 - code if code < 0 else code


@of_cluster("submit", takes_words=True)
def submit(arguments: list[str]) -> int:
    own, program = with_program(arguments)
    options = submit.parser().parse_args(own)
    if not program:
        raise UsageError(f"no program: rlplat submit {options.cluster} -- PROGRAM ...")
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(options.cluster)
    if options.wait and cluster.provider in _LOG_ELSEWHERE:
        instead = _LOG_ELSEWHERE[cluster.provider].format(name=cluster.title)
        raise UsageError(f"--wait is not for provider: {cluster.provider}: {instead}")
    if cluster.provider == "kubernetes":
        return _submit_to_kubernetes(cluster, program, options.dry_run)
    if cluster.provider == "sky":
        return _submit_to_sky(cluster, program, options.dry_run)
    if options.dry_run:
        refuse_dry_run(cluster)
    if cluster.provider == "slurm":
        return _submit_to_slurm(cluster, program)
    with launcher_of(options.cluster) as launcher:
        sent = launcher.ask_head("submit", command=program)
        job, place = sent["job"], f"{launcher.head.name}:{sent['workdir']}"
        print(f"job {job} in {place}: rlplat jobs {options.cluster} logs {job} -f", flush=True)
        if not options.wait:
            return 0
        return _ended(launcher.ask_head("logs", job=job, follow=True))


_LOG_ELSEWHERE = {
    "slurm": "the job is in a queue; its log is in the folder that is shown",
    "kubernetes": "kubectl shows the log of the job",
    "sky": "sky logs {name} shows the log",
}


def _submit_to_slurm(cluster: ClusterSettings, program: list[str]) -> int:
    from rlplat.cluster.slurm import submit as send

    job, folder = send(cluster, program)
    if cluster.slurm is None or cluster.slurm.requeue:
        begins_anew(program)
    print(f"job {job}: squeue -j {job}; its files and log: {folder}")
    return 0


def begins_anew(program: Sequence[str]) -> None:
    """Say what a job that is queued again does, where its program does not continue by itself."""
    words = [Path(word).name for word in program]
    verb = next((after for name, after in pairwise(words) if name == "rlplat" and after in ("train", "tune")), None)
    if verb and not any(word.split("=")[0] == "--resume" for word in program):
        print(
            f"when the job is queued again, its program starts as it is, and `rlplat {verb}` refuses the directory "
            "that is there: with --resume auto it continues"
        )


def _submit_to_kubernetes(cluster: ClusterSettings, program: list[str], is_dry: bool) -> int:
    from rlplat.cluster.kubernetes import kubectl, manifests

    if is_dry:
        print(manifests.as_yaml(manifests.ray_job(cluster, program)))
        return 0
    job = kubectl.submit(cluster, program)
    print(f"job {job}: {kubectl.logs_command(cluster, job)}")
    return 0


def _submit_to_sky(cluster: ClusterSettings, program: list[str], is_dry: bool) -> int:
    from rlplat.cluster.sky import launch, task

    if is_dry:
        print(task.as_yaml(task.sky_task(cluster, program, launch.folder_of(cluster))))
        return 0
    code = launch.submit(cluster, program)
    if code == 0:
        print(f"sky logs {cluster.title}; the machines end by themselves, or by: sky down {cluster.title}")
    return 1 if code else 0


@of_cluster("join")
def join(options: argparse.Namespace) -> int:
    from rlplat.cluster.join import Task

    return Task(Path(options.folder), os.environ).run()


@of_cluster("jobs")
def jobs(options: argparse.Namespace) -> int:
    if options.action != "list" and options.job is None:
        raise UsageError(f"which job? rlplat jobs {options.cluster} {options.action} ID")
    with launcher_of(options.cluster) as launcher:
        if options.action == "logs":
            found = launcher.ask_head("logs", job=options.job, follow=options.follow)
            return _ended(found) if options.follow else 0
        if options.action == "stop":
            found = launcher.ask_head("stop-job", job=options.job)
            print(f"job {options.job}: {_state(found)}")
            return 0
        rows = launcher.ask_head("jobs")["jobs"]
    if options.json:
        for row in rows:
            print_json(row)
        return 0
    print("\n".join(f"{row['id']:>4}  {_state(row):<22}{shlex.join(row['command'])}" for row in rows) or "no jobs")
    return 0


def _state(job: dict[str, Any]) -> str:
    took = duration_text(job.get("ended", time.time()) - job["submitted"])
    code = f" ({job['exit_code']})" if job["exit_code"] else ""
    return f"{job['state']}{code} {took}"


def _ended(job: dict[str, Any]) -> int:
    print(f"job {job['id']}: {_state(job)}")
    return int(job["exit_code"]) if job["exit_code"] is not None else 1
