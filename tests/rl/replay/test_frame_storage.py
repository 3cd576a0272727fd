"""Out of a replay of stacks comes what was put in: as many rows as were asked for, in the memory that was said."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import Env, spaces

from rlplat.errors import ConfigError
from rlplat.rl.envs.check import check_env
from rlplat.rl.interfaces import Array
from rlplat.rl.replay.buffer import ReplayShape, bytes_of_replay, make_replay
from rlplat.rl.replay.frame_storage import FrameStorage, PlainStorage, make_storage, new_frames
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec

ACTION = ActionSpec("discrete", n=2)
SEED = np.random.SeedSequence(5)


class Stacks:
    """One environment's stacks of `shape`, `num_new` of them new in every step, in episodes of `length` steps."""

    def __init__(self, leaf: ObsSpec, num_new: int, length: int, rng: np.random.Generator) -> None:
        self.leaf, self.num_new, self.length, self.rng = leaf, num_new, length, rng
        self.t = length

    def next(self) -> Array:
        C = self.leaf.shape[0]
        if self.t >= self.length:
            how = self.rng.integers(3)
            self.obs = (
                self._frames(C) if how else self.obs[:1].repeat(C, 0) if self.t < 0 else np.zeros_like(self._frames(C))
            )
            self.t = 0
        else:
            self.obs = np.concatenate([self.obs[self.num_new :], self._frames(self.num_new)])
            self.t += 1
        return self.obs

    def _frames(self, num: int) -> Array:
        return self.rng.integers(0, 256, (num, *self.leaf.shape[1:])).astype(self.leaf.dtype)


