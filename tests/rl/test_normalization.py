from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.errors import ConfigError
from rlplat.rl.normalization import (
    OBS_MEAN,
    OBS_VAR,
    ObsNormalizer,
    ObsStatistics,
    PopArt,
    RewardNormalizer,
    RunningMeanVar,
    require_normalizable,
)
from rlplat.rl.spaces import ObsSpec


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.floats(-1e6, 1e6))
def test_batches_merge_to_the_statistics_of_the_whole(sizes: list[int], offset: float) -> None:
    rng = np.random.default_rng(len(sizes))
    batches = [rng.normal(offset, 3.0, (size, 2)) for size in sizes]
    statistics = RunningMeanVar((2,))
    for batch in batches:
        statistics.update(batch)
    whole = np.concatenate(batches)
    assert statistics.count == len(whole)
    if len(whole):
        np.testing.assert_allclose(statistics.mean, whole.mean(axis=0), rtol=1e-9)
        np.testing.assert_allclose(statistics.var, whole.var(axis=0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("num_rows", [1, 63, 64, 65, 128])
def test_bytes_are_summed_exactly(num_rows: int) -> None:
    """Cut into pieces of 64 rows; the largest values must not overflow."""
    rng = np.random.default_rng(num_rows)
    images = rng.integers(0, 256, (num_rows, 2, 3, 3)).astype(np.uint8)
    images[:, 0] = 255
    statistics = RunningMeanVar(images.shape[1:])
    statistics.update(images)
    np.testing.assert_array_equal(statistics.mean, images.astype(np.float64).mean(axis=0))
    np.testing.assert_allclose(statistics.var, images.astype(np.float64).var(axis=0), rtol=1e-12, atol=1e-9)
    assert statistics.count == num_rows and (statistics.var[0] == 0.0).all()


def test_pixels_begin_as_fractions_and_seldom_ones_are_held_down() -> None:
    statistics = ObsStatistics(ObsSpec("image", (1, 1, 3), "uint8", "HWC"))
    statistics.weights()
    images = np.zeros((100, 1, 1, 3), np.uint8)
    images[..., 0] = 87  # the background
    images[0, ..., 1] = 10  # changed once: the deviation is 1, and 2 is taken
    images[50:, ..., 2] = 200
    np.testing.assert_allclose(statistics.normalize(images), images / 255.0, rtol=1e-6)
    statistics.update(images, np.ones(100, np.bool_))
    statistics.weights()
    normalized = statistics.normalize(images)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized[0, 0, 0], [0.0, 9.9 / 2.0, -1.0], rtol=1e-5)
    np.testing.assert_allclose(normalized[-1, 0, 0], [0.0, -0.1 / 2.0, 1.0], rtol=1e-5)


def test_images_begin_as_fractions_of_their_own_bounds() -> None:
    codes = ObsSpec("image", (5, 5, 3), "uint8", "HWC", low=(0.0,), high=(10.0,))
    statistics = ObsStatistics(codes)
    statistics.weights()
    obs = np.full((2, 5, 5, 3), 5, np.uint8)
    np.testing.assert_allclose(statistics.normalize(obs), 0.5, rtol=1e-6)
    floats = ObsStatistics(ObsSpec("image", (36, 36, 1), "float32", "HWC"))
    floats.weights()
    obs = np.full((2, 36, 36, 1), 0.7, np.float32)  # without bounds: as any number
    np.testing.assert_allclose(floats.normalize(obs), 0.7, rtol=1e-6)


def test_what_cannot_be_normalised_is_refused() -> None:
    image, vector = ObsSpec("image", (1, 8, 8), "uint8", "CHW"), ObsSpec("vector", (3,), "float32")
    require_normalizable(vector)
    require_normalizable(vector, images=True)
    require_normalizable(image, images=True)
    with pytest.raises(
        ConfigError,
        match=r"for vectors, also in a Dict \(A3C, BC, DQN, IMPALA and PPO with framework=torch: one image, too\), but",
    ):
        require_normalizable(image)
    require_normalizable({"a": vector, "b": image})
    floats = ObsSpec("image", (36, 36, 1), "float32", "HWC")
    require_normalizable(floats, images=True)
    with pytest.raises(ConfigError, match=r"in \[0, 1\]: images of floats are scaled by their bounds as it is"):
        require_normalizable(replace(floats, low=(0.0,), high=(1.0,)), images=True)
    for refused in (ObsSpec("discrete", (), "int64", nvec=(3,)), {"a": image}):
        with pytest.raises(ConfigError, match="for vectors, also in a Dict, or one image, but observations are"):
            require_normalizable(refused, images=True)


def test_state_round_trip_continues_identically() -> None:
    rng = np.random.default_rng(0)
    first, second = RunningMeanVar((3,)), RunningMeanVar((3,))
    first.update(rng.normal(size=(5, 3)))
    second.set_state(first.get_state())
    more = rng.normal(size=(4, 3))
    first.update(more)
    second.update(more)
    np.testing.assert_array_equal(first.mean, second.mean)
    np.testing.assert_array_equal(first.var, second.var)


def test_observations_are_normalised_with_the_weights_statistics_and_clipped() -> None:
    normalize = ObsNormalizer()
    obs = np.float32([[1.0, 2.0], [5.0, 1e6]])
    assert normalize(obs) is obs  # nothing to do yet
    normalize.set_weights({OBS_MEAN: np.float32([1.0, 2.0]), OBS_VAR: np.float32([4.0, 1.0])})
    np.testing.assert_allclose(normalize(obs), [[0.0, 0.0], [2.0, 10.0]])
    assert obs[1, 1] == 1e6  # the input stays


def test_rewards_are_divided_by_the_deviation_of_the_running_return() -> None:
    rewards = np.float32([[1, 0], [2, 4], [3, 8]])
    ends = np.array([[0, 0], [1, 0], [0, 0]], np.bool_)
    running = np.array([[1, 0], [2.5, 4], [3, 10]])  # discount 0.5, starting anew after the end of env 0
    normalizer = RewardNormalizer(0.5)
    normalized = normalizer.normalize(rewards, ends, np.ones_like(ends))
    np.testing.assert_allclose(normalized, rewards / running.std(), rtol=1e-6)
    assert normalized.dtype == np.float32


def test_running_returns_go_on_per_worker_and_start_anew_with_an_incarnation() -> None:
    one, ends, valid = np.float32([[1.0]]), np.zeros((1, 1), np.bool_), np.ones((1, 1), np.bool_)
    normalizer = RewardNormalizer(1.0)
    for worker_index, incarnation in ((0, 0), (0, 0), (1, 0), (0, 1)):
        normalizer.normalize(one, ends, valid, worker_index=worker_index, incarnation=incarnation)
    # The stream of running returns was 1, 2, 1 (another worker), 1 (a worker that was replaced).
    assert normalizer.statistics.mean == 1.25 and normalizer.statistics.count == 4
    resumed = RewardNormalizer(1.0)
    resumed.set_state(normalizer.get_state())
    for each in (normalizer, resumed):
        each.normalize(one, ends, valid, worker_index=1)
    assert normalizer.statistics.mean == resumed.statistics.mean == (1 + 2 + 1 + 1 + 2) / 5


def test_reset_rows_are_not_measured() -> None:
    normalizer = RewardNormalizer(1.0)
    valid = np.array([[True], [False]])
    normalizer.normalize(np.float32([[1.0], [0.0]]), np.array([[True], [False]]), valid)
    assert normalizer.statistics.count == 1


def test_running_returns_stand_still_in_rows_without_a_decision() -> None:
    """Of several agents, one that decides once in a fragment goes on from there in the next."""
    normalizer = RewardNormalizer(discount=0.9)
    rewards, ends = np.zeros((5, 1), np.float32), np.zeros((5, 1), np.bool_)
    rewards[0] = 1.0
    valid = np.array([[True], [False], [False], [False], [False]])
    normalizer.normalize(rewards, ends, valid)
    assert normalizer.get_state()["workers"]["0"]["returns"] == pytest.approx([1.0])
    normalizer.normalize(rewards, ends, valid)
    assert normalizer.get_state()["workers"]["0"]["returns"] == pytest.approx([1.9])


def test_statistics_of_returns_change_and_values_do_not() -> None:
    """van Hasselt et al. 2016, equation 3: w' = w s / s', b' = (s b + m - m') / s', so that s' v' + m' = s v + m."""
    rng, popart = np.random.default_rng(0), PopArt()
    weights = {
        "critic_head.weight": rng.normal(size=(1, 5)).astype(np.float32),
        "critic_head.bias": np.ones(1, np.float32),
        "log_std": np.zeros(2, np.float32),
    }
    features, seen = rng.normal(size=(7, 5)), np.zeros(0)

    def values(head: dict[str, np.ndarray]) -> np.ndarray:
        return features @ head["critic_head.weight"][0] + head["critic_head.bias"]

    first = values(weights)
    assert PopArt().normalize(np.float32([3.0])) == 3.0  # before there are any
    for scale in (300.0, 20.0):
        returns = rng.normal(1_000.0, scale, 50)
        seen = np.concatenate([seen, returns])
        weights = popart.update(returns, weights)
        assert popart.mean == pytest.approx(seen.mean()) and popart.deviation == pytest.approx(seen.std())
        np.testing.assert_allclose(values(weights) * popart.deviation + popart.mean, first, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(values(popart.in_rewards(weights)), first, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(popart.normalize(seen), (seen - seen.mean()) / seen.std(), rtol=1e-4, atol=1e-5)
