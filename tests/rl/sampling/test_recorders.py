"""What recorders do that the workers' own tests do not show."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, PolicyOutput
from rlplat.rl.replay.step_store import StepStore
from rlplat.rl.sampling.recorders import Samples, Transitions
from rlplat.rl.sampling.sample_batch import join_envs
from rlplat.rl.spaces import ActionSpec, ObsSpec

BOX = ActionSpec("box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
T, B = 3, 2
OBS = np.zeros((B, 1), np.float32)
NONE = np.zeros(B, np.bool_)


def actions_of(t: int) -> Array:
    return np.array([[t, 0.5], [t, -0.5]], np.float32)


def test_transitions_hold_continuous_actions_and_need_no_q_values() -> None:
    recorder = Transitions(T, OBS, BOX, 0)
    for t in range(T):
        zeros = np.zeros(B, np.float32)
        recorder.decided(t, OBS + t, PolicyOutput(actions_of(t), zeros, zeros), None)
        recorder.answered(t, zeros + t, NONE, NONE, ~NONE, None)
    batch = recorder.finish(lambda _: (T - 1, OBS[:, 0]))
    assert batch.actions.dtype == np.float32 and batch.q_taken is None and batch.q_max is None
    np.testing.assert_array_equal(batch.actions, [actions_of(t) for t in range(T)])
    store = StepStore(ObsSpec("vector", (1,), "float32"), BOX, num_lanes=B, lane_capacity=8, n_step=1, discount=0.9)
    written = store.add(batch, 0)
    assert written.completed.tolist() == [0, 1, 8, 9]
    np.testing.assert_array_equal(store.actions[[0, 1, 8, 9]], batch.actions[:2].swapaxes(0, 1).reshape(4, 2))


def test_a_batch_without_decisions_joins_one_with_a_core() -> None:
    def values_of(columns: Array, obs: Any) -> Array:
        raise AssertionError("no episode was cut off")

    recorder = Samples(T, OBS, ActionSpec("discrete", n=2), 5, values_of=values_of, values_at_once=True)
    nothing = np.zeros(0, np.int64)
    idle, busy = (recorder.finish(lambda _: ((nothing, nothing), nothing)) for _ in range(2))
    busy.core_state = np.ones((B, 5), np.float32)
    joined = join_envs([idle, busy])
    assert joined.core_state.tolist() == [[0.0] * 5] * B + [[1.0] * 5] * B and joined.env_steps == 0
