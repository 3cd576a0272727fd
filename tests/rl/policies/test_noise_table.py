"""`NoiseTable`: where slices may begin, what they hold, and what they add up to."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.errors import ConfigError
from rlplat.rl.policies import perturbed_mlp
from rlplat.rl.policies.perturbed_mlp import NoiseTable, make_noise


def seed(number: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(number)


def test_noise_is_standard_normal_and_the_seed_says_which() -> None:
    noise = make_noise(200_000, seed(1))
    assert noise.dtype == np.float32 and noise.shape == (200_000,)
    assert abs(noise.mean()) < 0.01 and abs(noise.std() - 1.0) < 0.01
    np.testing.assert_array_equal(noise[:100], make_noise(200_000, seed(1))[:100])
    assert (noise[:100] != make_noise(200_000, seed(2))[:100]).all()


def test_indices_reach_both_ends_and_no_further() -> None:
    table = NoiseTable(np.arange(10, dtype=np.float32))
    indices = table.draw(np.random.default_rng(0), num_params=7, count=200)
    assert indices.dtype == np.uint32
    assert sorted(set(indices.tolist())) == [0, 1, 2, 3]
    assert table.draw(np.random.default_rng(0), num_params=10, count=5).tolist() == [0] * 5


def test_a_table_that_is_too_small_says_so() -> None:
    with pytest.raises(ConfigError, match=r"10 floats is too small for 11 parameters; raise noise_table_size"):
        NoiseTable(np.zeros(10, np.float32)).draw(np.random.default_rng(0), num_params=11, count=1)


def test_a_slice_is_a_view_that_begins_at_its_index() -> None:
    noise = np.arange(10, dtype=np.float32)
    part = NoiseTable(noise).slice(np.uint32(6), 4)
    assert part.tolist() == [6.0, 7.0, 8.0, 9.0]
    assert np.shares_memory(part, noise)
    with pytest.raises(AssertionError):
        NoiseTable(noise).slice(7, 4)  # numpy would give the three that are there


@pytest.mark.parametrize("block_floats", [1, 7, 13, 14, 21, 55, 56, 57, 1 << 20])
def test_weighted_sum(monkeypatch: pytest.MonkeyPatch, block_floats: int) -> None:
    monkeypatch.setattr(perturbed_mlp, "BLOCK_FLOATS", block_floats)
    noise = make_noise(100, seed(3))
    indices = np.array([5, 0, 93, 5, 40, 41, 42, 17], np.uint32)
    weights = np.linspace(-2.0, 3.0, 8)
    expected = sum(w * noise[i : i + 7].astype(np.float64) for w, i in zip(weights, indices, strict=True))
    total = NoiseTable(noise).weighted_sum(indices, weights, 7)
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
