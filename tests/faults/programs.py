"""Driver scripts for the fault tests, and what runs and watches them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.leak_meter import MARK, SHM_PREFIX, marked_processes
from tests.patience import soon

ROOT = Path(__file__).resolve().parents[2]

WORK = '''
"""A driver in mid-run: actors, one with a child in a session of its own, large objects, tasks under way."""
import os, subprocess, sys, time
import numpy as np
import rlplat

rlplat.init(num_cpus=2, num_gpus=0)

class Actor:
    def start_child(self):
        self.child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return self.child.pid
    def make(self):
        return np.ones(1_000_000)

@rlplat.remote
def busy():
    time.sleep(600)

actors = [rlplat.remote(Actor).remote() for _ in range(2)]
child = rlplat.get(actors[0].start_child.remote())
objects = [rlplat.put(np.zeros(1_000_000)), *[actor.make.remote() for actor in actors]]
arrays = rlplat.get(objects)
running = [busy.remote() for _ in range(3)]
node = rlplat.runtime.refs.backend()._node.pid
def say_running():
    print("running", child, node, flush=True)
'''
BUSY_DRIVER = WORK + "say_running()\n"


def session_files(driver_pid: int) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"{SHM_PREFIX}{driver_pid}-")]


def next_line(stream: IO[str]) -> str:
    """One line of a pipe and not a byte more: what a buffer takes beyond it, `communicate` would never see."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(stream.fileno(), 1)):
        line += byte
    return line.decode()


def places_of_segments(objects: Any) -> list[str]:
    """Where the large objects of this process are."""
    values = [entry.value for entry in objects.book.values() if entry.value is not None]
    return [objects.store.place(value.segment) for value in values if value.segment is not None]


class Program:
    """A driver in a process of its own, which has printed that it is running.

    A signal may come as soon as it has: a script that catches one prints inside its `try`.
    """

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import rlplat.runtime.refs\n" + script],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        words = next_line(self.process.stdout).split()
        assert words[:1] == ["running"], f"the driver did not start: {self.process.communicate()[1]}"
        self.numbers = [int(word) for word in words[1:]]
        self.pid = self.process.pid

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def left_behind(self) -> list[str]:
        mark = os.environ[MARK]
        return [
            *(f"{pid} {command}" for pid, command in marked_processes(mark).items()),
            *session_files(self.pid),
        ]

    def is_all_gone(self, within_s: float = 60) -> bool:
        return soon(lambda: not self.left_behind(), within_s)

    def finish(self, said: str | None = None, timeout_s: float = 60) -> tuple[int, str, str]:
        """Say that to it; (exit code, the rest of its stdout, its stderr)."""
        out, errors = self.process.communicate(said, timeout=timeout_s)
        return self.process.returncode, out, errors


@contextlib.contextmanager
def program(script: str) -> Iterator[Program]:
    made = Program(script)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.kill(signal.SIGKILL)
        made.process.communicate()
