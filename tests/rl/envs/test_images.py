"""Which observations are images, and that an image of any form leads to the same network outputs."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Env, spaces
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation

from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.guard import GuardedEnv
from rlplat.rl.envs.gym_spaces import space_spec
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.obs_tree import flat_features
from rlplat.rl.run.agent_spaces import AgentSpaces
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.torch.encoders import folded, leaf_features, make_encoder
from tests.rl.specimens import make_spec

INF = np.inf
MANY = float(np.finfo(np.float32).max)


def spec_of(low: float, high: float, shape: tuple[int, ...], dtype: Any) -> ObsSpec:
    obs = space_spec(spaces.Box(low, high, shape, dtype), spaces.Discrete(2)).obs
    assert isinstance(obs, ObsSpec)
    return obs


@pytest.mark.parametrize(
    "low, high, shape, dtype, layout, channels_height_width",
    [
        (0, 255, (84, 84), "uint8", "HWC", (1, 84, 84)),  # GrayscaleObservation
        (0, 255, (96, 84, 1), "uint8", "HWC", (1, 96, 84)),
        (0, 255, (3, 210, 160), "uint8", "CHW", (3, 210, 160)),
        (0, 255, (210, 160, 3), "uint8", "HWC", (3, 210, 160)),
        (0, 255, (4, 84, 84), "uint8", "CHW", (4, 84, 84)),
        (0, 255, (12, 84, 84), "uint8", "CHW", (12, 84, 84)),
        (0, 255, (64, 64, 12), "uint8", "HWC", (12, 64, 64)),
        (0, 255, (4, 96, 96, 3), "uint8", "THWC", (12, 96, 96)),  # FrameStackObservation of RGB
        (0, 255, (4, 60, 80, 3), "uint8", "THWC", (12, 60, 80)),
        (0, 255, (4, 84, 84, 1), "uint8", "CHW", (4, 84, 84)),  # of keep_dim grey
        (0, 255, (4, 1, 84, 84), "uint8", "CHW", (4, 84, 84)),
        (0, 255, (2, 3, 40, 50), "uint8", "TCHW", (6, 40, 50)),
        (0, 255, (3, 3, 3), "uint8", "HWC", (3, 3, 3)),  # pixels, too few for a CNN
        (0, 1, (64, 64, 3), "float32", "HWC", (3, 64, 64)),
        (-1, 1, (3, 64, 64), "float64", "CHW", (3, 64, 64)),
        (0, 1, (48, 64), "float32", "HWC", (1, 48, 64)),
        (0, 65535, (64, 64), "uint16", "HWC", (1, 64, 64)),
        (-INF, INF, (64, 64, 3), "float32", "HWC", (3, 64, 64)),  # after NormalizeObservation
        (0, INF, (64, 64, 1), "float32", "HWC", (1, 64, 64)),  # depths
        (0, 10, (7, 7, 3), "int64", "HWC", (3, 7, 7)),  # codes
        (0, 1, (9, 9), "int8", "HWC", (1, 9, 9)),  # a board
        (-1, 1, (8, 8), "int64", "HWC", (1, 8, 8)),
        (0, 1, (8, 8, 111), "bool", "HWC", (111, 8, 8)),  # chess
        (0, 1, (6, 7, 2), "int8", "HWC", (2, 6, 7)),  # four in a row
        (0, 1, (7, 7, 3), "float32", "HWC", (3, 7, 7)),
    ],
)  # fmt: skip
def test_images(
    low: float,
    high: float,
    shape: tuple[int, ...],
    dtype: str,
    layout: str,
    channels_height_width: tuple[int, ...],
) -> None:
    obs = spec_of(low, high, shape, np.dtype(dtype).type)
    assert (obs.kind, obs.layout, obs.channels_height_width) == ("image", layout, channels_height_width)
    assert obs.dtype == ("uint8" if dtype == "uint8" else "float32")


@pytest.mark.parametrize(
    "low, high, shape, dtype",
    [
        (-INF, INF, (4, 17), "float32"),  # histories: steps x features
        (-1, 1, (10, 6), "float32"),
        (0, 1, (10, 6), "float32"),
        (-1, 1, (32, 32), "float32"),
        (-INF, INF, (64, 64), "float32"),
        (-MANY, MANY, (30, 30), "float32"),
        (0, 255, (4, 128), "uint8"),  # four memories of an Atari console
        (0, 255, (16, 128), "uint8"),
        (0, 5, (5, 3), "int64"),
        (-INF, INF, (4, 11, 11), "float32"),  # occupancy around a car
        (0, 1, (3, 3, 10), "float32"),  # times to collision
        (-(2**31), 2**31 - 1, (10, 10, 3), "int32"),
        (0, 1, (40, 30, 30, 3), "float32"),
        (0, 1, (2, 3, 4, 5, 6), "float32"),
        (0, 255, (128,), "uint8"),
    ],
)
def test_vectors(low: float, high: float, shape: tuple[int, ...], dtype: str) -> None:
    obs = spec_of(low, high, shape, np.dtype(dtype).type)
    assert (obs.kind, obs.shape, obs.dtype) == ("vector", shape, dtype)


def test_bounds_are_of_all_pixels_or_of_each_channel() -> None:
    high = np.ones((8, 9, 4), np.float32)
    high[..., 3] = 10.0  # RGB and a depth
    obs = space_spec(spaces.Box(np.zeros_like(high), high), spaces.Discrete(2)).obs
    assert isinstance(obs, ObsSpec) and (obs.low, obs.high) == ((0.0,) * 4, (1.0, 1.0, 1.0, 10.0))
    assert spec_of(0, 255, (36, 36, 3), np.uint8).low == () and spec_of(0, 9, (36, 36, 3), np.uint8).high == (9.0,)
    images = np.random.default_rng(0).random((2, 8, 9, 4), np.float32) * high
    expected = (images / [1.0, 1.0, 1.0, 10.0]).astype(np.float32).reshape(2, -1)
    np.testing.assert_allclose(flat_features(images, obs), expected, rtol=1e-6)
    np.testing.assert_allclose(leaf_features(torch.from_numpy(images), obs), expected, rtol=1e-6)


FORMS: dict[Any, tuple[int, ...]] = {
    "HWC": (40, 37, 3),
    "CHW": (3, 40, 37),
    "THWC": (3, 40, 37, 2),
    "TCHW": (3, 2, 40, 37),
}


@pytest.mark.parametrize("encoder", ["nature_cnn", "impala_cnn", "grid_cnn"])
@pytest.mark.parametrize("layout", list(FORMS))
def test_a_form_changes_nothing_but_the_order(layout: Any, encoder: str) -> None:
    """Bounds of each channel too: against the network on channels first that were scaled before."""
    shape = FORMS[layout]
    num_channels = math.prod(size for axis, size in zip(layout, shape, strict=True) if axis in "TC")
    low, high = tuple(range(num_channels)), tuple(range(10, 10 + 2 * num_channels, 2))
    plain = ObsSpec("image", (num_channels, 40, 37), "float32", "CHW", low=(0.0,), high=(1.0,))
    network = make_encoder(make_spec(plain, encoder=encoder))
    other = make_encoder(
        make_spec(ObsSpec("image", shape, "float32", layout, low=tuple(map(float, low)), high=high), encoder=encoder)
    )
    other.load_state_dict(network.state_dict())
    obs = torch.rand(2, *shape) * 20
    bottom, top = (torch.tensor(bound, dtype=torch.float32).reshape(1, -1, 1, 1) for bound in (low, high))
    scaled = (folded(obs, layout) - bottom) / (top - bottom)
    torch.testing.assert_close(other(obs), network(scaled), atol=1e-4, rtol=1e-4)
    if layout == "THWC":
        assert (folded(obs, layout)[1, 4] == obs[1, 2, :, :, 0]).all()  # frame 2, channel 0


class Pixels(Env[Any, Any]):
    """The images of one space, in whatever form they are handed over."""

    def __init__(self, space: spaces.Space[Any], form: Any = None) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.form = form or (lambda obs: obs)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 1.0, self.t == 5, False, {}

    def _obs(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1000)))
        return self.form(self.observation_space.sample())


class Lazy:
    def __init__(self, frames: Any) -> None:
        self.frames = frames

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.frames, dtype)


@pytest.mark.parametrize("form", [list, tuple, lambda obs: deque(obs, maxlen=2), Lazy])
def test_a_stack_may_come_as_its_frames(form: Any) -> None:
    for space in (spaces.Box(0, 255, (2, 8, 9, 3), np.uint8), spaces.Box(0, 1, (2, 8, 9), np.float64)):
        guard = GuardedEnv(Pixels(space, form), "pixels")
        obs, _ = guard.reset(seed=3)
        plain, _ = GuardedEnv(Pixels(space), "pixels").reset(seed=3)
        np.testing.assert_array_equal(obs, plain)
        assert check_env(lambda s=space: Pixels(s, form), steps=10).is_sound


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_what_arrives_has_the_shape_and_dtype_of_the_spec(vectorization: Any) -> None:
    """Rank 2, whole numbers of 64 bits, in a Dict beside a vector, through vector environments and a user's loop."""
    inner = spaces.Dict({"board": spaces.Box(-1, 1, (9, 9), np.int64), "grey": spaces.Box(0, 255, (40, 40), np.uint8)})
    with make_vector_env(lambda: Pixels(inner), 2, vectorization=vectorization, seed=1) as env:
        obs = env.reset()
        assert obs["board"].shape == (2, 9, 9, 1) and obs["board"].dtype == np.float32
        assert obs["grey"].shape == (2, 40, 40, 1) and obs["grey"].dtype == np.uint8
        for _ in range(6):
            step = env.step(np.zeros(2, np.int64))
            assert step.obs["board"].dtype == np.float32 and (np.abs(step.obs["board"]) <= 1).all()
    agent_spaces = AgentSpaces(inner, spaces.Discrete(2))
    rows, is_batch = agent_spaces.read(inner.sample())
    assert not is_batch and isinstance(rows, dict)
    assert rows["board"].shape == (1, 9, 9, 1) and rows["board"].dtype == np.float32


