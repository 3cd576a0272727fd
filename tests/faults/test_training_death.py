"""Deaths in the middle of training: the run goes on, or leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.checkpoints import latest_valid
from rlplat.errors import ActorDied, EnvError
from tests.patience import soon

pytestmark = pytest.mark.process

ENV = '''
import os, signal
from pathlib import Path
import gymnasium as gym

class DeadlyCartPole(gym.Wrapper):
    """Kills its own process with SIGKILL at the 100th step of whoever first gets there."""

    def __init__(self, flag):
        super().__init__(gym.make("CartPole-v1"))
        self.flag, self.steps = Path(flag), 0

    def step(self, action):
        self.steps += 1
        if self.steps == 100:
            try:
                os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)
'''


def test_a_killed_rollout_worker_is_replaced_and_no_step_counts_twice(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(ENV)
    config = PPOConfig(
        env=f"{tmp_path}/deadly.py:DeadlyCartPole",
        env_kwargs={"flag": str(tmp_path / "killed")},
        num_rollout_workers=2,
        num_envs_per_worker=2,
        rollout_length=32,
        minibatch_size=64,
        seed=1,
    )
    with PPO(config) as ppo:
        results = [ppo.step() for _ in range(8)]
    assert (tmp_path / "killed").exists()
    assert [result.env_steps for result in results] == [2 * 2 * 32 * n for n in range(1, 9)]
    assert results[-1].metrics["rollout/worker_restarts"] == 1
    assert results[-1].metrics["learner/weights_version"] == 8


def test_a_run_that_a_dead_worker_ends_is_saved_and_resumed(tmp_path: Path) -> None:
    """The learner lives: what it has learnt before the death is in a checkpoint, with a new worker in the dead one's
    place."""
    (tmp_path / "deadly.py").write_text(ENV)
    out = tmp_path / "run"
    settings = {
        "env_kwargs": {"flag": str(tmp_path / "killed")},
        "num_envs_per_worker": 2,
        "rollout_length": 32,
        "minibatch_size": 64,
        "max_worker_restarts": 0,
        "evaluation": {"episodes": 1},
        "stop": {"env_steps": 256},
    }
    with pytest.raises(ActorDied) as raised:
        rlplat.train("ppo", env=f"{tmp_path}/deadly.py:DeadlyCartPole", out=out, **settings)
    assert "checkpoint saved at 192 env steps; to resume: " in raised.value.__notes__[-1]
    run = rlplat.train(resume=out)
    assert run.result is not None and run.result.env_steps == 256


@pytest.mark.parametrize("algo", ["ppo", "dqn", "a3c", "es"])
def test_what_was_learnt_before_an_environment_failed_is_saved(algo: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env_kwargs": {"deed": "raise", "at": 500},
        "num_rollout_workers": 0,
        "num_envs_per_worker": 2,
        **({"population_size": 4, "noise_table_size": 10_000} if algo == "es" else {}),
    }
    with pytest.raises(EnvError, match="the pole fell off") as raised:
        rlplat.train(algo, env="tests.rl.unruly_envs:UnrulyEnv", out=tmp_path / "run", **settings)
    checkpoint, _ = latest_valid(tmp_path / "run")
    assert checkpoint is not None and 0 < checkpoint.info.env_steps <= 1000
    assert "checkpoint saved at" in raised.value.__notes__[-1]


def test_a_killed_driver_leaves_no_process_and_no_shared_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlplat.cli", "train", "--algo", "ppo", "--env", "CartPole-v1"]
    flags = [
        "--out",
        str(tmp_path / "run"),
        "--stop.env-steps",
        "100000000",
        "--stop.episode-return",
        "10000",
    ]
    driver = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert soon(lambda: driver.poll() is not None or (metrics.exists() and metrics.stat().st_size))
    assert driver.poll() is None
    session = [name for name in os.listdir("/dev/shm") if name.startswith(f"rlplat-{driver.pid}-")]
    assert len(session) == 1, "the run has a session folder while it lives"
    assert _processes_of(session[0])
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert soon(lambda: not _processes_of(session[0]))
    assert soon(lambda: session[0] not in os.listdir("/dev/shm"))


def _processes_of(session: str) -> list[str]:
    """Processes that carry the cluster's mark."""
    mark, found = f"RLPLAT_SESSION={session}".encode(), []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(name)
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["node", "zygote"])
def test_a_run_whose_cluster_dies_says_how_to_resume(tmp_path: Path, victim: str) -> None:
    settings = "--algo ppo --env Acrobot-v1 --no-config --num-rollout-workers 1 --checkpoint-period 500"
    sizes = "--rollout-length 64 --num-envs-per-worker 1 --stop.env-steps 100000000 --out run"
    command = [sys.executable, "-m", "rlplat.cli", "train", *settings.split(), *sizes.split()]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as driver:
        assert soon(lambda: (tmp_path / "run/checkpoints/latest").exists())
        (node,) = [each for each in psutil.Process(driver.pid).children() if "launch" in " ".join(each.cmdline())]
        (node if victim == "node" else node.children()[0]).kill()
        said = driver.communicate(timeout=60)[1]
    assert driver.returncode == 1
    assert said.splitlines()[-1].endswith("to resume: rlplat train --resume run"), said
