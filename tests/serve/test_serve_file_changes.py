"""What `apply` does with an application that fails, and in which order; nothing runs but the listening sockets."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from rlplat.cli import main
from rlplat.errors import RlplatError
from rlplat.serve.files import applications as applications_module
from rlplat.serve.files.applications import Applications
from rlplat.serve.files.control import ControlServer
from rlplat.serve.files.settings import read_applications

PROGRAM = "from rlplat import serve\n@serve.deployment\nclass A: pass\napp = A.bind()\n"


class Listening:
    """What an application takes of this machine."""

    def __init__(self, app: Any, *, host: str, port: int, token: str) -> None:
        self.socket = socket.create_server((host, port))
        self.port = port

    def stop(self) -> None:
        self.socket.close()


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(applications_module, "run", Listening)
    made = Applications()
    yield made
    made.stop()


def apply(applications: Applications, folder: Path, **ports_by_file: tuple[str, int]) -> dict[str, str]:
    lines = [f"  {name}: {{app: {file}.py:app, port: {port}}}" for name, (file, port) in ports_by_file.items()]
    (folder / "serve.yaml").write_text("\n".join(["applications:", *lines]))
    return applications.apply(read_applications(folder / "serve.yaml"))


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_applications_swap_their_ports(applications: Applications, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PROGRAM)
    one, two = free_ports(2)
    apply(applications, tmp_path, first=("a", one), second=("a", two))
    assert apply(applications, tmp_path, first=("a", two), second=("a", one)) == {
        "first": "restarted",
        "second": "restarted",
    }
    assert {name: each.port for name, each in applications._running.items()} == {"first": two, "second": one}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import os\nprint(undefined)\n",
            r"^a: NameError: name 'undefined' is not defined \(at .*broken.py:2\)$",
        ),
        ("import json\n\njson.loads('x')\n", r"^a: JSONDecodeError: .* \(at .*broken.py:3\)$"),
        ("def app(:\n", r"^a: SyntaxError: .* \(at .*broken.py:1\)$"),
        ("raise SystemExit(3)\n", r"^a: SystemExit: 3 \(at .*broken.py:1\)$"),
    ],
)
def test_an_application_that_fails_is_named_and_the_others_start(
    program: str, message: str, applications: Applications, tmp_path: Path
) -> None:
    (tmp_path / "b.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text(program)
    one, two = free_ports(2)
    with pytest.raises(RlplatError, match=message):
        apply(applications, tmp_path, a=("broken", one), b=("b", two))
    assert list(applications._running) == ["b"]


def test_a_process_that_gives_no_answer_is_named_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file, goes_on = tmp_path / "serve.yaml", threading.Event()

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        goes_on.wait()
        return {"pid": 2**22, "is_ready": True}

    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    with ControlServer(file, answer):
        for verb in ("status", "deploy", "shutdown"):
            assert main(["serve", verb, str(file), "--timeout-s", "0.05"]) == 1
            said = capsys.readouterr().err
            assert f"process {os.getpid()} that serves {file} gave no answer to status within 0.05 s" in said
        goes_on.set()
        assert main(["serve", "shutdown", str(file), "--timeout-s", "0.3"]) == 1
        assert f"process {2**22} that serves {file} has not ended 0.3 s after" in capsys.readouterr().err
