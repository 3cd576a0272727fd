"""`rlplat bench learning`: cells x seeds, a core each with idle priority, and the same command again goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlplat.cli import bench, main

CELL = "algo: ppo\nenv: CartPole-v1\nnum_rollout_workers: 0\nstop: {{env_steps: {}}}\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(CELL.format(2000))


@pytest.mark.process
def test_each_cell_with_each_seed_and_then_only_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    assert main(["bench", "learning", "tiny.yaml", "--seeds", "1-2", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    runs = [tmp_path / "runs" / "bench" / "tiny" / f"seed-{seed}" for seed in (1, 2)]
    assert [line.split(":")[1] for line in said.splitlines()[:2]] == [f" runs/bench/tiny/seed-{n}" for n in (1, 2)]
    assert "CartPole-v1: eval/return_mean" in said and "fewer than 5 runs say little: tiny (2)" in said
    written = [(path / "metrics.jsonl").read_bytes() for path in runs]
    assert main(["bench", "learning", "tiny.yaml", "--seeds", "1-3"]) == 0
    assert [(path / "metrics.jsonl").read_bytes() for path in runs] == written
    assert (runs[0].parent / "seed-3" / "metrics.jsonl").exists()


@pytest.mark.process
def test_an_algorithm_and_an_environment_without_a_config_of_their_own(tmp_path: Path, capsys: Any) -> None:
    cell = ["ppo/Taxi-v4", "--seeds", "1", "--stop.env-steps=600", "--num-rollout-workers", "0"]
    assert main(["bench", "learning", *cell]) == 0
    config = (tmp_path / "runs" / "bench" / "ppo-Taxi-v4" / "seed-1" / "config.yaml").read_text()
    assert "env_steps: 600" in config and "num_rollout_workers: 0" in config and "Taxi-v4" in config
    out = capsys.readouterr().out
    assert "Taxi-v4: eval/return_mean" in out  # and no training episode has ended: no return over the run


def test_runs_of_another_bench_keep_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both began with the lowest core, and left the others to nobody."""
    affinity = {0: {2, 3, 5}, 11: {2}, 12: {3}, 13: {3}, 14: {2, 3, 5}, 15: {5}}
    ordinary = {15}  # pinned for another reason

    def affinity_of(pid: int) -> set[int]:
        if pid == 16:
            raise ProcessLookupError
        return affinity[pid]

    monkeypatch.setattr(os, "listdir", lambda path: ["11", "12", "13", "14", "15", "16", "self"])
    monkeypatch.setattr(os, "sched_getaffinity", affinity_of)
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_OTHER if pid in ordinary else os.SCHED_IDLE)
    assert bench._free_core() == 5
    affinity |= {17: {5}, 18: {5}}
    monkeypatch.setattr(os, "listdir", lambda path: map(str, range(11, 19)))
    assert bench._free_core() == 2


@pytest.mark.process
def test_a_cell_that_fails_is_named_and_the_others_go_on(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "bad.yaml").write_text(CELL.format(2000).replace("CartPole-v1", "./gone.py:Env"))
    assert main(["bench", "learning", "bad.yaml", "tiny.yaml", "--seeds", "1"]) == 1
    out, err = capfd.readouterr()
    assert "runs/bench/bad/seed-1 failed (exit code 2)" in out and "tiny" in out
    assert "failed: runs/bench/bad/seed-1 (runs/bench/bad/seed-1.log)" in err


@pytest.mark.process
def test_ctrl_c_saves_each_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(CELL.format(150_000))
    command = [
        sys.executable,
        "-m",
        "rlplat.cli",
        "bench",
        "learning",
        "long.yaml",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    run = tmp_path / "runs" / "bench" / "long" / "seed-1"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        while not (run / "metrics.jsonl").exists():
            assert bench.poll() is None
            time.sleep(0.05)
        child = int(Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()[0])
        assert os.sched_getscheduler(child) == os.SCHED_IDLE and len(os.sched_getaffinity(child)) == 1
        bench.send_signal(signal.SIGINT)
        _, err = bench.communicate(timeout=100)
    assert bench.returncode == 130 and "the same command goes on" in err
    assert list((run / "checkpoints").glob("step_*"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "continues" in (run / "log.txt").read_text() or "resum" in (run / "log.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speed", "tiny.yaml"], "there is no bench 'speed'"),
        (["learning", "nothing/X"], "no config file 'nothing/X'"),
        (["learning", "tiny.yaml", "--stop.env-step", "9"], "did you mean 'stop.env_steps'"),
        (["learning", "tiny.yaml", "./tiny.yaml"], "have one name"),
        (["learning", "tiny.yaml", "--seeds", "x"], "--seeds takes 1-5"),
        (["learning", "tiny.yaml", "--jobs", "0"], "--jobs is a positive number"),
    ],
)
def test_wrong_words(arguments: list[str], said: str, capsys: Any) -> None:
    assert main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err
