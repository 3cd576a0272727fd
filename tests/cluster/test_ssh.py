"""Machines behind a real sshd: connections, refusals in ssh's own words, nodes, programs, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlplat.cli import main
from rlplat.cluster import marks
from rlplat.cluster.launcher import Launcher, NotReady, NotStarted
from rlplat.cluster.settings import read_cluster
from tests.cluster.conftest import Sshd
from tests.cluster.toy_engine import ToyEngine

pytestmark = pytest.mark.process
Write = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of the hosts: this one, which finds rlplat although the session begins elsewhere."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def two(sshd: Sshd, write: Write, home: Path, python: Path) -> Path:
    return write(f"provider: ssh\n{sshd.section(2)}\nfolder: {home}\npython: {python}\nsetup: ['echo hello']\n")


@pytest.fixture
def one(sshd: Sshd, write: Write, home: Path, python: Path) -> Path:
    return write(f"provider: ssh\nengine: rlplat\n{sshd.section(1)}\nfolder: {home}\npython: {python}\n")


@pytest.fixture
def scratch() -> Iterator[dict[str, str]]:
    """For commands that are killed: a folder of their own in place of /tmp, short as the paths of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield {"TMPDIR": folder}


def test_up_starts_a_node_on_every_host_and_down_ends_them(two: Path, home: Path, sshd: Sshd) -> None:
    said: list[str] = []
    with Launcher(read_cluster(two), said.append, ToyEngine()) as launcher:
        rows = launcher.up()
    assert [row.node for row in rows] == sshd.hosts[:2] and all("started" in row.text for row in rows)
    assert all(f"[{host}] hello" in said for host in sshd.hosts[:2])  # each host's output, under its name
    with Launcher(read_cluster(two), said.append, ToyEngine()) as launcher:
        assert [row.text.split(",")[0] for row in launcher.status()] == ["ok"] * 2
        assert ["was running" in row.text for row in launcher.up()] == [True] * 2
        assert [row.text for row in launcher.down()] == ["stopped"] * 2
        assert [row.text for row in launcher.down()] == ["was not running"] * 2
    assert not (home / "token").exists()


def test_one_host_that_fails_ends_the_others_too(two: Path, home: Path, sshd: Sshd) -> None:
    with Launcher(read_cluster(two), print, ToyEngine(broken_address="127.0.0.2")) as launcher:
        with pytest.raises(NotStarted, match="1 of 2 nodes cannot be used") as raised:
            launcher.up()
    assert f"{sshd.hosts[1]}  node {sshd.hosts[1]} ended with exit code 1" in str(raised.value)
    assert list(home.glob("nodes/*/node.json")) == []


def test_a_changed_host_key_is_refused(one: Path, sshd: Sshd, capfd: pytest.CaptureFixture[str]) -> None:
    known = sshd.known_hosts.read_text()
    other = " ".join((sshd.folder / "user.pub").read_text().split()[:2])
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {other}\n")
    try:
        assert main(["up", str(one)]) == 2
    finally:
        sshd.known_hosts.write_text(known)
    said = capfd.readouterr().err
    assert "Host key verification failed" in said and "ssh-keygen -R" in said and "nothing was started" in said


def test_an_unknown_host_key_is_refused(one: Path, sshd: Sshd, capfd: pytest.CaptureFixture[str]) -> None:
    known = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text("")
    try:
        assert main(["up", str(one)]) == 2
    finally:
        sshd.known_hosts.write_text(known)
    assert "is not known yet: ssh 127.0.0.1 once by hand" in capfd.readouterr().err