KINDS: dict[str, tuple[ObsSpec, int]] = {
    "4 grey": (ObsSpec("image", (4, 3, 2), "uint8", "CHW"), 1),
    "4 RGB side by side": (ObsSpec("image", (12, 3, 2), "uint8", "CHW"), 3),
    "2 RGB side by side": (ObsSpec("image", (6, 3, 2), "uint8", "CHW"), 3),
    "6 channels that are no stack": (ObsSpec("image", (6, 3, 2), "uint8", "CHW"), 6),
    "9 channels that are no stack": (ObsSpec("image", (9, 3, 2), "uint8", "CHW"), 9),
    "RGBA": (ObsSpec("image", (4, 3, 2), "uint8", "CHW"), 4),
    "4 RGBA side by side": (ObsSpec("image", (16, 3, 2), "uint8", "CHW"), 4),
    "4 RGB": (ObsSpec("image", (4, 3, 2, 3), "uint8", "THWC"), 1),
    "3 floats": (ObsSpec("image", (3, 2, 3, 2), "float32", "TCHW"), 1),
    "4 cameras": (ObsSpec("image", (4, 3, 2, 3), "uint8", "THWC"), 4),
    "every second of 4": (ObsSpec("image", (4, 3, 2), "uint8", "CHW"), 2),
    "RGB": (ObsSpec("image", (3, 3, 2), "uint8", "CHW"), 3),
    "3 grey": (ObsSpec("image", (3, 3, 2), "uint8", "CHW"), 1),
    "channels last": (ObsSpec("image", (3, 2, 12), "uint8", "HWC"), 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("seed", range(2))
def test_what_comes_out_was_put_in(kind: str, seed: int) -> None:
    """Whatever is assumed about new frames, through gaps, restarts from a checkpoint, and batches as long as a lane."""
    leaf, num_new = KINDS[kind]
    rng = np.random.default_rng(seed)
    num_lanes, capacity = int(rng.integers(1, 4)), int(rng.integers(5, 40))
    games = [Stacks(leaf, num_new, int(rng.choice([0, 1, 6, 50])), rng) for _ in range(num_lanes)]

    def empty() -> FrameStorage:
        return FrameStorage(leaf, num_lanes, capacity, int(guess))

    guess = rng.choice([1, max(1, leaf.shape[0] // 2)])
    frames, plain = empty(), PlainStorage(leaf, num_lanes, capacity)
    written = np.zeros(num_lanes, np.int64)
    is_gap = np.zeros(num_lanes * capacity, np.bool_)
    for _ in range(40):
        parts = []
        for lane, game in enumerate(games):
            stamps = written[lane] + np.arange(rng.integers(0, capacity + 1))
            written[lane] += len(stamps)
            parts += [(lane * capacity + stamp % capacity, lane, game.next()) for stamp in stamps]
        if parts:
            rows, lanes, obs = (np.array(column) for column in zip(*parts, strict=True))
            frames.put(rows, lanes, obs)
            plain.put(rows, lanes, obs)
            is_gap[rows] = False
        if rng.random() < 0.3:
            lane = int(rng.integers(num_lanes))
            row = lane * capacity + int(written[lane]) % capacity
            frames.put_gap(row, lane)
            is_gap[row] = True
            written[lane] += 1
        in_use = np.concatenate(
            [lane * capacity + np.arange(max(0, end - capacity), end) % capacity for lane, end in enumerate(written)]
        )
        if rng.random() < 0.2:
            state = frames.get_state(in_use)
            frames = empty()
            frames.set_state(in_use, state)
        known = in_use[~is_gap[in_use]]
        np.testing.assert_array_equal(frames.get(known), plain.get(known))
        frames.get(in_use)  # a gap has some observation, which nobody learns from


SETTINGS: list[dict[str, int]] = [{}, {"n_step": 3}, {"burn_in": 2, "unroll": 4}]


@pytest.mark.parametrize(("kind", "setting"), list(zip(KINDS, cycle(SETTINGS), strict=False)))
def test_as_many_rows_as_were_asked_for(kind: str, setting: dict[str, int]) -> None:
    """With and without the knowledge of the preflight, and the memory that it says."""
    leaf, num_new = KINDS[kind]
    shape = ReplayShape(
        **{"capacity": 1200, "num_lanes": 3, "n_step": 1, "discount": 0.9, "alpha": 0.0, "clip_rewards": False}
        | setting
    )  # fmt: skip
    for known in (0, num_new):
        leaf = replace(leaf, renewed=known)
        replay = make_replay(shape, leaf, ACTION, SEED)
        games = [Stacks(leaf, num_new, 200, np.random.default_rng(lane)) for lane in range(3)]
        for number in range(26):  # the replay is filled and written over twice
            replay.add(batch_of(games, 50, shape, number), 0)
        store = replay.store
        assert (store.heads - store.tails == 400).all()
        if not shape.unroll:
            assert len(replay) == 3 * (400 - shape.n_step)
        [storage] = store._storages.values()
        frames = storage.num_bytes if isinstance(storage, FrameStorage) else storage._rows.nbytes
        if known:
            said = bytes_of_replay(shape, leaf) - 64 * shape.capacity
            assert said <= frames * 1.01 and frames < 1.2 * said + 6 * 16 * leaf.flat_size * 4


def batch_of(games: list[Stacks], num_steps: int, shape: ReplayShape, number: int) -> TransitionBatch:
    obs = np.array([[game.next() for game in games] for _ in range(num_steps)])
    T, B = obs.shape[:2]
    no = np.zeros((T, B), np.bool_)
    return TransitionBatch(
        obs=obs, actions=np.zeros((T, B), np.int64), rewards=np.zeros((T, B), np.float32), terminated=no,
        truncated=no, valid=~no, q_taken=None, q_max=None, cut_rows=np.zeros(0, np.int64), final_obs=obs[:0, 0],
        core_states=np.ones((T, B, 2), np.float32), continues=number > 0,
    )  # fmt: skip


def test_more_memory_than_there_is_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf, num_new = KINDS["9 channels that are no stack"]
    storage = make_storage(leaf, 1, 1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10_000}))
    game = Stacks(leaf, num_new, 500, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"new ones of their 9 images each, more than 3: .*replay_capacity"):
        for stamp in range(1000):
            storage.put(np.array([stamp]), np.array([0]), game.next()[None])


class Moving(Env[Any, Any]):
    """`num_new` of the images of every observation are new; the Dict has a stack that never changes, too."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: list[int], num_new: int) -> None:
        self.num_new = num_new
        space = spaces.Box(0, 255, tuple(shape), np.uint8)
        self.observation_space = spaces.Dict({"moving": space, "still": space})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.stack = 0, self._frames(self.observation_space["moving"].shape[0])  # type: ignore[index]
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.t % 2:
            self.stack = np.concatenate([self.stack[self.num_new :], self._frames(self.num_new)])
        return self._obs(), 0.0, False, self.t == 5, {}

    def _obs(self) -> dict[str, Array]:
        return {"moving": self.stack.copy(), "still": np.zeros_like(self.stack)}

    def _frames(self, num: int) -> Array:
        shape = self.observation_space["moving"].shape[1:]  # type: ignore[index]
        return self.np_random.integers(0, 256, (num, *shape)).astype(np.uint8)


GREY, RGB = [6, 8, 8], [4, 8, 8, 3]


@pytest.mark.parametrize("shape, num_new", [(GREY, 3), (GREY, 1), (GREY, 6), (RGB, 1), (RGB, 4)])
def test_what_is_new_is_seen_before_the_run(shape: list[int], num_new: int) -> None:
    spaces_seen = check_env(lambda: Moving(shape, num_new), steps=16).require_sound()
    spec = spaces_seen.obs
    assert isinstance(spec, dict)
    assert (spec["moving"].renewed, spec["still"].renewed) == (num_new, 0)
    assert new_frames(spec["moving"]) == num_new % shape[0]
