"""A real SLURM of two nodes: Debian's, unpacked and not installed, in namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.debian import LIBRARIES, unpacked

_PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "libhwloc15",
)
_ROOT = Path(__file__).resolve().parents[2]
USERS = {"ann": 40001, "ben": 40002}
_CONF = """\
ClusterName=t
SlurmctldHost=n1(10.99.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1,sched_interval=1
SlurmdParameters=config_overrides
PluginDir=/run/debs/usr/lib/x86_64-linux-gnu/slurm-wlm
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool/%n
SlurmctldPidFile=/run/slurm/ctld.pid
SlurmdPidFile=/run/slurm/d.%n.pid
ReturnToService=2
KillWait=2
MpiDefault=none
SlurmctldLogFile=/run/slurm/ctld.log
SlurmdLogFile=/run/slurm/d.%n.log
MailProg=/bin/true
NodeName=n1 NodeAddr=10.99.0.1 CPUs=4 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeAddr=10.99.0.2 CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    pid: int
    """Of the first process in the namespaces."""

    @property
    def disk(self) -> Path:
        """What the nodes see as /mnt."""
        return Path(f"/proc/{self.pid}/root/mnt")

    def run(self, *command: str, user: str = "root", **env: str) -> subprocess.CompletedProcess[str]:
        """A command on n1."""
        others = (
            ["setpriv", f"--reuid={USERS[user]}", f"--regid={USERS[user]}", "--clear-groups"] if user in USERS else []
        )
        path = f"/run/debs/usr/bin:{os.path.dirname(sys.executable)}:/usr/bin:/bin:/usr/sbin"
        libraries = f"/run/debs/{LIBRARIES}"
        variables = {
            "PATH": path, "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm", "SLURM_CONF": "/run/slurm.conf",
            "HOME": f"/mnt/{user}", "PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8",
        } | env  # fmt: skip
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--pid", "--wd=/mnt"]
        given = [f"{name}={value}" for name, value in variables.items()]
        return subprocess.run(
            [*enter, *others, "env", "-i", *given, *command], capture_output=True, text=True, timeout=100
        )

    def rlplat(self, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "rlplat.cli", *arguments, user=user)


@contextmanager
def started(folder: Path) -> Iterator[Slurm]:
    if os.getuid() != 0:
        pytest.skip("a real SLURM needs root")
    for program in ("unshare", "nsenter", "ip", "setpriv"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    debs = unpacked("slurm", _PACKAGES)
    passwd = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(
        passwd + "".join(f"{name}:x:{uid}:{uid}::/mnt/{name}:/bin/sh\n" for name, uid in USERS.items())
    )
    (folder / "hosts").write_text("127.0.0.1 localhost\n10.99.0.1 n1\n10.99.0.2 n2\n")
    (folder / "slurm.conf").write_text(_CONF)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\n")
    log = folder / "log"
    script = Path(__file__).with_name("slurm_in_namespaces.sh")
    hidden = [place for place in {sys.base_prefix, sys.prefix, str(_ROOT)} if place.startswith("/root/")]
    with log.open("wb") as file:
        outer = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child",
             "bash", script, debs, folder, *hidden],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True,
        )  # fmt: skip
    assert outer.stdout is not None
    try:
        if outer.stdout.readline() != "ready\n":
            pytest.skip(f"SLURM does not run here: {log.read_text().strip().splitlines()[-1:]}")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        yield Slurm(int(children[0]))
    finally:
        outer.kill()
        outer.communicate()
