"""Known answers by hand, and a slow oracle that walks each environment's trajectory as the definitions read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.rl.sampling.returns import explained_variance, gae


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def flags(*values: int) -> np.ndarray:
    return np.array(values, np.bool_)[:, None]


NEVER = flags(0, 0, 0)


def test_gae_by_hand() -> None:
    advantages, returns = gae(
        column(1, 1, 1), column(2, 2, 2), column(2, 2, 4), NEVER, NEVER, discount=0.5, gae_lambda=0.5
    )
    # deltas: 1 + .5*2 - 2 = 0, 0, 1 + .5*4 - 2 = 1; each advantage adds a quarter of the next.
    np.testing.assert_allclose(advantages, column(0.0625, 0.25, 1.0))
    np.testing.assert_allclose(returns, column(2.0625, 2.25, 3.0))
    assert advantages.dtype == returns.dtype == np.float32


def test_termination_has_no_future_and_truncation_bootstraps() -> None:
    rewards, values, next_values = column(1, 1, 1), column(0, 0, 0), column(10, 10, 10)
    end = flags(0, 1, 0)
    terminated, _ = gae(rewards, values, next_values, end, NEVER, discount=0.9, gae_lambda=1.0)
    truncated, _ = gae(rewards, values, next_values, NEVER, end, discount=0.9, gae_lambda=1.0)
    np.testing.assert_allclose(terminated, column(1 + 9 + 0.9 * 1, 1, 10))
    np.testing.assert_allclose(truncated, column(1 + 9 + 0.9 * 10, 10, 10))


def test_reset_rows_are_zero_and_nothing_flows_through_them() -> None:
    valid = flags(1, 0, 1)
    advantages, returns = gae(
        column(1, 99, 1),
        column(0, 0, 0),
        column(0, 50, 0),
        flags(1, 0, 0),
        NEVER,
        valid,
        discount=1.0,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(advantages, column(1, 0, 1))
    np.testing.assert_allclose(returns, column(1, 0, 1))


def test_lambda_one_without_cuts_is_the_discounted_return() -> None:
    rewards, zeros = column(1, 2, 3), column(0, 0, 0)
    _, returns = gae(rewards, zeros, zeros, NEVER, NEVER, discount=0.5, gae_lambda=1.0)
    np.testing.assert_allclose(returns, column(1 + 1 + 0.75, 2 + 1.5, 3))


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(AssertionError, match=r"terminated has shape \(2, 1\)"):
        gae(
            column(1, 1, 1),
            column(0, 0, 0),
            column(0, 0, 0),
            flags(0, 0),
            NEVER,
            discount=1.0,
            gae_lambda=1.0,
        )


def test_explained_variance() -> None:
    returns = np.float32([1, 2, 3])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 2, np.float32), returns) == 0.0
    assert explained_variance(-returns, returns) < 0.0
    assert np.isnan(explained_variance(returns, np.ones(3, np.float32)))


@st.composite
def fragments(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """[T, B] with cuts anywhere; in a NEXT_STEP environment a cut is followed by a reset row."""
    num_steps, num_envs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ends = rng.random((num_steps, num_envs)) < draw(st.sampled_from([0.0, 0.2, 0.6]))
    valid = np.ones_like(ends)
    if draw(st.booleans()):
        for t in range(1, num_steps):
            valid[t] = ~(ends[t - 1] & valid[t - 1])
            ends[t] &= valid[t]
    terminated = ends & (rng.random(ends.shape) < 0.5)
    values, next_values, rewards = (rng.normal(size=ends.shape).astype(np.float32) for _ in range(3))
    same = ~ends[:-1]
    next_values[:-1][same] = values[1:][same]
    return {
        "rewards": rewards,
        "values": values,
        "next_values": next_values,
        "terminated": terminated,
        "truncated": ends & ~terminated,
        "valid": valid,
    }


def oracle_gae(fragment: dict[str, np.ndarray], discount: float, gae_lambda: float) -> np.ndarray:
    """A_t = sum_k (discount * lambda)^k delta_{t+k}, up to the end of the trajectory or of the fragment."""
    num_steps, num_envs = fragment["rewards"].shape
    advantages = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        rows = {name: array[:, b] for name, array in fragment.items()}
        for start in range(num_steps):
            if not rows["valid"][start]:
                continue
            for k, t in enumerate(range(start, num_steps)):
                future = 0.0 if rows["terminated"][t] else discount * float(rows["next_values"][t])
                delta = float(rows["rewards"][t]) + future - float(rows["values"][t])
                advantages[start, b] += (discount * gae_lambda) ** k * delta
                if rows["terminated"][t] or rows["truncated"][t]:
                    break
    return advantages


@settings(max_examples=60, deadline=None)
@given(fragments(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.8, 1.0]))
def test_gae_agrees_with_the_definition(fragment: dict[str, np.ndarray], discount: float, gae_lambda: float) -> None:
    advantages, returns = gae(**fragment, discount=discount, gae_lambda=gae_lambda)
    expected = oracle_gae(fragment, discount, gae_lambda)
    np.testing.assert_allclose(advantages, expected, atol=1e-4)
    np.testing.assert_allclose(returns, expected + fragment["values"], atol=1e-4)
