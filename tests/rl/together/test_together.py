"""`rlplat train --seeds LIST --together`: every seed's run is the one that it is alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.algorithms.ppo import PPO, ppo_loss
from rlplat.cli import main
from rlplat.errors import ConfigError, RlplatError
from rlplat.rl.callbacks import Callback
from rlplat.rl.run.interruption import Interrupted

SMALL: dict[str, Any] = {
    "config": False,
    "num_envs_per_worker": 3,
    "rollout_length": 32,
    "minibatch_size": 48,
    "policy": {"hidden_sizes": [16, 16]},
    "evaluation": {"episodes": 2},
}
TIMES = ("time/", "rollout/", "wall_s", "env_steps_per_s")


class Bolder(PPO):
    """With a loss of its own, which looks at numbers."""

    @staticmethod
    def loss(network: Any, minibatch: Any, config: Any) -> Any:
        loss, stats = ppo_loss(network, minibatch, config)
        return loss * (2.0 if stats["entropy"].item() > 0.1 else 1.0), stats


class PressesCtrlC(Callback):
    def on_result(self, algorithm: Any, result: Any) -> None:
        if algorithm.config.seed == 1 and result.iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)


class FailsAtSeed2(Callback):
    def on_result(self, algorithm: Any, result: Any) -> None:
        if algorithm.config.seed == 2 and result.iteration == 2:
            raise ValueError("as asked")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {"learning_rate": {"schedule": "linear", "start": 1e-3, "end": 0}}),
        # episodes are cut off, several in a round, by environments whose step may only reset
        ("ppo", "CartPole-v1", {"env_kwargs": {"max_episode_steps": 7}, "num_rollout_workers": 2}),
        ("ppo", "Acrobot-v1", {"policy": {"hidden_sizes": [8], "share_encoder": True, "activation": "relu"}}),
        ("ppo", "Pendulum-v1", {"normalize_observations": True, "normalize_rewards": True}),
        ("ppo", "MountainCarContinuous-v0", {"policy": {"layer_norm": True, "rescale_actions": True}}),
        (f"{__name__}:Bolder", "MountainCar-v0", {"target_kl": 1e-4}),
    ],
)
def test_each_seed_is_the_run_that_it_is_alone(algo: str, env: str, settings: dict[str, Any], tmp_path: Path) -> None:
    given: dict[str, Any] = {**SMALL, "num_rollout_workers": 1, **settings}
    given["stop"] = {"env_steps": 3 * 32 * 3 * given["num_rollout_workers"]}
    together = rlplat.train_together(algo, env, seeds=[4, 9], out=tmp_path / "together", **given)
    assert [run.directory.name for run in together] == ["seed-4", "seed-9"]
    rlplat.init(backend="inproc")
    try:
        rlplat.train(algo, env, seed=9, out=tmp_path / "alone", **given)
    finally:
        rlplat.shutdown()
    alone, seed_9 = lines(tmp_path / "alone"), lines(tmp_path / "together/seed-9")
    assert len(alone) == len(seed_9) >= 4
    for one, other in zip(alone, seed_9, strict=True):
        for key, value in one.items():
            if not key.startswith(TIMES):
                exact = not key.startswith("learner/")
                assert other[key] == (value if exact else pytest.approx(value, rel=1e-4, abs=1e-4)), key
    assert lines(tmp_path / "together/seed-4")[-1]["learner/policy_loss"] != seed_9[-1]["learner/policy_loss"]
    ours, theirs = (rlplat.load(tmp_path / name).weights() for name in ("together/seed-9", "alone"))
    assert all(np.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"algo": "dqn"}, "the algorithm is dqn"),
        ({"framework": "tf"}, "framework is tf"),
        ({"deterministic": True}, "deterministic is True"),
        ({"overlap_sampling": True}, "overlap_sampling is True"),
        ({"vectorization": "sync"}, "vectorization is sync"),
        ({"learner": {"num_learners": 2}}, "learner.num_learners is 2"),
        ({"policy": {"core": "lstm"}}, "no plain MLP"),
        ({"env": "tests.rl.fixture_envs:SeededEnv"}, "SeededEnv is none of those"),
        ({"env_kwargs": {"wrappers": ["gymnasium.wrappers:NormalizeReward"]}}, "CartPole-v1 is none of those"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line(settings: dict[str, Any], what: str, tmp_path: Path) -> None:
    given = {"algo": "ppo", "env": "CartPole-v1", "config": False, **settings}
    with pytest.raises(ConfigError, match=what) as refused:
        rlplat.train_together(given.pop("algo"), given.pop("env"), seeds=[1, 2], out=tmp_path / "out", **given)
    assert "\n" not in str(refused.value) and "--together" in str(refused.value)
    assert not (tmp_path / "out").exists() and not rlplat.is_initialized()


def test_the_command_goes_on_and_says_what_the_seeds_say_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (
        "train --algo ppo --env CartPole-v1 --no-config --num-envs-per-worker 2 --rollout-length 16 --seeds 1-3 "
        "--together --out many --evaluation.episodes 2 --stop.env-steps"
    )
    assert main([*command.split(), "64"]) == 0
    assert main([*command.split(), "128"]) == 0
    out = capsys.readouterr().out
    assert "evaluation of 3 seeds: mean " in out and "return of 3 seeds: mean " in out
    for seed in (1, 2, 3):
        steps = [line["env_steps"] for line in lines(tmp_path / f"many/seed-{seed}")]
        assert steps == sorted(steps) and 128 <= steps[-1] < 128 + 32
    assert main(["evaluate", "many/seed-2", "--episodes", "1"]) == 0
    assert main([*command.split(), "128"]) == 0  # nothing is left to do
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--together"]) == 2
    assert "--together goes with --seeds" in capsys.readouterr().err


def test_ctrl_c_saves_all_of_them(tmp_path: Path) -> None:
    given = {**SMALL, "callbacks": [f"{__name__}:PressesCtrlC"], "stop": {"env_steps": 400}}
    with pytest.raises(Interrupted):
        rlplat.train_together("ppo", "CartPole-v1", seeds=[1, 2], out=tmp_path, **given)
    assert not rlplat.is_initialized()
    for seed in (1, 2):
        assert [line["iteration"] for line in lines(tmp_path / f"seed-{seed}")] == [1, 2]
        assert rlplat.load(tmp_path / f"seed-{seed}")
    ended = rlplat.train_together("ppo", "CartPole-v1", seeds=[1, 2], out=tmp_path, **given)
    assert [line["iteration"] for line in lines(tmp_path / "seed-2")][:4] == [1, 2, 3, 4]
    assert [run.num_iterations >= 2 for run in ended] == [True, True]


def test_a_seed_that_fails_ends_alone(tmp_path: Path) -> None:
    given = {**SMALL, "callbacks": [f"{__name__}:FailsAtSeed2"], "stop": {"env_steps": 400}}
    with pytest.raises(RlplatError, match="as asked"):
        rlplat.train_together("ppo", "CartPole-v1", seeds=[1, 2, 3], out=tmp_path, **given)
    assert [lines(tmp_path / f"seed-{seed}")[-1]["env_steps"] >= 400 for seed in (1, 2, 3)] == [True, False, True]
    assert "as asked" in (tmp_path / "seed-2/log.txt").read_text()
