"""Jobs of SLURM: the script; and its tasks as real processes, started by stand-ins for sbatch, srun and scontrol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlplat.cli import main
from rlplat.cli.cluster.programs import begins_anew
from rlplat.cluster.join import address_towards
from rlplat.cluster.node_process import HostError
from rlplat.cluster.settings import SlurmSettings
from rlplat.cluster.slurm import job_script

Write = Callable[[str], Path]
TOY = Path(__file__).with_name("toy_engine.py")
SBATCH = """#!/bin/sh
# runs the job at once, once for each task of its array
[ "$1" = --parsable ] || exit 9
if grep -q partition=nowhere "$2"; then echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1; fi
last=$(sed -n 's/#SBATCH --array=0-//p' "$2")
for task in $(seq 0 ${last:-0}); do
    SLURM_JOB_ID=7$task SLURM_ARRAY_TASK_ID=$task SLURM_NTASKS=1 bash "$2" > "$(dirname "$2")/out-$task" 2>&1
done
echo "70;cluster"
"""
SRUN = """#!/bin/sh
shift    # --unbuffered
SLURM_PROCID=0 exec "$@"
"""
SCONTROL = """#!/bin/sh
case "$1" in
    requeue) echo "$2" >> "$REQUEUED" ;;
    show) echo localhost; echo localhost ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-ins are on PATH; the file that names the jobs that were requeued."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(TOY.parents[2]))
    monkeypatch.setenv("REQUEUED", str(tmp_path / "requeued"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "requeued"


def test_the_script_asks_for_what_the_file_says_and_for_no_port() -> None:
    settings = SlurmSettings(nodes=3, gpus_per_node=2, partition="gpu", time_limit="12:00:00", seeds=[5, 7])
    script = job_script("lab", settings, "/v/python", Path("/shared/a b"))
    assert script.splitlines()[0] == "#!/bin/bash"
    wanted = ["nodes=3", "ntasks=3", "ntasks-per-node=1", "gpus-per-node=2", "partition=gpu", "time=12:00:00",
              "array=0-1", "signal=USR2@120", "requeue", "open-mode=append"]  # fmt: skip
    assert [line for line in wanted if f"#SBATCH --{line}" not in script.splitlines()] == []
    assert script.splitlines()[-1] == "exec srun --unbuffered /v/python -m rlplat.cli join '/shared/a b'"
    assert "account" not in script and "port" not in script


@pytest.mark.parametrize(
    "program, told",
    [
        (["rlplat", "train", "--algo", "ppo", "--out", "runs/a"], True),
        (["uv", "run", "rlplat", "tune", "e.yaml", "--out=runs/a"], True),
        (["rlplat", "train", "--algo", "ppo", "--out=runs/a", "--resume=auto"], False),
        (["/venv/bin/rlplat", "train", "--resume", "runs/a"], False),
        (["python", "train.py", "--out", "runs/a"], False),
    ],
)
def test_submit_says_what_a_second_start_does(
    program: list[str], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    begins_anew(program)
    assert ("--resume auto" in capsys.readouterr().out) is told


@pytest.mark.parametrize("host, expected", [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1")])
def test_the_way_to_a_node_has_an_address_of_either_kind(host: str, expected: str) -> None:
    assert address_towards(host) == expected


def test_a_name_that_leads_nowhere_is_named() -> None:
    with pytest.raises(HostError, match="no way to no"):
        address_towards("no.such.host.invalid")


@pytest.mark.process
def test_a_setup_command_that_fails_ends_the_job_and_is_named(tmp_path: Path) -> None:
    script = job_script("lab", SlurmSettings(), "/v/python", tmp_path, ["true", "test -e 'no such'", "echo never"])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "rlplat: this setup command failed: test -e 'no such'\n"


@pytest.mark.process
def test_a_job_runs_the_program_once_for_each_seed(
    slurm: Path, write: Write, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(
        f"provider: slurm\nengine: rlplat\nfolder: {home}\nslurm: {{seeds: [5, 7]}}\nenv: {{WHO: you}}\n"
        "setup: ['export MODULE=loaded']\n"
    )
    program = "import os, sys; print(os.environ['WHO'], sys.argv[1], os.environ['MODULE'])"
    assert main(["submit", str(path), "--", "python", "-c", program, "{seed}"]) == 0
    assert "job 70: squeue -j 70" in capfd.readouterr().out
    assert [(home / "slurm" / "1" / f"out-{task}").read_text().splitlines()[-1] for task in (0, 1)] == [
        "you 5 loaded",
        "you 7 loaded",
    ]
    assert (home / "slurm" / "1").stat().st_mode & 0o077 == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "program", "said"),
    [
        ("slurm: {partition: nowhere}", ["true"], "invalid partition specified: nowhere"),
        ("slurm: {seeds: [1]}", ["true"], "put {seed} into the program's arguments"),
        ("slurm: {nodes: 1}", ["x", "{seed}"], "give slurm.seeds"),
        ("workdir: nothing-here", ["true"], "nothing-here is not a folder"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_words(
    slurm: Path,
    write: Write,
    home: Path,
    text: str,
    program: list[str],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = write(f"provider: slurm\nengine: rlplat\nfolder: {home}\n{text}\n")
    assert main(["submit", str(path), "--", *program]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.process
def test_a_machine_without_slurm_and_a_join_outside_a_job_say_so(
    write: Write, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(f"provider: slurm\nengine: rlplat\nfolder: {home}\n")
    monkeypatch.setenv("PATH", str(home))
    assert main(["submit", str(path), "--", "true"]) == 2
    assert "there is no sbatch on this machine" in capfd.readouterr().err
    assert main(["join", str(home / "slurm" / "1")]) == 2
    assert "'SLURM_JOB_ID' is not set" in capfd.readouterr().err
    assert main(["join", str(home)]) == 2
    assert "is no folder of `rlplat submit`" in capfd.readouterr().err
    assert main(["up", str(path)]) == 2
    assert "rlplat submit" in capfd.readouterr().err


def job_folder(home: Path, nodes: int, command: list[str]) -> Path:
    folder = home / "slurm" / "1"
    folder.mkdir(parents=True, mode=0o700)
    cluster = {"name": "lab", "provider": "slurm", "slurm": {"nodes": nodes}}
    (folder / "job.json").write_text(json.dumps({"command": command, "workdir": str(home), "cluster": cluster}))
    return folder


def tasks(folder: Path, count: int, restarts: int = 0) -> list[subprocess.Popen[str]]:
    job = {"SLURM_JOB_ID": "70", "SLURM_NTASKS": str(count), "SLURM_RESTART_COUNT": str(restarts)}
    return [
        subprocess.Popen(
            [sys.executable, str(TOY), "join", str(folder)],
            env=os.environ | job | {"SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in reversed(range(count))
    ]


@pytest.mark.process
def test_the_tasks_of_a_job_find_each_other_and_end_with_the_program(slurm: Path, home: Path) -> None:
    program = "import os; print('key', len(open(os.environ['TOY_TOKEN_FILE']).read()), os.environ['TOY_ADDRESS'])"
    folder = job_folder(home, 2, ["python", "-c", program + "\nraise SystemExit(4)"])
    follower, leader = tasks(folder, 2)
    out, _ = leader.communicate(timeout=60)
    assert "key 64 127.0.0.1:" in out and leader.returncode == 4
    follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert (folder / "70-0" / "join.json").stat().st_mode & 0o777 == 0o600
    assert list(folder.glob("70-0/nodes/*/node.json")) == []


@pytest.mark.process
def test_before_the_time_limit_the_program_saves_and_the_job_is_queued_again(slurm: Path, home: Path) -> None:
    program = (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(print('saved', flush=True) or 143))\n"
        "print('begun', flush=True)\ntime.sleep(1000)"
    )
    folder = job_folder(home, 1, ["python", "-c", program])
    (task,) = tasks(folder, 1)
    assert task.stdout is not None
    while (line := task.stdout.readline()) != "begun\n":
        assert line
    task.send_signal(signal.SIGUSR2)
    out, _ = task.communicate(timeout=60)
    assert "saved" in out and "requeueing job 70" in out and task.returncode == 143
    assert slurm.read_text() == "70\n"


@pytest.mark.process
def test_a_program_that_is_done_when_the_signal_comes_is_not_queued_again(slurm: Path, home: Path) -> None:
    program = (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\n"
        "print('begun', flush=True)\ntime.sleep(1000)"
    )
    (task,) = tasks(job_folder(home, 1, ["python", "-c", program]), 1)
    assert task.stdout is not None
    while (line := task.stdout.readline()) != "begun\n":
        assert line
    task.send_signal(signal.SIGUSR1)
    task.communicate(timeout=60)
    assert task.returncode == 0 and not slurm.exists()
