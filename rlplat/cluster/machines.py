"""Machines and how to run a command on one: this one, or one behind ssh.

with SshMachine("gpu1", settings, "python3", socket) as machine:     # one connection, which all commands share
    subprocess.run(machine.argv(["hostname"]))
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rlplat.cluster.settings import SshSettings

_ALIVE_S = 5
"""Seconds between ssh's questions whether the other side is there; the third without an answer ends it."""


class Unreachable(Exception):
    """No connection; the text is ssh's own line, with what to do where that is known."""


class Machine:
    """This one."""

    name = "local"

    def __init__(self, python: str) -> None:
        self.python = python

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def argv(self, command: Sequence[str], terminal: bool = False) -> list[str]:
        """What to run here so that `command` runs there."""
        return list(command)

    def forward_argv(self, local_port: int, port: int) -> list[str] | None:
        """What to run here so that local_port of loopback leads to port of its loopback; None: it is this machine."""
        return None


class SshMachine(Machine):
    """The system's ssh: its keys, its agent, its ~/.ssh/config. Host keys are always checked, nothing is asked."""

    def __init__(self, host: str, settings: SshSettings, python: str, socket: Path) -> None:
        """socket: where the shared connection is to be; a path of its own for each machine."""
        super().__init__(python)
        self.name, self._socket = host, socket
        target, _, port = host.partition(":")
        self._timeout_s = settings.connect_timeout_s
        self._options = [
            *(["-F", os.path.expanduser(settings.config_file)] if settings.config_file else []),
            *(["-i", os.path.expanduser(settings.identity_file)] if settings.identity_file else []),
            *(["-p", port] if port else []),
            "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
            "-o", f"ConnectTimeout={settings.connect_timeout_s}",
            "-o", f"ServerAliveInterval={_ALIVE_S}", "-o", "ServerAliveCountMax=3",
            "-o", f"ControlPath={self._socket}",
        ]  # fmt: skip
        self._target = ["--", target]
        self._master: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """One connection for all commands that follow; `Unreachable` in ssh's own words. Again: nothing happens."""
        if self._master is not None:
            return self
        self._master = subprocess.Popen(
            ["ssh", "-M", "-N", "-T", *self._options, *self._target],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + self._timeout_s + 20  # ssh's own limit is for connecting alone
        while not self._socket.exists():
            if self._master.poll() is not None or time.monotonic() > deadline:
                self._master.kill()
                said = self._master.communicate()[1]
                self._master = None
                raise Unreachable(explained(said, self.name))
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        if self._master is not None:
            self._master.terminate()
            self._master.communicate()
            self._master = None
            self._socket.unlink(missing_ok=True)

    def argv(self, command: Sequence[str], terminal: bool = False) -> list[str]:
        return ["ssh", *(["-t"] if terminal else []), *self._options, *self._target, shlex.join(command)]

    def forward_argv(self, local_port: int, port: int) -> list[str] | None:
        forward = ["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
        way = ["-N", "-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}"]
        return ["ssh", *forward, *way, *self._options, *self._target]


def explained(said: str, host: str) -> str:
    """ssh's own last line, and the fix where it is known."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    line = lines[-1] if lines else "no answer"
    name = host.rpartition("@")[2].partition(":")[0]
    if "IDENTIFICATION HAS CHANGED" in said:
        return (
            f"{line} The host's key is not the one that was known: another machine, or a new installation. If "
            f"you know why: ssh-keygen -R {name}, then ssh {name} once by hand"
        )
    if "Host key verification failed" in line:
        return f"{line} The host's key is not known yet: ssh {name} once by hand and compare it"
    if "Permission denied" in line:
        return f"{line} The host does not take your key: ssh-copy-id {name}, or set ssh.identity_file"
    if "Could not resolve" in line:
        return f"{line}: correct ssh.hosts, or name the host in ~/.ssh/config"
    return line
