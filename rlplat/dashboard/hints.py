"""Why does a run not learn? Rules over its metrics and its config, each with its number and what to try.

The symptoms are those that people who debug policy gradients look at first (Andy Jones, "Debugging RL, Without the
Agonizing Pain", 2021); the thresholds are ours. A rule that lacks its metric says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplat.metrics import number_or_none

Rows = Sequence[Mapping[str, Any]]
RECENT = 10
"""Iterations that a rule looks at, from the end."""


@dataclass(frozen=True)
class Hint:
    symptom: str
    """With the number that shows it."""
    advice: str


def hints(rows: Rows, config: Mapping[str, Any]) -> list[Hint]:
    """rows: the records of metrics.jsonl; config: the settings of config.yaml."""
    return [hint for rule in RULES for hint in rule(rows, config)] if len(rows) >= RECENT else []


def _values(rows: Rows, name: str) -> np.ndarray:
    """float64[N] of the rows that have a finite one."""
    values = (number_or_none(row.get(name)) for row in rows)
    return np.array([value for value in values if value is not None], float)


def _steps_too_large(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    kl, clip = (_values(rows[-RECENT:], f"learner/{name}") for name in ("approx_kl", "clip_fraction"))
    if len(kl) == RECENT and np.median(kl) > 0.05:
        yield Hint(
            f"the policy changes by a KL of {np.median(kl):.3g} an update (median of the last {RECENT})",
            "steps are too large: lower learning_rate or num_epochs, or set target_kl",
        )
    elif len(clip) == RECENT and np.median(clip) > 0.4:
        yield Hint(
            f"{np.median(clip):.0%} of the samples are clipped (median of the last {RECENT} updates)",
            "steps are too large: lower learning_rate or num_epochs",
        )


def _nothing_updated(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    kl, clip = (_values(rows[-RECENT:], f"learner/{name}") for name in ("approx_kl", "clip_fraction"))
    if len(kl) == len(clip) == RECENT and np.max(np.abs(kl)) < 1e-5 and np.max(clip) == 0.0:
        rate = _values(rows[-1:], "learner/learning_rate")
        yield Hint(
            f"the policy does not change: approx_kl is below {1e-5:g} in the last {RECENT} updates",
            f"learning_rate is {rate[0]:.3g} now: is its schedule over, or is it too small?"
            if len(rate)
            else "raise learning_rate",
        )


def _value_network_lags(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    variance = _values(rows[len(rows) // 2 :], "learner/explained_variance")
    if len(variance) >= RECENT and np.median(variance) < 0.0:
        yield Hint(
            f"the value function predicts worse than a constant (explained variance {np.median(variance):.2f}, median "
            "of the second half)",
            "set normalize_rewards=true, or raise value_coef; check the scale of the rewards",
        )


def _same_returns(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    returns = _values(rows, "episode_return_mean")
    if len(returns) >= RECENT and np.ptp(returns) == 0.0:
        yield Hint(
            f"every mean return is {returns[0]:g}",
            "the reward does not depend on what the agent does, or it never reaches it: check it by "
            "`rlplat check-env`, or make the first rewards easier to reach",
        )


def _no_episodes(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    episodes = _values(rows[-1:], "episodes")
    if len(episodes) and episodes[0] == 0:
        steps = _values(rows[-1:], "env_steps")
        yield Hint(
            f"no episode has ended in {int(steps[0]) if len(steps) else 0:,} env steps",
            "the environment needs a time limit (gymnasium.wrappers.TimeLimit), or a shorter one",
        )


def _entropy_collapsed(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    entropy, returns = _values(rows, "learner/entropy"), _values(rows, "episode_return_mean")
    if len(entropy) < RECENT or len(returns) < RECENT or entropy[0] <= 0.0:
        return
    left = float(np.median(entropy[-RECENT:]) / entropy[0])
    spread = float(np.ptp(returns)) or 1.0
    moved = abs(float(np.median(returns[-RECENT:]) - np.median(returns[:RECENT]))) / spread
    if 0.0 <= left < 0.02 and moved < 0.2:
        yield Hint(
            f"the policy is nearly deterministic (entropy at {left:.1%} of its start) and the return has not moved",
            "it stopped exploring too early: raise entropy_coef, lower learning_rate",
        )


def _gradients_clipped(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    limit = config.get("max_gradient_norm")
    norms = _values(rows[len(rows) // 2 :], "learner/gradient_norm")
    if isinstance(limit, int | float) and limit and len(norms) >= RECENT and np.median(norms) > 10 * limit:
        yield Hint(
            f"gradients are {np.median(norms) / limit:.0f} times as long as max_gradient_norm ({limit:g}) allows",
            "rewards or observations are too large: normalize_rewards=true, normalize_observations=true",
        )


def _skipped(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    skipped = _values(rows, "learner/skipped_minibatches")
    if len(skipped) and skipped.sum() > 0:
        yield Hint(
            f"{int(skipped.sum())} minibatches had NaN or infinite losses and were skipped",
            "look for NaN in observations and rewards (`rlplat check-env`); lower learning_rate",
        )


def _forgotten(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    returns = _values(rows, "episode_return_mean")
    if len(returns) < 5 * RECENT:
        return
    start, best = float(returns[0]), float(np.max(returns))
    end = float(np.median(returns[-max(RECENT, len(returns) // 10) :]))
    if best - start > 0 and (best - end) > 0.5 * (best - start):
        yield Hint(
            f"the return fell from {best:g} to {end:g}",
            "checkpoints/best has the weights of the best evaluation; lower learning_rate, or give it a schedule",
        )


def _evaluation_differs(rows: Rows, config: Mapping[str, Any]) -> Iterator[Hint]:
    row = next((row for row in reversed(rows) if row.get("eval/return_mean") is not None), None)
    if row is None:
        return
    mean, std, training = (
        number_or_none(row.get(name)) for name in ("eval/return_mean", "eval/return_std", "episode_return_mean")
    )
    if mean is None or std is None or training is None:
        return
    if training - mean > 2 * max(float(std), 0.05 * abs(float(training)), 1e-9):
        yield Hint(
            f"evaluation returns {mean:g}, training {training:g}",
            "the greedy policy does worse than the sampled one: it relies on noise, or the environments differ",
        )


RULES: tuple[Callable[[Rows, Mapping[str, Any]], Iterator[Hint]], ...] = (
    _no_episodes,
    _skipped,
    _same_returns,
    _steps_too_large,
    _nothing_updated,
    _entropy_collapsed,
    _value_network_lags,
    _gradients_clipped,
    _forgotten,
    _evaluation_differs,
)
