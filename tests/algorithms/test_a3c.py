"""A3C as a whole: it learns, alone and with others; who gets weights; what is dropped; who may die."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms.a3c import A3C, A3CConfig, A3CWorker
from rlplat.errors import ActorDied, ConfigError, NonFiniteError
from rlplat.rl.envs import check
from rlplat.rl.interfaces import Result, Weights
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.numpy_learning import optimizer_of
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.normalization import LEAST_PIXEL_VAR, OBS_MEAN, OBS_VAR
from rlplat.rl.policies.spec import policy_spec

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 3,
    "num_rollout_workers": 0,
    "num_envs_per_worker": 8,
    "learning_rate": 2e-3,
    "discount": 0.98,
    "gae_lambda": 0.95,
    "entropy_coef": 0.0,
    "updates_per_report": 10,
    "stop": {"env_steps": 100_000},
}


def make(**settings: Any) -> A3C:
    return A3C(A3CConfig(**(QUICK | settings)))


def weights_of(a3c: A3C) -> Weights:
    weights: Weights = rlplat.get(a3c.weights())[1]
    return {name: array.copy() for name, array in weights.items()}


def assert_same(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def without_seconds(result: Result) -> tuple[Any, ...]:
    metrics = {name: value for name, value in result.metrics.items() if not name.endswith("_s")}
    return (result.iteration, result.env_steps, result.episodes, result.episode_return_mean, metrics)


def env_steps_until(a3c: A3C, episode_return: float, at_most: int) -> int:
    """Env steps when the mean return of the last 100 episodes has got there; fails when it has not after `at_most`."""
    result = a3c.step()
    while (result.episode_return_mean or 0.0) < episode_return:
        assert result.env_steps < at_most, f"mean return {result.episode_return_mean} at {result.env_steps} env steps"
        result = a3c.step()
    return result.env_steps


# ---------------------------------------------------------------- learning


def test_learns_cartpole_alone() -> None:
    """A random policy reaches 22; 120 within 40,000 steps needs returns, loss and optimizer to be right."""
    with make() as a3c:
        assert 15 < (a3c.step().episode_return_mean or 0.0) < 35
        assert env_steps_until(a3c, 120.0, at_most=40_000) > 5_000
        evaluated = a3c.evaluate(5)
        assert len(evaluated) == 5 and np.mean([e.episode_return for e in evaluated]) > 60
    assert not rlplat.is_initialized()


@pytest.mark.process
def test_learns_cartpole_in_two_processes_and_no_array_passes_through_the_driver(
    torch_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asynchronous, so the same seed need not give the same run: what is asked is that it learns."""
    with make(num_rollout_workers=2) as a3c:
        got: list[Any] = []
        get = rlplat.get
        monkeypatch.setattr(rlplat, "get", lambda refs, **options: (got.append(get(refs, **options)), got[-1])[1])
        results = [a3c.step()]
        while (results[-1].episode_return_mean or 0.0) < 80:
            assert results[-1].env_steps < 60_000, results[-1].episode_return_mean
            results.append(a3c.step())
        assert (np.diff([result.env_steps for result in results]) > 0).all()
        assert max(result.metrics["learner/staleness_max"] for result in results) >= 1
        assert got and not any("array(" in repr(value) for value in got)


def test_continuous_actions_normalised_observations_and_rewards(runtime: None) -> None:
    settings = {"env": "Pendulum-v1", "normalize_observations": True, "normalize_rewards": True}
    with make(**settings) as a3c:
        for _ in range(3):
            result = a3c.step()
        weights = weights_of(a3c)
        assert weights[OBS_MEAN].shape == (3,) and (weights[OBS_MEAN] != 0).all()
        assert all(np.isfinite(array).all() for array in weights.values())
        assert result.metrics["learner/entropy"] == pytest.approx(1.42, abs=0.2)
        assert_same(A3C.policy_weights(a3c.get_state()), weights)


def test_pixels_are_normalised_each_by_its_own_statistics(runtime: None) -> None:
    with make(
        env="tests.rl.fixture_envs:Blinking", normalize_observations=True, policy={"encoder": "small_cnn"}
    ) as a3c:
        for _ in range(3):
            a3c.step()
        mean, var = (weights_of(a3c)[name][:, :, 0] for name in (OBS_MEAN, OBS_VAR))
    assert mean[3, 4] == pytest.approx(127.5, rel=0.1) and var[3, 4] == pytest.approx(127.5**2, rel=0.1)
    assert mean[0, 0] == 87 and var[0, 0] == LEAST_PIXEL_VAR


