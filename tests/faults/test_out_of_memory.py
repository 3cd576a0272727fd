"""Memory that runs short: the culprit goes, the error has the sizes, and the others live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, OutOfMemory
from rlplat.runtime.machine.proc_files import FAKE_MEMORY
from tests.patience import soon

MB = 1 << 20


def hog(num_bytes: int, gate: Path) -> Any:
    """Hold so much, and wait until the gate's file is gone."""
    held = np.ones(num_bytes // 8)
    assert soon(lambda: not gate.exists(), 60)
    return held.nbytes


def test_a_task_over_its_limit_fails_with_both_sizes(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    task = rlplat.remote(memory=200 * MB, max_retries=0)(hog)
    small = rlplat.remote(memory=200 * MB, max_retries=0, num_cpus=0.5)(hog).remote(8 * MB, gate)
    message = r"was killed because it held \d+ MiB, more than its limit of 200 MiB \(memory=\)"
    with pytest.raises(OutOfMemory, match=message):
        rlplat.get(task.remote(500 * MB, gate), timeout=30)
    gate.unlink()
    assert rlplat.get(small, timeout=30) == 8 * MB, "one below the limit lives"


def test_an_actor_over_its_limit_dies_with_both_sizes(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()

    @rlplat.remote(memory=200 * MB)
    class Actor:
        def hold(self) -> Any:
            return hog(500 * MB, gate)

    with pytest.raises(ActorDied, match=r"more than its limit of 200 MiB"):
        rlplat.get(Actor.remote().hold.remote(), timeout=30)


def test_objects_that_are_mapped_do_not_count(cluster: None, tmp_path: Path) -> None:
    """They are everybody's: an actor that looks at a large object is not the culprit."""
    big = rlplat.put(np.ones(300 * MB // 8))

    @rlplat.remote(memory=200 * MB, max_retries=0)
    def look(array: np.ndarray, gate: Path) -> float:
        total = float(array.sum())
        assert soon(lambda: not gate.exists(), 60)
        return total

    gate = tmp_path / "gate"
    gate.touch()
    ref = look.remote(big, gate)
    assert rlplat.wait([ref], timeout=1)[0] == []  # the watch looks four times a second
    gate.unlink()
    assert rlplat.get(ref, timeout=30) == 300 * MB // 8


@pytest.mark.process
def test_what_the_zygote_has_preloaded_does_not_count_in_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy.py").write_text("held = bytearray(b'x') * (300 << 20)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    gate = tmp_path / "gate"
    gate.touch()
    rlplat.init(num_cpus=2, num_gpus=0, preload=("heavy",))
    try:
        task = rlplat.remote(memory=250 * MB, max_retries=0)(hog)
        small, big = task.remote(8 * MB, gate), task.remote(400 * MB, gate)
        with pytest.raises(OutOfMemory, match="250 MiB"):
            rlplat.get(big, timeout=30)
        gate.unlink()
        assert rlplat.get(small, timeout=30) == 8 * MB
    finally:
        rlplat.shutdown()


def test_children_of_a_worker_count(cluster: None) -> None:
    @rlplat.remote(memory=200 * MB, max_retries=0)
    def task() -> None:
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", "import time; held = bytearray(500 << 20); time.sleep(60)"])

    with pytest.raises(OutOfMemory, match="200 MiB"):
        rlplat.get(task.remote(), timeout=30)


@pytest.mark.process
def test_a_machine_short_of_memory_kills_the_largest_task_that_may_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, gate, log = tmp_path / "memory", tmp_path / "gate", tmp_path / "log"

    def say_used(num_mb: int) -> None:
        """The node may read it at any moment."""
        draft = memory.with_suffix(f".{os.getpid()}")
        draft.write_text(f"{num_mb * MB} {1000 * MB}")
        draft.rename(memory)

    say_used(500)
    gate.touch()
    monkeypatch.setenv(FAKE_MEMORY, str(memory))
    rlplat.init(num_cpus=3, num_gpus=0)
    try:

        def names() -> list[str]:
            return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

        def logged(name: str, num_bytes: int) -> Any:
            if name == "large" and "large" in names():
                say_used(500)  # its first attempt is gone: before anybody else has to go
            held = np.ones(num_bytes // 8)
            with open(log, "a") as file:
                file.write(f"{name} {os.getpid()}\n")
            assert soon(lambda: not gate.exists(), 60)
            return held.nbytes

        @rlplat.remote
        class Learner:
            def learn(self) -> Any:
                return logged("learner", 300 * MB)

        learner = Learner.remote()
        refs = [
            learner.learn.remote(),
            rlplat.remote(logged).remote("small", 50 * MB),
            rlplat.remote(logged).remote("large", 200 * MB),
            rlplat.remote(max_retries=0)(logged).remote("once", 250 * MB),
        ]

        assert soon(lambda: len(names()) == 4, 60)
        say_used(950)
        assert soon(lambda: names().count("large") >= 2, 60), names()
        gate.unlink()
        assert rlplat.get(refs, timeout=60) == [300 * MB, 50 * MB, 200 * MB, 250 * MB]
        assert names().count("learner") == names().count("once") == 1
    finally:
        rlplat.shutdown()


@pytest.mark.parametrize("value", [0, 1.5, -0.1, "x"])
def test_the_threshold_is_checked(value: Any) -> None:
    with pytest.raises(ConfigError, match="memory_usage_threshold must be a number of more than 0 and at most 1"):
        rlplat.init(memory_usage_threshold=value)
