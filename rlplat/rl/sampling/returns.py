"""Returns and advantages: pure functions over float32[T, B], time first; vectorised over B, one short loop over T.
Arrays; `gae` takes torch tensors, too.

One convention throughout: `next_values[t]` is the value of the state that really followed step t (the final observation
where the episode was cut off). It needs no bootstrap row, and no function has to know how an environment resets itself:

    terminated   the future is worth 0: delta = r - V
    truncated    the future was not seen: delta = r + discount * V(final_obs) - V, and nothing flows back across the cut
    not valid    the environment only reset itself (NEXT_STEP autoreset): the row's result is 0, nothing flows through
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlplat.errors import ConfigError, NonFiniteError
from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import RewardNormalizer
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.saved import Saved


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
    advantages = discounted_sum(deltas, carries)
    return advantages, advantages + values


class VTrace(NamedTuple):
    """float32[T, B] each; 0 (targets: the value) in rows that are not valid."""

    targets: Array
    """v_t: what the critic is to learn."""
    advantages: Array
    """r_t + discount * v_{t+1} - V(x_t), without importance weights."""
    rhos: Array
    """min(rho_bar, pi/mu): what the advantage counts in the policy's gradient."""


def vtrace(
    log_ratios: Array,
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    discount: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    trace_lambda: float = 1.0,
) -> VTrace:
    """V-trace targets (Espeholt et al. 2018, section 4.1, eq. 1, in the recursive form of remark 1).

        rho_t   = min(rho_bar, pi/mu),  c_t = trace_lambda * min(c_bar, pi/mu)             (remark 2)
        delta_t = rho_t * (r_t + discount * V(x_{t+1}) - V(x_t))
        v_t     = V(x_t) + delta_t + discount * c_t * (v_{t+1} - V(x_{t+1}))

    v_T = V(x_T): the last row bootstraps from its next value, and so does a truncated one, over which nothing flows
    back; terminated: V(x_{t+1}) = v_{t+1} = 0. On policy with rho_bar, c_bar >= 1 the targets are n-step returns.

    log_ratios: float32[T, B], log pi(a|x) - log mu(a|x), mu having acted; rewards, values, next_values: float32[T, B],
    of pi; terminated, truncated, valid: bool[T, B].
    """
    _check_shapes(rewards, log_ratios=log_ratios, values=values, next_values=next_values, valid=valid)
    _check_shapes(rewards, terminated=terminated, truncated=truncated)
    with np.errstate(over="ignore"):  # infinity is clipped like any large ratio
        ratios = np.exp(log_ratios)
    rhos = (np.minimum(ratios, np.float32(rho_bar)) * valid).astype(np.float32)
    discounts = discount * (valid & ~terminated)
    errors = rewards * valid + discounts * next_values - values * valid
    flows = discounts * ~truncated
    corrections = discounted_sum(rhos * errors, trace_lambda * np.minimum(ratios, np.float32(c_bar)) * flows)
    following = np.zeros_like(corrections)
    following[:-1] = corrections[1:]
    advantages = (errors + flows * following).astype(np.float32)
    return VTrace(values + corrections, advantages, rhos)


def explained_variance(values: Array, returns: Array) -> float:
    """1 - Var[returns - values] / Var[returns]: 1 is a perfect critic, 0 is as good as a constant, below is worse."""
    assert values.shape == returns.shape, f"values {values.shape}, returns {returns.shape}"
    variance = float(np.var(returns))
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(returns - values)) / variance


def discounted_sum(terms: Array, carries: Array) -> Array:
    """y_t = terms_t + carries_t * y_{t+1}, y_T = 0: float32[T, B]."""
    if isinstance(terms, np.ndarray):
        sums, carries = terms.astype(np.float32), carries.astype(np.float32, copy=False)
    else:
        sums = terms.clone()
    for t in range(len(sums) - 2, -1, -1):
        sums[t] += carries[t] * sums[t + 1]
    return sums


def _check_shapes(rewards: Array, **others: Array) -> None:
    assert rewards.ndim == 2, f"rewards must be [T, B], got shape {rewards.shape}"
    for name, array in others.items():
        assert array.shape == rewards.shape, f"{name} has shape {array.shape}, rewards {rewards.shape}"


class LearningRewards(Saved):
    """Raw, by sign (`clip_rewards`), or divided by the running deviation of the return (`normalize_rewards`).

    rewards = LearningRewards(config)(batch)            # float32[T, B]
    """

    saved = {"**": "_normalizer"}

    def __init__(self, config: Any) -> None:
        """config: of an algorithm that has these two switches."""
        if config.clip_rewards and config.normalize_rewards:
            raise ConfigError("clip_rewards and normalize_rewards exclude each other: set one of them to false")
        self._env = config.env
        self._clips, self._normalizes = config.clip_rewards, config.normalize_rewards
        self._normalizer = RewardNormalizer(config.discount)

    def __call__(self, batch: SampleBatch) -> Array:
        """NonFiniteError names environment, step and action of the first reward that is NaN or infinite."""
        rewards = batch.rewards
        if not np.isfinite(rewards).all():
            t, b = np.argwhere(~np.isfinite(rewards))[0]
            raise NonFiniteError(
                f"reward {rewards[t, b]} from environment {b} of rollout worker {batch.worker_index} (step {t} of the "
                f"fragment, action {batch.actions[t, b]}); fix {self._env}'s reward"
            )
        if self._clips:
            return np.sign(rewards)
        if self._normalizes:
            return self._normalizer.normalize(
                rewards,
                batch.terminated | batch.truncated,
                batch.valid,
                worker_index=batch.worker_index,
                incarnation=batch.incarnation,
            )
        return rewards
