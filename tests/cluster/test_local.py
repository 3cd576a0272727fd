"""Clusters on this machine, from the command line: nodes, programs, jobs, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.cli import main
from rlplat.cluster import marks
from rlplat.cluster.launcher import Launcher, NotReady, NotStarted
from rlplat.cluster.settings import read_cluster
from rlplat.processes import start_time
from tests.cluster.toy_engine import ToyEngine, asked

pytestmark = pytest.mark.process
Write = Callable[[str], Path]


@pytest.fixture
def one(write: Write, home: Path, tmp_path: Path) -> Path:
    """A cluster of one node, which programs use with rlplat's own runtime."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "program.py").write_text("import os\nprint('hello', os.environ['WHO'])\n")
    (work / "__pycache__").mkdir()
    (work / "__pycache__" / "old").touch()
    return write(
        f"provider: local\nengine: rlplat\nfolder: {home}\nworkdir: {work}\nenv: {{WHO: you}}\n"
        "setup: ['echo prepared > mark; echo in words']\n"
    )


@pytest.fixture
def toy(write: Write, home: Path) -> Iterator[Path]:
    """Three nodes of an engine of real processes; ended at the end."""
    path = write(f"provider: local\nlocal: {{nodes: 3}}\nfolder: {home}\n")
    yield path
    with Launcher(read_cluster(path), print, ToyEngine()) as launcher:
        launcher.down()


