"""`LearnerReplay`: as many gradient steps as the ratio promises, however env steps are cut into rounds and resumed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlplat.rl.off_policy.learner import LearnerReplay
from rlplat.rl.replay.buffer import ReplayShape
from rlplat.rl.sampling.sample_batch import TransitionBatch
from tests.rl.specimens import make_spec

SPEC = make_spec()
SHAPE = ReplayShape(capacity=400, num_lanes=2, n_step=1, discount=0.9, alpha=0.0, clip_rewards=False)


def make_replay(ratio: float, starts: int, *, saves: bool = True) -> LearnerReplay:
    config = SimpleNamespace(env_steps_per_update=ratio, learning_starts=starts, save_replay=saves)
    return LearnerReplay(config, SPEC, SHAPE, np.random.SeedSequence(1))


def make_round(num_steps: int, num_invalid: int = 0) -> list[TransitionBatch]:
    """Of two workers with an environment each; the first rows of the first one only reset."""
    obs = np.zeros((1, *SPEC.obs.shape), np.float32)  # type: ignore[union-attr]
    batches = [TransitionBatch.empty(num_steps, obs, np.zeros(1, np.int64)) for _ in range(2)]
    for index, batch in enumerate(batches):
        batch.valid[:] = True
        batch.worker_index = index
    batches[0].valid[:num_invalid] = False
    return batches


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0, 4.0, 7.5])
@pytest.mark.parametrize("starts", [1, 16, 17])
def test_the_ratio_is_kept_over_rounds_of_any_size(ratio: float, starts: int) -> None:
    rng = np.random.default_rng(2)
    replay = make_replay(ratio, starts)
    credited = done = total = 0
    for number in range(20):
        added = replay.add(make_round(int(rng.integers(2, 10)), num_invalid=int(rng.integers(0, 2))))
        total += added
        credited += added if total >= starts else 0  # the round that fills it counts whole
        done += replay.due(added)
        assert replay.env_steps == total
        assert done == int(credited // ratio), f"after round {number}"
        if number == 9:
            again = make_replay(ratio, starts)
            again.set_state(replay.get_state())
            replay = again


def test_without_its_contents_it_fills_anew() -> None:
    replay = make_replay(4.0, 16, saves=False)
    for _ in range(2):
        replay.due(replay.add(make_round(8)))
    state: dict[str, Any] = replay.get_state()
    again = make_replay(4.0, 17, saves=False)
    again.set_state(state)
    assert len(again.buffer) == 0
    assert again.due(again.add(make_round(8))) == 0
    assert again.due(again.add(make_round(8))) == 4
