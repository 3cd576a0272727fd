"""`a3c_loss` and the gradients of `TorchA3C` against references of a few lines each; golden losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.a3c import A3CConfig, TorchA3C, a3c_loss
from rlplat.rl.learning.numpy_learning import RMSProp, clip_by_global_norm
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.sampling.returns import gae
from rlplat.rl.sampling.rollout import Rollout
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.algorithms.golden import assert_on_file
from tests.algorithms.losses import loss_of

POLICY = A3CConfig(env="made up", policy={"hidden_sizes": [16, 16]}).policy.model_dump()
DISCRETE = ActionSpec("discrete", n=3)
SPECS: dict[str, PolicySpec] = {
    "categorical": policy_spec(POLICY, SpaceSpec(ObsSpec("vector", (4,), "float32", ""), DISCRETE)),
    "gaussian": policy_spec(
        POLICY,
        SpaceSpec(
            ObsSpec("vector", (4,), "float32", ""),
            ActionSpec("box", shape=(2,), dtype="float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
        ),
    ),
    "images": policy_spec(POLICY, SpaceSpec(ObsSpec("image", (2, 36, 36), "uint8", "CHW"), DISCRETE)),
    "lstm": policy_spec(
        POLICY | {"core": "lstm", "core_size": 8},
        SpaceSpec(ObsSpec("vector", (4,), "float32", ""), DISCRETE),
    ),
}
COEFS: dict[str, float] = {"value_coef": 0.5, "entropy_coef": 0.02}
CONFIG = A3CConfig(env="made up", learner={"precision": "float32", "num_threads": 1}, **COEFS)


def make_network(spec: PolicySpec) -> TorchA3C:
    return TorchA3C(CONFIG, spec, np.random.SeedSequence(1))


def make_batch(spec: PolicySpec, seed: int = 0, num_steps: int = 6, num_envs: int = 4) -> SampleBatch:
    """Random, but for the same seed always the same; a few episodes end, a few rows are resets."""
    rng = np.random.default_rng(seed)
    assert isinstance(spec.obs, ObsSpec)
    is_discrete = spec.action.kind == "discrete"
    batch = SampleBatch.empty(
        num_steps,
        np.zeros((num_envs, *spec.obs.shape), spec.obs.dtype),
        np.zeros(num_envs, np.int64) if is_discrete else np.zeros((num_envs, 2), np.float32),
    )
    is_image = spec.obs.kind == "image"
    batch.obs[:] = rng.integers(0, 256, batch.obs.shape) if is_image else rng.normal(size=batch.obs.shape)
    shape = batch.actions.shape
    batch.actions[:] = rng.integers(3, size=shape) if is_discrete else rng.normal(size=shape)
    for column in (batch.log_probs, batch.values, batch.next_values, batch.rewards):
        column[:] = rng.normal(size=column.shape)
    ends = rng.random(batch.shape) < 0.2
    batch.valid[0] = True
    batch.valid[1:] = ~ends[:-1]
    batch.terminated[:] = ends & batch.valid & (rng.random(batch.shape) < 0.5)
    batch.truncated[:] = ends & batch.valid & ~batch.terminated
    batch.next_values[:-1] = np.where(batch.truncated[:-1], batch.next_values[:-1], batch.values[1:])
    if spec.core == "lstm":
        batch.core_state = rng.normal(size=(num_envs, 2 * spec.core_size)).astype(np.float32)
    return batch


def estimates(batch: SampleBatch, gae_lambda: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    ends = (batch.terminated, batch.truncated, batch.valid)
    return gae(batch.rewards, batch.values, batch.next_values, *ends, discount=0.9, gae_lambda=gae_lambda)


def gradients_of(network: Any, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    rollout = Rollout(batch, batch.rewards, batch.flat_obs(), *estimates(batch))
    network.load(rollout)
    gradients: tuple[dict[str, np.ndarray], dict[str, float]] = network.gradients(rollout.whole(), CONFIG)
    return gradients


def test_the_loss_agrees_with_the_formulas() -> None:
    rng = np.random.default_rng(0)
    log_probs, entropies, values, advantages, returns = rng.normal(size=(5, 7))
    given = [torch.tensor(each) for each in (log_probs, entropies, values)]
    columns = {"log_probs": None, "values": None}
    columns |= {"advantages": torch.tensor(advantages), "returns": torch.tensor(returns)}
    loss, stats = loss_of(a3c_loss, given, columns, **COEFS)
    policy_loss = -sum(lp * a for lp, a in zip(log_probs, advantages, strict=True)) / 7
    value_loss = sum((r - v) ** 2 for r, v in zip(returns, values, strict=True)) / 14
    entropy = sum(entropies) / 7
    assert list(stats.values()) == pytest.approx([policy_loss, value_loss, entropy])
    assert float(loss) == pytest.approx(policy_loss + 0.5 * value_loss - 0.02 * entropy)


def test_lambda_1_is_the_papers_return_up_to_the_end_of_the_fragment() -> None:
    batch = make_batch(SPECS["categorical"])
    expected = np.zeros(batch.shape)
    future = batch.next_values[-1]  # R of algorithm S3: the value behind the last step, else r + discount * R
    for t in reversed(range(len(expected))):
        future = np.where(batch.truncated[t], batch.next_values[t], future)
        future = expected[t] = batch.rewards[t] + 0.9 * np.where(batch.terminated[t], 0.0, future)
        future = np.where(batch.valid[t], future, 0.0)
    advantages, returns = estimates(batch)
    np.testing.assert_allclose(returns[batch.valid], expected[batch.valid], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(advantages[batch.valid], (expected - batch.values)[batch.valid], rtol=1e-5, atol=1e-5)


def numpy_loss(weights: dict[str, np.ndarray], batch: SampleBatch) -> float:
    """The loss of a categorical policy in float64, row by row, from the weights alone."""

    def mlp(prefix: str, obs: np.ndarray) -> np.ndarray:
        for layer in range(2):
            w, b = weights[f"{prefix}.layers.{layer}.weight"], weights[f"{prefix}.layers.{layer}.bias"]
            obs = np.tanh(w @ obs + b)
        return obs

    advantages, returns = estimates(batch)
    losses = []
    for t, b in np.argwhere(batch.valid):
        obs = batch.obs[t, b].astype(np.float64)
        logits = weights["actor_head.weight"] @ mlp("actor_encoder", obs) + weights["actor_head.bias"]
        value = (weights["critic_head.weight"] @ mlp("critic_encoder", obs) + weights["critic_head.bias"])[0]
        p = np.exp(logits) / np.exp(logits).sum()
        policy = -np.log(p[batch.actions[t, b]]) * advantages[t, b]
        losses.append(policy + 0.5 * 0.5 * (value - returns[t, b]) ** 2 + 0.02 * (p * np.log(p)).sum())
    return float(np.mean(losses))


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    network, batch = make_network(SPECS["categorical"]), make_batch(SPECS["categorical"])
    gradients, stats = gradients_of(network, batch)
    weights = {name: array.astype(np.float64) for name, array in network.trainee.weights().items()}
    assert gradients.keys() == weights.keys()
    loss = stats["policy_loss"] + 0.5 * stats["value_loss"] - 0.02 * stats["entropy"]
    assert loss == pytest.approx(numpy_loss(weights, batch), rel=1e-5)
    rng = np.random.default_rng(1)
    for name, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        up, down = (numpy_loss(weights | {name: weights[name] + sign * 1e-5 * direction}, batch) for sign in (1, -1))
        assert float((gradient * direction).sum()) == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize("name", ["categorical", "lstm"])
def test_rows_in_which_an_environment_reset_itself_are_not_learnt_from(name: str) -> None:
    network, batch, spoilt = make_network(SPECS[name]), make_batch(SPECS[name]), make_batch(SPECS[name])
    assert not batch.valid.all()
    for column in (spoilt.obs, spoilt.rewards, spoilt.values):
        column[~spoilt.valid] = 100.0
    first, second = gradients_of(network, batch)[0], gradients_of(network, spoilt)[0]
    for weight in first:
        np.testing.assert_array_equal(first[weight], second[weight])


def test_a_core_goes_on_from_where_the_fragment_began() -> None:
    network, batch = make_network(SPECS["lstm"]), make_batch(SPECS["lstm"])
    before = gradients_of(network, batch)[0]
    batch.core_state = np.zeros_like(batch.core_state)
    after = gradients_of(network, batch)[0]
    assert any((before[name] != after[name]).any() for name in before)


@pytest.mark.parametrize("name", SPECS)
def test_golden_losses(name: str) -> None:
    """Three updates from fixed batches give the losses on file."""
    network, optimizer = make_network(SPECS[name]), RMSProp()
    weights = network.trainee.weights()
    losses: list[dict[str, Any]] = []
    for seed in range(3):
        gradients, stats = gradients_of(network, make_batch(SPECS[name], seed))
        norm = clip_by_global_norm(gradients, 0.5)
        optimizer.step(weights, gradients, 1e-3)
        network.trainee.set_weights(weights)
        losses.append({**stats, "gradient_norm": norm})
    assert set(losses[0]) == {"policy_loss", "value_loss", "entropy", "gradient_norm"}
    assert_on_file("a3c_losses.json", name, losses)
