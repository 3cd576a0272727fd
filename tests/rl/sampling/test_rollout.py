"""`Rollout`: its minibatches are all that counts, once; each learner of a group gets its share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.rl.sampling.rollout import Rollout, Rows
from rlplat.rl.sampling.sample_batch import SampleBatch


def rollout_of(valid: Any, has_core: bool = False) -> Rollout:
    T, B = valid.shape
    batch = SampleBatch.empty(T, np.zeros((B, 2), np.float32), np.zeros(B, np.int64))
    batch.valid[:] = valid
    if has_core:
        batch.core_state = np.zeros((B, 3), np.float32)
    numbers = np.random.default_rng(0).normal(2.0, 3.0, valid.shape).astype(np.float32)
    return Rollout(batch, numbers, batch.flat_obs(), numbers, numbers)


@pytest.mark.parametrize("has_core", [False, True])
def test_every_decision_is_in_one_minibatch_and_one_learners_share_of_it(has_core: bool) -> None:
    rng = np.random.default_rng(0)
    for seed in range(150):
        T, B, num_learners = (int(n) for n in rng.integers(1, 10, size=3))
        size = int(rng.choice([1, 2, T, B, T * B - 1 or 1, T * B, T * B + 1, 1000]))
        valid = rng.random((T, B)) < rng.choice([0.0, 0.3, 0.9, 1.0])
        rollout, flat = rollout_of(valid, has_core), valid.reshape(-1)

        def cut(learner: int, count: int, rollout: Rollout = rollout, size: int = size, seed: int = seed) -> list[Rows]:
            order = np.random.default_rng(seed)
            return list(rollout.minibatches(size, order, learner=learner, num_learners=count))

        cuts = [cut(learner, num_learners) for learner in range(num_learners)]
        seen = np.zeros(T * B, np.int64)
        for parts in zip(*cuts, strict=True):
            assert all(flat[part.rows].any() for part in parts)
            assert sum(part.share for part in parts) == pytest.approx(1.0)
            units = [part.envs if has_core else part.rows for part in parts]
            assert all((part.envs is not None) == has_core for part in parts)
            if len(np.unique(np.concatenate(units))) < num_learners:  # too few to be shared out
                parts = parts[:1]
            counts = [flat[part.rows].sum() for part in parts]
            for part, count in zip(parts, counts, strict=True):
                assert len(parts) == 1 or part.share == pytest.approx(count / sum(counts))
                np.add.at(seen, part.rows, 1)
        np.testing.assert_array_equal(seen[flat], 1)
        assert seen.max(initial=0) <= 1


def test_the_moments_are_those_of_the_whole_minibatch_whichever_learner_asks() -> None:
    valid = np.random.default_rng(1).random((5, 8)) < 0.7
    rollout = rollout_of(valid)
    first, second = (
        next(rollout.minibatches(1000, np.random.default_rng(0), normalize=True, learner=i, num_learners=2))
        for i in range(2)
    )
    assert (first.mean, first.scale) == (second.mean, second.scale)
    scaled = np.concatenate(
        [(rollout.advantages.reshape(-1)[part.rows] - part.mean) * part.scale for part in (first, second)]
    )
    assert scaled.mean() == pytest.approx(0.0, abs=1e-6) and scaled.std(ddof=1) == pytest.approx(1.0, rel=1e-5)


def test_of_whole_rollouts_only_what_counts_is_normalised_and_a_single_row_stays() -> None:
    valid = np.ones((4, 3), np.bool_)
    valid[2] = False
    rollout = rollout_of(valid)
    rollout.advantages[2] = 1e6
    rows = rollout.whole(normalize=True)
    np.testing.assert_array_equal(rows.rows, np.arange(12))
    scaled = ((rollout.advantages - rows.mean) * rows.scale)[valid]
    assert scaled.mean() == pytest.approx(0.0, abs=1e-6) and scaled.std(ddof=1) == pytest.approx(1.0, rel=1e-5)
    one = np.zeros((4, 3), np.bool_)
    one[1, 1] = True
    assert rollout_of(one).whole(normalize=True)[3:5] == (0.0, 1.0)
    assert rollout_of(valid, has_core=True).whole().envs.tolist() == [0, 1, 2]  # type: ignore[union-attr]
