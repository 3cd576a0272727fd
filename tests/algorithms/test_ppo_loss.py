"""`ppo_loss` against the same formulas written once more, in numpy and float64, row by row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlplat.algorithms.ppo import ppo_loss  # noqa: E402
from tests.algorithms import losses  # noqa: E402

SWITCHES = {
    "clip_range": 0.2,
    "value_coef": 0.5,
    "entropy_coef": 0.01,
    "clip_value_loss": False,
}


def minibatch(size: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    old_log_probs = rng.normal(-1.0, 0.3, size)
    old_values = rng.normal(0.0, 1.0, size)
    return {
        "new_log_probs": old_log_probs + rng.normal(0.0, 0.3, size),  # many ratios beyond the clip range
        "new_entropies": rng.uniform(0.1, 0.7, size),
        "new_values": old_values + rng.normal(0.0, 0.5, size),
        "log_probs": old_log_probs,
        "values": old_values,
        "advantages": rng.normal(1.0, 2.0, size),
        "returns": rng.normal(0.0, 1.0, size),
    }


def reference(data: dict[str, np.ndarray], switches: dict[str, Any]) -> tuple[float, dict[str, float]]:
    epsilon = switches["clip_range"]
    advantages = data["advantages"]
    policy_terms, value_terms, kl_terms, clipped = [], [], [], 0
    for i, advantage in enumerate(advantages):
        ratio = math.exp(data["new_log_probs"][i] - data["log_probs"][i])
        gain = min(ratio * advantage, min(max(ratio, 1 - epsilon), 1 + epsilon) * advantage)
        if advantage < 0 and switches.get("dual_clip"):  # Ye et al. 2020, equation 5
            gain = max(gain, switches["dual_clip"] * advantage)
        policy_terms.append(-gain)
        error = (data["new_values"][i] - data["returns"][i]) ** 2
        if switches["clip_value_loss"]:
            move = min(max(data["new_values"][i] - data["values"][i], -epsilon), epsilon)
            error = max(error, (data["values"][i] + move - data["returns"][i]) ** 2)
        value_terms.append(0.5 * error)
        kl_terms.append(ratio - 1 - math.log(ratio))
        clipped += abs(ratio - 1) > epsilon
    size = len(advantages)
    stats = {
        "policy_loss": sum(policy_terms) / size,
        "value_loss": sum(value_terms) / size,
        "entropy": float(data["new_entropies"].mean()),
        "approx_kl": sum(kl_terms) / size,
        "clip_fraction": clipped / size,
    }
    loss = (
        stats["policy_loss"]
        + switches["value_coef"] * stats["value_loss"]
        - switches["entropy_coef"] * stats["entropy"]
    )
    return loss, stats


def loss_of(data: dict[str, np.ndarray], **switches: Any) -> tuple[Any, dict[str, float], dict[str, Any]]:
    tensors = {name: torch.tensor(array, dtype=torch.float32) for name, array in data.items()}
    for name in ("new_log_probs", "new_entropies", "new_values"):
        tensors[name].requires_grad_(True)
    columns = {name: tensor for name, tensor in tensors.items() if not name.startswith("new")}
    new = (tensors["new_log_probs"], tensors["new_entropies"], tensors["new_values"])
    loss, stats = losses.loss_of(ppo_loss, new, columns, **(SWITCHES | switches))
    return loss, stats, tensors


@pytest.mark.parametrize("clip_value_loss", [False, True])
@pytest.mark.parametrize("dual_clip", [None, 1.1])
def test_agrees_with_the_formulas(clip_value_loss: bool, dual_clip: float | None) -> None:
    switches = SWITCHES | {"clip_value_loss": clip_value_loss, "dual_clip": dual_clip}
    loss, stats, _ = loss_of(minibatch(), **switches)
    expected_loss, expected_stats = reference(minibatch(), switches)
    assert float(loss.detach()) == pytest.approx(expected_loss, rel=1e-5)
    assert stats == pytest.approx(expected_stats, rel=1e-5)


def test_the_gradient_is_the_policy_gradient_where_the_policy_has_not_moved() -> None:
    data = minibatch()
    data["new_log_probs"] = data["log_probs"]
    loss, stats, tensors = loss_of(data)
    loss.backward()
    size = len(data["advantages"])
    np.testing.assert_allclose(tensors["new_log_probs"].grad.numpy(), -data["advantages"] / size, rtol=1e-4)
    np.testing.assert_allclose(tensors["new_entropies"].grad.numpy(), -0.01 / size, rtol=1e-4)
    np.testing.assert_allclose(
        tensors["new_values"].grad.numpy(),
        0.5 * (data["new_values"] - data["returns"]) / size,
        rtol=1e-3,
        atol=1e-7,
    )
    assert stats["approx_kl"] == 0.0


def test_no_gradient_beyond_the_clip_range_where_the_loss_gains_from_it() -> None:
    """The table of the four cases: ratio above or below, advantage positive or negative."""
    data = {name: array[:4].copy() for name, array in minibatch().items()}
    data["advantages"] = np.array([1.0, 1.0, -1.0, -1.0])
    data["new_log_probs"] = data["log_probs"] + np.log([1.5, 0.5, 1.5, 0.5])
    loss, _, tensors = loss_of(data)
    loss.backward()
    assert (tensors["new_log_probs"].grad != 0).tolist() == [False, True, True, False]


def test_the_clipped_value_loss_case_by_case() -> None:
    """max((V - R)^2, (clip(V) - R)^2) / 2 with epsilon 0.2, V_old = 0, by hand; the larger one has the gradient."""
    values, returns = [0.1, 0.5, 0.5, -0.5], [1.0, 1.0, 0.0, 1.0]
    # within: (0.9)^2 | towards R: clipped (0.8)^2 > (0.5)^2 | away: (0.5)^2 > (0.2)^2 | away: (1.5)^2 > (1.2)^2
    expected = [0.81, 0.64, 0.25, 2.25]
    data = {name: array[:4].copy() for name, array in minibatch().items()}
    data |= {"new_values": np.array(values), "values": np.zeros(4), "returns": np.array(returns)}
    loss, stats, tensors = loss_of(data, clip_value_loss=True)
    assert stats["value_loss"] == pytest.approx(0.5 * np.mean(expected))
    loss.backward()
    errors = np.array(values) - np.array(returns)
    gradients = 0.5 * errors / 4 * [1, 0, 1, 1]  # no gradient where the clipped move is the larger error
    np.testing.assert_allclose(tensors["new_values"].grad.numpy(), gradients, rtol=1e-5)


def test_old_columns_get_no_gradient() -> None:
    loss, _, tensors = loss_of(minibatch(), clip_value_loss=True)
    loss.backward()
    assert all(tensors[name].grad is None for name in ("log_probs", "values", "advantages", "returns"))
