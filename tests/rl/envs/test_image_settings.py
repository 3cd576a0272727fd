"""`env_kwargs.image`: size, colour, stack and bounds of the images of any environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces

from rlplat.errors import ConfigError, UsageError
from rlplat.rl.envs.atari import atari_settings
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.image_settings import ImageEnv, ImageSettings, _weights
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.names import resolve_env

RGB = spaces.Box(0, 255, (40, 60, 3), np.uint8)


class Film(Env[Any, Any]):
    """Image n of an episode is n everywhere, in all channels; an episode has six."""

    def __init__(self, space: Any = RGB, *, image: Any = "an argument of its own") -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.image = image

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 1
        return self._obs(self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(self.observation_space), 1.0, False, self.t == 6, {}

    def _obs(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._obs(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(self._obs, space.spaces))
        return np.full(space.shape, self.t, space.dtype)


def film(space: Any = RGB) -> Any:
    return Film(space)


def test_size_and_grey_are_means() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (40, 60, 3)).astype(np.uint8)
    env = ImageEnv(film(), ImageSettings(size=(20, 30), grey=True))
    [change] = env._images.values()
    grey = image @ np.array([0.299, 0.587, 0.114])
    expected = grey.reshape(20, 2, 30, 2).mean(axis=(1, 3))[..., None]
    assert env.observation_space == spaces.Box(0, 255, (20, 30, 1), np.uint8)
    assert np.abs(change(image) - expected).max() <= 0.501
    for num_pixels, wanted in ((210, 84), (96, 84), (7, 20), (5, 5), (3, 1)):
        weights = _weights(num_pixels, wanted)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-5)
        centre = weights @ np.arange(num_pixels)  # the image is not shifted
        np.testing.assert_allclose(centre, centre[::-1] * -1 + num_pixels - 1, atol=1e-4)
    np.testing.assert_array_equal(_weights(5, 5), np.eye(5))


@pytest.mark.parametrize(
    "space, settings, shape, dtype",
    [
        (RGB, {"size": 20}, (20, 20, 3), np.uint8),
        (RGB, {"stack": 4}, (4, 40, 60, 3), np.uint8),
        (RGB, {"size": [20, 30], "grey": True, "stack": 2}, (2, 20, 30, 1), np.uint8),
        (spaces.Box(0, 255, (3, 40, 60), np.uint8), {"stack": 2}, (2, 40, 60, 3), np.uint8),
        (spaces.Box(0, 255, (40, 60), np.uint8), {"size": 50, "grey": True}, (50, 50, 1), np.uint8),
        (spaces.Box(0, 255, (4, 40, 60, 3), np.uint8), {"grey": True}, (4, 40, 60, 1), np.uint8),
        (spaces.Box(0, 9, (40, 60, 3), np.float64), {"size": 20}, (20, 20, 3), np.float32),
        (spaces.Box(0, 9, (40, 60, 3), np.float64), {"stack": 2}, (2, 40, 60, 3), np.float64),
        (spaces.Box(-np.inf, np.inf, (40, 60), np.float32), {"range": [0, 9]}, (40, 60, 1), np.float32),
    ],
)
def test_what_becomes_of_spaces(space: Any, settings: dict[str, Any], shape: tuple[int, ...], dtype: Any) -> None:
    env = ImageEnv(film(space), ImageSettings.of(settings))
    low, high = settings.get("range", (space.low.min(), space.high.max()))
    assert env.observation_space == spaces.Box(low, high, shape, dtype)
    obs, _ = env.reset(seed=1)
    assert obs in env.observation_space and np.allclose(obs, 1)
    assert env.step(0)[0] in env.observation_space


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_stacks_are_of_one_episode_the_newest_last(vectorization: Any) -> None:
    inner = spaces.Dict({"pair": spaces.Tuple([RGB, spaces.Box(-1, 9, (3,))]), "pad": spaces.Discrete(9)})
    kwargs = {"space": inner, "image": {"size": 10, "grey": True, "stack": 3}}
    with make_vector_env(f"{__name__}:film", 2, env_kwargs=kwargs, vectorization=vectorization) as env:
        obs: Any = env.reset()
        assert obs["pair/0"].shape == (2, 3, 10, 10) and obs["pair/1"].shape == (2, 3)
        seen = [obs["pair/0"][0, :, 0, 0].tolist()]
        for t in range(7):
            step: Any = env.step(np.zeros(2, np.int64))
            seen.append(step.obs["pair/0"][0, :, 0, 0].tolist())
            if t == 4:
                assert step.final_obs["pair/0"][0, :, 0, 0].tolist() == [4, 5, 6]
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [1, 1, 1], [1, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize(
    "space, settings, text",
    [
        (RGB, {"sizes": 3}, r"env_kwargs\.image\.sizes'; did you mean 'size'"),
        (RGB, {"size": 0}, r"image\.size is 0; it is a number of pixels, or \[HEIGHT, WIDTH\]"),
        (RGB, {"size": [3]}, r"image\.size is \[3\]"),
        (RGB, {"grey": "yes"}, r"image\.grey is 'yes'; it is true or false"),
        (RGB, {"stack": 1.5}, r"image\.stack is 1\.5; it is a number of images from 1 to 32"),
        (RGB, {"range": [1, 0]}, r"image\.range is \[1, 0\]; it is \[LOW, HIGH\]"),
        (spaces.Box(-1, 1, (4,)), {"size": 8}, r"env_kwargs\.image is for images, but observations are Box"),
        (
            spaces.Box(0, 255, (40, 60, 5), np.uint8),
            {"grey": True},
            r"image\.grey: the observation is .* of 5 channels",
        ),
        (spaces.Box(0, 255, (4, 40, 60, 3), np.uint8), {"stack": 2}, r"is a stack of 4 images already"),
        (
            spaces.Dict({"map": spaces.Box(0, 10, (9, 9), np.uint8)}),
            {"size": 4},
            r"'map' has codes from 0 to 10",
        ),
    ],
)
def test_what_cannot_be_is_named(space: Any, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_env(f"{__name__}:film", {"space": space, "image": settings}, steps=2)


def test_whose_image_it_is() -> None:
    """A constructor's own argument of that name, and what is no mapping, is the environment's."""
    report = check_env(f"{__name__}:Film", {"image": {"size": 8}}, steps=2)
    assert str(report.spaces).startswith("Box(40, 60, 3)")
    pong = resolve_env("Pong")
    told = atari_settings(pong, {"image": {"size": [64, 48], "stack": 2}, "frameskip": 2})
    assert [told[key] for key in ("img_height", "img_width", "stack_num", "frameskip")] == [64, 48, 2, 2]
    with pytest.raises(UsageError, match=r"leave out env_kwargs\.image\.range"):
        atari_settings(pong, {"image": {"range": [0, 1]}})
    with pytest.raises(UsageError, match=r"env_kwargs\.image is for one environment each"):
        make_vector_env("CartPole-v1", 1, env_kwargs={"image": {"size": 8}}, vectorization="native")


def test_bounds_that_are_not_the_images_own_are_warned_of() -> None:
    lines = check_env(f"{__name__}:film", steps=60).lines
    assert any("was at most 6 in 60 steps" in line and "range '[0, 6]'" in line for line in lines)
    lines = check_env(f"{__name__}:film", {"image": {"range": [0, 6]}}, steps=60).lines
    assert lines == ["note: obs: image 40x60x3 (0..6 -> 0..1) -> nature_cnn"]


def test_minigrids_codes_have_their_own_bounds() -> None:
    pytest.importorskip("minigrid")
    env, wrapper = "minigrid:MiniGrid-Empty-5x5-v0", "minigrid.wrappers"

    def said(*wrappers: Any) -> str:
        return str(check_env(env, {"wrappers": list(wrappers)}, steps=3).spaces).partition(" ->")[0]

    keys = {"gymnasium.wrappers:FilterObservation": {"filter_keys": ["image", "direction"]}}
    assert "image: Box(7, 7, 3) uint8 HWC in [0, 10]" in said(keys)
    assert said(f"{wrapper}:ImgObsWrapper") == "Box(7, 7, 3) uint8 HWC in [0, 10]"
    assert said(f"{wrapper}:OneHotPartialObsWrapper", f"{wrapper}:ImgObsWrapper") == "Box(7, 7, 20) uint8 HWC in [0, 1]"
    assert said(f"{wrapper}:RGBImgPartialObsWrapper", f"{wrapper}:ImgObsWrapper") == "Box(56, 56, 3) uint8 HWC"
    [line] = check_env(env, steps=3).lines
    assert "'mission'" in line and "filter_keys: [direction, image]" in line
