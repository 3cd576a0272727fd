"""Returns and advantages: pure functions over float32[T, B], time first; vectorised over B, one short loop over T.

One convention throughout: `next_values[t]` is the value of the state that really followed step t (the final observation
where the episode was cut off). It needs no bootstrap row, and no function has to know how an environment resets itself:

    terminated   the future is worth 0: delta = r - V
    truncated    the future was not seen: delta = r + discount * V(final_obs) - V, and nothing flows back across the cut
    not valid    the environment only reset itself (NEXT_STEP autoreset): the row's result is 0, nothing flows through
"""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    valid: Array | None = None,
    *,
    discount: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 11-16): (advantages, returns), float32[T, B] each.

        delta_t = r_t + discount * V(s_{t+1}) * (1 - terminated_t) - V(s_t)
        A_t     = delta_t + discount * gae_lambda * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}
        R_t     = A_t + V(s_t)                    the TD(lambda) return: the critic's target

    rewards, values, next_values: float32[T, B]; terminated, truncated, valid: bool[T, B] (valid: None means all).
    """
    _check_shapes(rewards, values=values, next_values=next_values, terminated=terminated, truncated=truncated)
    deltas = rewards + discount * next_values * ~terminated - values
    carries = (discount * gae_lambda) * ~(terminated | truncated)
    if valid is not None:
        _check_shapes(rewards, valid=valid)
        deltas, carries = deltas * valid, carries * valid
    advantages = _discounted_sum(deltas, carries)
    return advantages, advantages + values


def lambda_returns(
    rewards: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    valid: Array | None = None,
    *,
    discount: float,
    trace_lambda: float,
) -> Array:
    """TD(lambda) returns (Sutton & Barto 2018, eq. 12.20), float32[T, B]; with values they give GAE: A = R - V.

    R_t = r_t + discount * ((1 - lambda) * V(s_{t+1}) + lambda * R_{t+1}), with R_{t+1} = V(s_{t+1}) at a cut and at the
    end of the fragment, and no future after a termination.
    """
    _check_shapes(rewards, next_values=next_values, terminated=terminated, truncated=truncated)
    carries = (discount * trace_lambda) * ~(terminated | truncated)
    bootstraps = (discount * ~terminated - carries) * next_values
    terms = rewards + bootstraps
    terms[-1] += carries[-1] * next_values[-1]
    if valid is not None:
        _check_shapes(rewards, valid=valid)
        terms, carries = terms * valid, carries * valid
    return _discounted_sum(terms, carries)


def n_step_returns(
    rewards: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    valid: Array | None = None,
    *,
    discount: float,
    n: int,
) -> Array:
    """n-step returns (Sutton & Barto 2018, eq. 7.1), float32[T, B]; fewer steps at a cut and at the fragment's end.

    R_t = r_t + discount * r_{t+1} + ... + discount^(n-1) * r_{t+n-1} + discount^n * V(s_{t+n})
    """
    _check_shapes(rewards, next_values=next_values, terminated=terminated, truncated=truncated)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    keeps = ~(terminated | truncated)
    one_step = rewards + discount * next_values * ~terminated
    returns = one_step
    for _ in range(n - 1):
        # k+1 steps from t = one reward, then k steps from t+1; where that is cut or not there, the bootstrap stands.
        longer = rewards[:-1] + discount * returns[1:]
        returns = np.concatenate([np.where(keeps[:-1], longer, one_step[:-1]), one_step[-1:]])
    if valid is not None:
        _check_shapes(rewards, valid=valid)
        returns = returns * valid
    return returns.astype(np.float32, copy=False)


def discounted_returns(
    rewards: Array, ends: Array, *, discount: float, bootstrap_value: Array | float = 0.0
) -> Array:
    """Discounted sums of rewards up to the end of the episode (`ends`: bool[T, B]), float32[T, B].

    R_t = r_t + discount * (1 - ends_t) * R_{t+1}; `bootstrap_value` ([B]) stands for R_T behind the last row.
    """
    _check_shapes(rewards, ends=ends)
    carries = discount * ~ends
    terms = rewards.astype(np.float32)
    terms[-1] += carries[-1] * bootstrap_value
    return _discounted_sum(terms, carries)


def explained_variance(values: Array, returns: Array) -> float:
    """1 - Var[returns - values] / Var[returns]: 1 is a perfect critic, 0 is as good as a constant, below is worse."""
    assert values.shape == returns.shape, f"values {values.shape}, returns {returns.shape}"
    variance = float(np.var(returns))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(returns - values)) / variance


def _discounted_sum(terms: Array, carries: Array) -> Array:
    """y_t = terms_t + carries_t * y_{t+1}, y_T = 0: float32[T, B]."""
    terms, carries = terms.astype(np.float32, copy=False), carries.astype(np.float32, copy=False)
    sums = np.empty_like(terms)
    running = np.zeros(terms.shape[1:], np.float32)
    for t in range(len(terms) - 1, -1, -1):
        running = terms[t] + carries[t] * running
        sums[t] = running
    return sums


def _check_shapes(rewards: Array, **others: Array) -> None:
    assert rewards.ndim == 2, f"rewards must be [T, B], got shape {rewards.shape}"
    for name, array in others.items():
        assert array.shape == rewards.shape, f"{name} has shape {array.shape}, rewards {rewards.shape}"
