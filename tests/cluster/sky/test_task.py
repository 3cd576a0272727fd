"""Tasks for SkyPilot: by the documented fields; the script as real processes with a stand-in for Ray; the command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplat.cli import main
from rlplat.cluster.settings import ClusterSettings, read_cluster
from rlplat.cluster.sky.task import PORT, as_yaml, sky_task

Write = Callable[[str], Path]
FULL = """\
provider: sky
num_cpus: 8
sky:
  nodes: 2
  infra: aws/us-east-1
  accelerators: A100-80GB:8
  memory_gb: 64
  disk_gb: 200
  use_spot: true
  image: docker:me/train:1
  idle_minutes: 10
  mounts: {/runs: s3://my-runs, ~/data: ~/data}
setup: [pip install ./rlplat.whl]
env: {OMP_NUM_THREADS: "1"}
"""
DOCUMENTED = {
    "name": str,
    "workdir": str,
    "num_nodes": int,
    "resources": {
        "infra": str,
        "accelerators": str,
        "cpus": str,
        "memory": str,
        "disk_size": int,
        "use_spot": bool,
        "image_id": str,
        "autostop": {"idle_minutes": int, "down": bool},
    },
    "envs": {"OMP_NUM_THREADS": str},
    "setup": str,
    "run": str,
}
"""The fields of SkyPilot's YAML reference that are used, with their types; file_mounts are compared."""


def task_of(write: Write, text: str, *program: str) -> dict[str, Any]:
    return sky_task(read_cluster(write(text)), program or ("rlplat", "train"), Path("/here"))


def types_of(value: Any) -> Any:
    return (
        {key: types_of(each) for key, each in value.items()} if isinstance(value, dict) else type(value)
    )  # fmt: skip


def test_a_task_has_the_documented_fields(write: Write, tmp_path: Path) -> None:
    task = task_of(write, f"{FULL}workdir: {tmp_path}\n")
    assert yaml.safe_load(as_yaml(task)) == task
    mounts = task.pop("file_mounts")
    assert types_of(task) == DOCUMENTED
    assert mounts == {
        "/runs": {"source": "s3://my-runs", "mode": "MOUNT_CACHED"},
        "~/data": "~/data",
        "~/.rlplat/clusters/lab/token": "/here/token",
    }
    assert task["resources"] == {
        "infra": "aws/us-east-1",
        "accelerators": "A100-80GB:8",
        "cpus": "8+",
        "memory": "64+",
        "disk_size": 200,
        "use_spot": True,
        "image_id": "docker:me/train:1",
        "autostop": {"idle_minutes": 10, "down": True},
    }
    assert task["setup"] == "set -e\npip install ./rlplat.whl\n"


def test_the_smallest_task_is_one_machine_of_the_cheapest_kind(write: Write) -> None:
    assert task_of(write, "provider: sky\nengine: rlplat\n", "echo", "$HOME; id") == {
        "name": "lab",
        "num_nodes": 1,
        "resources": {"autostop": {"idle_minutes": 30, "down": True}},
        "run": "exec echo '$HOME; id'\n",
    }


RAY = f"""#!{sys.executable}
# Stands for `python -m ray.scripts.scripts start` and for the wait for the nodes.
import os, signal, socket, sys
folder, given = os.environ["RAY_FOLDER"], sys.argv[1:]
with open(f"{{folder}}/calls", "a") as file:
    file.write(" ".join(given[:2] if given[0] == "-m" else ["wait", *given[2:]]) + " " + " ".join(given[3:]) + "\\n")
if given[0] == "-c":
    sys.exit(int(os.environ.get("WAIT_CODE", "0")))
address = next(each for each in given if each.startswith("--node-ip-address=")).partition("=")[2]
server = socket.socket()
if "--head" in given:
    server.bind((address, int(next(each for each in given if each.startswith("--port=")).partition("=")[2])))
    server.listen()
signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def ray(tmp_path: Path) -> Path:
    program = tmp_path / "python"
    program.write_text(RAY)
    program.chmod(0o755)
    (tmp_path / ".rlplat/clusters/lab").mkdir(parents=True)
    (tmp_path / ".rlplat/clusters/lab/token").write_text("x")
    return program


def nodes(write: Write, ray: Path, program: str, env: dict[str, str], ranks: int) -> list[tuple[int, str]]:
    """Exit code and output of the first so many of two nodes, the head's first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = str(probe.getsockname()[1])
    cluster: ClusterSettings = read_cluster(write(f"{FULL}python: {ray}\n"))
    script = sky_task(cluster, ["sh", "-c", program], Path("/here"))["run"].replace(str(PORT), port)
    common = {**os.environ, **env, "HOME": str(ray.parent), "RAY_FOLDER": str(ray.parent), "PORT": port}
    common["SKYPILOT_NODE_IPS"] = "127.0.0.2\n127.0.0.3"
    started = [
        subprocess.Popen(["bash", "-c", script], env=common | {"SKYPILOT_NODE_RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for rank in reversed(range(ranks))
    ]  # fmt: skip
    outputs = [node.communicate(timeout=60)[0] for node in reversed(started)]
    return [(node.returncode, output) for node, output in zip(reversed(started), outputs, strict=True)]


@pytest.mark.process
def test_the_program_runs_on_the_head_once_the_nodes_are_there_and_its_exit_code_is_the_tasks(
    write: Write, ray: Path
) -> None:
    program = (
        'echo "$RLPLAT_BACKEND $RLPLAT_ADDRESS $RAY_AUTH_MODE"; cat "$RAY_AUTH_TOKEN_PATH"\n'
        'until [ "$(grep -c "^-m ray" "$RAY_FOLDER/calls")" = 2 ]; do sleep 0.05; done; exit 7'
    )
    head, other = nodes(write, ray, program, {}, ranks=2)
    assert head[0] == 7 and other[0] == 0
    said, port = head[1].splitlines()[0], head[1].split()[1].partition(":")[2]
    assert said == f"ray 127.0.0.2:{port} token" and "\nx" in head[1]
    calls = (ray.parent / "calls").read_text().splitlines()
    assert [call for call in calls if call.startswith("wait")] == ["wait 2 60 60"]
    starts = {" ".join(call.split()[-3:]) for call in calls if call.startswith("-m ray")}
    assert starts == {
        f"--head --port={port} --include-dashboard=false",
        f"--num-cpus=8 --node-ip-address=127.0.0.3 --address=127.0.0.2:{port}",
    }
    assert (ray.parent / ".rlplat/clusters/lab/token").stat().st_mode & 0o777 == 0o600


@pytest.mark.process
def test_where_nodes_do_not_come_the_program_does_not_start(write: Write, ray: Path) -> None:
    (head,) = nodes(write, ray, "echo begun", {"WAIT_CODE": "3"}, ranks=1)
    assert (head[0], "begun" in head[1]) == (1, False)


@pytest.mark.process
@pytest.mark.parametrize(("wanted", "code", "said"), [(1, 0, ""), (2, 1, "1 of 2 nodes are there after 0.1 s: raise")])
def test_the_wait_for_the_nodes_asks_the_cluster(write: Write, wanted: int, code: int, said: str) -> None:
    text = FULL.replace("nodes: 2", f"nodes: {wanted}") + "start_timeout_s: 0.1\n"
    script = task_of(write, text)["run"]
    begin, end = script.index("python3 -c"), script.index(" || exit 1\nrlplat train")
    done = subprocess.run(
        ["bash", "-c", script[begin:end].replace("python3", sys.executable, 1)],
        env={**os.environ, "RLPLAT_BACKEND": "inproc"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and done.stderr.startswith(said), done.stderr


SKY = """#!/bin/sh
echo "$*" > "$0.call"
exit ${SKY_CODE:-0}
"""


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "sky"
    program.parent.mkdir()
    program.write_text(SKY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.mark.process
def test_submit_gives_the_task_to_sky_and_keeps_the_token_to_this_user(
    sky: Path, write: Write, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write(f"{FULL}folder: {home}\n"))
    assert main(["submit", path, "--", "rlplat", "train"]) == 0
    launched = f"launch --yes --detach-run --cluster lab {home}/task.yaml\n"
    assert sky.with_name("sky.call").read_text() == launched
    token = (home / "token").read_text()
    assert len(token) == 64 and (home / "token").stat().st_mode & 0o777 == 0o600
    assert token not in (home / "task.yaml").read_text()
    monkeypatch.setenv("SKY_CODE", "5")
    assert main(["submit", path, "--", "rlplat", "train"]) == 1
    assert (home / "token").read_text() == token


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["submit", "--", "true"], "SkyPilot is not installed here"),
        (["submit", "--wait", "--", "true"], "sky logs lab shows the log"),
        (["up"], "with provider: sky the machines come with a program"),
        (["down"], "sky down lab"),
    ],
)
def test_what_cannot_be_done_is_one_message(
    write: Write,
    home: Path,
    command: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(home))
    path = str(write(f"{FULL}folder: {home}\n"))
    assert main([command[0], path, *command[1:]]) == 2
    assert said in capfd.readouterr().err


def test_a_dry_run_prints_the_task_and_writes_nothing(
    write: Write, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(write(f"{FULL}folder: {home}\n"))
    assert main(["submit", path, "--dry-run", "--", "rlplat", "train"]) == 0
    assert yaml.safe_load(capfd.readouterr().out)["num_nodes"] == 2
    assert not home.exists()
