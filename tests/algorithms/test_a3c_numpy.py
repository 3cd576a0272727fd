"""`NumpyA3C` beside `TorchA3C`: equal losses and gradients from equal weights, rows that do not count left out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from rlplat.algorithms.other_frameworks.a3c_numpy import NumpyA3C
from rlplat.rl.interfaces import Weights
from tests.algorithms.test_a3c_loss import CONFIG, SPECS, gradients_of, make_batch, make_network


@pytest.mark.parametrize("name", ["categorical", "gaussian"])
def test_gradients_are_torchs(name: str) -> None:
    spec = SPECS[name]
    torchs = make_network(spec)
    ours = NumpyA3C(CONFIG, spec, np.random.SeedSequence(2))
    rng = np.random.default_rng(0)
    weights: Weights = {
        key: array + rng.normal(0.0, 0.1, array.shape).astype(np.float32)
        for key, array in torchs.trainee.weights().items()
    }
    for network in (torchs, ours):
        network.trainee.set_weights(weights)
    batch = make_batch(spec)
    assert not batch.valid.all()
    expected, expected_stats = gradients_of(torchs, batch)
    found, stats = gradients_of(ours, batch)
    assert stats == pytest.approx(expected_stats, rel=1e-5)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        assert gradient.any() and found[key].dtype == np.float32
        np.testing.assert_allclose(found[key], gradient, rtol=1e-4, atol=1e-6, err_msg=key)


def test_nothing_is_learnt_from_a_fragment_without_a_decision() -> None:
    batch = make_batch(SPECS["categorical"])
    batch.valid[:] = False
    ours = NumpyA3C(CONFIG, SPECS["categorical"], np.random.SeedSequence(2))
    gradients, stats = gradients_of(ours, batch)
    assert not any(gradient.any() for gradient in gradients.values()) and not any(stats.values())
