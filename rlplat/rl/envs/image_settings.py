"""`env_kwargs.image`: size, colour, stack and bounds of the images of any environment, in plain numpy.

    env = with_images(env, ImageSettings.of({"size": 84, "grey": True, "stack": 4}))

Every image of the observation, in a Dict or Tuple too, becomes one of that form; everything else stays as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.rl.envs.gym_spaces import obs_parts, unsupported_observation
from rlplat.rl.envs.images import MAX_FRAMES, image_spec
from rlplat.rl.envs.obs_reader import as_frames
from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import ObsSpec

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Of red, green and blue (ITU-R BT.601), as ALE and OpenCV have it."""
FEWEST_LEVELS = 100
"""Whole numbers within narrower bounds are codes, of which there is no mean."""
KEY = "env_kwargs.image"


@dataclass(frozen=True)
class ImageSettings:
    size: tuple[int, int] | None = None
    """(height, width); means over the pixels that become one, linear between them where there are more."""
    grey: bool = False
    stack: int = 1
    """Images of the last steps, the oldest first; an episode begins with its first one `stack` times."""
    range: tuple[float, float] | None = None
    """Bounds of the pixels, where the space says others."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ImageSettings:
        """ConfigError that names the key."""
        names = [each.name for each in fields(cls)]
        for key in given:
            if key not in names:
                raise ConfigError(
                    f"unknown key '{KEY}.{key}'{closest(key, names) or ';'} the keys are {', '.join(names)}"
                )
        size, stack, span = given.get("size"), given.get("stack", 1), given.get("range")
        if size is not None:
            sides = [size, size] if _is_whole(size) else size
            if (
                not (isinstance(sides, list | tuple) and len(sides) == 2 and all(map(_is_whole, sides)))
                or min(sides) < 1
            ):
                raise ConfigError(f"{KEY}.size is {size!r}; it is a number of pixels, or [HEIGHT, WIDTH]")
            size = (int(sides[0]), int(sides[1]))
        if not isinstance(given.get("grey", False), bool):
            raise ConfigError(f"{KEY}.grey is {given['grey']!r}; it is true or false")
        if not _is_whole(stack) or not 1 <= stack <= MAX_FRAMES:
            raise ConfigError(f"{KEY}.stack is {stack!r}; it is a number of images from 1 to {MAX_FRAMES}")
        if span is not None:
            is_pair = isinstance(span, list | tuple) and len(span) == 2
            if not is_pair or not all(isinstance(each, int | float) for each in span) or not span[0] < span[1]:
                raise ConfigError(f"{KEY}.range is {span!r}; it is [LOW, HIGH], two numbers")
            span = (float(span[0]), float(span[1]))
        return cls(size, given.get("grey", False), int(stack), span)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_ours(env_kwargs: Mapping[str, Any], parameters: Container[str]) -> bool:
    """Whether the key `image` is meant here: a constructor that has an argument of that name gets it itself."""
    return isinstance(env_kwargs.get("image"), Mapping) and "image" not in parameters


def with_true_bounds(env: Any) -> Any:
    """MiniGrid's codes are in a space of 0 to 255, as its pictures are: what kind of thing, of which colour, in which
    state; the largest is 10 (`minigrid.core.constants`). One-hot ones are 0 and 1."""
    inner = type(getattr(env, "unwrapped", env))
    if not any(base.__module__.startswith("minigrid.") for base in inner.__mro__):
        return env
    names, layer = [], env
    while layer is not getattr(env, "unwrapped", env):
        names.append(type(layer).__name__)
        layer = layer.env
    spaces = getattr(env.observation_space, "spaces", {"": env.observation_space})
    images = [space for space in spaces.values() if len(space.shape or ()) == 3]
    is_picture = any(name.startswith("RGB") for name in names) or isinstance(env, ImageEnv)
    if is_picture or len(images) != 1 or images[0].dtype != np.uint8 or unsupported_observation(env.observation_space):
        return env
    return ImageEnv(env, ImageSettings(range=(0.0, 1.0 if "OneHotPartialObsWrapper" in names else 10.0)))


def with_images(env: Any, settings: ImageSettings) -> Any:
    """The environment with its images so; ConfigError where it has none, or they cannot be."""
    if settings == ImageSettings():
        return env
    if hasattr(env, "single_observation_space") or callable(getattr(env, "observation_space", None)):
        raise ConfigError(f"{KEY} is for environments that are one, of one agent: give it to those inside")
    return ImageEnv(env, settings)


class ImageEnv:
    """Duck-types gymnasium.Env as `GuardedEnv` needs it; all else is the inner environment's."""

    def __init__(self, env: Any, settings: ImageSettings) -> None:
        self.env = env
        found: dict[tuple[Any, ...], _Image] = {}
        for part in obs_parts(env.observation_space):
            space = part.space
            if not hasattr(space, "low"):
                continue
            low, high = space.low, space.high
            if settings.range is not None:
                low, high = (np.full(space.shape, bound, np.float64) for bound in settings.range)
            if (spec := image_spec(low, high, space.dtype)) is not None:
                found[part.keys] = _Image(part.path, space, spec, settings)
        if not found:
            raise ConfigError(
                f"{KEY} is for images, but observations are {env.observation_space} (docs/custom-env.md, Images)"
            )
        self._images = found
        self.observation_space = _mapped_space(env.observation_space, found)

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            return result  # the guard says what is wrong
        for image in self._images.values():
            image.forget()
        return self._mapped(result[0]), result[1]

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        return (self._mapped(result[0]), *result[1:])

    def _mapped(self, obs: Any, keys: tuple[Any, ...] = ()) -> Any:
        if keys in self._images:
            return self._images[keys](obs)
        if isinstance(obs, Mapping):
            return {key: self._mapped(part, (*keys, key)) for key, part in obs.items()}
        if isinstance(obs, tuple):
            return tuple(self._mapped(part, (*keys, i)) for i, part in enumerate(obs))
        return obs


