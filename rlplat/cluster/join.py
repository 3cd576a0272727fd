"""One task of a SLURM job: rank 0 is the head and runs the program, the others join it and wait for its end.

FOLDER/                 on the disk that the nodes share, 0700
  job.json              the program and the cluster
  ID-RESTARTS/          one run of the job; a requeued job has another
    join.json           0600: where the head is; written once the others can join
    ready-RANK, failed-RANK, ended
    token, nodes/       see `node_process`

SIGUSR1, SIGUSR2 (the time limit is near, or a preemption)   the program gets SIGTERM, saves, ends; unless it
                                                                 ended with 0, the job is queued again
SIGTERM          (scancel)                                   the program gets SIGTERM, saves, ends
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from rlplat.cluster import marks
from rlplat.cluster.engines import Engine, engine_of
from rlplat.cluster.node_process import (
    HostError,
    NodeProcess,
    NodeStart,
    filled,
    private_folder,
    write_private,
)
from rlplat.cluster.settings import ClusterSettings
from rlplat.cluster.slurm import SEED
from rlplat.errors import RlplatError, UsageError

_LOOK_S = 0.2
"""Between looks into a folder of a disk that many share."""


class JoinFailed(RlplatError):
    pass


class Task:
    """variables: SLURM's, of this task."""

    def __init__(self, folder: Path, variables: Mapping[str, str], engine: Engine | None = None) -> None:
        try:
            job: dict[str, Any] = json.loads((folder / "job.json").read_text())
            self._job_id = variables["SLURM_JOB_ID"]
            self._rank, self._size = int(variables["SLURM_PROCID"]), int(variables["SLURM_NTASKS"])
        except FileNotFoundError:
            raise UsageError(f"{folder} is no folder of `rlplat submit`: there is no job.json") from None
        except KeyError as missing:
            raise UsageError(f"{missing} is not set: `rlplat join` is a task of a SLURM job, run by srun") from None
        self._cluster = ClusterSettings.model_validate(job["cluster"])
        self._command, self._workdir = list(job["command"]), job["workdir"]
        self._variables = variables
        self._folder = private_folder(folder / f"{self._job_id}-{variables.get('SLURM_RESTART_COUNT') or 0}")
        self._node = NodeProcess(self._folder, f"rank-{self._rank}")
        self._engine = engine or engine_of(self._cluster)
        self._program: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None

    def run(self) -> int:
        """The exit code of this task: the program's on rank 0."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._heard)
        try:
            return self._lead() if self._rank == 0 else self._follow()
        except HostError as error:
            write_private(self._folder / f"failed-{self._rank}", str(error))
            raise JoinFailed(str(error)) from None
        finally:
            self._node.stop()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """Others than rank 0 wait for its word: the program needs their nodes while it saves."""
        self._signal = self._signal or number
        if self._program is not None:
            self._program.terminate()

    # -- rank 0

    def _lead(self) -> int:
        code = 1
        try:
            env = self._start_head()
            if self._signal is None:
                code = self._run_program(env)
        finally:
            write_private(self._folder / "ended", str(code))
        may_requeue = self._cluster.slurm is not None and self._cluster.slurm.requeue and code != 0
        if may_requeue and self._signal in (signal.SIGUSR1, signal.SIGUSR2):
            print(f"rlplat: {signal.Signals(self._signal).name}: requeueing job {self._job_id}", flush=True)
            self._node.stop()
            done = subprocess.run(["scontrol", "requeue", self._job_id], capture_output=True, text=True)
            if done.returncode:
                print(f"rlplat: scontrol requeue: {done.stderr.strip()}", file=sys.stderr, flush=True)
                return code or 1
        return code

    def _start_head(self) -> dict[str, str]:
        """The variables of the program, once all nodes have joined."""
        head = self._engine.head(self._own_address())
        address = ""
        if head is not None:
            token = secrets.token_hex(32)
            address = self._start(head, token)["address"]
            write_private(self._folder / "join.json", json.dumps({"address": address}))
            for rank in range(1, self._size):
                self._wait_for(f"ready-{rank}", f"failed-{rank}")
        places = {"{address}": address, "{token}": str(self._node.token_file)}
        engine = {name: filled(text, places) for name, text in self._engine.program_env.items()}
        return {**self._cluster.env, **engine}

    def _run_program(self, env: Mapping[str, str]) -> int:
        command = [argument.replace(SEED, str(self._seed())) for argument in self._command]
        path = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"
        environment = {**os.environ, **env, "PATH": path, marks.JOB: str(self._folder)}
        print(f"rlplat: {' '.join(command)}", flush=True)
        try:
            self._program = subprocess.Popen(
                command, cwd=self._workdir, env=environment, stdin=subprocess.DEVNULL,
                preexec_fn=marks.ignore_user_signals,
            )  # fmt: skip
        except OSError as error:
            raise HostError(f"{command[0]}: {error.strerror}") from error
        if self._signal is not None:  # it came while the program was being started
            self._program.terminate()
        code = marks.exit_code_of(self._program)
        marks.end_all(marks.JOB, str(self._folder), None, 0.0)
        return 128 - code if code < 0 else code

    def _seed(self) -> int | None:
        seeds = self._cluster.slurm.seeds if self._cluster.slurm else []
        return seeds[int(self._variables["SLURM_ARRAY_TASK_ID"])] if seeds else None

    # -- the others

    def _follow(self) -> int:
        self._wait_for("join.json", "ended")
        head = json.loads((self._folder / "join.json").read_text())["address"]
        self._start(
            self._engine.worker(self._node.name, address_towards(head.rpartition(":")[0]), head),
            self._node.token_file.read_text(),
        )
        write_private(self._folder / f"ready-{self._rank}", "")
        while not (self._folder / "ended").exists():
            if self._node.look()["state"] != "running":
                raise HostError(f"the node of rank {self._rank} ended: {self._node.tail()}")
            time.sleep(_LOOK_S)
        return 0

    def _start(self, how: NodeStart, token: str) -> dict[str, Any]:
        return self._node.start(how, token, dict(self._cluster.env), sys.executable, self._cluster.start_timeout_s)

    def _wait_for(self, name: str, or_else: str) -> None:
        deadline = time.monotonic() + 2 * self._cluster.start_timeout_s
        while not (self._folder / name).exists():
            if (self._folder / or_else).exists():
                raise HostError(f"{or_else}: {(self._folder / or_else).read_text()}")
            if time.monotonic() > deadline:
                raise HostError(
                    f"{name} did not come within {2 * self._cluster.start_timeout_s:g} s: is {self._folder} on a disk "
                    "that all nodes share?"
                )
            time.sleep(_LOOK_S)

    def _own_address(self) -> str:
        """Of this node, as the others reach it."""
        if self._size == 1:
            return "127.0.0.1"
        nodes = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True, check=True)
        own = self._variables.get("SLURMD_NODENAME")
        others = [name for name in nodes.stdout.split() if name != own]
        return address_towards(others[0]) if others else "127.0.0.1"


def address_towards(host: str) -> str:
    """The address of this machine on the way to that one, IPv4 or IPv6. Nothing is sent. (Its own name may resolve to
    loopback.) HostError where the name leads nowhere."""
    problem: OSError | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        found, problem = [], error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as way:
                way.connect(address)
                return str(way.getsockname()[0])
        except OSError as error:
            problem = error
    raise HostError(f"no way to {host}: {problem}")