@pytest.mark.parametrize(
    "low, high, shape, dtype",
    [
        (0, 255, (16, 10, 12, 1), "uint8"),
        (-1, 1, (6, 7, 2), "int8"),
        (0, 1, (3, 3, 2), "int8"),
        (0, 9, (8, 8, 8, 1), "int64"),
    ],
)  # fmt: skip
def test_a_guess_is_made_once(low: int, high: int, shape: tuple[int, ...], dtype: str) -> None:
    """On the environment's own space: what was made of it would be another case of the rule."""
    space = spaces.Box(low, high, shape, np.dtype(dtype).type)
    for observed in (space, spaces.Dict({"image": space, "x": spaces.Discrete(2)})):
        wanted = AgentSpaces(observed, spaces.Discrete(2)).spec
        for vectorization in ("sync", "async"):
            with make_vector_env(lambda o=observed: Pixels(o), 2, vectorization=vectorization) as env:
                assert env.spec == wanted
                obs: Any = env.reset()
                image = obs["image"] if isinstance(obs, dict) else obs
                leaf = wanted.obs["image"] if isinstance(wanted.obs, dict) else wanted.obs
                assert image.shape == (2, *leaf.shape) and image.dtype == leaf.dtype


def test_wrappers_of_gymnasium() -> None:
    rgb = Pixels(spaces.Box(0, 255, (40, 50, 3), np.uint8))
    for env, layout in (
        (FrameStackObservation(rgb, 4), "THWC"),
        (GrayscaleObservation(rgb), "HWC"),
        (FrameStackObservation(GrayscaleObservation(rgb), 4), "CHW"),
        (FrameStackObservation(GrayscaleObservation(rgb, keep_dim=True), 4), "CHW"),
    ):
        spec = GuardedEnv(env, "pixels").spaces.obs
        assert isinstance(spec, ObsSpec) and (spec.kind, spec.layout) == ("image", layout)