@pytest.mark.parametrize("core", ["lstm", "attention"])
def test_recurrent_cores(runtime: None, core: str) -> None:
    policy = {"core": core, "core_size": 16, "attention_window": 4}
    with make(policy=policy, updates_per_report=3) as a3c:
        before = weights_of(a3c)
        a3c.step()
        after = weights_of(a3c)
        assert any((before[name] != after[name]).any() for name in before if name.startswith("core"))
        assert len(a3c.evaluate(2)) == 2


# ---------------------------------------------------------------- reproducible with one worker


def test_a_resumed_run_goes_on_bit_for_bit(runtime: None) -> None:
    settings = {"deterministic": True, "normalize_observations": True, "normalize_rewards": True}
    whole, first, second = make(**settings), make(**settings), make(**settings)
    expected = [without_seconds(whole.step()) for _ in range(4)][2:]
    for _ in range(2):
        first.step()
    second.set_state(first.get_state())
    assert [without_seconds(second.step()) for _ in range(2)] == expected
    assert_same(weights_of(second), weights_of(whole))


def test_another_number_of_workers_scales_rewards_as_those_before_and_repeats_nothing(runtime: None) -> None:
    one, three = make(normalize_rewards=True), make(normalize_rewards=True, num_rollout_workers=3)
    one.step()
    state = one.get_state()
    three.set_state(state)
    resumed = three.get_state()["rollout_workers"]
    assert resumed["incarnations"] == [1, 1, 1]
    [saved] = state["rollout_workers"]["workers"]
    for worker in resumed["workers"]:
        assert worker["reward_normalizer"]["statistics"] == saved["reward_normalizer"]["statistics"]
        assert worker["reward_normalizer"]["workers"] == {}


# ---------------------------------------------------------------- asynchrony, one worker at a time


def make_workers(num_workers: int, **settings: Any) -> tuple[Any, list[A3CWorker]]:
    config = A3CConfig(**(QUICK | {"num_rollout_workers": num_workers} | settings))
    spec = policy_spec(config.policy.model_dump(), check.preflight(config))
    server = rlplat.remote(ParameterServer).remote(optimizer_of(config), config.max_staleness)
    workers = [
        A3CWorker(computation_of(A3C), config.model_dump(), index, 0, spec, server) for index in range(num_workers)
    ]
    workers[0].publish()
    return server, workers


def test_only_the_sender_gets_fresh_weights(runtime: None) -> None:
    server, (one, other) = make_workers(2)
    one.learn(1, 0.0)
    other.learn(1, 0.0)
    assert (one._version, other._version) == (1, 2)
    held = other._net.trainee.weights()
    one.learn(3, 0.0)
    assert (one._version, other._version) == (5, 2)
    assert_same(other._net.trainee.weights(), held)
    assert_same(one._net.trainee.weights(), one._server.latest()[1])
    rlplat.get(server.take_report.remote())
    other.learn(1, 0.0)  # computed on version 2, applied to version 5
    metrics = rlplat.get(server.take_report.remote()).metrics
    assert metrics["learner/staleness_mean"] == metrics["learner/staleness_max"] == 3
    assert other._version == 6


def test_a_gradient_that_is_too_old_is_dropped_and_counted(runtime: None) -> None:
    server, (one, other) = make_workers(2, max_staleness=2)
    other.learn(1, 0.0)
    one.learn(3, 0.0)
    before = one._server.latest()
    rlplat.get(server.take_report.remote())
    other.learn(1, 0.0)  # three versions old
    version, weights = one._server.latest()
    assert version == before[0]
    assert_same(weights, before[1])
    assert_same(other._net.trainee.weights(), weights)
    report = rlplat.get(server.take_report.remote())
    assert report.metrics["learner/dropped_gradients"] == 1 and 0 < report.env_steps <= 5 * 8
    other.learn(1, 0.0)  # with the fresh weights it goes on
    assert rlplat.get(server.version.remote()) == version + 1


