"""`TfA3C` beside `TorchA3C`: equal gradients from equal weights, one graph for all fragments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="parity is with torch")
pytest.importorskip("tensorflow", reason="needs the extra: pip install 'rlplat[tf]'")

from rlplat.algorithms.a3c import A3CConfig, TorchA3C
from rlplat.algorithms.other_frameworks.a3c_tf import TfA3C
from rlplat.rl.sampling.rollout import Rollout
from tests.rl.tf.twins import SPECS, perturbed, random_batch

pytestmark = pytest.mark.slow

CONFIG = A3CConfig(env="made up", learner={"precision": "float32", "num_threads": 1}, value_coef=0.5, entropy_coef=0.02)
STATE_SIZES = {"mlp": 0, "composite mask": 0, "gru": 8, "nature": 0}


def gradients_of(net: Any, name: str, seed: int, num_envs: int = 4) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    batch = random_batch(SPECS[name](), STATE_SIZES[name], seed, num_envs=num_envs)
    assert not batch.valid.all()
    advantages, returns = np.random.default_rng(seed).normal(size=(2, *batch.shape)).astype(np.float32)
    rollout = Rollout(batch, batch.rewards, batch.flat_obs(), advantages, returns)
    net.load(rollout)
    gradients, stats = net.gradients(rollout.whole(), CONFIG)
    return gradients, stats


@pytest.mark.parametrize("name", STATE_SIZES)
def test_gradients_and_losses_are_torchs(name: str) -> None:
    spec = SPECS[name]()
    theirs = TorchA3C(CONFIG, spec, np.random.SeedSequence(1))
    ours = TfA3C(CONFIG, spec, np.random.SeedSequence(2))
    weights = perturbed(theirs.trainee.weights(), np.random.default_rng(0))
    theirs.trainee.set_weights(weights)
    ours.trainee.set_weights(weights)
    for name_, weight in ours.trainee.weights().items():
        np.testing.assert_array_equal(weight, weights[name_])
    for seed, num_envs in ((2, 4), (3, 6)):
        (expected, expected_stats), (got, stats) = (gradients_of(net, name, seed, num_envs) for net in (theirs, ours))
        assert stats == pytest.approx(expected_stats, abs=1e-5)
        assert list(got) == list(expected)
        for parameter, gradient in got.items():
            assert gradient.dtype == np.float32 and gradient.flags.c_contiguous
            np.testing.assert_allclose(gradient, expected[parameter], rtol=1e-4, atol=1e-5, err_msg=parameter)
    assert ours._gradients.experimental_get_tracing_count() == 1


def test_gradients_can_be_changed_in_place() -> None:
    """The worker clips them so."""
    net = TfA3C(CONFIG, SPECS["mlp"](), np.random.SeedSequence(1))
    gradients, _ = gradients_of(net, "mlp", 2)
    for gradient in gradients.values():
        gradient *= 0.5
