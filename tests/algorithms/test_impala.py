"""IMPALA as a whole: it learns, resumes bit by bit, drops what is too old, replaces workers; what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms import impala as impala_module
from rlplat.algorithms.impala import Impala, ImpalaConfig, ImpalaLearner, ImpalaWorker
from rlplat.errors import ConfigError, NonFiniteError
from rlplat.rl.envs import check
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.sampling.returns import explained_variance, gae, vtrace
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from tests.states import assert_resumes

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 3,
    "num_rollout_workers": 2,
    "num_envs_per_worker": 4,
    "rollout_length": 8,
    "updates_per_report": 3,
    "policy": {"hidden_sizes": [16]},
    "evaluation": {"episodes": 2},
    "stop": {"env_steps": 5_000},
}


def make(**settings: Any) -> Impala:
    return Impala(ImpalaConfig(**(QUICK | settings)))


def make_parts(**settings: Any) -> tuple[ImpalaLearner, ImpalaWorker]:
    """A learner and a worker in this thread, to turn by hand."""
    config = ImpalaConfig(**(QUICK | settings))
    spec = policy_spec(config.policy.model_dump(), check.preflight(config))
    server = rlplat.remote(ParameterServer).remote()
    return ImpalaLearner(computation_of(Impala), config.model_dump(), spec, server), ImpalaWorker(
        config.model_dump(), 0, 0
    )


def test_learns_cartpole(runtime: None) -> None:
    """A random policy reaches 22."""
    settings = {"learning_rate": 3e-3, "num_envs_per_worker": 16, "rollout_length": 20, "entropy_coef": 0.0}
    with make(**settings, discount=0.98, policy={"hidden_sizes": [64, 64]}) as impala:
        result = impala.step()
        while (result.episode_return_mean or 0.0) < 80:
            assert result.env_steps < 40_000, result.episode_return_mean
            result = impala.step()
        assert result.metrics["learner/staleness_mean"] > 0
        evaluated = impala.evaluate(3)
        assert np.mean([episode.episode_return for episode in evaluated]) > 40


def test_resumes_bit_by_bit(runtime: None) -> None:
    settings = {
        "rollouts_per_update": 2,
        "normalize_observations": True,
        "normalize_rewards": True,
        "num_epochs": 2,
        "optimizer": "rmsprop",
    }
    config = ImpalaConfig(**(QUICK | settings | {"deterministic": True}))
    assert_resumes(Impala, config, before=1, after=2)


def test_asynchronous_it_can_be_saved_and_resumed_at_any_time(runtime: None) -> None:
    with make() as one:
        one.step()
        state = one.get_state()
        assert "rollouts that wait for the learner" in one.not_saved[-1]
        assert one.step().env_steps > state["env_steps"] >= 3 * 32
        one.set_state(state)
        assert one.step().env_steps > state["env_steps"]


@pytest.mark.process
def test_a_worker_that_is_killed_is_replaced_and_the_training_goes_on() -> None:
    rlplat.init(num_cpus=2, num_gpus=0, preload=("torch",))
    try:
        with make() as impala:
            before = impala.step().env_steps
            rlplat.kill(impala.workers.handles[1])
            results = [impala.step() for _ in range(3)]
            while not results[-1].metrics["rollout/worker_restarts"] and len(results) < 50:
                results.append(impala.step())
            assert results[-1].metrics["rollout/worker_restarts"] == 1 and results[-1].env_steps > before
    finally:
        rlplat.shutdown()


LSTM = {"policy": {"core": "lstm", "core_size": 8, "hidden_sizes": [8]}, "clip_range": 0.2}
PIXELS = {
    "env": "tests.rl.fixture_envs:Blinking",
    "normalize_observations": True,
    "policy": {"encoder": "small_cnn"},
}


def kwargs_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Episodes that are cut off within a rollout, where there is a core."""
    return {"max_episode_steps": 13} if "clip_range" in settings else {}


