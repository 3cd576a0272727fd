"""A machine that works for the programs of a cluster (`rlplat start --address FILE`): it asks the head for a program,
and starts a node process for each. Between programs nothing but this process is there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rlplat.errors import ConfigError, NodeLost
from rlplat.given.say import say
from rlplat.processes import start_time
from rlplat.runtime.link.trunk import AgentTrunk, Keys
from rlplat.runtime.machine.hardware import machine_resources
from rlplat.runtime.machine.session import (
    is_own_folder,
    is_session_alive,
    kill_session,
    kill_sessions_of,
    make_session,
)
from rlplat.runtime.start import join_file
from rlplat.runtime.start.start import await_ready, begin_node, configure, furnish, versions
from rlplat.runtime.wire import agent_messages

_ASK_EVERY_S = 0.5
_ANSWER_S = 5.0
_REFUSED_TIMES = 3
"""In a row: once may be a head that ends just now."""
_STOP_S, _KILL_S = 10.0, 5.0


class _Stopped(BaseException):
    pass


class _KeyRefused(Exception):
    pass


def serve(path: str, num_cpus: float | None, num_gpus: int | None, resources: dict[str, float] | None) -> None:
    """Until SIGTERM or SIGINT."""
    keys = join_file.read(path)
    total = machine_resources(num_cpus, num_gpus, resources, ("--num-cpus", "--num-gpus", "--resource"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        with _registered(keys):
            say(f"this machine waits for programs of the cluster at {keys.address}")
            ended, num_refused = "", 0
            while True:
                try:
                    program, address = _ask(keys, ended)
                    num_refused = 0
                except _KeyRefused:
                    program, num_refused = None, num_refused + 1
                    if num_refused == _REFUSED_TIMES:
                        raise ConfigError(
                            f"what listens at {keys.address} refuses the keys in {path}: it is the head of another "
                            "cluster, or none; copy the head's join file again"
                        ) from None
                if program is None:
                    time.sleep(_ASK_EVERY_S)
                else:
                    ended = _work_for(program, keys, address, total)
    except _Stopped:
        say("stopped")


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise _Stopped


def _ask(keys: Keys, ended: str) -> tuple[agent_messages.Program | None, str]:
    """The program that there is, and this machine's address as the head sees it. ConfigError when we do not fit.
    `ended`: the session of the last one."""
    try:
        with socket.create_connection(join_file.host_and_port(keys), _ANSWER_S) as probe:
            address = str(probe.getsockname()[0])
    except OSError:
        return None, ""
    trunk = AgentTrunk(keys)
    try:
        trunk.tell(agent_messages.AskProgram(versions(), ended))
        poller = select.poll()
        for descriptor in trunk.fds:
            poller.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + _ANSWER_S
        while not trunk.has_ended and time.monotonic() < deadline:
            for _, _, frame, _ in trunk.receive():
                answer = agent_messages.decode(frame)
                if isinstance(answer, agent_messages.Refused):
                    raise ConfigError(answer.reason)
                return answer, address
            if not trunk.has_input():
                poller.poll(100)
        if trunk.is_refused:
            raise _KeyRefused
    finally:
        trunk.close()
    return None, ""


def _work_for(program: agent_messages.Program, keys: Keys, address: str, total: dict[str, float]) -> str:
    """Returns the name of the session that it had: all its processes are dead."""
    session = make_session()
    node: subprocess.Popen[bytes] | None = None
    settings = program.settings
    try:
        node = begin_node(session)
        folder = furnish(session, settings["store_full_timeout_s"], node=program.node)
        paths = [*settings["sys_path"], *(path for path in sys.path if path not in settings["sys_path"])]
        config = settings | {
            "session": session,
            "folder": folder,
            "total": total,
            "keys": keys,
            "node": program.node,
            "address": address,
            "sys_path": paths,
        }
        configure(node, config)
        await_ready(node)
        say(f"works for a program, as {program.node}")
        node.wait()
    except NodeLost as error:
        say(str(error))
    finally:
        if node is not None:
            _end(node)
        kill_session(session)  # where the node was killed its zygote is at it
    return os.path.basename(session)


def _end(node: subprocess.Popen[bytes]) -> None:
    assert node.stdin is not None and node.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        node.stdin.close()
    try:
        node.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
    node.stdout.close()


# ---------------------------------------------------------------- which of them run on this machine


def _register() -> Path:
    folder = Path(tempfile.gettempdir()) / f"rlplat-machines-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_own_folder(folder):
        raise ConfigError(f"{folder} belongs to somebody else: set TMPDIR to a folder of your own")
    return folder


@contextlib.contextmanager
def _registered(keys: Keys) -> Iterator[None]:
    # (named like a session: pid and start time name one process for good)
    file = _register() / f"rlplat-{os.getpid()}-{start_time(os.getpid())}-machine"
    file.write_text(keys.address)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def stop(path: str | None) -> int:
    """End the machines of this user that run here: of the cluster of this join file, or all. Returns how many."""
    address = join_file.read(path).address if path is not None else None
    machines = []
    for file in _register().iterdir():
        if not is_session_alive(file.name):
            file.unlink(missing_ok=True)
        elif address in (None, file.read_text()):
            machines.append(file)
    for number in (signal.SIGTERM, signal.SIGCONT):  # (one that was stopped, by Ctrl-Z, hears nothing)
        _signal(machines, number)
    if not _have_ended(machines, 2 * _STOP_S):
        _signal(machines, signal.SIGKILL)
        if not _have_ended(machines, _KILL_S):
            pids = ", ".join(file.name.split("-")[1] for file in machines if is_session_alive(file.name))
            raise NodeLost(f"still there after SIGKILL: {pids}")
    for file in machines:
        if file.exists():  # it was killed, and could not look after that
            kill_sessions_of("-".join(file.name.split("-")[1:3]))
            file.unlink()
    return len(machines)


def _signal(machines: list[Path], number: int) -> None:
    for file in machines:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.name.split("-")[1]), number)


def _have_ended(machines: list[Path], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(is_session_alive(file.name) for file in machines):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
