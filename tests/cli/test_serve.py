"""`rlplat serve`: the page's curl commands work, wrong usage is one line with exit code 2, Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

import rlplat
from rlplat import tune
from rlplat.cli import main
from rlplat.cli import serve as serve_command
from tests.house.test_docs import ROOT, blocks
from tests.serve.calling import train

PAGE = ROOT / "docs" / "serving.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("cli") / "runs"
    train(runs / "demo")
    return runs


@contextmanager
def serving(runs: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "rlplat.cli", "serve", "runs/demo", "--port", "0", *options]
    process = subprocess.Popen(
        command, cwd=runs.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line
        yield found[0], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.process
def test_the_pages_curl_commands_are_answered_and_ctrl_c_leaves_nothing(runs: Path) -> None:
    program = "\n".join(blocks(PAGE, "bash"))
    assert program.count("curl") >= 12
    with serving(runs) as (url, process):
        children = psutil.Process(process.pid).children(recursive=True)
        script = program.replace("http://127.0.0.1:8000", url).replace("curl ", "curl -s -S -w '\\n' ")
        done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        first, second, infer, policy, ready, *_ = done.stdout.splitlines()
        assert set(json.loads(first)) == {"action", "env_steps"}
        assert [len(json.loads(second)[name]) for name in ("action", "log_prob", "value")] == [2, 2, 2]
        assert json.loads(infer)["model_name"] == "demo" and json.loads(policy)["env"] == "CartPole-v1"
        assert ready == "ready" and '{"error":' not in done.stdout.replace('{"error":{"type"', "")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stdout is not None and process.stdout.read() == ""
        assert psutil.wait_procs(children, timeout=10)[1] == []
        port = int(url.rsplit(":")[-1])
        with socket.socket() as again:
            assert again.connect_ex(("127.0.0.1", port)) != 0


def refused(arguments: list[str], capsys: Any) -> str:
    assert main(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return str(line)


def test_wrong_usage_is_one_line(runs: Path, capsys: Any, tmp_path: Path) -> None:
    run = str(runs / "demo")
    capsys.readouterr()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refused([run, "--port", str(port)], capsys)
    assert "--token-file" in refused([run, "--host", "0.0.0.0", "--port", "0"], capsys)
    assert "a port is a number from 0 to 65535" in refused([run, "--port", "99999"], capsys)
    assert "cannot listen on 203.0.113.7:0" in refused(
        [run, "--host", "203.0.113.7", "--port", "0", "--token-file", str(PAGE)], capsys
    )
    assert "no run in" in refused([str(tmp_path)], capsys)
    assert "has no checkpoint 'step_7'" in refused([run, "--checkpoint", "step_7"], capsys)
    assert "--replicas is a positive number" in refused([run, "--replicas", "0"], capsys)
    empty = tmp_path / "token"
    empty.write_text("\n")
    assert "is empty" in refused([run, "--token-file", str(empty)], capsys)
    assert "cannot read the token" in refused([run, "--token-file", str(tmp_path / "none")], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("serve.yaml --port 8000", ("--port does nothing with serve.yaml", "applications.NAME.port")),
        ("serve.yaml --replicas 4", ("--replicas", "applications.NAME.replicas")),
        ("serve.yaml --checkpoint best", ("--checkpoint", "applications.NAME.checkpoint")),
        ("serve.yaml --follow", ("--follow", "applications.NAME.follow")),
        ("serve.yaml --host 0.0.0.0", ("--host", "applications.NAME.host")),
        ("serve.yaml --token-file t", ("--token-file", "applications.NAME.token_file")),
        ("serve.yaml --policy a", ("--policy", "applications.NAME.policy")),
        ("serve.yaml --name a", ("--name", "set applications.NAME there")),
        ("serve.yaml --max-rows 8", ("--max-rows", "applications.NAME.max_rows")),
        ("app.py:app --replicas 1", ("--replicas is for a run", "num_replicas= of @serve.deployment")),
        ("app.py:app --follow", ("--follow is for a run", "omit it")),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: str, words: tuple[str, ...], capsys: Any) -> None:
    line = refused(arguments.split(), capsys)
    assert all(each in line for each in words), line


def test_an_application_of_ones_own_takes_an_address(capsys: Any) -> None:
    assert "there is no file none.py" in refused(["none.py:app", "--port", "0", "--host", "127.0.0.1"], capsys)


@pytest.mark.process
def test_a_token_is_asked_for(runs: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    with serving(runs, "--token-file", str(token)) as (url, _):
        command = shlex.split(f"curl -s -o /dev/null -w %{{http_code}} {url}/v1/policy")

        def status(*header: str) -> str:
            done = subprocess.run([*command, *header], capture_output=True, text=True, timeout=30)
            return done.stdout

        assert status() == "401"
        assert status("-H", "Authorization: Bearer open sesamf") == "401"
        assert status("-H", "Authorization: Bearer open sesame") == "200"


@pytest.mark.process
@pytest.mark.slow
def test_the_best_trial_of_an_experiment_is_served(tmp_path: Path, capsys: Any) -> None:
    small = ["num_rollout_workers=0", "rollout_length=32", "num_envs_per_worker=2", "stop.env_steps=64"]
    flags = ["--set", "learning_rate={grid: [1e-4, 1e-3]}", *small, "--out", str(tmp_path / "exp")]
    assert main(["tune", "--algo", "ppo", "--env", "CartPole-v1", "--num-samples", "1", *flags]) == 0
    capsys.readouterr()
    path = serve_command.best_trial(tmp_path / "exp")
    analysis = tune.load(tmp_path / "exp")
    assert path == tmp_path / "exp" / "trials" / analysis.best_trial.directory_name
    assert f"the best trial of {tmp_path / 'exp'} is {analysis.best_trial.number}" in capsys.readouterr().err
    assert rlplat.load(path).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert serve_command.best_trial(path) == path  # a run is itself
