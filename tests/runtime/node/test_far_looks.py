"""What commands show of processes on another machine: a process group of this one, whose clock is another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlplat
from rlplat import state
from rlplat.runtime.look import observer
from rlplat.runtime.start import join_file
from tests.patience import soon

pytestmark = pytest.mark.process
AHEAD_S = 100_000


def other_clock() -> list[str]:
    """What begins a command whose clock is ahead, where that can be had."""
    command = ["unshare", "--time", "--monotonic", str(AHEAD_S)]
    try:
        return command if not subprocess.run([*command, "true"], capture_output=True).returncode else []
    except FileNotFoundError:
        return []


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of two machines; the file that is its driver's terminal."""
    folder = tmp_path_factory.mktemp("cluster")
    join, shown = str(folder / "join.json"), folder / "shown"
    join_file.make(join, "127.0.0.1", 0)
    command = [sys.executable, "-m", "rlplat.cli", "start", "--address", join, "--num-cpus", "2", "--resource", "far=2"]
    machine = subprocess.Popen([*other_clock(), *command], stderr=subprocess.PIPE, text=True)
    (folder / "pid").write_text(str(machine.pid))
    own = os.dup(2)
    with open(shown, "w") as file:
        os.dup2(file.fileno(), 2)
    try:
        rlplat.init(num_cpus=1, num_gpus=0, address=join, hang_timeout_s=60)
    finally:
        os.dup2(own, 2)
        os.close(own)
    yield shown
    rlplat.shutdown()
    machine.terminate()
    machine.communicate(timeout=60)


@rlplat.remote(resources={"far": 1}, num_cpus=0)
class Far:
    def __init__(self) -> None:
        self.kept = rlplat.put(np.ones(100_000))

    def say(self, text: str) -> tuple[int, float]:
        print(text)
        time.sleep(0.05)
        return os.getpid(), time.monotonic()

    def large(self) -> np.ndarray:
        return np.ones(100_000)

    def hold_the_gil(self, go: str) -> None:
        import ctypes

        Path(go).touch()
        ctypes.PyDLL(None).sleep(20)


def test_what_there_is_on_every_machine(shown: Path) -> None:
    actor = Far.options(name="far").remote()
    pid, _ = rlplat.get(actor.say.remote("hello"), timeout=60)
    large = actor.large.remote()
    rlplat.wait([large], timeout=60, fetch_local=False)

    (row,) = state.list_actors(filters={"state": "alive"})
    worker = row["worker"]
    assert row["node"] == "n2"
    workers = {row["worker"]: row for row in state.list_workers()}
    assert (workers[worker]["node"], workers[worker]["pid"], workers[worker]["state"]) == ("n2", pid, "actor")
    assert workers[worker]["rss_bytes"] > 1e6
    assert {row["node"]: row["machine"] for row in state.list_nodes()} == dict.fromkeys(
        ("node", "n2"), os.uname().nodename
    )
    objects = {row["made_by"]: row for row in state.list_objects() if row["size"] > 100_000}
    assert (objects["put"]["owner"], objects["put"]["node"], objects["put"]["where"]) == (worker, "n2", "shm")
    assert (objects["Far.large"]["owner"], objects["Far.large"]["where"]) == ("driver", "elsewhere")
    report = state.memory_report()
    assert report["stores_elsewhere"]["n2"]["by_creator"][worker] > 1_600_000
    assert {owner["owner"]: owner["node"] for owner in report["owners"]} == {"driver": "node", worker: "n2"}
    status = state.cluster_status()
    assert [row["node"] for row in status["nodes"]] == ["node", "n2"]
    assert not status["silent"]
    clusters = {row["pid"] for row in state.list_clusters()}
    assert os.getpid() in clusters
    assert int(shown.with_name("pid").read_text()) not in clusters  # it works for one
    assert state.summarize_tasks()["Far.say"]["ended"] == 1
    assert f" pid={pid} on n2) hello\n" in shown.read_text()  # (its class may not be known there yet)


def test_logs_and_a_timeline(shown: Path) -> None:
    actor = Far.remote()
    before = time.monotonic()
    pid, there = rlplat.get(actor.say.remote("one\ntwo"), timeout=60)
    assert not other_clock() or there > before + AHEAD_S / 2
    logs = state.open_logs()
    assert soon(lambda: any(log.pid == pid for log in logs.workers()))
    (log,) = [log for log in logs.choose("Far") if log.pid == pid]
    assert log.node == "n2"
    assert soon(lambda: log.tail(10) == ["one", "two"])
    spans = [event for event in state.timeline() if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in spans) < 600e6  # (it begins with the first of them)
    names = [event["args"]["name"] for event in state.timeline() if event["name"] == "thread_name"]
    assert any(name.endswith("Far on n2") for name in names)
    assert any(event["name"] == "Far.say" for event in spans)


def test_the_stack_of_one_that_cannot_answer(shown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "ANSWER_S", 1.0)
    actor = Far.remote()
    pid = str(rlplat.get(actor.say.remote(""), timeout=60)[0])
    go = tmp_path / "go"
    held = actor.hold_the_gil.remote(str(go))
    assert soon(go.exists)
    assert soon(lambda: "in hold_the_gil" in state.stacks(pid)[0]["text"])
    assert state.stacks(pid)[0]["node"] == "n2"
    rlplat.get(held, timeout=60)  # (the signal has ended its sleep)


def test_a_machine_that_is_silent_is_named(shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "ANSWER_S", 1.0)
    actor = Far.remote()
    rlplat.get(actor.say.remote(""), timeout=60)
    (node,) = [row for row in state.list_nodes() if row["node"] == "n2"]
    os.kill(node["pid"], signal.SIGSTOP)
    try:
        status = state.cluster_status()
        assert [row["client"] for row in status["silent"]] == ["n2"]
        (row,) = state.stacks("Far")
        assert row["text"] == "the agent of machine n2 does not answer"
    finally:
        os.kill(node["pid"], signal.SIGCONT)
