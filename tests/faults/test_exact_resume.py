"""N + M steps at once equal N steps, kill -9, resume, M steps: bit for bit, and line by line but for times.

A3C is left out: it is asynchronous, and its curves are compared statistically.
"""

from __future__ import annotations

import importlib.util
import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.checkpoints import Checkpoint, latest_valid, load_best
from rlplat.metrics import read_records
from tests.forks import Door

TRAIN_AND_DIE = """
import os, signal, sys
from rlplat.cli import main
from rlplat.rl.run.run_directory import RunDirectory

env_steps, whole, parts, *flags = sys.argv[1:]
record = RunDirectory.record

def record_and_die(run, result, *arguments):
    record(run, result, *arguments)
    if result.env_steps >= int(env_steps) and run.saved_env_steps:
        os.kill(os.getpid(), signal.SIGKILL)

if code := main([*flags, "--out", whole]):
    sys.exit(code)
RunDirectory.record = record_and_die
sys.exit(main([*flags, "--out", parts]))
"""
"""The run that never stops, and the one that is killed: two in one process, which shows that nothing is left of one."""


@dataclass(frozen=True)
class Case:
    """A run of `total` env steps with checkpoints, killed when a line of `killed` or more of them is written."""

    algo: str
    settings: tuple[str, ...]
    env: str = "CartPole-v1"
    period: int = 256
    killed: int = 625
    """Well after a checkpoint: the lines in between are measured again."""
    total: int = 1024


SMALL = ("policy.hidden_sizes=[16]", "num_envs_per_worker=4", "num_rollout_workers=1")
PPO = (*SMALL, "rollout_length=32", "minibatch_size=64", "num_epochs=2")
# The replay buffer has wrapped around before the end.
DQN = ("policy.hidden_sizes=[16]", "learning_starts=150", "replay_capacity=500", "rollout_length=64")
CASES = {
    "loop": Case(
        "tests.cli.acting_algorithm:ActingAlgorithm",
        ("evaluation.period=200", "evaluation.episodes=2", "best_at=90", "batch=16"),
        env="tests.rl.skilled_env:SkilledEnv",
    ),
    "ppo-two-workers-normalised": Case(
        "ppo",
        (
            *PPO,
            "num_rollout_workers=2",
            "num_envs_per_worker=2",
            "normalize_observations=true",
            "normalize_rewards=true",
            "learning_rate={schedule: linear, start: 1e-3, end: 0}",
            "evaluation.period=200",
            "evaluation.episodes=2",
        ),
        env="Pendulum-v1",
    ),
    "ppo-lstm": Case(
        "ppo",
        (*PPO, "num_rollout_workers=0", "policy.core=lstm", "policy.core_size=8", "policy.share_encoder=auto"),
    ),
    "dqn-prioritized": Case("dqn", (*DQN, "prioritized=true", "n_step=3", "double=true")),
    "es": Case("es", ("population_size=2", "num_envs_per_worker=4")),
}


@pytest.fixture(scope="module")
def doors() -> Iterator[tuple[Door, Door]]:
    """Where sets have different orders: what depends on them is not the same before a kill and after it."""
    modules = ("rlplat.cli.train", "rlplat.algorithms.ppo", "rlplat.algorithms.dqn", "rlplat.algorithms.es")
    with Door(*modules, hash_seed=1) as first, Door(*modules, hash_seed=2) as second:
        yield first, second


def is_time(name: str) -> bool:
    return name in ("wall_s", "env_steps_per_s") or name.startswith("time/") or name.endswith("_s")


def without_times(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: without_times(inner) for key, inner in tree.items() if not is_time(str(key))}
    if isinstance(tree, list | tuple):
        return [without_times(inner) for inner in tree]
    return tree


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two states differ in a bit, a type, a shape or a key."""
    if type(one) is not type(other):
        return [f"{place}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, dict):
        found = [f"{place}.{key}: only in one of them" for key in one.keys() ^ other.keys()]
        return found + [
            line for key in one.keys() & other.keys() for line in differences(one[key], other[key], f"{place}.{key}")
        ]
    if isinstance(one, list):
        if len(one) != len(other):
            return [f"{place}: {len(one)} and {len(other)} elements"]
        return [
            line
            for index, (left, right) in enumerate(zip(one, other, strict=True))
            for line in differences(left, right, f"{place}.{index}")
        ]
    if isinstance(one, np.ndarray):
        is_same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return [] if is_same else [f"{place}: arrays {one.dtype}{list(one.shape)} differ"]
    is_same = one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
    return [] if is_same else [f"{place}: {one!r} and {other!r}"]


def state_of(checkpoint: Checkpoint | None) -> Any:
    assert checkpoint is not None
    manifest = {key: value for key, value in checkpoint.manifest.items() if key != "files"}
    return without_times({"state": checkpoint.state, "manifest": manifest})


def lines_of(run: Path) -> list[Any]:
    return [without_times(record) for record in read_records(run / "metrics.jsonl")]


def test_differences_are_found() -> None:
    one = {"a": [np.zeros(2, np.float32), 1.0], "wall_s": 3.0, "n": math.nan}
    same = {"a": (np.zeros(2, np.float32), 1.0), "wall_s": 4.0, "n": math.nan}
    assert differences(without_times(one), without_times(same)) == []
    other = {"a": [np.array([0.0, -0.0], np.float32), 1], "b": 1, "n": math.nan}
    assert sorted(differences(without_times(one), without_times(other))) == [
        ".a.0: arrays float32[2] differ",
        ".a.1: float and int",
        ".b: only in one of them",
    ]


@pytest.mark.process
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_killed_and_resumed_run_is_the_one_that_never_stopped(
    case: Case, tmp_path: Path, doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if ":" not in case.algo and importlib.util.find_spec(f"rlplat.algorithms.{case.algo}") is None:
        pytest.skip(f"algorithms/{case.algo}.py is not there yet")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = ["train", "--algo", case.algo, "--env", case.env, "--seed", "7", "--deterministic"]
    flags += ["--checkpoint-period", str(case.period), "--stop.env-steps", str(case.total)]
    if case.settings:
        flags += ["--set", *case.settings]
    killed = doors[0].start("-c", [TRAIN_AND_DIE, str(case.killed), str(whole), str(parts), *flags])
    said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    begun = lines_of(parts)
    saved, _ = latest_valid(parts)
    assert saved is not None and 0 < saved.info.env_steps < begun[-1]["env_steps"] < case.total
    resumed = doors[1].start("rlplat.cli", ["train", "--resume", str(parts)])
    said = resumed.communicate()
    assert resumed.returncode == 0, said

    assert differences(lines_of(whole), lines_of(parts)) == []
    assert (parts / "progress.csv").read_text().count("\n") == (whole / "progress.csv").read_text().count("\n")
    assert differences(state_of(latest_valid(whole)[0]), state_of(latest_valid(parts)[0])) == []
    assert differences(state_of(load_best(whole)), state_of(load_best(parts))) == []