def test_up_copies_files_and_runs_setup_commands_and_says_so(
    one: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", str(one)]) == 0
    said = capfd.readouterr().out
    assert "[local] in words" in said and "node-1  ok" in said
    assert sorted(path.name for path in (home / "files").iterdir()) == ["mark", "program.py"]
    assert home.stat().st_mode & 0o077 == 0


def test_a_program_has_several_nodes_of_the_own_runtime(
    write: Write, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    code = "import rlplat; rlplat.init(); print(len(rlplat.nodes()), rlplat.cluster_resources()['CPU'])"
    (work / "program.py").write_text(code)
    path = str(
        write(f"provider: local\nengine: rlplat\nlocal: {{nodes: 2}}\nfolder: {home}\nworkdir: {work}\nnum_cpus: 2\n")
    )
    try:
        assert main(["up", path]) == 0
        said = capfd.readouterr().out
        assert "node-1  ok, started, 127.0.0.1:" in said
        assert "one program at a time has all nodes" in said
        assert main(["exec", path, "--", sys.executable, "program.py"]) == 0
        assert "2 4.0\n" in capfd.readouterr().out
        assert main(["up", path]) == 0
        assert capfd.readouterr().out.count("was running") == 2
        assert main(["status", path]) == 0
    finally:
        assert main(["down", path]) == 0
    assert not [file for file in home.iterdir() if file.name.startswith("token")]
    assert main(["exec", path, "--", "true"]) == 2
    assert "the cluster is down" in capfd.readouterr().err


def test_a_setup_command_that_fails_is_shown_and_nothing_starts(
    write: Write, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(f"provider: local\nengine: rlplat\nfolder: {home}\nsetup: ['echo no disk; exit 3', 'echo never']\n")
    assert main(["up", str(path)]) == 1
    said = capfd.readouterr()
    assert "[local] no disk" in said.out and "[local] never" not in said.out
    assert "setup command ended with exit code 3: echo no disk; exit 3" in said.err


def test_exec_passes_on_output_and_exit_code(one: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["rsync-up", str(one)]) == 0
    assert main(["exec", str(one), "--", "sh", "-c", "python program.py; exit 7", "--debug"]) == 7
    assert "hello you" in capfd.readouterr().out


def test_no_value_of_the_environment_is_on_a_command_line(
    one: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    call = subprocess.call
    monkeypatch.setattr(subprocess, "call", lambda command: (commands.append(command), call(command))[1])
    assert main(["exec", str(one), "--", "sh", "-c", "echo $WHO"]) == 0
    assert capfd.readouterr().out == "you\n"
    assert len(commands) == 1 and not any("you" in word for word in commands[0])
    assert list((home / "requests").iterdir()) == []


def test_a_job_outlives_its_submitter_and_keeps_log_and_exit_code(
    one: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import time; print('begun', flush=True); time.sleep(0.3); print('ended'); raise SystemExit(5)"
    assert main(["up", str(one)]) == 0
    command = [sys.executable, "-m", "rlplat.cli", "submit", str(one), "--", "python", "-c", program]
    terminal = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert terminal.stdout == f"job 1 in node-1:{home}/files: rlplat jobs {one} logs 1 -f\n"
    assert main(["jobs", str(one), "logs", "1", "-f"]) == 5
    assert "begun\nended\njob 1: failed (5)" in capfd.readouterr().out
    assert main(["jobs", str(one), "--json"]) == 0
    row = json.loads(capfd.readouterr().out)
    assert (row["state"], row["exit_code"], row["id"]) == ("failed", 5, "1")


def test_after_down_a_program_is_refused_and_status_says_so(
    one: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = ["--", "python", "program.py"]
    assert main(["up", str(one)]) == 0
    assert f"programs run in {home}/files on node-1\n" in capfd.readouterr().out
    assert main(["status", str(one)]) == main(["submit", str(one), "--wait", *program]) == 0
    assert main(["down", str(one)]) == 0
    assert "node-1  stopped\n" in capfd.readouterr().out
    assert main(["status", str(one)]) == 1 and "node-1  absent\n" in capfd.readouterr().out
    assert main(["submit", str(one), *program]) == 2
    assert f"node-1: the cluster is down; rlplat up {one} starts it\n" in capfd.readouterr().err
    assert main(["down", str(one)]) == 0 and "node-1  was not running\n" in capfd.readouterr().out


def test_stop_lets_a_program_save_and_ends_what_it_started(
    one: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(print('saved', flush=True)))\n"
        "subprocess.Popen(['setsid', 'sleep', '1000'])\n"
        "print('begun', flush=True)\ntime.sleep(1000)"
    )
    assert main(["up", str(one)]) == main(["submit", str(one), "--", "python", "-c", program]) == 0
    log = home / "jobs" / "1" / "log"
    while "begun" not in log.read_text():
        pass
    assert main(["jobs", str(one), "stop", "1"]) == 0
    assert "job 1: stopped" in capfd.readouterr().out
    assert log.read_text() == "begun\nsaved\n"
    assert marks.marked(marks.JOB, str(home / "jobs" / "1")) == []


def test_a_job_whose_supervisor_was_killed_is_lost_not_running(
    one: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(print('saved', flush=True)))\n"
        "print('begun', flush=True)\ntime.sleep(1000)"
    )
    assert main(["up", str(one)]) == main(["submit", str(one), "--", "python", "-c", program]) == 0
    log = home / "jobs" / "1" / "log"
    while "begun" not in log.read_text():
        time.sleep(0.02)
    os.kill(json.loads((home / "jobs" / "1" / "job.json").read_text())["pid"], signal.SIGKILL)
    assert main(["jobs", str(one), "logs", "1", "-f"]) == 1
    assert "lost" in capfd.readouterr().out
    assert main(["down", str(one)]) == 0  # ends what the job left, and lets it save
    assert log.read_text() == "begun\nsaved\n" and marks.marked(marks.JOB, str(home / "jobs" / "1")) == []


def test_what_is_not_there_is_named(one: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", str(one), "logs", "3"]) == 2
    assert "there is no job '3' (jobs: none)" in capfd.readouterr().err
    assert main(["exec", str(one), "--node", "gpu", "--", "true"]) == 2
    assert "there is no node 'gpu' (nodes: node-1)" in capfd.readouterr().err
    assert main(["exec", str(one), "--", "no-such-program"]) == 127
    assert "no-such-program: No such file" in capfd.readouterr().err
    assert main(["rsync-down", str(one), "nothing", str(tmp_path)]) == 2
    assert "nothing does not exist" in capfd.readouterr().err
    assert main(["submit", str(one)]) == 2
    assert "-- PROGRAM" in capfd.readouterr().err


def test_files_come_back(one: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["rsync-up", str(one), str(tmp_path / "work"), "more/of it"]) == 0
    assert main(["rsync-down", str(one), "more", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "more" / "of it" / "program.py").read_text().startswith("import os")


def test_a_link_that_leads_outside_is_named_with_the_fix(
    one: Path, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work" / "data").symlink_to("/somewhere")
    assert main(["rsync-up", str(one)]) == 2
    assert "'data' is a link to an absolute path: put a copy in its place" in capfd.readouterr().err
    (tmp_path / "work" / "data").unlink()
    assert main(["rsync-up", str(one)]) == 0
    (home / "files" / "a").symlink_to("/somewhere")
    (home / "files" / "big").write_bytes(bytes(1_000_000))
    assert main(["rsync-down", str(one), ".", str(tmp_path / "back")]) == 2
    said = capfd.readouterr().err
    assert "'files/a' is a link to an absolute path: copy what is wanted" in said and "Traceback" not in said
    assert main(["rsync-down", str(one), "program.py", str(one)]) == 2
    assert f"'{one}' cannot be a folder here: File exists" in capfd.readouterr().err


def launched(path: Path, engine: ToyEngine, said: list[str]) -> Any:
    with Launcher(read_cluster(path), said.append, engine) as launcher:
        return launcher.up()


def test_up_starts_the_head_and_the_others_join_it_and_again_changes_nothing(toy: Path, home: Path) -> None:
    rows = launched(toy, ToyEngine(), [])
    assert [row.node for row in rows] == ["node-1", "node-2", "node-3"] and all(row.is_ok for row in rows)
    pids = [json.loads((home / "nodes" / row.node / "node.json").read_text())["pid"] for row in rows]
    again = launched(toy, ToyEngine(), [])
    assert ["was running" in row.text for row in again] == [True] * 3
    assert [json.loads((home / "nodes" / row.node / "node.json").read_text())["pid"] for row in again] == pids


def test_a_node_that_ended_is_shown_and_started_again(toy: Path, home: Path) -> None:
    launched(toy, ToyEngine(), [])
    pid = json.loads((home / "nodes" / "node-2" / "node.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    with Launcher(read_cluster(toy), print, ToyEngine()) as launcher:
        while start_time(pid) is not None:
            pass
        rows = launcher.status()
        assert [row.is_ok for row in rows] == [True, False, True] and "ended" in rows[1].text
        assert ["was running" in row.text for row in launcher.up()] == [True, False, True]


def test_a_node_that_does_not_start_is_shown_with_its_log_and_the_others_are_ended(write: Write, home: Path) -> None:
    path = write(f"provider: local\nlocal: {{nodes: 2}}\nfolder: {home}\n")
    said: list[str] = []
    with pytest.raises(NotStarted) as raised:
        launched(path, ToyEngine(broken_address="127.0.0.1"), said)
    assert "no room for a node here" in str(raised.value) and "ended with exit code 1" in str(raised.value)
    assert said == ["ending what was started: node-1"]


def test_the_key_is_in_no_command_line_and_no_environment(toy: Path, home: Path) -> None:
    launched(toy, ToyEngine(), [])
    token = (home / "token").read_text()
    assert (home / "token").stat().st_mode & 0o777 == 0o600 and len(token) == 64
    shown = [
        (place / name).read_bytes()
        for place in Path("/proc").glob("[0-9]*")
        for name in ("cmdline", "environ")
        if _is_readable(place / name)
    ]
    assert any(b"toy_engine" in each for each in shown)
    assert not any(token.encode() in each for each in shown)
    address = json.loads((home / "nodes" / "node-1" / "node.json").read_text())["address"]
    assert (asked(token, address), asked("guess", address)) == ("yes", "no")


def _is_readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_folder_of_another_user_is_refused(write: Write, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to give a folder away")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    path = write(f"provider: local\nfolder: {folder}\n")
    with pytest.raises(NotStarted, match="is not a folder of this user"):
        launched(path, ToyEngine(), [])


def test_another_version_on_a_machine_is_refused_before_anything_starts(write: Write, home: Path) -> None:
    class NeedsMore(ToyEngine):
        def complaint(self, seen: Any) -> str | None:
            return f"rlplat {seen['rlplat']} is too old"

    with pytest.raises(NotReady, match="is too old"):
        launched(write(f"provider: local\nfolder: {home}\n"), NeedsMore(), [])
    assert not home.exists()
