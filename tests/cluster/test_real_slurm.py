"""Jobs on a real SLURM of two nodes."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.real_slurm import USERS, Slurm, started

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
TOY = Path(__file__).with_name("toy_engine.py")
TRAIN = [
    "rlplat",
    "train",
    "--algo",
    "ppo",
    "--env",
    "CartPole-v1",
    "--num-rollout-workers",
    "0",
    "--stop.env-steps",
    "1000000000",
    "--stop.episode-return-mean",
    "501",
]  # never


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.05)  # others need the CPU


class Queue:
    """One SLURM for all tests; each job has a folder of its own below /mnt, the disk that the nodes share."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm

    def submit(self, name: str, section: str, *program: str, user: str = "root") -> str:
        """The id of the job."""
        folder = self.slurm.disk / name
        folder.mkdir()
        (folder / "lab.yaml").write_text(
            f"provider: slurm\nengine: rlplat\nfolder: /mnt/{name}/lab\nworkdir: /mnt/{name}\nslurm: {{{section}}}\n"
        )
        if user in USERS:
            os.chown(folder, USERS[user], USERS[user])
        done = self.slurm.rlplat("submit", f"/mnt/{name}/lab.yaml", "--", *program, user=user)
        assert done.returncode == 0, done.stderr
        return re.findall(r"job (\d+):", done.stdout)[0]

    def log(self, name: str) -> str:
        return "".join(path.read_text() for path in sorted((self.slurm.disk / name).glob("lab/slurm/1/slurm-*.log")))

    def state(self, job: str) -> str:
        shown = self.slurm.run("scontrol", "show", "job", job).stdout
        return re.findall(r"JobState=(\w+)", shown)[0]

    def end(self, job: str) -> str:
        """The state in which it ended."""
        until(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"))
        return self.state(job)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    with started(tmp_path_factory.mktemp("slurm")) as slurm:
        yield Queue(slurm)


@pytest.fixture(scope="module")
def too_long(queue: Queue) -> str:
    """A job whose time is over and that does not end by itself. SLURM looks every 30 s: it begins before the others."""
    program = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(1e6)"
    job = queue.submit("long", "requeue: false", "python", "-c", program)
    until(lambda: "on\n" in queue.log("long"))
    over = ("scontrol", "update", f"JobId={job}", "EndTime=now")
    until(lambda: queue.slurm.run(*over).returncode == 0)  # refused when slurmctld's now is a second later
    return job


def test_a_job_runs_its_program_and_its_exit_code_is_the_programs(queue: Queue, too_long: str) -> None:
    program = "import rlplat; rlplat.init(); print('answer', rlplat.get(rlplat.remote(lambda: 42).remote())); exit(5)"
    job = queue.submit("first", "cpus_per_node: 2", "python", "-c", program)
    assert queue.end(job) == "FAILED"
    assert "answer 42" in queue.log("first")
    assert "ExitCode=5:0" in queue.slurm.run("scontrol", "show", "job", job).stdout


def test_the_tasks_of_a_job_find_each_other_on_two_machines(queue: Queue) -> None:
    """With an engine of real processes in place of Ray: addresses, the shared folder and the ranks are SLURM's own."""
    folder = queue.slurm.disk / "two" / "job"
    folder.mkdir(parents=True, mode=0o700)
    program = "import os; print('head', os.environ['TOY_ADDRESS'])"
    cluster = {"name": "lab", "provider": "slurm", "slurm": {"nodes": 2}}
    job = {"command": ["python", "-c", program], "workdir": "/mnt", "cluster": cluster}
    (folder / "job.json").write_text(json.dumps(job))
    done = queue.slurm.run("srun", "-N2", "-n2", sys.executable, str(TOY), "join", "/mnt/two/job")
    assert done.returncode == 0, done.stderr
    assert re.search(r"head 10\.99\.0\.[12]:\d+", done.stdout)
    assert sorted(path.name for path in folder.glob("*-0/ready-*")) == ["ready-1"]


def test_two_jobs_of_two_users_on_one_machine_do_not_meet(queue: Queue) -> None:
    if queue.slurm.rlplat("--version", user="ann").returncode:
        pytest.skip("other users cannot read this checkout")
    program = (
        "import os, time, rlplat\nrlplat.init()\nassert rlplat.get(rlplat.remote(os.getuid).remote()) == os.getuid()\n"
        "open('up', 'w').close()\nwhile not (os.path.exists('/mnt/ann/up') and os.path.exists('/mnt/ben/up')):"
        " time.sleep(0.05)\nprint('beside', os.getuid(), os.environ['SLURMD_NODENAME'])"
    )
    jobs = [queue.submit(user, "cpus_per_node: 1", "python", "-c", program, user=user) for user in USERS]
    assert [queue.end(job) for job in jobs] == ["COMPLETED"] * 2
    said = [re.findall(r"beside (\d+) (n\d)", queue.log(user))[0] for user in USERS]
    assert [int(uid) for uid, _ in said] == list(USERS.values()) and said[0][1] == said[1][1]
    for user in USERS:
        assert (queue.slurm.disk / user / "lab").stat().st_mode & 0o077 == 0


def test_preemption_saves_a_checkpoint_and_the_requeued_job_resumes_it(queue: Queue) -> None:
    job = queue.submit("train", "cpus_per_node: 2", *TRAIN, "--out", "runs/a", "--resume", "auto")
    metrics = queue.slurm.disk / "train" / "runs" / "a" / "metrics.jsonl"

    def steps() -> int:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return max((json.loads(line).get("env_steps", 0) for line in lines), default=0)

    until(lambda: steps() > 0)
    assert queue.slurm.run("scancel", "--signal=USR1", job).returncode == 0
    until(lambda: "SIGUSR1: requeueing job" in queue.log("train"))
    before = steps()
    until(lambda: "resuming runs/a at" in queue.log("train"))
    until(lambda: steps() > before)
    assert "checkpoint" in queue.log("train").partition("SIGUSR1: requeueing")[0]
    assert queue.slurm.run("scancel", job).returncode == 0
    assert queue.end(job) == "CANCELLED"


def test_a_partition_that_does_not_exist_is_refused_in_sbatchs_words(queue: Queue) -> None:
    folder = queue.slurm.disk / "nowhere"
    folder.mkdir()
    (folder / "lab.yaml").write_text("provider: slurm\nfolder: /mnt/nowhere/lab\nslurm: {partition: nowhere}\n")
    done = queue.slurm.rlplat("submit", "/mnt/nowhere/lab.yaml", "--", "true")
    assert done.returncode == 2
    assert "sbatch refused the job: sbatch: error: invalid partition specified: nowhere" in done.stderr


def test_a_job_killed_by_its_time_limit_says_so_and_leaves_nothing(queue: Queue, too_long: str) -> None:
    assert queue.end(too_long) == "TIMEOUT"
    assert "DUE TO TIME LIMIT" in queue.log("long")
    left = queue.slurm.run("pgrep", "-f", "time.sleep(1e6)").stdout
    assert left == ""
