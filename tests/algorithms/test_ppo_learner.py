"""`PPOLearner` on batches made here; golden losses; what it does with bad numbers; that its state is all of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.algorithms import ppo as ppo_module
from rlplat.algorithms.ppo import PPO, PPOConfig, PPOLearner, ppo_loss
from rlplat.errors import ConfigError, NonFiniteError
from rlplat.rl.interfaces import Episode
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.learning.weights import acting_weights, given_to
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR, require_value_head
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec
from tests.algorithms.golden import assert_on_file
from tests.rl.specimens import BOX, IMAGE, make_spec

TWO = ActionSpec("discrete", n=2)
VECTOR = make_spec(action=TWO, hidden_sizes=[16, 16])
BOX_SPEC = make_spec(action=BOX, hidden_sizes=[16, 16])
IMAGE_SPEC = make_spec(IMAGE, hidden_sizes=[16])
NORMAL_IMAGE_SPEC = make_spec(IMAGE, encoder="small_cnn")


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


def make_learner(parameter_server: Any, spec: PolicySpec = VECTOR, **settings: Any) -> PPOLearner:
    defaults: dict[str, Any] = {
        "env": "made up",
        "seed": 1,
        "minibatch_size": 16,
        "num_epochs": 2,
        "learning_rate": 1e-3,
        "entropy_coef": 0.01,
        "learner": {"backend": "torch", "precision": "float32", "device": "cpu", "num_threads": 1},
        "stop": {"env_steps": 1000},
    }
    return PPOLearner(computation_of(PPO), PPOConfig(**(defaults | settings)).model_dump(), spec, parameter_server)


def test_what_was_acted_in_raw_is_only_measured(parameter_server: Any) -> None:
    """The first rounds under `normalize_observations`, also one that was sampled while the first was measured."""
    learner = make_learner(parameter_server, normalize_observations=True, normalize_rewards=True)
    before = learner.trainee.weights()
    for seed in range(2):
        batch = make_batch(seed=seed)
        batch.weights_version = 0
        batch.obs = 1e3 + batch.obs  # type: ignore[operator]
        assert learner.update(batch).env_steps == batch.env_steps
        for name, array in learner.trainee.weights().items():
            np.testing.assert_array_equal(array, before[name])
    assert learner.version == 2 and learner._learning_rewards.get_state()["statistics"]["count"] > 0
    batch = make_batch(seed=2)
    batch.weights_version = 1
    assert learner.update(batch).metrics["learner/gradient_norm"] > 0
    resumed = make_learner(parameter_server, normalize_observations=True, normalize_rewards=True)
    resumed.set_state(learner.get_state())
    batch.weights_version = resumed.version
    assert resumed.update(batch).metrics["learner/gradient_norm"] > 0


def make_batch(spec: PolicySpec = VECTOR, seed: int = 0, num_steps: int = 16, num_envs: int = 4) -> SampleBatch:
    """Random, but for the same seed always the same; a few episodes end, a few rows are resets."""
    assert isinstance(spec.obs, ObsSpec)
    rng = np.random.default_rng(seed)
    is_image, discrete = spec.obs.kind == "image", spec.action.kind == "discrete"
    obs = np.zeros((num_envs, *spec.obs.shape), np.uint8 if is_image else np.float32)
    actions = np.zeros(num_envs, np.int64) if discrete else np.zeros((num_envs, 2), np.float32)
    batch = SampleBatch.empty(num_steps, obs, actions, episodes=[Episode(1.0, 5)], timing={"sample_s": 0.5})
    batch.weights_version = 1_000  # newer than the first statistics of observations
    shape = (num_steps, *obs.shape)
    batch.obs = rng.integers(0, 256, shape).astype(np.uint8) if is_image else rng.normal(size=shape).astype(np.float32)
    batch.actions[:] = (
        rng.integers(spec.num_params, size=batch.actions.shape) if discrete else rng.normal(size=batch.actions.shape)
    )
    batch.log_probs[:] = np.log(1.0 / spec.num_params) if discrete else -2.0
    for column in (batch.values, batch.next_values, batch.rewards):
        column[:] = rng.normal(size=column.shape)
    ends = rng.random(batch.shape) < 0.1
    batch.valid[0] = True
    batch.valid[1:] = ~ends[:-1]
    batch.terminated[:] = ends & batch.valid & (rng.random(batch.shape) < 0.5)
    batch.truncated[:] = ends & batch.valid & ~batch.terminated
    if spec.core != "none":
        batch.core_state = rng.normal(size=(num_envs, state_size(spec))).astype(np.float32)
    return batch


def state_size(spec: PolicySpec) -> int:
    from rlplat.rl.torch.cores import make_core

    core = make_core(spec, 1)
    return core.state_size if core is not None else 0


@pytest.mark.parametrize("name, spec", [("categorical", VECTOR), ("gaussian", BOX_SPEC), ("images", IMAGE_SPEC)])
def test_golden_losses(parameter_server: Any, name: str, spec: PolicySpec) -> None:
    """Three rounds from fixed batches give the losses on file."""
    learner = make_learner(parameter_server, spec)
    losses = []
    for seed in range(3):
        metrics = learner.update(make_batch(spec, seed)).metrics
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "gradient_norm", "explained_variance")
        losses.append({metric: metrics[f"learner/{metric}"] for metric in names})
    assert_on_file("ppo_losses.json", name, losses)


def test_an_update_counts_decisions_and_publishes_the_next_version(parameter_server: Any) -> None:
    learner = make_learner(parameter_server)
    version, before = rlplat.get(parameter_server.latest.remote())
    batch = make_batch()
    report = learner.update(batch)
    newer_version, after = rlplat.get(parameter_server.latest.remote())
    assert (version, newer_version) == (0, 1)
    assert 0 < report.env_steps == batch.env_steps < batch.valid.size
    assert report.episodes == [Episode(1.0, 5)] and report.metrics["rollout/sample_s"] == 0.5
    assert all((after[name] != before[name]).any() for name in before)


def test_rows_in_which_an_environment_reset_itself_are_not_learnt_from(parameter_server: Any) -> None:
    learners = [make_learner(parameter_server) for _ in range(2)]
    batch, spoilt = make_batch(), make_batch()
    assert isinstance(spoilt.obs, np.ndarray)
    for column in (spoilt.obs, spoilt.values, spoilt.next_values, spoilt.log_probs):
        column[~spoilt.valid] = 1e6
    for learner, each in zip(learners, (batch, spoilt), strict=True):
        learner.update(each)
    first, second = (learner.get_state()["weights"] for learner in learners)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_batches_of_several_workers_are_one_round(parameter_server: Any) -> None:
    learner = make_learner(parameter_server)
    batches = [make_batch(seed=0), make_batch(seed=1)]
    report = learner.update(*batches)
    assert report.env_steps == sum(batch.env_steps for batch in batches)
    assert len(report.episodes) == 2
    assert report.metrics["learner/weights_version"] == 1


def test_schedules_follow_the_env_steps(parameter_server: Any) -> None:
    linear = {"schedule": "linear", "start": 1.0, "end": 0.0}
    learner = make_learner(
        parameter_server, learning_rate=linear | {"start": 1e-3}, clip_range=linear, stop={"env_steps": 200}
    )
    first = learner.update(make_batch(seed=0))
    second = learner.update(make_batch(seed=1))
    assert first.metrics["learner/learning_rate"] == 1e-3
    progress = first.env_steps / 200
    assert second.metrics["learner/learning_rate"] == pytest.approx(1e-3 * (1 - progress))
    assert second.metrics["learner/clip_range"] == pytest.approx(1 - progress)


def test_target_kl_ends_the_epochs(parameter_server: Any) -> None:
    settings = {"num_epochs": 10, "learning_rate": 0.05}
    far = make_learner(parameter_server, target_kl=1e-3, **settings).update(make_batch())
    free = make_learner(parameter_server, **settings).update(make_batch())
    assert far.metrics["learner/epochs"] < free.metrics["learner/epochs"] == 10


@pytest.mark.parametrize(("desired_kl", "factor"), [(1e-9, 1.5**-3), (10.0, 1.5**3), (None, 1.0)])
def test_desired_kl_moves_the_learning_rate_after_each_epoch_and_a_resumed_one_goes_on(
    parameter_server: Any, desired_kl: float | None, factor: float
) -> None:
    settings = {"num_epochs": 3, "learning_rate": 1e-3, "desired_kl": desired_kl}
    learner = make_learner(parameter_server, **settings)
    metrics = learner.update(make_batch()).metrics
    assert metrics["learner/learning_rate"] == pytest.approx(1e-3 * factor)
    resumed = make_learner(parameter_server, **settings)
    resumed.set_state(learner.get_state())
    assert resumed.settings_now().learning_rate == pytest.approx(1e-3 * factor)
    earlier = learner.get_state()
    del earlier["adapted"]
    resumed.set_state(earlier)
    assert resumed.settings_now().learning_rate == 1e-3


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_normalised_critic_publishes_values_in_units_of_the_rewards(
    parameter_server: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"normalize_value": True, "learner": {"backend": backend}, "num_epochs": 1}
    learner, batch = make_learner(parameter_server, **settings), make_batch()
    batch.rewards *= 1e3
    loaded: list[Any] = []
    load = learner.net.load
    monkeypatch.setattr(learner.net, "load", lambda rollout: (loaded.append(rollout), load(rollout)))
    values = batch.values.copy()
    learner.update(batch)
    (rollout,) = loaded
    np.testing.assert_array_equal(batch.values, values)  # what workers have sent is not written to
    targets = rollout.returns[batch.valid]
    assert abs(targets.mean()) < 1e-5 and targets.std() == pytest.approx(1.0, rel=1e-4)
    assert learner.popart.deviation > 100.0
    expected = (values - learner.popart.mean) / learner.popart.deviation
    np.testing.assert_allclose(rollout.batch.values, expected, rtol=1e-4, atol=1e-6)

    own = learner.trainee.weights()
    _, published = rlplat.get(parameter_server.latest.remote())
    in_rewards = own["critic_head.bias"] * learner.popart.deviation + learner.popart.mean
    np.testing.assert_allclose(published["critic_head.bias"], in_rewards, rtol=1e-5)
    assert acting_weights(learner.get_state())["critic_head.bias"] == published["critic_head.bias"]

    resumed = make_learner(parameter_server, **settings)
    resumed.set_state(learner.get_state())
    again = make_batch(seed=1)
    assert resumed.update(again).metrics["learner/value_loss"] == pytest.approx(
        learner.update(again).metrics["learner/value_loss"]
    )
    # Weights from elsewhere are in units of the rewards.
    given = make_learner(parameter_server, **settings)
    given.set_state(given_to(given.get_state(), published))
    np.testing.assert_allclose(given.weights()["critic_head.bias"], published["critic_head.bias"], rtol=1e-5)


def test_what_has_no_value_head_is_not_normalised() -> None:
    with pytest.raises(ConfigError, match="normalize_value rescales the linear layer that gives values"):
        require_value_head({"critic.weight": np.zeros((1, 3), np.float32)})


@pytest.mark.parametrize("target_kl", [None, 0.1])
def test_a_round_without_a_turn_lacks_only_what_gradient_steps_tell(
    parameter_server: Any, target_kl: float | None
) -> None:
    learner, batch = make_learner(parameter_server, target_kl=target_kl), make_batch()
    names = {name for name in learner.update(batch).metrics if name.startswith("learner/")}
    batch.valid[:] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the variance of no row
        found = learner.update(batch).metrics
    of_steps = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "gradient_norm")
    assert {name for name in found if name.startswith("learner/")} == names - {f"learner/{name}" for name in of_steps}
    assert found["learner/skipped_minibatches"] == 0


def test_target_kl_looks_at_whole_epochs(parameter_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean KL of the three epochs: 0.01, 0.03, 0.02; a limit of 0.025 ends the update after the second, although single
    minibatches of the first were beyond it."""
    kls = iter([0.0, 0.03, 0.01, 0.05, 0.02, 0.02])
    learner = make_learner(parameter_server, minibatch_size=32, num_epochs=3, target_kl=0.025)
    taken: list[Any] = []

    def train(rows: Any, config: Any) -> Any:
        taken.append(rows)
        return {"approx_kl": next(kls), "gradient_norm": 1.0}

    monkeypatch.setattr(learner.net, "train", train)
    monkeypatch.setattr(learner.net, "read", lambda trained: trained)
    metrics = learner.update(make_batch(num_steps=16)).metrics
    assert len(taken) == 4 and metrics["learner/epochs"] == 2
    assert metrics["learner/approx_kl"] == pytest.approx((0.03 + 0.01 + 0.05) / 4)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_advantages_are_normalised_over_the_valid_rows_of_each_minibatch(
    parameter_server: Any, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    spec = make_spec(core=core)
    learner = make_learner(parameter_server, spec, num_epochs=1, minibatch_size=32)
    seen: list[Any] = []

    def spy(network: Any, minibatch: Any, config: Any) -> Any:
        seen.append(minibatch.advantages.numpy())
        return ppo_loss(network, minibatch, config)

    monkeypatch.setattr(ppo_module, "ppo_loss", spy)
    batch = make_batch(spec)
    learner.update(batch)
    assert len(seen) > 1 and sum(map(len, seen)) == batch.env_steps < batch.valid.size
    for advantages in seen:
        assert advantages.mean() == pytest.approx(0.0, abs=1e-6)
        assert advantages.std(ddof=1) == pytest.approx(1.0, abs=1e-5)


def test_reward_clipping_learns_from_signs(parameter_server: Any) -> None:
    batch, signs = make_batch(), make_batch()
    signs.rewards[:] = np.sign(signs.rewards)
    states = []
    for each, clip in ((batch, True), (signs, False)):
        learner = make_learner(parameter_server, clip_rewards=clip)
        learner.update(each)
        states.append(learner.get_state()["weights"])
    np.testing.assert_array_equal(states[0]["critic_head.weight"], states[1]["critic_head.weight"])


def test_observation_statistics_travel_in_the_weights_one_round_late(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, normalize_observations=True)
    _, weights = rlplat.get(parameter_server.latest.remote())
    np.testing.assert_array_equal(weights[OBS_MEAN], np.zeros(4))
    batch = make_batch()
    learner.update(batch)
    _, weights = rlplat.get(parameter_server.latest.remote())
    seen = np.asarray(batch.flat_obs())[batch.valid_rows()]
    np.testing.assert_allclose(weights[OBS_MEAN], seen.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(weights[OBS_VAR], seen.var(axis=0), rtol=1e-5)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE_SPEC, NORMAL_IMAGE_SPEC])
