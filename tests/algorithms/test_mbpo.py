"""MBPO as a whole: what it learns from, resuming bit by bit, what it refuses; its model's tests are in
tests/rl/torch/test_ensemble.py and tests/rl/replay/test_model_rollouts.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from rlplat.algorithms.mbpo import MBPO, MBPOConfig, MBPOLearner, rollout_steps
from rlplat.algorithms.sac import SAC, SACConfig
from rlplat.errors import ConfigError, NonFiniteError, UsageError
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.schedules import schedule_value
from rlplat.rl.torch.ensemble import DynamicsEnsemble
from tests.states import assert_equal, assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "Pendulum-v1",
    "seed": 3,
    "rollout_length": 8,
    "num_envs_per_worker": 2,
    "num_rollout_workers": 0,
    "learning_starts": 40,
    "env_steps_per_update": 2,
    "batch_size": 20,
    "policy": {"hidden_sizes": [16]},
    "stop": {"env_steps": 5_000},
}
MODEL: dict[str, Any] = {
    "model": {"hidden_sizes": [16], "ensemble_size": 3, "num_elites": 2, "max_epochs": 2},
    "model_period": 32,
    "model_rollouts_per_update": 4,
    "model_rollout_length": {"schedule": "linear", "start": 1, "end": 3, "horizon": 100},
    "real_share": 0.25,
}


def test_resumes_bit_by_bit(runtime: None) -> None:
    """Weights, optimizers, both replays, the model and its scales, random numbers: everything goes on."""
    config = MBPOConfig(**QUICK | MODEL, deterministic=True, normalize_observations=True)
    expected = assert_resumes(MBPO, config, before=5, after=3)
    assert expected[-1].metrics["learner/updates"] == 48


def test_the_model_is_trained_at_its_period_and_rollouts_grow(runtime: None) -> None:
    """Rounds of 16 env steps and 8 gradient steps, from 48 env steps on; 4 rollouts for each gradient step."""
    with MBPO(MBPOConfig(**QUICK | MODEL)) as mbpo:
        metrics = [mbpo.step().metrics for _ in range(7)]
    assert [m["time/model_train_s"] > 0 for m in metrics] == [False, False, True, False, True, False, True]
    assert [m["learner/model_rollout_length"] for m in metrics] == [1, 1, 1, 2, 2, 2, 3]
    assert [m["learner/model_replay_size"] for m in metrics] == [0, 0, 32, 96, 160, 224, 320]
    assert metrics[-1]["learner/model_dropped"] == 0 and metrics[-1]["learner/model_loss"] > 0


def test_with_real_transitions_alone_it_is_sac(runtime: None) -> None:
    with SAC(SACConfig(**QUICK)) as sac, MBPO(MBPOConfig(**QUICK, real_share=1.0)) as mbpo:
        for _ in range(5):
            expected, got = sac.step(), mbpo.step()
        assert got.metrics["learner/updates"] == 24 and "learner/model_loss" not in got.metrics
        assert got.metrics["learner/critic_loss"] == expected.metrics["learner/critic_loss"]
        assert_equal(mbpo.policy_weights(mbpo.get_state()), sac.policy_weights(sac.get_state()))


@pytest.mark.parametrize("epochs", [0, 20, 20.5, 25, 37, 60, 99, 99.9, 100, 124, 300])
def test_the_schedule_of_the_paper(epochs: float) -> None:
    """Hopper, epochs of 1,000 env steps: from 1 to 15 over epochs 20 to 100; table 2's formula."""
    schedule = {"schedule": "piecewise", "points": [[0.16, 1], [0.8, 15]], "horizon": 125_000}
    config = MBPOConfig(env="Hopper-v5", model_rollout_length=schedule)
    found = rollout_steps(schedule_value(config.model_rollout_length, 1_000 * epochs, 1))
    assert found == int(min(max(1 + (epochs - 20) / (100 - 20) * (15 - 1), 1), 15))


def test_without_its_replays_a_resumed_run_fills_new_ones_by_its_policy(runtime: None) -> None:
    config = MBPOConfig(**QUICK | MODEL, save_replay=False)
    with MBPO(config) as one:
        for _ in range(3):
            one.step()
        state = one.get_state()
    with MBPO(config) as other:
        other.set_state(state)
        assert other.policy_weights(other.get_state())[EPSILON] == 0.0
        updates = [other.step().metrics["learner/updates"] for _ in range(3)]
    assert updates == [8, 8, 16]


def test_what_is_not_finite_ends_the_run_or_is_left_out(runtime: None) -> None:
    for non_finite in ("stop", "skip"):
        with MBPO(MBPOConfig(**QUICK | MODEL, non_finite=non_finite)) as mbpo:
            mbpo.step()
            mbpo.step()
            state = mbpo.get_state()
            state["learner"]["replay"]["store"]["columns"]["returns"][:5] = np.nan
        with MBPO(MBPOConfig(**QUICK | MODEL, non_finite=non_finite)) as mbpo:
            mbpo.set_state(state)
            if non_finite == "stop":
                with pytest.raises(
                    NonFiniteError,
                    match=r"batch columns \['rewards'\] at 48 env steps, in the training of the dynamics model",
                ):
                    mbpo.step()
            else:
                metrics = mbpo.step().metrics
                assert metrics["learner/model_skipped_minibatches"] == 0 and np.isfinite(metrics["learner/model_loss"])


def test_a_model_that_was_never_trained_predicts_nothing(runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no row of the replay is finite: minibatches are real."""

    def predict(*_: Any) -> None:
        raise AssertionError("it was asked")

    monkeypatch.setattr(MBPOLearner, "_fit_model", lambda self: None)
    monkeypatch.setattr(DynamicsEnsemble, "predict", predict)
    with MBPO(MBPOConfig(**QUICK | MODEL)) as mbpo:
        metrics = [mbpo.step().metrics for _ in range(4)][-1]
    assert metrics["learner/updates"] == 16 and metrics["learner/model_replay_size"] == 0


def test_what_it_cannot_take_names_who_can(runtime: None) -> None:
    with pytest.raises(UsageError, match=r"MBPO decides continuous actions .* but CartPole-v1 has .*--algo dqn"):
        MBPO(MBPOConfig(env="CartPole-v1"))
    with pytest.raises(
        UsageError,
        match=r"MBPO predicts observations that are one vector .*; use SAC: rlplat train --algo sac",
    ):
        MBPO(MBPOConfig(env="tests.algorithms.test_mbpo:Choices"))


def Choices() -> Any:  # noqa: N802 - stands for an environment
    """Observations are discrete, actions a Box."""
    import gymnasium as gym

    class Env(gym.Env[Any, Any]):
        observation_space = gym.spaces.Discrete(3)
        action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, **_: Any) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 1, 0.0, False, False, {}

    return Env()


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"num_elites=5 is more than there are networks \(ensemble_size=4\)"):
        MBPOConfig(env="X", model={"ensemble_size": 4})
    with pytest.raises(ConfigError, match="n_step=3 has no effect: transitions of the model are single steps"):
        MBPOConfig(env="X", n_step=3)
    with pytest.raises(ConfigError, match="model_rollout_length"):
        MBPOConfig(env="X", model_rollout_length=0)
