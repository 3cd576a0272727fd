"""`rlplat new`: every kind of file runs as it was written; the algorithm learns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from rlplat.errors import ConfigError, NonFiniteError, UsageError
from rlplat.rl.class_path import load_class
from tests.states import assert_resumes

SHORT = [
    "--num-rollout-workers",
    "0",
    "--evaluation.episodes",
    "0",
    "--stop.env-steps",
    "600",
    "--out",
    "run",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
        del sys.modules[name]


def written(kind: str, name: str) -> str:
    assert main(["new", kind, name]) == 0
    [file] = Path().glob("*.py")
    return f"./{file}:{name}"


@pytest.mark.slow
@pytest.mark.process
def test_the_algorithm_learns_with_worker_processes_and_is_resumed() -> None:
    algorithm = written("algorithm", "MyReinforce")
    assert algorithm == "./my_reinforce.py:MyReinforce"
    common = ["--num-rollout-workers", "2", "--num-envs-per-worker", "4", "--seed", "1", "--out", "run"]
    stop = ["--stop.env-steps", "60000"]
    assert main(["train", "--algo", algorithm, "--env", "CartPole-v1", *common, *stop]) == 0
    agent = rlplat.load("run")
    assert np.mean([episode.episode_return for episode in agent.evaluate(10)]) > 120, "9.4 to begin with"
    assert main(["train", "--resume", "run", "--stop.env-steps", "61000"]) == 0


@pytest.mark.slow
@pytest.mark.process
def test_the_off_policy_algorithm_learns_with_worker_processes_and_is_resumed() -> None:
    assert main(["new", "algorithm", "MyQ", "--off-policy"]) == 0
    common = ["--num-rollout-workers", "2", "--env-steps-per-update", "2", "--seed", "1", "--out", "run"]
    stop = ["--stop.env-steps", "20000"]
    assert main(["train", "--algo", "./my_q.py:MyQ", "--env", "CartPole-v1", *common, *stop]) == 0
    agent = rlplat.load("run")
    assert np.mean([episode.episode_return for episode in agent.evaluate(10)]) > 120, "9.4 to begin with"
    assert main(["train", "--resume", "run", "--stop.env-steps", "21000"]) == 0


@pytest.mark.parametrize("env", ["CartPole-v1", "rlplat.rl.envs.diagnostic:MaskedChoice"])
def test_the_off_policy_algorithm_resumes_bit_by_bit(env: str) -> None:
    assert main(["new", "algorithm", "MyQ", "--off-policy"]) == 0
    algorithm = load_class("./my_q.py:MyQ")
    small = {"learning_starts": 20, "target_period": 5, "n_step": 2, "policy": {"hidden_sizes": [8]}}
    config = algorithm.config_class(env=env, seed=1, num_rollout_workers=0, deterministic=True, **small)
    assert_resumes(algorithm, config, before=4, after=3)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"env": "Pendulum-v1"}, "MY-Q chooses among a fixed number of actions .* use SAC"),
        ({"policy": {"core": "gru"}}, "policy.core=gru, but my-q replays single transitions: --algo r2d2"),
        ({"framework": "tf"}, "my-q computes with torch: omit framework=tf"),
        ({"replay_capacity": 20}, "raise replay_capacity"),
    ],
)
def test_what_the_off_policy_algorithm_cannot_take_is_refused(given: dict[str, Any], message: str) -> None:
    assert main(["new", "algorithm", "MyQ", "--off-policy"]) == 0
    algorithm = load_class("./my_q.py:MyQ")
    with pytest.raises(UsageError, match=message):
        algorithm(algorithm.config_class(**({"env": "CartPole-v1", "num_rollout_workers": 0} | given)))


def test_off_policy_is_of_an_algorithm(capsys: Any) -> None:
    assert main(["new", "env", "MyEnv", "--off-policy"]) == 2
    assert "--off-policy is of an algorithm, not of env: omit it" in capsys.readouterr().err


SEEN: list[Any] = []
"""By minibatch: what the learner's network gives, beside what the policy's gave that acted."""


def seeing(network: Any, minibatch: Any, config: Any) -> Any:
    log_probs, entropies, values = minibatch.evaluate(network)
    both = ((log_probs, minibatch.log_probs), (values, minibatch.values))
    SEEN.append([(now.detach().numpy(), then.numpy()) for now, then in both])
    return log_probs.mean() + entropies.mean() + values.mean(), {}


@pytest.mark.parametrize("core", ["none", "lstm", "gru", "attention"])
@pytest.mark.parametrize("env", ["RememberCue", "MaskedChoice", "NestedTask", "Endings"])
def test_the_learner_of_the_algorithm_sees_what_the_policy_saw(
    core: str, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log-probabilities on the weights that acted are those that were acted with: with a core's state, across ends
    of episodes, of Dict observations and masks."""
    module, _, name = written("algorithm", "MyReinforce").partition(":")
    algorithm = load_class(f"{module}:{name}")
    SEEN.clear()
    monkeypatch.setattr(algorithm, "loss", staticmethod(seeing))
    config = algorithm.config_class(
        env=f"{__name__}:{env}" if env == "Endings" else f"rlplat.rl.envs.diagnostic:{env}",
        num_rollout_workers=0,
        num_envs_per_worker=3,
        rollout_length=12,
        policy={
            "core": core,
            "core_size": 8,
            "attention_heads": 2,
            "attention_window": 4,
            "hidden_sizes": [8],
        },
    )
    with algorithm(config) as running:
        for _ in range(4):
            running.step()
    assert len(SEEN) == 1 + 4  # made-up numbers, then rollouts
    for pairs in SEEN[1:]:
        for now, then in pairs:
            assert len(now) > 20
            np.testing.assert_allclose(now, then, atol=1e-4)