@pytest.mark.parametrize(
    "settings",
    [{"normalize_observations": True}, LSTM, PIXELS],
    ids=["normalized", "lstm appo", "normalized pixels"],
)
def test_on_policy_the_targets_are_n_step_returns(
    runtime: None, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """The learner's network gives what the worker's gave: log-probabilities, values, and so the returns of GAE(1)."""
    learner, worker = make_parts(**settings, rollout_length=40, env_kwargs=kwargs_of(settings))
    twin = RolloutWorker(learner.config.model_dump(), 0, 0)  # the same, with values of the weights that acted
    twin.sample((0, learner.weights()))
    learner.update(worker.sample((0, learner.weights()))[0])  # the next one begins within episodes, and normalised
    batch, _ = worker.sample((1, learner.weights()))
    acted = twin.sample((1, learner.weights()))
    np.testing.assert_array_equal(batch.actions, acted.actions)
    assert batch.terminated.any() and batch.truncated.any() == ("clip_range" in settings)
    found: list[Any] = []
    monkeypatch.setattr(
        impala_module, "vtrace", lambda *args, **named: found.append(vtrace(*args, **named)) or found[-1]
    )
    metrics = learner.update(batch).metrics
    flags = (batch.terminated, batch.truncated, batch.valid)
    advantages, returns = gae(batch.rewards, batch.values, acted.next_values, *flags, discount=0.99, gae_lambda=1.0)
    np.testing.assert_allclose(found[0].targets, returns, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[0].advantages, advantages, rtol=1e-4, atol=1e-4)
    assert metrics["learner/rho_clipped"] == metrics["learner/clip_fraction"] == 0.0
    assert metrics["learner/staleness_max"] == 0
    known = explained_variance(batch.values[batch.valid], found[0].targets[batch.valid])
    assert known < 1.0 and metrics["learner/explained_variance"] == pytest.approx(known, abs=1e-4)


def test_with_old_weights_and_time_limits_the_targets_are_equation_1(
    runtime: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the worker's columns alone: mu is the policy that acted, also across updates; V that of the learner's
    weights, at a time limit and at the end of the last observation there."""
    learner, worker = make_parts(rollout_length=24, learning_rate=0.05, env_kwargs={"max_episode_steps": 9})
    worker.sample((0, learner.weights()))
    batch, _ = worker.sample((0, learner.weights()))
    assert batch.truncated[:-1].any() and not batch.valid.all(), "the last observation has a row of its own"
    assert batch.cut_rows is not None and not batch.next_values.any()
    np.testing.assert_array_equal(np.sort(batch.cut_rows), np.flatnonzero(batch.truncated))
    learner.update(batch)
    found: list[Any] = []
    monkeypatch.setattr(
        impala_module, "vtrace", lambda *args, **named: found.append(vtrace(*args, **named)) or found[-1]
    )
    weights = learner.weights()
    learner.update(batch)
    logits, values = numpy_network(weights, batch.obs)
    ends = np.zeros_like(values)
    ends[-1] = numpy_network(weights, batch.last_obs)[1]
    ends.reshape(-1)[batch.cut_rows] = numpy_network(weights, batch.final_obs)[1]
    chosen = np.take_along_axis(logits, batch.actions[..., None], -1)[..., 0]
    rho = np.minimum(1.0, np.exp(chosen - np.log(np.exp(logits).sum(-1)) - batch.log_probs))
    assert rho[batch.valid].min() < 0.9, "the weights have changed"
    expected = values.copy()
    for column in range(values.shape[1]):
        for row in np.flatnonzero(batch.valid[:, column]):
            weight, step = 1.0, row
            while True:
                at_end = batch.truncated[step, column] or step == len(values) - 1
                following = (ends if at_end else values)[step + (not at_end), column]
                error = batch.rewards[step, column] - values[step, column]
                error += 0.0 if batch.terminated[step, column] else 0.99 * following
                expected[row, column] += weight * rho[step, column] * error
                weight *= 0.99 * rho[step, column]
                if at_end or batch.terminated[step, column]:
                    break
                step += 1
    np.testing.assert_allclose(found[0].targets[batch.valid], expected[batch.valid], rtol=1e-4, atol=1e-4)


def numpy_network(weights: dict[str, Any], obs: Any) -> tuple[Any, Any]:
    """(logits [T, B, A], values [T, B]) of one hidden layer and tanh, written out."""

    def linear(name: str, inputs: Any) -> Any:
        return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    hidden = {part: np.tanh(linear(f"{part}_encoder.layers.0", obs)) for part in ("actor", "critic")}
    return linear("actor_head", hidden["actor"]), linear("critic_head", hidden["critic"])[..., 0]


def test_a_rollout_that_is_too_old_is_dropped_and_counted(runtime: None) -> None:
    learner, worker = make_parts(max_staleness=1)
    old, _ = worker.sample((0, learner.weights()))
    assert learner.update(old).metrics["learner/dropped_rollouts"] == 0
    fresh, _ = worker.sample((1, learner.weights()))
    learner.update(fresh)
    before = learner.trainee.weights()
    report = learner.update(old)  # two versions behind
    assert report.metrics["learner/dropped_rollouts"] == 1 and report.metrics["learner/staleness_max"] == 2
    assert report.env_steps == old.env_steps and "learner/policy_loss" not in report.metrics
    for name, array in learner.trainee.weights().items():
        np.testing.assert_array_equal(array, before[name])
    both = learner.update(old, worker.sample((3, learner.weights()))[0])
    assert both.metrics["learner/dropped_rollouts"] == 1 and "learner/policy_loss" in both.metrics


@pytest.mark.parametrize("env", ["Pendulum-v1", "tests.rl.fixture_envs:TreeEnv", "tests.rl.fixture_envs:MaskEnv"])
def test_takes_the_spaces_that_ppo_takes(runtime: None, env: str) -> None:
    with make(env=env, num_rollout_workers=1) as impala:
        assert impala.step().env_steps == 3 * 32


@pytest.mark.parametrize("non_finite", ["stop", "skip"])
def test_a_gradient_that_is_not_finite(runtime: None, non_finite: str) -> None:
    learner, worker = make_parts(non_finite=non_finite)
    batch, _ = worker.sample((0, learner.weights()))
    assert isinstance(batch.last_obs, np.ndarray)
    batch.last_obs[...] = np.nan
    if non_finite == "stop":
        with pytest.raises(NonFiniteError, match=r"columns \['last_obs'\] at 0 env steps"):
            learner.update(batch)
    else:
        before = learner.trainee.weights()
        assert learner.update(batch).metrics["learner/skipped_minibatches"] == 1
        for name, array in learner.trainee.weights().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"framework": "tf"}, "Impala computes with torch: omit framework=tf"),
        ({"learner": {"num_learners": 2}}, "learner.num_learners=2 has no effect: there is one learner"),
        ({"learner": {"backend": "numpy"}}, "computes with torch"),
    ],
)
def test_settings_that_cannot_be(runtime: None, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make(**settings)
