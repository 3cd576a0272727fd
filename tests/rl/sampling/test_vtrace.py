"""V-trace against eq. 1 of Espeholt et al. 2018 as it is written: a direct sum of products, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.rl.sampling.returns import gae, vtrace


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def direct_sum(batch: dict[str, np.ndarray], discount: float, rho_bar: float, c_bar: float) -> np.ndarray:
    """v_s = V(x_s) + sum_t discount^(t-s) * (prod_{s <= i < t} c_i) * rho_t * (r_t + discount * V(x_{t+1}) - V(x_t)),
    t up to the end of the episode or of the rollout; one environment."""
    r, v, nxt = (batch[name][:, 0].astype(np.float64) for name in ("rewards", "values", "next_values"))
    ratios = np.exp(batch["log_ratios"][:, 0].astype(np.float64))
    targets = v.copy()
    for s in range(len(r)):
        for t in range(s, len(r)):
            future = 0.0 if batch["terminated"][t, 0] else discount * nxt[t]
            traces = np.prod(np.minimum(c_bar, ratios[s:t]))
            targets[s] += discount ** (t - s) * traces * min(rho_bar, ratios[t]) * (r[t] + future - v[t])
            if batch["terminated"][t, 0] or batch["truncated"][t, 0]:
                break
    return targets


def made(rng: np.random.Generator, num_steps: int, num_envs: int = 1) -> dict[str, np.ndarray]:
    shape = (num_steps, num_envs)
    numbers = ("log_ratios", "rewards", "values", "next_values")
    batch: dict[str, np.ndarray] = {name: rng.normal(size=shape).astype(np.float32) for name in numbers}
    ends = rng.integers(0, 6, shape)  # of six rows one is terminated, one truncated
    batch |= {"terminated": ends == 0, "truncated": ends == 1, "valid": np.ones(shape, np.bool_)}
    batch["next_values"][:-1] = np.where(ends[:-1] > 1, batch["values"][1:], batch["next_values"][:-1])
    return batch


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([0.3, 1.0, 1.7]), st.sampled_from([0.3, 1.0]))
def test_targets_are_the_direct_sum_of_equation_1(seed: int, steps: int, rho_bar: float, c_bar: float) -> None:
    batch = made(np.random.default_rng(seed), steps)
    found = vtrace(**batch, discount=0.9, rho_bar=rho_bar, c_bar=c_bar)
    expected = direct_sum(batch, 0.9, rho_bar, c_bar)
    np.testing.assert_allclose(found.targets[:, 0], expected, rtol=1e-4, atol=1e-4)
    # The policy's gradient looks one step ahead, to the next row's target (section 4.2).
    flows = ~(batch["terminated"] | batch["truncated"])[:, 0]
    ahead = np.append(expected[1:], 0.0)
    ahead = np.where(flows & (np.arange(steps) < steps - 1), ahead, batch["next_values"][:, 0])
    ahead = np.where(batch["terminated"][:, 0], 0.0, ahead)
    advantages = batch["rewards"][:, 0] + 0.9 * ahead - batch["values"][:, 0]
    np.testing.assert_allclose(found.advantages[:, 0], advantages, rtol=1e-4, atol=1e-4)
    assert {array.dtype for array in found} == {np.dtype(np.float32)}


def test_on_policy_targets_are_n_step_returns() -> None:
    batch = made(np.random.default_rng(0), 7, 3)
    batch["log_ratios"][...] = 0.0
    found = vtrace(**batch, discount=0.9)
    del batch["log_ratios"]
    advantages, returns = gae(**batch, discount=0.9, gae_lambda=1.0)
    np.testing.assert_allclose(found.targets, returns, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.advantages, advantages, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.rhos, 1.0)


def test_lambda_on_policy_is_the_lambda_return_and_zero_looks_one_step_ahead() -> None:
    batch = made(np.random.default_rng(1), 7, 2)
    batch["log_ratios"][...] = 0.0
    by_lambda = {each: vtrace(**batch, discount=0.9, trace_lambda=each).targets for each in (0.0, 0.5)}
    del batch["log_ratios"]
    for each, targets in by_lambda.items():
        _, returns = gae(**batch, discount=0.9, gae_lambda=each)
        np.testing.assert_allclose(targets, returns, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ratio", "rho", "c"), [(1.0, 1.0, 1.0), (2.0, 2.0, 1.5), (2.1, 2.0, 1.5), (0.5, 0.5, 0.5)])
def test_the_two_clips_at_their_bounds_by_hand(ratio: float, rho: float, c: float) -> None:
    """Two steps with errors 1 and 1: v_0 = rho + discount * c * rho of step 1, whose ratio is 1."""
    batch: dict[str, Any] = {
        "log_ratios": column(np.log(ratio), 0.0),
        "rewards": column(1, 1),
        "values": column(0, 0),
        "next_values": column(0, 0),
        "terminated": column(0, 1) > 0,
        "truncated": column(0, 0) > 0,
        "valid": column(1, 1) > 0,
    }
    found = vtrace(**batch, discount=0.5, rho_bar=2.0, c_bar=1.5)
    np.testing.assert_allclose(found.targets, column(rho + 0.5 * c, 1.0), rtol=1e-6)
    np.testing.assert_allclose(found.rhos, column(rho, 1.0), rtol=1e-6)
    np.testing.assert_allclose(found.advantages, column(1.5, 1.0), rtol=1e-6)


def test_a_ratio_beyond_all_numbers_is_clipped_and_one_of_zero_cuts() -> None:
    batch = made(np.random.default_rng(2), 4)
    batch["terminated"][...] = batch["truncated"][...] = False
    batch["log_ratios"][:, 0] = [200.0, -200.0, 0.0, 0.0]
    found = vtrace(**batch, discount=0.9)
    assert np.isfinite(found.targets).all()
    np.testing.assert_array_equal(found.rhos[:, 0], [1.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(found.targets[1], batch["values"][1])  # nothing is learnt of what pi would never do


def test_reset_rows_are_zero_and_nothing_flows_through_them() -> None:
    batch = made(np.random.default_rng(3), 3)
    batch["valid"][1] = False
    batch["terminated"][:, 0], batch["truncated"][:, 0] = [True, False, False], False
    batch["rewards"][1], batch["log_ratios"][1] = 1e6, 50.0
    found = vtrace(**batch, discount=0.9)
    first = batch["values"][0] + found.rhos[0] * (batch["rewards"][0] - batch["values"][0])
    np.testing.assert_allclose(found.targets[0], first, rtol=1e-5)
    assert found.advantages[1] == found.rhos[1] == 0.0 and found.targets[1] == batch["values"][1]


def test_wrong_shapes_are_named() -> None:
    batch = made(np.random.default_rng(0), 3)
    with pytest.raises(AssertionError, match=r"next_values has shape \(2, 1\)"):
        vtrace(**batch | {"next_values": batch["next_values"][:2]}, discount=0.9)