def test_a_refused_key_names_the_host_and_nothing_starts_anywhere(
    two: Path, sshd: Sshd, home: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    config = tmp_path / "config"
    config.write_text(f"{sshd.config.read_text()}Host 127.0.0.2\n  IdentitiesOnly yes\n  IdentityFile {other}\n"
                      f"Host 127.0.0.1\n  IdentityFile {sshd.key}\n")  # fmt: skip
    two.write_text(two.read_text().replace(str(sshd.config), str(config)).replace(f"identity_file: {sshd.key}, ", ""))
    with Launcher(read_cluster(two), print, ToyEngine()) as launcher, pytest.raises(NotReady) as raised:
        launcher.up()
    lines = str(raised.value).splitlines()
    assert lines[0] == "1 of 2 nodes cannot be used; nothing was started"
    assert [line.split("  ")[1].split(":")[0] for line in lines[1:]] == ["ready", "root@127.0.0.2"]
    assert "Permission denied" in lines[2] and "ssh-copy-id" in lines[2]
    assert not home.exists()


def test_an_unreachable_host_is_unknown_not_gone(two: Path, sshd: Sshd, home: Path) -> None:
    with Launcher(read_cluster(two), print, ToyEngine()) as launcher:
        launcher.up()
    text = two.read_text()
    two.write_text(text.replace(sshd.hosts[1], "127.0.0.9:1"))
    with Launcher(read_cluster(two), print, ToyEngine()) as launcher:
        assert "unknown: " in (said := launcher.status()[1].text) and "refused" in said
        assert launcher.down()[1].text.startswith("unknown, may be running: ")
    two.write_text(text)
    with Launcher(read_cluster(two), print, ToyEngine()) as launcher:
        launcher.down()


def test_a_host_without_python_or_without_rlplat_says_so(
    one: Path, python: Path, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one.write_text(one.read_text().replace(f"python: {python}", "python: /no/python3"))
    assert main(["up", str(one)]) == 2
    assert "there is no /no/python3: set python:" in capfd.readouterr().err
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -I "$@"\n')
    bare.chmod(0o755)
    one.write_text(one.read_text().replace("/no/python3", str(bare)))
    assert main(["up", str(one)]) == 2
    assert "has no rlplat: install the same version there" in capfd.readouterr().err


def test_programs_run_there_with_their_exit_code_and_arguments_as_given(
    one: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = "a b; $(id) 'q' \"d\" *"
    assert main(["exec", str(one), "--", "sh", "-c", 'echo "[$0]"; exit 7', odd]) == 7
    assert f"[{odd}]" in capfd.readouterr().out


def test_a_job_goes_on_when_the_connection_is_cut(
    one: Path, home: Path, scratch: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import time\nprint('begun', flush=True)\ntime.sleep(1.5)\nprint('ended')"
    command = [
        sys.executable,
        "-m",
        "rlplat.cli",
        "submit",
        str(one),
        "--wait",
        "--",
        "python3",
        "-c",
        program,
    ]
    assert main(["up", str(one)]) == 0
    terminal = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | scratch
    )
    assert terminal.stdout is not None
    while "begun" not in terminal.stdout.readline():
        pass
    os.killpg(terminal.pid, signal.SIGKILL)  # with its ssh
    terminal.communicate()
    assert main(["jobs", str(one), "logs", "1", "-f"]) == 0
    assert "begun\nended\njob 1: done" in capfd.readouterr().out


def test_files_travel_both_ways(one: Path, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(os.urandom(300_000))
    (source / "tool").write_text("#!/bin/sh\necho ran\n")
    (source / "tool").chmod(0o755)
    assert main(["rsync-up", str(one), str(source)]) == 0
    assert main(["exec", str(one), "--", "./tool"]) == 0
    assert main(["rsync-down", str(one), "a", str(tmp_path)]) == 0
    assert (tmp_path / "a").read_bytes() == (source / "a").read_bytes()
    assert "ran\n" in capfd.readouterr().out


def test_a_port_there_is_reached_from_here(one: Path, home: Path, scratch: dict[str, str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as probe:
        port, local_port = there.getsockname()[1], probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "rlplat.cli", "port-forward", str(one), f"{local_port}:{port}"]
        forward = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | scratch
        )
        try:
            assert forward.stdout is not None and f"127.0.0.1:{local_port}" in forward.stdout.readline()
            while True:
                try:
                    near = socket.create_connection(("127.0.0.1", local_port))
                    break
                except ConnectionRefusedError:
                    assert forward.poll() is None
            with near:
                near.sendall(b"hello")
                far, _ = there.accept()
                with far:
                    assert far.recv(5) == b"hello"
        finally:
            forward.terminate()  # it alone: its ssh and the folder for sockets have to end with it
            forward.communicate()
    assert forward.returncode == 143 and os.listdir(scratch["TMPDIR"]) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", local_port))


def test_the_key_of_the_cluster_travels_by_standard_input(two: Path, home: Path, sshd: Sshd, tmp_path: Path) -> None:
    """Every command line and environment that the launcher gives to a program, written down by a stand-in for ssh
    that then is ssh."""
    trace = tmp_path / "trace"
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "ssh").write_text(f'#!/bin/sh\n{{ echo "$@"; env; }} >> {trace}\nexec /usr/bin/ssh "$@"\n')
    (bin_folder / "ssh").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
        with Launcher(read_cluster(two), print, ToyEngine()) as launcher:
            launcher.up()
            token = (home / "token").read_text()
            launcher.down()
    text = trace.read_text()
    assert text.count("rlplat.cluster.host start") == 2 and token not in text
    assert json.dumps(token) not in text and marks.marked(marks.NODE, str(home)) == []


def test_hosts_work_for_a_program_with_the_own_runtime(
    sshd: Sshd, write: Write, home: Path, python: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"provider: ssh\nengine: rlplat\n{sshd.section(2)}\nfolder: {home}\npython: {python}\nnum_cpus: 2\n"
    path = str(write(text))
    code = "import rlplat; rlplat.init(); print(len(rlplat.nodes()), rlplat.cluster_resources()['CPU'])"
    try:
        assert main(["up", path]) == 0, capfd.readouterr().err
        assert main(["exec", path, "--", str(python), "-c", code]) == 0
        assert capfd.readouterr().out.splitlines()[-1] == "2 4.0"
    finally:
        assert main(["down", path]) == 0
