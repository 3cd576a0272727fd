"""`rlplat stop`, of machines that hear it and of those that do not. They are this one's, of a cluster of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlplat
from rlplat.cli import main
from rlplat.runtime.start import join_file, machine
from tests.patience import soon

pytestmark = pytest.mark.process


@pytest.fixture
def join(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "join.json")
    join_file.make(path, "127.0.0.1", 0)
    yield path
    rlplat.shutdown()


def begun(join: str, before: str = "") -> subprocess.Popen[str]:
    """A machine that has begun: nobody waits for its end, so that it becomes a zombie."""
    script = f"import signal\n{before}\nfrom rlplat import machines\nmachines.work({join!r}, 2, 0, {{'far': 1}})"
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "waits for programs" in process.stderr.readline() or process.poll() is None
    return process


def ended(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    process.stderr.close()
    return process.wait(10)


def test_a_machine_that_nobody_waits_for_has_ended_when_it_is_a_zombie(join: str) -> None:
    process = begun(join)
    assert machine.stop(join) == 1
    assert machine.stop(join) == 0
    assert ended(process) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num-cpus", "-3"], "--num-cpus must be at least 0"),
        (["--num-gpus", "-1"], "--num-gpus must be at least 0"),
        (["--resource", "far=-1"], "--resource: 'far' must be at least 0"),
        (["--resource", "CPU=1"], "--resource: give CPU as num_cpus"),
    ],
)
def test_a_wrong_amount_is_named_by_its_flag(
    join: str, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["start", "--address", join, *flags]) == 2
    assert capsys.readouterr().err.startswith(f"rlplat: {said}")


def test_a_machine_that_was_stopped_by_a_signal_hears_of_it(join: str) -> None:
    process = begun(join)
    process.send_signal(signal.SIGSTOP)
    assert machine.stop(join) == 1
    assert ended(process) == 0


def test_one_that_does_not_hear_is_killed_and_nothing_is_left_of_it(join: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = begun(join, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal = lambda *_: None")
    rlplat.init(num_cpus=1, num_gpus=0, address=join)

    @rlplat.remote(resources={"far": 1}, num_cpus=0)
    class Worker:
        def place(self) -> tuple[int, str]:
            return os.getpid(), os.environ["RLPLAT_SESSION"]

    worker = Worker.remote()
    pid, session = rlplat.get(worker.place.remote(), timeout=60)
    monkeypatch.setattr(machine, "_STOP_S", 0.1)
    assert machine.stop(join) == 1
    assert soon(lambda: not os.path.exists(f"/proc/{pid}"))
    assert not os.path.exists(f"/dev/shm/{session}")
    assert ended(process) == -signal.SIGKILL
