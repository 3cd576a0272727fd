"""`rlplat status`, `list`, `stack`, `timeline`, `memory`: as commands, from another process, on a living cluster."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat import state
from rlplat.cli import main
from rlplat.runtime.look import observer
from tests.patience import soon

pytestmark = pytest.mark.process


@rlplat.remote
def wait_for(path: str, *after: Any) -> int:
    while not os.path.exists(path):
        time.sleep(0.005)
    return 0


@rlplat.remote
class Learner:
    def learn(self, path: str) -> int:
        while not os.path.exists(path):
            time.sleep(0.005)
        return 1


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Any]:
    """Two tasks run, a hundred wait for a CPU, one for an argument; an actor is in its first of three calls."""
    rlplat.init(num_cpus=2, num_gpus=0)
    go = str(tmp_path / "go")
    big = rlplat.put(np.zeros(500_000))
    learner = Learner.options(name="the-learner").remote()
    tasks = [wait_for.remote(go) for _ in range(102)]
    late = wait_for.options(name="late").remote(go, tasks[0])
    calls = [learner.learn.remote(go) for _ in range(3)]
    wanted = {"running": 3, "queued": 2, "waiting-worker": 100, "waiting-args": 1}
    assert soon(lambda: {**state.cluster_status()["tasks"], "ended": 0} == {**wanted, "ended": 0})
    yield big
    Path(go).touch()
    rlplat.get([late, *tasks, *calls])
    rlplat.shutdown()


def rlplat_command(*arguments: str) -> str:
    """Its output; run as the user would, in another process, which has the patience of this one."""
    patient = f"import sys; from rlplat.runtime.look import observer; observer.ANSWER_S = {observer.ANSWER_S}; "
    program = patient + "from rlplat.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *arguments, "--pid", str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status(busy: Any) -> None:
    said = rlplat_command("status")
    lines = said.splitlines()
    assert lines[0].startswith(f"cluster of pid {os.getpid()} (")
    assert "CPU          2      2" in said and "actors   1 alive" in said
    assert "tasks    3 running, 2 queued, 100 waiting-worker, 1 waiting-args" in said
    status = json.loads(rlplat_command("status", "--json"))
    assert status["resources"]["CPU"] == {"used": 2.0, "total": 2.0} and status["store"]["bytes"] > 4_000_000


def test_list(busy: Any, capsys: Any) -> None:
    pid = ("--pid", str(os.getpid()))
    table = rlplat_command("list", "tasks", "--limit", "7").splitlines()
    assert table[0].split() == ["task", "name", "kind", "state", "worker", "owner", "waits", "resources"]
    assert len(table) == 8 and [row.split()[3] for row in table[1:4]] == ["running"] * 3
    assert main(["list", "tasks", "--filter", "state=waiting-args", "--json", *pid]) == 0
    (late,) = json.loads(capsys.readouterr().out)
    assert late["name"] == "late" and late["waits"] == 1
    assert main(["list", "tasks", "--limit", "2", *pid]) == 0
    assert "2 of 106" in capsys.readouterr().err
    assert main(["list", "tasks", "--summary", *pid]) == 0
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["name", "running", "queued", "waiting-worker", "waiting-args", "ended", "mean"]
    assert next(row for row in rows if row[0] == "Learner.learn")[1:3] == ["1", "2"]
    for what, wanted in {
        "actors": "the-learner",
        "workers": "leased",
        "nodes": "alive",
        "objects": "shm",
        "placement-groups": "strategy",
        "clusters": f"rlplat-{os.getpid()}-",
    }.items():
        assert main(["list", what, *([] if what == "clusters" else pid)]) == 0
        assert wanted in capsys.readouterr().out, what
        assert main(["list", what, "--json", *([] if what == "clusters" else pid)]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), list)


def test_memory_says_who_holds_what(busy: Any, capsys: Any) -> None:
    said = rlplat_command("memory", "--limit", "1")
    assert f"driver (pid {os.getpid()}) owns " in said and "4.0 MB" in said and "put" in said
    assert f"driver:{busy.id}" in said
    assert main(["memory", "--summary", "--pid", str(os.getpid())]) == 0
    header, first, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["count", "size", "where", "made", "by"] and first == ["1", "4.0", "MB", "shm", "put"]
    assert main(["memory", "--json", "--pid", str(os.getpid())]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["owners"][0]["pid"] == os.getpid()


def test_stack_shows_user_code(busy: Any, capsys: Any) -> None:
    said = rlplat_command("stack")
    assert f"== driver (pid {os.getpid()})" in said and "in Learner.learn" in said and "== node" in said
    assert "in wait_for" in said and "waits for work" in said and "zygote" not in said
    assert main(["stack", "the-learner", "--all", "--pid", str(os.getpid())]) == 0
    said = capsys.readouterr().out
    assert said.count("== ") == 1 and "Learner" in said and "zygote" in said and "-- rlplat-io" in said


def test_timeline(busy: Any, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert str(file) in rlplat_command("timeline", "--out", str(file))
    events = json.loads(file.read_text())["traceEvents"]
    assert "Learner.__init__" in {event["name"] for event in events}
    assert json.loads(rlplat_command("timeline", "--out", "-"))["traceEvents"]


@rlplat.remote
class Speaker:
    def say(self, text: str) -> None:
        print(text, flush=True)


@rlplat.remote
def say(text: str) -> None:
    print(text, flush=True)


def test_logs_while_it_runs_and_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("RLPLAT_LOG_DIR", str(tmp_path))
    pid = ("--pid", str(os.getpid()))
    rlplat.init(num_cpus=1, num_gpus=0)
    try:
        speaker = Speaker.options(name="loud").remote()
        rlplat.get([speaker.say.remote(f"line {n}") for n in range(5)] + [say.remote("from a task")])
        for name in ("loud", "Speaker"):
            assert soon(lambda name=name: rlplat_command("logs", name, "--tail", "2") == "line 3\nline 4\n")
        assert main(["logs", *pid]) == 0
        header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
        assert header == ["worker", "pid", "actor", "size"] and "Speaker" in {row[2] for row in rows}
        command = [sys.executable, "-m", "rlplat.cli", "logs", "all", "-f", "--tail", "0", *pid]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert follower.stdout is not None
        heard: list[str] = []
        while not heard:  # it may not be there yet for the first words
            rlplat.get(speaker.say.remote("come in"))
            if select.select([follower.stdout], [], [], 0.1)[0]:
                heard.append(follower.stdout.readline())
        rlplat.get(speaker.say.remote("last words"))
    finally:
        rlplat.shutdown()
    rest, _ = follower.communicate(timeout=60)
    said = [line.split(")")[0] for line in [*heard, *rest.splitlines()]]
    assert rest.splitlines()[-1].endswith("Speaker) last words") and all("Speaker" in who for who in said)
    assert follower.returncode == 0, "it ends with the cluster"
    assert main(["logs", "Speaker", "--tail", "1", *pid]) == 0
    assert capsys.readouterr().out == "last words\n"
    assert main(["logs", "nobody", *pid]) == 2
    assert "no worker or actor 'nobody'" in capsys.readouterr().err


# ---------------------------------------------------------------- which cluster


@pytest.mark.parametrize("command", ["status", "stack", "memory", "timeline"])
def test_no_cluster(command: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "running_sessions", list)
    assert main([command]) == 2
    assert "no cluster of this user is running" in capsys.readouterr().err


def test_several_clusters(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"/dev/shm/rlplat-{pid}-1-x" for pid in (os.getpid(), os.getppid())]
    monkeypatch.setattr(observer, "running_sessions", lambda: names)
    assert main(["status"]) == 2
    said = capsys.readouterr().err
    assert "2 clusters are running" in said and f"--pid {os.getpid()}  " in said
    assert main(["status", "--pid", "0"]) == 2
    assert "no cluster '0' is running; running:" in capsys.readouterr().err


def test_a_cluster_is_chosen_by_folder_name_or_pid(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    session = observer.find_session()
    with monkeypatch.context() as patch:
        patch.setattr(observer.refs, "_backend", None)
        for choice in (session, session + "/", os.path.basename(session), os.getpid(), str(os.getpid())):
            assert observer.find_session(choice) == session


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "taskz"], "not 'taskz'"),
        (["list", "tasks", "--limit", "0"], "--limit is a positive number"),
        (["list", "tasks", "--filter", "running"], "COLUMN=VALUE"),
        (["list", "actors", "--summary"], "--summary counts all tasks"),
        (["status", "--pid", "1", "--session", "x"], "omit one of them"),
        (["memory", "--limit", "-1"], "--limit is a positive number"),
        (["logs", "--tail", "-1"], "--tail is a number of lines"),
        (["statsu"], "did you mean 'status'?"),
    ],
)
def test_bad_usage(capsys: Any, arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_help_is_as_quick_as_before() -> None:
    """Nothing of the runtime is imported for it."""
    program = (
        "import sys; from rlplat.cli import main; main(['--help']); "
        "print([m for m in sys.modules if m.startswith(('zmq', 'rich', 'rlplat.runtime'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "rlplat status" in done.stdout


@pytest.mark.parametrize("command", ["status", "list tasks", "logs", "stack", "memory", "timeline"])
def test_where_programs_run_on_ray_each_command_says_what_shows_it_there(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLPLAT_BACKEND", "ray")
    assert main(command.split()) == 2
    assert "on Ray" in (said := capsys.readouterr().err) and "`ray status`" in said