def test_a_restored_learner_goes_on_bit_by_bit(parameter_server: Any, spec: PolicySpec) -> None:
    vector = {} if spec is IMAGE_SPEC else {"normalize_observations": True}
    settings: dict[str, Any] = vector | {
        "normalize_rewards": True,
        "learning_rate": {"schedule": "linear", "start": 1e-3, "end": 0.0},
    }
    one = make_learner(parameter_server, spec, **settings)
    one.update(make_batch(spec, 0))
    state = one.get_state()
    another_server = rlplat.remote(ParameterServer).remote()
    other = make_learner(another_server, spec, **(settings | {"seed": 5}))
    other.set_state(state)
    version, published = rlplat.get(another_server.latest.remote())
    assert version == state["version"] == 1
    np.testing.assert_array_equal(published["actor_head.weight"], state["weights"]["actor_head.weight"])
    for learner in (one, other):
        learner.update(make_batch(spec, 1))
    first, second = one.get_state(), other.get_state()
    for name in first["weights"]:
        np.testing.assert_array_equal(first["weights"][name], second["weights"][name])
    assert first["env_steps"] == second["env_steps"] and first["rng"] == second["rng"]


def test_a_reward_that_is_not_finite_names_its_environment(parameter_server: Any) -> None:
    learner = make_learner(parameter_server)
    batch = make_batch()
    batch.rewards[3, 2] = np.nan
    with pytest.raises(NonFiniteError, match=r"reward nan from environment 2 of rollout worker 0 \(step 3"):
        learner.update(batch)