def test_normalised_advantages_make_the_policys_gradient_blind_to_the_scale_of_rewards(runtime: None) -> None:
    _, (plain,) = make_workers(1)
    _, (normalizing,) = make_workers(1, normalize_advantages=True)
    for worker in (plain, normalizing):
        worker._use(*worker._server.latest())
    batches = [worker.roll_out() for worker in (plain, normalizing)]
    (_, stats), (_, other_stats) = (
        worker._gradients(batch, worker.config.model_copy(update={"entropy_coef": 0.0}))
        for worker, batch in zip((plain, normalizing), batches, strict=True)
    )
    assert stats["learner/value_loss"] == other_stats["learner/value_loss"]
    assert stats["learner/policy_loss"] != other_stats["learner/policy_loss"]
    assert other_stats["learner/policy_loss"] == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_acting_and_gradient_use_the_same_weights_and_statistics(runtime: None, env: str) -> None:
    """So the critic's values of the rollout are those of the network, and log-probabilities have ratio 1."""
    torch = pytest.importorskip("torch")
    _, (worker,) = make_workers(1, env=env, normalize_observations=True, learner={"backend": "torch"})
    worker.learn(1, 0.0)
    assert worker._version == 0, "a gradient of raw observations was applied"
    worker.learn(30, 0.0)  # statistics come with the first 1,000 observations
    assert worker._version > 0
    batch = worker.roll_out()
    obs = worker._normalize_obs(batch.flat_obs())
    assert (obs != batch.flat_obs()).any()
    with torch.inference_mode():
        log_probs, _, values = worker._net.trainee.network.evaluate_actions(
            torch.from_numpy(obs), torch.from_numpy(batch.flat("actions"))
        )
    np.testing.assert_allclose(values, batch.flat("values"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_probs, batch.flat("log_probs"), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- what may go wrong


@pytest.mark.process
def test_a_dead_worker_is_replaced_and_the_others_go_on(torch_cluster: None) -> None:
    with make(num_rollout_workers=2) as a3c:
        before = a3c.step()
        rlplat.kill(a3c.workers.handles[1])
        results = [a3c.step()]
        while not results[-1].metrics["rollout/worker_restarts"] and len(results) < 50:
            results.append(a3c.step())
        assert results[-1].metrics["rollout/worker_restarts"] == 1
        assert results[-1].env_steps > before.env_steps
        state = a3c.get_state()
        assert state["rollout_workers"]["incarnations"] == [0, 1]
        # Whatever was applied has been counted: the ledger holds what no step has taken yet.
        counted = a3c.step()
        assert counted.env_steps >= results[-1].env_steps + state["learner"]["ledger"]["env_steps"]


def test_a_worker_that_keeps_dying_ends_the_run(runtime: None) -> None:
    with make(max_worker_restarts=1) as a3c, pytest.raises(ActorDied, match="more than 1 times"):
        for _ in range(3):
            rlplat.kill(a3c.workers.handles[0])
            a3c.step()


def test_a_dead_parameter_server_ends_the_run_and_says_how_to_go_on(runtime: None) -> None:
    with make() as a3c:
        a3c.step()
        rlplat.kill(a3c.learners.server)
        with pytest.raises(ActorDied, match=r"(?s)the parameter server died.*--resume"):
            a3c.step()


def test_a_reward_that_is_not_finite_is_named(runtime: None) -> None:
    _, (worker,) = make_workers(1)
    worker.learn(1, 0.0)
    batch = worker.roll_out()
    batch.rewards[2, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"reward nan from environment 1 of rollout worker 0 \(step 2"):
        worker._gradients(batch, worker.config)


@pytest.mark.parametrize("non_finite", ["stop", "skip"])
def test_a_gradient_that_is_not_finite(runtime: None, monkeypatch: pytest.MonkeyPatch, non_finite: str) -> None:
    server, (worker,) = make_workers(1, non_finite=non_finite)
    worker.learn(1, 0.0)
    compute = worker._net.gradients

    def spoilt(*args: Any, **options: Any) -> Any:
        gradients, stats = compute(*args, **options)
        gradients["critic_head.bias"][:] = math.inf
        return gradients, stats

    monkeypatch.setattr(worker._net, "gradients", spoilt)
    if non_finite == "stop":
        with pytest.raises(NonFiniteError, match=r"gradients \['critic_head.bias'\] of rollout worker 0"):
            worker.learn(1, 0.0)
    else:
        worker.learn(2, 0.0)
        metrics = rlplat.get(server.take_report.remote()).metrics
        assert metrics["learner/skipped_gradients"] == 2 and metrics["learner/applied_gradients"] == 1
    assert rlplat.get(server.version.remote()) == 1


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"learner": {"device": "cuda"}}, "on the CPU"),
    ],
)
def test_preflight_refuses_before_any_actor_starts(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make(**settings)
    assert not rlplat.is_initialized()