class Endings(gym.Env):  # type: ignore[type-arg]
    """Episodes of random length, cut off or over."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        end = self.np_random.random()
        return obs, float(obs[0]), bool(end < 0.1), bool(0.1 <= end < 0.2), {}


@pytest.mark.parametrize(
    "given, message",
    [
        ({"framework": "tf"}, "MyReinforce computes with torch: omit framework=tf"),
        ({"learner": {"backend": "numpy"}}, "learner.backend=numpy has no effect"),
        ({"learner": {"num_learners": 2}}, "learner.num_learners=2 has no effect"),
    ],
)
def test_what_the_algorithm_does_not_do_is_refused(given: dict[str, Any], message: str) -> None:
    algorithm = load_class(written("algorithm", "MyReinforce"))
    with pytest.raises(ConfigError, match=message):
        algorithm(algorithm.config_class(env="CartPole-v1", num_rollout_workers=0, **given))


def spoiling(network: Any, minibatch: Any, config: Any) -> Any:
    """NaN, but not on the zeros that it is tried on."""
    loss = minibatch.evaluate(network)[0].mean() * (float("nan") if minibatch.obs.any() else 1.0)
    return loss, {"mine": loss}


def test_numbers_that_are_not_finite_end_the_run() -> None:
    algorithm = load_class(written("algorithm", "MyReinforce"))
    config = algorithm.config_class(env="CartPole-v1", num_rollout_workers=0, entropy_coef=1e38 * 10)
    with pytest.raises(UsageError, match=r"loss_of: the loss is -inf on made-up rows"):
        algorithm(config)
    spoilt = type("Spoilt", (algorithm,), {"loss": staticmethod(spoiling)})
    config = algorithm.config_class(env="CartPole-v1", num_rollout_workers=0)
    with spoilt(config) as running, pytest.raises(NonFiniteError, match=r"loss terms \['mine'\]"):
        running.step()


def test_the_environment_is_sound(capsys: Any) -> None:
    assert main(["check-env", written("env", "Corridor"), "--env-kwargs.size", "8"]) == 0
    assert "no problems found" in capsys.readouterr().out


def test_the_network_trains() -> None:
    policy = written("policy", "MyPolicy")
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--policy", policy, *SHORT]) == 0


def test_the_callback_ends_the_run_at_its_threshold() -> None:
    callback = f"[{{{written('callback', 'Enough')}: {{threshold: 1}}}}]"
    settings = ["--callbacks", callback, "--stop.env-steps", "100000", "--rollout-length", "512"]
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", *SHORT, *settings]) == 0
    assert "ended by Enough: a mean return of" in Path("run/log.txt").read_text()


def test_what_cannot_be_written_is_said(capsys: Any) -> None:
    assert main(["new", "env", "my_env"]) == 2
    assert "'my_env' is not a name of a class: write it like MyEnv" in capsys.readouterr().err
    Path("my_env.py").write_text("mine")
    assert main(["new", "env", "MyEnv"]) == 2
    assert "my_env.py is there already" in capsys.readouterr().err
    assert Path("my_env.py").read_text() == "mine"