class Faint(Env[Any, int]):
    """Pixels of `dtype` up to `largest`, in a space of 0 to 255."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype: str, largest: float) -> None:
        self.observation_space = spaces.Box(0, 255, (20, 20, 3), np.dtype(dtype).type)
        self.largest, self.steps = largest, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.observed(), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return self.observed(), 1.0, self.steps == 10, False, {}

    def observed(self) -> Any:
        return np.full((20, 20, 3), self.largest * self.steps / 10, self.observation_space.dtype)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_pixels_that_stay_far_below_their_bounds_are_told(dtype: str) -> None:
    """Fractions in a space of bytes are nearly 0 to a network: the 16 steps before a run are enough to see it."""
    words = r"is an image of 0 to 255, but was at most 1 in 16 steps"
    [found] = [each for each in check_env(lambda: Faint(dtype, 1), steps=16).findings if each.severity == "warning"]
    assert words in found.text and found.is_told
    assert check_env(lambda: Faint(dtype, 1), {"image": {"range": [0, 1]}}, steps=16).lines == [
        "note: obs: image 20x20x3 (0..1) -> grid_cnn"
    ]
    some = [str(check_env(lambda: Faint(dtype, 20), steps=steps)) for steps in (16, 50)]
    assert ["at most 20 in 50 steps" in text for text in some] == [False, True]
    assert "at most" not in str(check_env(lambda: Faint(dtype, 200), steps=50))
