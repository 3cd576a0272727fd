"""`RatioLimiter` with two sides of very different eagerness."""

from __future__ import annotations

import numpy as np

from rlplat.rl.off_policy.apex_ring import RatioLimiter


def test_the_limiter_keeps_both_sides_within_the_slack() -> None:
    limiter = RatioLimiter(4.0, learning_starts=100, slack=50.0)
    assert limiter.may_sample(0, 0) and not limiter.may_update(99, 0)
    rng = np.random.default_rng(0)
    env_steps = updates = 0
    for _ in range(5000):
        may_sample, may_update = (
            limiter.may_sample(env_steps, updates),
            limiter.may_update(env_steps, updates),
        )
        assert may_sample or may_update, "both wait"
        if rng.random() < 0.9 and may_sample:  # far more eager than the learner
            env_steps += 16
        elif may_update:
            updates += 8
        if env_steps >= 100:
            assert -50 - 32 <= limiter.ahead(env_steps, updates) <= 50 + 16
    assert 3.9 < (env_steps - 100) / updates < 4.1
