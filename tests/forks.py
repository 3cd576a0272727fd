"""Programs as forks of a process that has imported what they need: a start of Python with torch takes two seconds.

    with Door("rlplat.cli", "torch") as door:  # in a fixture of the module
        program = door.start("rlplat.cli", ["train", ...])  # as `python -m rlplat.cli train ...`
        out, errors = program.communicate()

Each is a process of its own, with the environment that this one has at its start: it can be killed, and what it starts
carries the leak meter's mark. What forks of one door share is the order of sets (`hash_seed`) and what imports did.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class Program:
    """What a test needs of `subprocess.Popen`, with files in place of pipes: nothing blocks when nobody reads."""

    def __init__(self, status: int, out: Any, errors: Any) -> None:
        self._status, self._outputs = open(status), (out, errors)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        self.returncode = int(self._status.readline())
        self._status.close()
        said = []
        for file in self._outputs:
            file.seek(0)
            said.append(file.read())
            file.close()
        return said[0], said[1]


class Door:
    def __init__(self, *modules: str, hash_seed: int = 0) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
                pass_fds=[theirs.fileno()],
            )

    def __enter__(self) -> Door:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()
        self._process.wait()

    def start(self, module: str, arguments: list[str], *, cwd: Path = ROOT) -> Program:
        """With `-c` as the module the first argument is the program itself."""
        out, errors = (tempfile.TemporaryFile("w+") for _ in range(2))
        status, theirs = os.pipe()
        order = json.dumps([module, arguments, str(cwd), dict(os.environ)]).encode()
        socket.send_fds(self._socket, [len(order).to_bytes(4)], [out.fileno(), errors.fileno(), theirs])
        self._socket.sendall(order)
        os.close(theirs)
        return Program(status, out, errors)


def serve(door: socket.socket) -> None:
    """Fork a keeper for each order until the test has gone; the keeper forks the program, and says how it ended."""
    while True:
        head, files, _, _ = socket.recv_fds(door, 4, 3)
        if not head:
            return
        order = json.loads(door.recv(int.from_bytes(head), socket.MSG_WAITALL))
        if os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            out, errors, status = files
            if (pid := os.fork()) == 0:
                os.dup2(out, 1)
                os.dup2(errors, 2)
                os.closerange(3, status + 1)
                return run(*order)
            os.write(status, f"{pid}\n".encode())
            _, ended = os.waitpid(pid, 0)
            os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
            os._exit(0)
        for descriptor in files:
            os.close(descriptor)


def run(module: str, arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[0] = cwd
    if module == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a keeper
    serve(socket.socket(fileno=int(sys.argv[1])))