class _Image:
    """One image of the observation: what becomes of it, and of its space."""

    def __init__(self, path: str, space: Any, spec: ObsSpec, settings: ImageSettings) -> None:
        self._space, self._spec, self._settings = space, spec, settings
        name = f"the observation '{path}'" if path else "the observation"
        channels, height, width = spec.channels_height_width
        self._num_frames = spec.shape[0] if "T" in spec.layout else 0
        channels //= max(1, self._num_frames)
        self._keeps = settings.size is None and not settings.grey
        is_codes = space.dtype.kind in "iub" and float(space.high.max()) - float(space.low.min()) < FEWEST_LEVELS
        if not self._keeps and is_codes:
            bounds = f"{self._space.low.min()} to {self._space.high.max()}"
            raise ConfigError(f"{KEY}: {name} has codes from {bounds}, which have no mean: leave out size and grey")
        if settings.grey and channels not in (1, 3):
            raise ConfigError(f"{KEY}.grey: {name} is {spec}, of {channels} channels; it is for red, green and blue")
        if settings.stack > 1 and self._num_frames:
            raise ConfigError(f"{KEY}.stack: {name} is a stack of {self._num_frames} images already: {spec}")
        if settings.stack > 1 and settings.stack * (1 if settings.grey else channels) > 128:
            raise ConfigError(f"{KEY}.stack: {settings.stack} images of {channels} channels are more than 128")
        self._weights: list[Array] = []
        if settings.size is not None:
            self._weights = [_weights(*sides) for sides in zip((height, width), settings.size, strict=True)]
            height, width = settings.size
        self._last: deque[Array] = deque(maxlen=settings.stack)
        self._dtype = space.dtype if self._keeps or space.dtype == np.uint8 else np.dtype(np.float32)
        num_channels = 1 if settings.grey else channels
        self._shape: tuple[int, ...] = (height, width, num_channels)
        num_frames = self._num_frames or (settings.stack if settings.stack > 1 else 0)
        if num_frames:
            self._shape = (num_frames, *self._shape)

    def new_space(self) -> Any:
        from gymnasium import spaces

        bounds = [self._resized_bound(self._space.low, np.min), self._resized_bound(self._space.high, np.max)]
        if self._settings.range is not None:
            bounds = [np.full(self._shape, bound) for bound in self._settings.range]
        low, high = (bound.astype(self._dtype) for bound in bounds)
        return spaces.Box(low, high, dtype=self._dtype.type)

    def _resized_bound(self, bound: Array, widest: Callable[..., Any]) -> Array:
        """Of each channel the widest, [*shape]."""
        images = self._channels_last(bound)
        of_channels = widest(images, axis=tuple(range(images.ndim - 1)))
        return np.broadcast_to(widest(of_channels) if self._settings.grey else of_channels, self._shape)

    def forget(self) -> None:
        """An episode begins."""
        self._last.clear()

    def __call__(self, obs: Any) -> Any:
        obs = as_frames(obs, self._space)
        if not isinstance(obs, np.ndarray) or obs.shape != self._space.shape:
            return obs  # the guard says what is wrong
        images = self._channels_last(obs)
        if not self._keeps:
            images = self._changed(images.astype(np.float32))
        if self._settings.stack == 1:
            return np.ascontiguousarray(images, self._dtype)
        images = np.array(images, self._dtype)
        while len(self._last) < self._settings.stack - 1:
            self._last.append(images)
        self._last.append(images)
        return np.stack(self._last)

    def _channels_last(self, obs: Array) -> Array:
        """[(T,) H, W, C]"""
        order = [self._spec.layout.index(axis) for axis in "THWC" if axis in self._spec.layout]
        images: Array = obs.reshape(self._spec.shape).transpose(order)
        return images

    def _changed(self, images: Array) -> Array:
        """float32[..., H, W, C] -> [..., h, w, c]"""
        if self._settings.grey and images.shape[-1] == 3:
            images = (images @ LUMINANCE)[..., None]
        if self._weights:
            tall, wide = self._weights
            *frames, _, width, channels = images.shape
            rows = tall @ images.reshape(*frames, -1, width * channels)
            images = wide @ rows.reshape(*frames, -1, width, channels)
        return images.round() if self._dtype == np.uint8 else images


def _weights(num_pixels: int, num_wanted: int) -> Array:
    """float32[wanted, pixels] whose rows sum to 1."""
    step = num_pixels / num_wanted
    if num_wanted <= num_pixels:  # means over areas
        starts = np.arange(num_wanted)[:, None] * step
        pixels = np.arange(num_pixels)[None]
        overlap = np.minimum(starts + step, pixels + 1) - np.maximum(starts, pixels)
        return (overlap.clip(0.0) / step).astype(np.float32)
    places = ((np.arange(num_wanted) + 0.5) * step - 0.5).clip(0, num_pixels - 1)
    near = 1.0 - np.abs(places[:, None] - np.arange(num_pixels)[None])
    return near.clip(0.0).astype(np.float32)


def _mapped_space(space: Any, images: Mapping[tuple[Any, ...], _Image], keys: tuple[Any, ...] = ()) -> Any:
    from gymnasium import spaces

    if keys in images:
        return images[keys].new_space()
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _mapped_space(part, images, (*keys, key))) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_mapped_space(part, images, (*keys, i)) for i, part in enumerate(space.spaces)])
    return space
