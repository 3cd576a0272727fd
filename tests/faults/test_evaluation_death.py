"""An evaluation actor that dies in the middle of a run is a warning and a restart; nothing of the training is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.metrics import read_records

ENV = '''
import os, signal, sys
import gymnasium as gym
import pytest

class DeadlyCartPole(gym.Wrapper):
    """Kills its process in the first evaluation step of the run."""

    def __init__(self, flag):
        super().__init__(gym.make("CartPole-v1", max_episode_steps=50))
        self.flag = flag

    def step(self, action):
        frame = sys._getframe()
        while frame and frame.f_code.co_name != "play_episodes":
            frame = frame.f_back
        if frame:
            try:
                os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)
'''


@pytest.mark.process
def test_a_dead_evaluation_actor_is_replaced_and_the_run_ends_as_it_should(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "deadly.py").write_text(ENV)
    run = rlplat.train(
        "ppo",
        env=f"{tmp_path}/deadly.py:DeadlyCartPole",
        env_kwargs={"flag": str(tmp_path / "died")},
        out=tmp_path / "run",
        seed=1,
        num_rollout_workers=1,
        num_envs_per_worker=4,
        rollout_length=32,
        minibatch_size=64,
        evaluation={"period": 256, "episodes": 2, "num_envs": 2},
        deterministic=True,  # the training waits, so that the death falls into it
        stop={"env_steps": 512},
    )
    assert (tmp_path / "died").exists()
    error = capsys.readouterr().err
    assert "warning: the evaluation of 256 env steps failed: Evaluator." in error and "begins once more" in error
    evaluated = [r for r in read_records(run.directory / "metrics.jsonl") if "eval/return_mean" in r]
    assert [(r["env_steps"], r["eval/env_steps"], r["eval/failures"]) for r in evaluated] == [
        (256, 256, 1),
        (512, 512, 1),
        (512, 512, 1),
    ]
    assert run.result is not None and run.result.env_steps == 512 and run.evaluation["eval/episodes"] == 2
