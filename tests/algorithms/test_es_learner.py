"""Rank shaping, the gradient estimate, optimizers and updates of ES against references of a few lines each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.algorithms.es import (
    ES,
    ESConfig,
    ESLearner,
    gradient_estimate,
    shape_returns,
)
from rlplat.errors import NonFiniteError
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.learning.numpy_learning import Momentum
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR
from rlplat.rl.policies.perturbed_mlp import NoiseTable, make_noise
from rlplat.rl.sampling.perturbed_episodes import Returns, join_returns, joined
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

NOISE = make_noise(5_000, np.random.SeedSequence(0))
SPACES = SpaceSpec(ObsSpec("vector", (4,), "float32"), ActionSpec("discrete", n=2))


@pytest.fixture
def parameter_server() -> Iterator[Any]:
    rlplat.init(backend="inproc")
    yield rlplat.remote(ParameterServer).remote()
    rlplat.shutdown()


def make_learner(parameter_server: Any, **settings: Any) -> ESLearner:
    defaults: dict[str, Any] = {
        "env": "made up",
        "policy": {"hidden_sizes": [8]},
        "stop": {"env_steps": 1000},
    }
    return ESLearner(
        computation_of(ES), ESConfig(**(defaults | settings)).model_dump(), SPACES, NOISE, parameter_server
    )


def make_returns(seed: int = 0, num_pairs: int = 6, episodes: int = 1, num_obs: int = 0) -> Returns:
    rng = np.random.default_rng(seed)
    obs = rng.normal(3.0, 2.0, (num_obs, 4))
    return Returns(
        rng.integers(0, 4_000, num_pairs).astype(np.uint32),
        rng.normal(size=(num_pairs, 2, episodes)).astype(np.float32),
        np.full((num_pairs, 2, episodes), 10, np.uint32),
        sums_of(obs),
        np.zeros(3),
    )


def sums_of(obs: np.ndarray) -> np.ndarray:
    return np.array([len(obs), *obs.sum(axis=0), *(obs**2).sum(axis=0)]) if len(obs) else np.zeros(0)


def theta_of(learner: ESLearner) -> np.ndarray:
    return learner._theta.copy()


# -- shaping


def test_centred_ranks() -> None:
    shaped = shape_returns(np.array([[30.0, -5.0], [7.0, 1000.0]]))
    np.testing.assert_allclose(shaped, [[2 / 3 - 0.5, -0.5], [1 / 3 - 0.5, 0.5]], rtol=1e-6)
    assert shaped.dtype == np.float32


def test_equal_returns_have_equal_ranks() -> None:
    """The mean of the ranks that they take up: 1, 1, 1 of 0..5 here; when all are equal there is nothing to follow."""
    shaped = shape_returns(np.array([[1.0, 1.0], [1.0, 5.0], [6.0, 7.0]]))
    np.testing.assert_allclose(shaped, np.array([[1, 1], [1, 3], [4, 5]]) / 5 - 0.5, rtol=1e-6)
    assert not shape_returns(np.full((4, 2), -200.0)).any()


def test_ranks_against_a_reference_that_counts() -> None:
    returns = np.random.default_rng(0).integers(0, 9, (20, 2)).astype(float)
    flat = returns.reshape(-1)
    ranks = np.array([(flat < one).sum() + ((flat == one).sum() - 1) / 2 for one in flat])
    expected = (ranks / 39 - 0.5).reshape(20, 2)
    np.testing.assert_allclose(shape_returns(returns), expected, rtol=1e-6, atol=1e-7)


# -- the gradient


def test_gradient_estimate_against_the_formula() -> None:
    rng = np.random.default_rng(1)
    indices, shaped = rng.integers(0, 4_900, 9).astype(np.uint32), rng.normal(size=(9, 2)).astype(np.float32)
    expected = np.zeros(50)
    for index, (plus, minus) in zip(indices, shaped, strict=True):
        perturbation = NOISE[index : index + 50].astype(np.float64)
        expected += plus * perturbation + minus * -perturbation
    expected /= 18 * 0.02
    got = gradient_estimate(NoiseTable(NOISE), indices, shaped, 0.02, 50)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_gradient_estimate_is_the_gradient_of_what_it_estimates() -> None:
    """F(theta) = -|theta - target|^2: mirrored sampling has the gradient at theta exactly, in expectation."""
    rng = np.random.default_rng(2)
    theta, target = rng.normal(size=5), rng.normal(size=5)
    noise = make_noise(400_000, np.random.SeedSequence(3))
    indices = NoiseTable(noise).draw(rng, 5, 40_000)
    perturbations = 0.1 * noise[indices[:, None] + np.arange(5)]

    def objective(parameters: np.ndarray) -> np.ndarray:
        return -np.square(parameters - target).sum(axis=1)

    returns = np.stack([objective(theta + perturbations), objective(theta - perturbations)], axis=1)
    got = gradient_estimate(NoiseTable(noise), indices, returns.astype(np.float32), 0.1, 5)
    np.testing.assert_allclose(got, -2 * (theta - target), atol=0.1)


# -- optimizers


def test_momentum_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=7).astype(np.float32)}
    parameter = torch.nn.Parameter(torch.tensor(weights["w"]))
    theirs, ours = torch.optim.SGD([parameter], lr=0.1, momentum=0.9), Momentum(0.9)
    for step in range(10):
        gradient = rng.normal(size=7).astype(np.float32)
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        if step == 5:  # a state that was saved goes on as if it had not been
            state, ours = ours.get_state(), Momentum(0.9)
            ours.set_state(state)
        ours.step(weights, {"w": gradient}, 0.1)
        np.testing.assert_allclose(weights["w"], parameter.detach().numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_updates_are_those_of_torchs_optimizers_with_weight_decay(parameter_server: Any, optimizer: str) -> None:
    """torch's `weight_decay` of Adam and SGD is L2 too: decay * w is added to the gradient."""
    torch = pytest.importorskip("torch")
    learner = make_learner(
        parameter_server,
        optimizer=optimizer,
        weight_decay=0.3,
        learning_rate=0.05,
        noise_std=0.1,
        normalize_observations=False,
    )
    parameter = torch.nn.Parameter(torch.tensor(theta_of(learner)))
    theirs = (
        torch.optim.Adam([parameter], lr=0.05, weight_decay=0.3)
        if optimizer == "adam"
        else torch.optim.SGD([parameter], lr=0.05, momentum=0.9, weight_decay=0.3)
    )
    for seed in range(5):
        returns = make_returns(seed, episodes=2)
        shaped = shape_returns(returns.returns.mean(axis=2))
        gradient = gradient_estimate(NoiseTable(NOISE), returns.indices, shaped, 0.1, len(parameter))
        parameter.grad = torch.tensor(-gradient)
        theirs.step()
        learner.update(returns)
        np.testing.assert_allclose(theta_of(learner), parameter.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_weight_decay_alone_shrinks_the_weights(parameter_server: Any) -> None:
    learner = make_learner(
        parameter_server,
        optimizer="sgd",
        momentum=0.0,
        weight_decay=0.5,
        learning_rate=0.1,
        normalize_observations=False,
    )
    before = theta_of(learner)
    flat = make_returns()._replace(returns=np.ones((6, 2, 1), np.float32))
    report = learner.update(flat)
    assert report.metrics["learner/gradient_norm"] == 0.0
    np.testing.assert_allclose(theta_of(learner), before * 0.95, rtol=1e-6)


# -- updates


def test_the_first_population_measures_observations_and_nothing_else(parameter_server: Any) -> None:
    """Raw observations saturate the networks: returns of such are no gradient of those that come."""
    learner = make_learner(parameter_server)
    before = theta_of(learner)
    learner.update(make_returns(0, num_obs=20))
    np.testing.assert_array_equal(theta_of(learner), before)
    assert learner.version == 1 and learner.weights()[OBS_MEAN].all()
    learner.update(make_returns(1))
    assert (theta_of(learner) != before).any()


def test_an_update_counts_reports_and_publishes(parameter_server: Any) -> None:
    learner = make_learner(parameter_server, learning_rate={"schedule": "linear", "start": 0.1, "end": 0.0})
    parts = [make_returns(seed) for seed in range(3)]
    report = learner.update(*parts)
    assert report.env_steps == 3 * 12 * 10
    assert [episode.length for episode in report.episodes] == [10] * 36
    assert report.episodes[12].episode_return == pytest.approx(float(parts[1].returns[0, 0, 0]))
    assert report.metrics["es/return_max"] == pytest.approx(max(float(part.returns.max()) for part in parts))
    assert report.metrics["learner/learning_rate"] == pytest.approx(0.1)
    assert learner.update(parts[0]).metrics["learner/learning_rate"] == pytest.approx(0.1 * (1 - 0.36))
    version, weights = rlplat.get(parameter_server.latest.remote())
    assert version == 2
    np.testing.assert_array_equal(learner._shape.flat(weights), theta_of(learner))


def test_answers_on_the_wire_do_not_grow_with_the_network(parameter_server: Any) -> None:
    small, large = (
        make_learner(parameter_server, policy={"hidden_sizes": [width]}, num_rollout_workers=3).update(make_returns())
        for width in (8, 64)
    )
    assert small.metrics["es/answer_bytes"] == large.metrics["es/answer_bytes"] < 2_000
    num_params, obs_statistics = 4 * 64 + 64 + 64 * 2 + 2, 8
    weights_bytes = large.metrics["es/wire_bytes"] - large.metrics["es/answer_bytes"]
    assert weights_bytes == 3 * 4 * (num_params + obs_statistics)


def test_joined_parts_make_the_same_update(parameter_server: Any) -> None:
    # Where nothing was gathered, nothing is sent; that is on either side of a join here.
    parts = [make_returns(seed, num_obs=num_obs) for seed, num_obs in enumerate((0, 9, 9, 0, 9))]
    one, other = make_learner(parameter_server), make_learner(parameter_server)
    one.update(*parts)
    other.update(joined(parts[:4]), parts[4])
    np.testing.assert_array_equal(theta_of(one), theta_of(other))
    for name in (OBS_MEAN, OBS_VAR):
        np.testing.assert_array_equal(one.weights()[name], other.weights()[name])


def test_a_join_appends_episodes_and_adds_sums() -> None:
    left, right, bare = (
        make_returns(1, num_obs=4),
        make_returns(2, num_obs=6),
        make_returns(3),
    )
    joined = join_returns(join_returns(left, bare), join_returns(bare, right))
    for name in ("indices", "returns", "lengths"):
        parts = [getattr(part, name) for part in (left, bare, bare, right)]
        np.testing.assert_array_equal(getattr(joined, name), np.concatenate(parts))
    assert joined.obs_sums[0] == 10
    np.testing.assert_array_equal(joined.obs_sums, left.obs_sums + right.obs_sums)


def test_observation_statistics_are_those_of_all_that_was_gathered(parameter_server: Any) -> None:
    """Each update's sums are around the mean published before it."""
    learner = make_learner(parameter_server)
    seen = []
    for seed in range(4):
        obs = np.random.default_rng(seed).normal(3.0 + seed, 2.0, (50, 4))
        seen.append(obs)
        rows = obs - learner.weights()[OBS_MEAN].astype(np.float64)
        learner.update(make_returns(seed)._replace(obs_sums=sums_of(rows)))
    weights = learner.weights()
    np.testing.assert_allclose(weights[OBS_MEAN], np.concatenate(seen).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(weights[OBS_VAR], np.concatenate(seen).var(axis=0), rtol=1e-5)
    before = learner.weights()[OBS_MEAN]
    learner.update(make_returns(9))  # nothing was gathered
    np.testing.assert_array_equal(learner.weights()[OBS_MEAN], before)


def test_a_return_that_is_no_number_ends_the_run_or_is_left_out(parameter_server: Any) -> None:
    returns = make_returns()
    broken = returns._replace(returns=returns.returns.copy())
    broken.returns[4, 1, 0] = np.nan
    stopping = make_learner(parameter_server, num_rollout_workers=3, population_size=6)
    before = theta_of(stopping)
    with pytest.raises(NonFiniteError, match=r"return nan from made up: pair 4 .*, - the noise at .* worker 2"):
        stopping.update(broken)
    np.testing.assert_array_equal(theta_of(stopping), before)

    skipping, other = make_learner(parameter_server, non_finite="skip"), make_learner(parameter_server)
    report = skipping.update(broken)
    assert report.metrics["learner/skipped_pairs"] == 1 and report.env_steps == 120
    assert len(report.episodes) == 10  # their mean stays a number
    keep = [0, 1, 2, 3, 5]
    other.update(
        returns._replace(indices=returns.indices[keep], returns=returns.returns[keep], lengths=returns.lengths[keep])
    )
    np.testing.assert_array_equal(theta_of(skipping), theta_of(other))
    with pytest.raises(NonFiniteError):
        skipping.update(returns._replace(returns=np.full((6, 2, 1), np.inf, np.float32)))


def test_the_state_is_all_of_it(parameter_server: Any) -> None:
    one = make_learner(parameter_server)
    for seed in range(3):
        one.update(make_returns(seed, num_obs=5))
    state = one.get_state()
    other = make_learner(parameter_server, seed=7)
    other.set_state(state)
    assert other.version == 3
    assert rlplat.get(parameter_server.version.remote()) == 3
    for learner in (one, other):
        learner.update(make_returns(3, num_obs=5))
    np.testing.assert_array_equal(theta_of(one), theta_of(other))
    np.testing.assert_array_equal(one.weights()[OBS_VAR], other.weights()[OBS_VAR])