def test_a_minibatch_that_is_not_finite_stops_the_run_with_unharmed_weights(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, num_epochs=1, minibatch_size=1000)
    batch = make_batch()
    batch.log_probs[0, 0] = -np.inf
    before = learner.get_state()["weights"]
    with pytest.raises(NonFiniteError, match=r"batch columns \['log_probs'\].*version 0"):
        learner.update(batch)
    after = learner.get_state()["weights"]
    assert all((after[name] == before[name]).all() for name in before)


def test_or_is_skipped(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, num_epochs=1, minibatch_size=8, non_finite="skip")
    batch = make_batch()
    batch.log_probs[0, 0] = -np.inf
    report = learner.update(batch)
    assert report.metrics["learner/skipped_minibatches"] == 1
    assert np.isfinite(report.metrics["learner/policy_loss"])
    assert all(np.isfinite(w).all() for w in learner.get_state()["weights"].values())


def test_gradients_that_are_not_finite_are_named(parameter_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and its terms are finite: the gradient of a root at 0 is not."""
    learner = make_learner(parameter_server)

    def rooted(network: Any, minibatch: Any, config: Any) -> Any:
        loss, stats = ppo_loss(network, minibatch, config)
        return loss + (network.actor_head.bias * 0.0).abs().sqrt().sum(), stats

    monkeypatch.setattr(ppo_module, "ppo_loss", rooted)
    with pytest.raises(NonFiniteError, match=r"in the gradients \['actor_head.bias'\] at 0 env steps"):
        learner.update(make_batch())
